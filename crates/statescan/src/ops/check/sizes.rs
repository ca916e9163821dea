//! The sizes of a call.

use crate::tensor::{MAX_RANK, Shape};

/// The sizes of a call by their letters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sizes {
    of: [usize; 26],
    known: u32,
}

impl Sizes {
    fn place(letter: u8) -> usize {
        usize::from(letter - b'A')
    }

    fn find(&self, letter: u8) -> Option<usize> {
        (letter.is_ascii_uppercase() && self.known >> Self::place(letter) & 1 == 1).then(|| self.of[Self::place(letter)])
    }

    fn set(&mut self, letter: u8, size: usize) {
        self.of[Self::place(letter)] = size;
        self.known |= 1 << Self::place(letter);
    }

    /// Adds the sizes of a layout's letters, but for those that are known already or free.
    pub(crate) fn add(&mut self, layout: &str, shape: &[usize], free: &str) {
        for (letter, &size) in layout.bytes().zip(shape) {
            if letter.is_ascii_uppercase() && self.find(letter).is_none() && !free.as_bytes().contains(&letter) {
                self.set(letter, size);
            }
        }
    }

    /// The size of a letter, if an argument of the call has it.
    pub(crate) fn known(&self, letter: char) -> Option<usize> {
        self.find(letter as u8)
    }

    /// The size of a letter that a required argument has.
    pub(crate) fn get(&self, letter: char) -> usize {
        debug_assert!(self.find(letter as u8).is_some(), "no argument has {letter}");
        self.of[Self::place(letter as u8)]
    }

    /// The shape of a layout whose letters are all known.
    pub(crate) fn known_shape(&self, layout: &str) -> Option<Shape> {
        let mut sizes = [0; MAX_RANK];
        for (size, letter) in sizes.iter_mut().zip(layout.bytes()) {
            *size = self.find(letter)?;
        }
        Some(Shape::of(&sizes[..layout.len()]))
    }

    /// The shape of a layout, in which an argument may have sizes of its own along the letters that are not known.
    pub(in crate::ops) fn shape(&self, layout: &str, own: &Shape) -> Shape {
        let mut sizes = [0; MAX_RANK];
        for (axis, letter) in layout.bytes().enumerate() {
            sizes[axis] =
                if letter.is_ascii_digit() { usize::from(letter - b'0') } else { self.find(letter).unwrap_or(own[axis]) };
        }
        Shape::of(&sizes[..layout.len()])
    }
}
