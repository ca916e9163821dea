//! How well a model in training guesses what is held out.

use super::Trainer;
use crate::device::DeviceModel;
use crate::error::Result;
use crate::model::Model;
use crate::model::score::{Part, ROWS, Tokens};
use statescan::{Device, Exec};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tokens of the held-out set that an evaluation between steps reads at most, and of a slice of them, each of which begins anew.
const SAMPLE: usize = 1 << 14;
const SLICE: usize = 1 << 11;
/// Tokens of a piece of a large set that is read whole. A piece begins anew, with the last token of the one before it.
const PIECE: usize = 1 << 14;
/// Tokens that the evaluation after the last step reads at most.
const LAST: usize = 1 << 20;
/// Bytes that threads which read slices beside each other need at most.
const ROOM: usize = 1 << 30;

impl Trainer {
    /// The cross entropy on the whole held-out set, the last tenth of the text, which is not learned, or the text that validates, in bits for a byte or a
    /// token. A large set is read in pieces, which threads share.
    ///
    /// # Errors
    /// As [`Trainer::model`].
    pub fn held_out(&self, exec: &Exec) -> Result<f64> {
        self.held_out_with(exec, |_| true)
    }

    /// The cross entropy of [`Trainer::held_out`]; `progress` is told how many tokens were read, now and then, and says whether
    /// to go on.
    ///
    /// # Errors
    /// As [`Trainer::model`]; [`Error::Interrupted`](crate::Error::Interrupted) where `progress` does not want to go on.
    pub fn held_out_with(&self, exec: &Exec, progress: impl FnMut(usize) -> bool + Send) -> Result<f64> {
        self.cross_entropy(exec, &slices(self.corpus.held_out().1, usize::MAX), progress)
    }

    /// The cross entropy on a sample of the held-out set that is the same at every step: all of a small set, and of a larger one slices that are evenly
    /// spread, [`Trainer::sample_len`] tokens in all. It is kept beside the losses, and the lowest one is [`Trainer::best`].
    ///
    /// # Errors
    /// As [`Trainer::held_out_with`].
    pub fn evaluate_with(&mut self, exec: &Exec, progress: impl FnMut(usize) -> bool + Send) -> Result<f64> {
        let bits = self.cross_entropy(exec, &slices(self.corpus.held_out().1, SAMPLE), progress)?;
        self.note(bits);
        if self.best.is_none_or(|(_, best)| (bits as f32) < best) {
            self.best = Some((self.losses.len(), bits as f32));
        }
        Ok(bits)
    }

    /// Evaluates as [`Trainer::evaluate_with`] does, without progress.
    ///
    /// # Errors
    /// As [`Trainer::model`].
    pub fn evaluate(&mut self, exec: &Exec) -> Result<f64> {
        self.evaluate_with(exec, |_| true)
    }

    /// Evaluates on [`Trainer::last_len`] tokens, for the end of a training.
    ///
    /// # Errors
    /// As [`Trainer::held_out_with`].
    pub fn evaluate_last(&mut self, exec: &Exec, progress: impl FnMut(usize) -> bool + Send) -> Result<f64> {
        let bits = self.cross_entropy(exec, &slices(self.corpus.held_out().1, self.last_len()), progress)?;
        self.note(bits);
        Ok(bits)
    }

    /// Keeps what the held-out set took at this step.
    fn note(&mut self, bits: f64) {
        let step = self.losses.len();
        self.evaluations.retain(|(at, _)| *at != step);
        self.evaluations.push((step, bits as f32));
    }

    /// Returns the loss on the held-out set, in bits for a byte or a token, and after how many steps.
    pub fn evaluations(&self) -> &[(usize, f32)] {
        &self.evaluations
    }

    /// After how many steps the sample of the held-out set took least, and what it took then; none before the first evaluation.
    pub fn best(&self) -> Option<(usize, f32)> {
        self.best
    }

    /// Tokens of the held-out set.
    pub fn held_out_len(&self) -> usize {
        self.corpus.held_out().1.len()
    }

    /// Tokens that [`Trainer::evaluate`] reads.
    pub fn sample_len(&self) -> usize {
        self.held_out_len().min(SAMPLE)
    }

    /// Tokens that [`Trainer::evaluate_last`] reads: not more than all steps read, which takes less time than they do.
    pub fn last_len(&self) -> usize {
        let read =
            self.options.steps.saturating_mul(self.options.batch * self.options.accumulate).saturating_mul(self.options.seqlen);
        let most = read.clamp(SAMPLE, LAST) / SLICE * SLICE;
        self.held_out_len().min(most)
    }

    /// The mean over slices of what is held out.
    fn cross_entropy(&self, exec: &Exec, slices: &[Range<usize>], mut progress: impl FnMut(usize) -> bool + Send) -> Result<f64> {
        let (model, (of, _)) = (self.model()?, self.corpus.held_out());
        let means = match exec.device() {
            Device::Cpu => beside_each_other(&model, exec, of, slices, &mut progress)?,
            _ => {
                let (device, mut before) = (DeviceModel::new(exec, &model, None)?, 0);
                let mean = |range: &Range<usize>| {
                    let part = Part::<dyn Tokens> { of, range: range.clone() };
                    let mean = device.bits_per_token_with(&part, &mut |read| progress(before + read));
                    before += range.len();
                    mean
                };
                slices.iter().map(mean).collect::<Result<_>>()?
            }
        };
        let guessed = |slice: &Range<usize>| (slice.len() - 1) as f64;
        let bits: f64 = means.iter().zip(slices).map(|(mean, slice)| mean * guessed(slice)).sum();
        Ok(bits / slices.iter().map(guessed).sum::<f64>())
    }
}

/// The means of slices, which threads take one after the other: passes of a small model are too short to be divided.
fn beside_each_other(
    model: &Model,
    exec: &Exec,
    of: &dyn Tokens,
    slices: &[Range<usize>],
    progress: &mut (dyn FnMut(usize) -> bool + Send),
) -> Result<Vec<f64>> {
    let each = model.config().pass_bytes(ROWS).saturating_add(model.config().vocab.saturating_mul(8 * ROWS));
    let threads = exec.threads().min(slices.len()).min(ROOM / each.max(1)).max(1);
    let exec = if threads > 1 { Exec::cpu(1).with_level(exec.level())? } else { exec.clone() };
    let (next, told) = (AtomicUsize::new(0), Mutex::new((0, progress)));
    let read_some = || {
        let mut means = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(range) = slices.get(number) else { return means };
            let (part, mut before) = (Part { of, range: range.clone() }, 0);
            let mean = model.bits_per_token_with(&exec, &part, &mut |read| {
                let Ok(mut told) = told.lock() else { return false };
                told.0 += read - before;
                before = read;
                let all = told.0;
                (told.1)(all)
            });
            means.push((number, mean));
        }
    };
    let mut means = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(read_some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("passes do not panic")).collect::<Vec<_>>()
    });
    // in the order of slices, so that their sum has the same bits for any number of threads
    means.sort_by_key(|(number, _)| *number);
    means.into_iter().map(|(_, mean)| mean).collect()
}

/// A small set; a larger one of at most so many tokens in pieces; of one that is larger still slices that are evenly spread.
fn slices(set: Range<usize>, most: usize) -> Vec<Range<usize>> {
    if set.len() <= SAMPLE {
        return vec![set];
    }
    if set.len() <= most {
        let starts = (set.start..set.end).step_by(PIECE);
        return starts.map(|start| start.max(set.start + 1) - 1..set.end.min(start + PIECE)).collect();
    }
    let (count, room) = (most / SLICE, set.len() - SLICE);
    let start = |i: usize| set.start + (room as u128 * i as u128 / (count - 1) as u128) as usize;
    (0..count).map(|i| start(i)..start(i) + SLICE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_bounded_and_spread_over_the_whole_set() {
        assert!(slices(7..7 + SAMPLE, SAMPLE).into_iter().eq(std::iter::once(7..7 + SAMPLE)));
        for (len, most) in [(SAMPLE + 1, SAMPLE), (100_000, SAMPLE), (20_000_000, SAMPLE), (20_000_000, LAST)] {
            let slices = slices(1000..1000 + len, most);
            assert_eq!(slices.iter().map(ExactSizeIterator::len).sum::<usize>(), most, "{len}");
            assert_eq!((slices[0].start, slices[slices.len() - 1].end), (1000, 1000 + len));
            assert!(slices.windows(2).all(|two| two[0].end <= two[1].start), "{len}: they do not overlap");
        }
    }

    #[test]
    fn pieces_guess_every_token_but_the_first_once() {
        for len in [SAMPLE + 1, 3 * PIECE, 3 * PIECE + 1, 100_000] {
            let pieces = slices(5..5 + len, usize::MAX);
            assert_eq!(pieces.iter().map(|piece| piece.len() - 1).sum::<usize>(), len - 1, "{len}");
            assert!(pieces[0].start == 5 && pieces.windows(2).all(|two| two[0].end == two[1].start + 1), "{len}: {pieces:?}");
        }
    }
}
