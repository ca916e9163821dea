//! How well a model guesses a text.

use super::Model;
use crate::device::DeviceModel;
use crate::error::{Error, Result};
use statescan::Exec;
use std::ops::Range;

/// Tokens whose logits are there at once.
pub(crate) const ROWS: usize = 1024;

/// Tokens that are read in parts.
pub(crate) trait Tokens: Sync {
    fn len(&self) -> usize;
    fn part(&self, range: Range<usize>) -> Vec<u32>;
}

impl Tokens for [u32] {
    fn len(&self) -> usize {
        <[u32]>::len(self)
    }

    fn part(&self, range: Range<usize>) -> Vec<u32> {
        self[range].to_vec()
    }
}

/// Some of the tokens of something.
pub(crate) struct Part<'p, T: ?Sized> {
    pub(crate) of: &'p T,
    pub(crate) range: Range<usize>,
}

impl<T: Tokens + ?Sized> Tokens for Part<'_, T> {
    fn len(&self) -> usize {
        self.range.len()
    }

    fn part(&self, range: Range<usize>) -> Vec<u32> {
        self.of.part(self.range.start + range.start..self.range.start + range.end)
    }
}

impl Model {
    /// The mean cross entropy of every token but the first, given all before it, in bits.
    ///
    /// # Errors
    /// As [`Model::advance`]; fewer than two tokens.
    pub fn bits_per_token(&self, exec: &Exec, tokens: &[u32]) -> Result<f64> {
        self.score(exec, tokens, |_| ())
    }

    /// The cross entropy of [`Model::bits_per_token`]; `progress` is told how many tokens were read, now and then.
    ///
    /// # Errors
    /// As [`Model::bits_per_token`].
    pub fn score(&self, exec: &Exec, tokens: &[u32], mut progress: impl FnMut(usize)) -> Result<f64> {
        self.check_tokens(exec, tokens)?;
        self.bits_per_token_with(exec, tokens, &mut |read| {
            progress(read);
            true
        })
    }

    pub(crate) fn bits_per_token_with<T: Tokens + ?Sized>(
        &self,
        exec: &Exec,
        tokens: &T,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<f64> {
        let mut state = self.state();
        bits_per_token(self.config.vocab, tokens, |part| self.forward_from(exec, part, &mut state), progress)
    }
}

impl DeviceModel {
    /// The mean cross entropy of every token but the first, given all before it, in bits.
    ///
    /// # Errors
    /// As [`DeviceModel::prefill`]; fewer than two tokens.
    pub fn bits_per_token(&self, tokens: &[u32]) -> Result<f64> {
        self.score(tokens, |_| ())
    }

    /// The cross entropy of [`DeviceModel::bits_per_token`]; `progress` is told how many tokens were read, now and then.
    ///
    /// # Errors
    /// As [`DeviceModel::bits_per_token`].
    pub fn score(&self, tokens: &[u32], mut progress: impl FnMut(usize)) -> Result<f64> {
        self.config().check_tokens(tokens)?;
        self.bits_per_token_with(tokens, &mut |read| {
            progress(read);
            true
        })
    }

    pub(crate) fn bits_per_token_with<T: Tokens + ?Sized>(
        &self,
        tokens: &T,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<f64> {
        let mut state = self.state(1)?;
        bits_per_token(self.config().vocab, tokens, |part| self.forward_from(part, &mut state), progress)
    }
}

/// `logits` gives those after every token of the next part, `progress` whether to go on.
fn bits_per_token<T: Tokens + ?Sized>(
    vocab: usize,
    tokens: &T,
    mut logits: impl FnMut(&[u32]) -> Result<Vec<f32>>,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<f64> {
    if tokens.len() < 2 {
        return Err(Error::NothingToGuess { got: tokens.len() });
    }
    let (mut sum, last) = (0.0, tokens.len() - 1);
    for start in (0..last).step_by(ROWS) {
        let end = last.min(start + ROWS);
        let part = tokens.part(start..end + 1);
        let logits = logits(&part[..end - start])?;
        let rows = logits.chunks_exact(vocab).zip(&part[1..]);
        sum += rows.map(|(row, &token)| surprise(row, token as usize)).sum::<f64>();
        if !progress(end) {
            return Err(Error::Interrupted);
        }
    }
    Ok(sum / last as f64)
}

/// `-log2 softmax(logits)[token]`.
pub(crate) fn surprise(logits: &[f32], token: usize) -> f64 {
    let highest = logits.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x));
    let whole: f64 = logits.iter().map(|x| f64::from(x - highest).exp()).sum();
    whole.log2() - f64::from(logits[token] - highest) * std::f64::consts::LOG2_E
}
