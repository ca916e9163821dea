//! How well a model guesses a text.

use super::Model;
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
        if tokens.len() < 2 {
            return Err(Error::Rows { seqlen: 1, got: tokens.len() });
        }
        self.check_tokens(exec, tokens)?;
        let (mut state, mut sum, last) = (self.state(), 0.0, tokens.len() - 1);
        for start in (0..last).step_by(ROWS) {
            let end = last.min(start + ROWS);
            let logits = self.forward_from(exec, &tokens[start..end], &mut state)?;
            let rows = logits.chunks_exact(self.config.vocab).zip(&tokens[start + 1..]);
            sum += rows.map(|(row, &token)| surprise(row, token as usize)).sum::<f64>();
        }
        Ok(sum / last as f64)
    }
}

/// `-log2 softmax(logits)[token]`.
fn surprise(logits: &[f32], token: usize) -> f64 {
    let highest = logits.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x));
    let whole: f64 = logits.iter().map(|x| f64::from(x - highest).exp()).sum();
    whole.log2() - f64::from(logits[token] - highest) * std::f64::consts::LOG2_E
}
