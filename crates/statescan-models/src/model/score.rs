//! How well a model guesses a text.

use super::Model;
use crate::device::DeviceModel;
use crate::error::{Error, Result};
use statescan::Exec;

/// Tokens whose logits are there at once.
const ROWS: usize = 1024;

impl Model {
    /// The mean cross entropy of every token but the first, given all before it, in bits.
    ///
    /// # Errors
    /// As [`Model::advance`]; fewer than two tokens.
    pub fn bits_per_token(&self, exec: &Exec, tokens: &[u32]) -> Result<f64> {
        self.check_tokens(exec, tokens)?;
        let mut state = self.state();
        bits_per_token(self.config.vocab, tokens, |part| self.forward_from(exec, part, &mut state))
    }
}

impl DeviceModel {
    /// The mean cross entropy of every token but the first, given all before it, in bits.
    ///
    /// # Errors
    /// As [`DeviceModel::prefill`]; fewer than two tokens.
    pub fn bits_per_token(&self, tokens: &[u32]) -> Result<f64> {
        self.config().check_tokens(tokens)?;
        let mut state = self.state(1)?;
        bits_per_token(self.config().vocab, tokens, |part| self.forward_from(part, &mut state))
    }
}

/// `logits` gives those after every token of the next part.
fn bits_per_token(vocab: usize, tokens: &[u32], mut logits: impl FnMut(&[u32]) -> Result<Vec<f32>>) -> Result<f64> {
    if tokens.len() < 2 {
        return Err(Error::Rows { seqlen: 1, got: tokens.len() });
    }
    let (mut sum, last) = (0.0, tokens.len() - 1);
    for start in (0..last).step_by(ROWS) {
        let end = last.min(start + ROWS);
        let logits = logits(&tokens[start..end])?;
        let rows = logits.chunks_exact(vocab).zip(&tokens[start + 1..]);
        sum += rows.map(|(row, &token)| surprise(row, token as usize)).sum::<f64>();
    }
    Ok(sum / last as f64)
}

/// `-log2 softmax(logits)[token]`.
fn surprise(logits: &[f32], token: usize) -> f64 {
    let highest = logits.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x));
    let whole: f64 = logits.iter().map(|x| f64::from(x - highest).exp()).sum();
    whole.log2() - f64::from(logits[token] - highest) * std::f64::consts::LOG2_E
}
