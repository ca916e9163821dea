//! [`Corpus`]: what is learned from, tokens or the bytes of a text.

use crate::error::Result;
use crate::model::score::Tokens;
use std::ops::Range;

/// Tokens, of which those that are bytes take one.
pub(super) enum Corpus {
    Bytes(Vec<u8>),
    Tokens(Vec<u32>),
}

impl Corpus {
    /// As bytes where a vocabulary is that of bytes, and as tokens where it is not.
    pub(super) fn of(self, vocab: usize) -> Self {
        match self {
            Corpus::Tokens(tokens) if vocab == 256 && tokens.iter().all(|&token| token < 256) => {
                Corpus::Bytes(tokens.into_iter().map(|token| token as u8).collect())
            }
            Corpus::Bytes(bytes) if vocab != 256 => Corpus::Tokens(bytes.into_iter().map(u32::from).collect()),
            other => other,
        }
    }

    /// All but the last tenth, which is learned, and that tenth, which is held out.
    pub(super) fn learned(&self) -> Range<usize> {
        0..self.len() - self.len() / 10
    }

    pub(super) fn held_out(&self) -> Range<usize> {
        self.learned().end..self.len()
    }

    /// What its elements are.
    pub(super) fn unit(&self) -> &'static str {
        match self {
            Corpus::Bytes(_) => "byte",
            Corpus::Tokens(_) => "token",
        }
    }

    /// What tells one corpus from another: its length, and a sum of its elements that depends on their order (FNV-1a).
    pub(super) fn mark(&self) -> String {
        let add = |sum: u64, element: u64| (sum ^ element).wrapping_mul(0x100_0000_01b3);
        let start = 0xcbf2_9ce4_8422_2325u64;
        let sum = match self {
            Corpus::Bytes(bytes) => bytes.iter().fold(start, |sum, &byte| add(sum, u64::from(byte))),
            Corpus::Tokens(tokens) => tokens.iter().fold(start, |sum, &token| add(sum, u64::from(token))),
        };
        format!("{} {}s, {sum:016x}", self.len(), self.unit())
    }

    /// Refuses tokens that a vocabulary does not have.
    pub(super) fn check(&self, config: &crate::Config) -> Result<()> {
        match self {
            Corpus::Tokens(tokens) => config.check_tokens(tokens),
            // a vocabulary of 256 is that of bytes
            Corpus::Bytes(_) => Ok(()),
        }
    }
}

impl Tokens for Corpus {
    fn len(&self) -> usize {
        match self {
            Corpus::Bytes(bytes) => bytes.len(),
            Corpus::Tokens(tokens) => tokens.len(),
        }
    }

    fn part(&self, range: Range<usize>) -> Vec<u32> {
        match self {
            Corpus::Bytes(bytes) => bytes[range].iter().map(|&byte| u32::from(byte)).collect(),
            Corpus::Tokens(tokens) => tokens[range].to_vec(),
        }
    }
}
