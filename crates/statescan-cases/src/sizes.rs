//! Sizes by letter.

use std::collections::BTreeMap;

/// Sizes of the axes, by letter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sizes(BTreeMap<char, usize>);

impl Sizes {
    /// Sizes from pairs.
    pub fn of(pairs: &[(char, usize)]) -> Self {
        Sizes(pairs.iter().copied().collect())
    }

    /// The size of a letter; 1 where there is none. A digit is the size itself.
    pub fn get(&self, letter: char) -> usize {
        letter.to_digit(10).map_or_else(|| self.0.get(&letter).copied().unwrap_or(1), |digit| digit as usize)
    }

    /// Returns these sizes with one of them changed.
    pub fn with(mut self, letter: char, size: usize) -> Self {
        self.0.insert(letter, size);
        self
    }

    /// Whether there is such a letter.
    pub fn has(&self, letter: char) -> bool {
        self.0.contains_key(&letter)
    }

    /// All of them by letter.
    pub fn iter(&self) -> impl Iterator<Item = (char, usize)> {
        self.0.iter().map(|(&letter, &size)| (letter, size))
    }

    /// The product of some of them.
    pub fn product(&self, letters: &str) -> f64 {
        letters.chars().map(|l| self.get(l) as f64).product()
    }

    /// A layout as numbers.
    pub fn shape(&self, layout: &str) -> Vec<usize> {
        layout.chars().map(|l| self.get(l)).collect()
    }
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (letter, size)) in self.0.iter().enumerate() {
            write!(f, "{}{letter}={size}", if i > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}
