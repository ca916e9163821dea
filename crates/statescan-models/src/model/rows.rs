//! The rows of a training step, and the zeros in what is added to the stream.

use crate::error::{Error, Result};
use crate::kernels::training::Zeros;

/// Rows of a text, and what follows each of their tokens.
pub(crate) struct Rows {
    pub(crate) read: Vec<u32>,
    pub(crate) targets: Vec<u32>,
    pub(crate) count: usize,
    pub(crate) seqlen: usize,
}

impl Rows {
    /// Sizes for rows of `seqlen + 1` tokens.
    ///
    /// # Errors
    /// No rows, or no whole ones.
    pub(crate) fn new(tokens: &[u32], seqlen: usize) -> Result<Self> {
        if tokens.is_empty() || seqlen == 0 || !tokens.len().is_multiple_of(seqlen + 1) {
            return Err(Error::Rows { seqlen, got: tokens.len() });
        }
        let (mut read, mut targets) = (Vec::new(), Vec::new());
        for row in tokens.chunks_exact(seqlen + 1) {
            read.extend_from_slice(&row[..seqlen]);
            targets.extend_from_slice(&row[1..]);
        }
        Ok(Rows { read, targets, count: tokens.len() / (seqlen + 1), seqlen })
    }
}

/// Random zeros in what is added to the stream, the same on the way back as on the way there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dropout {
    /// The share of zeros; everything else grows so that the mean stays.
    pub(crate) share: f64,
    /// The zeros are drawn from it.
    pub(crate) seed: u64,
}

impl Dropout {
    pub(crate) const NONE: Dropout = Dropout { share: 0.0, seed: 0 };

    /// Returns the share and the seed of the zeros at one place of a model, if there are any.
    pub(crate) fn zeros(self, place: usize) -> Option<Zeros> {
        (self.share > 0.0).then(|| Zeros { share: self.share, seed: self.seed ^ ((place as u64 + 1) << 40) })
    }
}
