//! Rows of activations: (steps, channels), a row for each token of a pass, and the sequences that they belong to.

pub(crate) mod backward;

use crate::error::Result;
use crate::weight::Weight;
use statescan::{Exec, View, ViewMut, linear};
use std::ops::Range;

/// What one pass through the blocks works on: rows of one sequence are neighbours.
pub(crate) struct Pass<'p> {
    pub(crate) exec: &'p Exec,
    pub(crate) rows: usize,
    /// The rows of each sequence; some may have none.
    pub(crate) sequences: &'p [Range<usize>],
}

/// Some columns of rows that are `pitch` elements apart.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'c> {
    pub(crate) data: &'c [f32],
    pub(crate) first: usize,
    pub(crate) pitch: usize,
}

impl<'c> Columns<'c> {
    /// Rows of a matrix, all columns.
    pub(crate) fn whole(data: &'c [f32], pitch: usize) -> Self {
        Columns { data, first: 0, pitch }
    }

    /// The same from another column on.
    pub(crate) fn from(self, column: usize) -> Self {
        Columns { first: self.first + column, ..self }
    }

    /// `count` columns of some rows as (rows, columns).
    pub(crate) fn matrix(&self, rows: usize, count: usize) -> statescan::Result<View<'c>> {
        View::strided(self.data, self.first, &[rows, count], &[self.pitch as isize, 1])
    }

    /// `count` columns of some rows as (1, channels, steps).
    pub(crate) fn channels(&self, rows: &Range<usize>, count: usize) -> statescan::Result<View<'c>> {
        let origin = rows.start * self.pitch + self.first;
        View::strided(self.data, origin, &[1, count, rows.len()], &[0, 1, self.pitch as isize])
    }

    /// Columns of some rows as (1, groups, states, steps).
    pub(crate) fn maps(&self, rows: &Range<usize>, groups: usize, dstate: usize) -> statescan::Result<View<'c>> {
        let origin = rows.start * self.pitch + self.first;
        let strides = [0, dstate as isize, 1, self.pitch as isize];
        View::strided(self.data, origin, &[1, groups, dstate, rows.len()], &strides)
    }
}

/// Some rows of a matrix with `count` columns as (1, channels, steps), to be written.
pub(crate) fn channels_mut<'c>(data: &'c mut [f32], rows: &Range<usize>, count: usize) -> statescan::Result<ViewMut<'c>> {
    let strides = [(rows.len() * count) as isize, 1, count as isize];
    ViewMut::strided(data, rows.start * count, &[1, count, rows.len()], &strides)
}

/// A linear layer.
pub(crate) struct Linear {
    pub(crate) weight: Weight,
    pub(crate) bias: Option<Vec<f32>>,
}

impl Linear {
    /// All rows of `x`, as wide as the weights, times the weights.
    pub(crate) fn forward(&self, exec: &Exec, x: Columns<'_>, rows: usize, y: &mut [f32]) -> Result<()> {
        let [outputs, inputs] = [self.weight.shape()[0], self.weight.shape()[1]];
        let bias = self.bias.as_ref().map(|bias| View::new(bias, &[outputs])).transpose()?;
        let y = ViewMut::new(&mut y[..rows * outputs], &[rows, outputs])?;
        Ok(linear::forward(exec, x.matrix(rows, inputs)?, self.weight.view(), bias, y)?)
    }
}

/// Divides a row by the root of its mean square, and multiplies it by the weights: RMSNorm, in place.
pub(crate) fn normalize(row: &mut [f32], weight: Option<&[f32]>, eps: f32) {
    let mean = sum_of_squares(row) / row.len() as f32;
    let factor = 1.0 / (mean + eps).sqrt();
    match weight {
        Some(weight) => row.iter_mut().zip(weight).for_each(|(x, w)| *x *= factor * w),
        None => row.iter_mut().for_each(|x| *x *= factor),
    }
}

/// In sixteen sums, so that it can be done in vectors; the order depends on the length alone.
fn sum_of_squares(row: &[f32]) -> f32 {
    let (chunks, rest) = row.as_chunks::<16>();
    let mut sums = [0f32; 16];
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += x * x;
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += x * x;
    }
    sums.iter().sum()
}

/// Memory that is used for one thing after another and grows to the largest.
#[derive(Default)]
pub(crate) struct Room(Vec<f32>);

impl Room {
    /// So many elements, which hold anything.
    pub(crate) fn of(&mut self, len: usize) -> &mut [f32] {
        if self.0.len() < len {
            self.0.resize(len, 0.0);
        }
        &mut self.0[..len]
    }
}

/// Activations within a block.
#[derive(Default)]
pub(crate) struct Rooms {
    pub(crate) projected: Room,
    pub(crate) conv: Room,
    pub(crate) maps: Room,
    pub(crate) dt: Room,
    pub(crate) scan: Room,
    pub(crate) normed: Room,
}
