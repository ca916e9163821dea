//! How well a model in training guesses what is held out.

use super::Trainer;
use super::corpus::Corpus;
use crate::device::DeviceModel;
use crate::error::Result;
use crate::model::score::Part;
use statescan::{Device, Exec};
use std::ops::Range;

/// Tokens of the held-out set that an evaluation between steps reads at most, and of a slice of them, each of which begins anew.
const SAMPLE: usize = 1 << 14;
const SLICE: usize = 1 << 11;

impl Trainer {
    /// The cross entropy on the held-out set, the last tenth of the text, which is not learned, in bits for a byte or a token.
    ///
    /// # Errors
    /// As [`Trainer::model`].
    pub fn held_out(&self, exec: &Exec) -> Result<f64> {
        self.held_out_with(exec, |_| ())
    }

    /// The same; `progress` is told how many tokens were read, now and then.
    ///
    /// # Errors
    /// As [`Trainer::model`].
    pub fn held_out_with(&self, exec: &Exec, progress: impl FnMut(usize)) -> Result<f64> {
        self.cross_entropy(exec, &[self.corpus.held_out()], progress)
    }

    /// The cross entropy on a sample of the held-out set that is the same at every step: all of a small set, and of a larger one slices that are evenly
    /// spread, [`Trainer::sample_len`] tokens in all. It is kept beside the losses.
    ///
    /// # Errors
    /// As [`Trainer::model`].
    pub fn evaluate(&mut self, exec: &Exec) -> Result<f64> {
        let bits = self.cross_entropy(exec, &sample(self.corpus.held_out()), |_| ())?;
        self.note(bits);
        Ok(bits)
    }

    /// Keeps what the held-out set took at this step.
    pub fn note(&mut self, bits: f64) {
        let step = self.losses.len();
        self.evaluations.retain(|(at, _)| *at != step);
        self.evaluations.push((step, bits as f32));
    }

    /// What the held-out set took, in bits for a byte or a token, and after how many steps.
    pub fn evaluations(&self) -> &[(usize, f32)] {
        &self.evaluations
    }

    /// Tokens of the held-out set, and those of them that [`Trainer::evaluate`] reads.
    pub fn held_out_len(&self) -> usize {
        self.corpus.held_out().len()
    }

    /// Tokens that [`Trainer::evaluate`] reads.
    pub fn sample_len(&self) -> usize {
        self.held_out_len().min(SAMPLE)
    }

    /// The mean over slices of the corpus.
    fn cross_entropy(&self, exec: &Exec, slices: &[Range<usize>], mut progress: impl FnMut(usize)) -> Result<f64> {
        let model = self.model()?;
        let device = match exec.device() {
            Device::Cpu => None,
            _ => Some(DeviceModel::new(exec, &model, None)?),
        };
        let (mut bits, mut count, mut before) = (0.0, 0, 0);
        for slice in slices {
            let part = Part::<Corpus> { of: &self.corpus, range: slice.clone() };
            let mut progress = |tokens| progress(before + tokens);
            let mean = match &device {
                None => model.bits_per_token_with(exec, &part, &mut progress)?,
                Some(device) => device.bits_per_token_with(&part, &mut progress)?,
            };
            bits += mean * (slice.len() - 1) as f64;
            count += slice.len() - 1;
            before += slice.len();
        }
        Ok(bits / count as f64)
    }
}

/// Slices of a set that are evenly spread, or the whole of a small one.
fn sample(set: Range<usize>) -> Vec<Range<usize>> {
    if set.len() <= SAMPLE {
        return vec![set];
    }
    let (count, room) = (SAMPLE / SLICE, set.len() - SLICE);
    let start = |i: usize| set.start + (room as u128 * i as u128 / (count - 1) as u128) as usize;
    (0..count).map(|i| start(i)..start(i) + SLICE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_bounded_and_spread_over_the_whole_set() {
        assert!(sample(7..7 + SAMPLE).into_iter().eq(std::iter::once(7..7 + SAMPLE)));
        for len in [SAMPLE + 1, 100_000, 20_000_000] {
            let slices = sample(1000..1000 + len);
            assert_eq!(slices.iter().map(ExactSizeIterator::len).sum::<usize>(), SAMPLE, "{len}");
            assert_eq!((slices[0].start, slices[slices.len() - 1].end), (1000, 1000 + len));
            assert!(slices.windows(2).all(|two| two[0].end <= two[1].start), "{len}: they do not overlap");
        }
    }
}
