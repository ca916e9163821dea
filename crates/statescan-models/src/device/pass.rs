//! Many rows through the blocks: as many steps of each sequence of a state.

use super::beside::Beside;
use super::state::DeviceState;
use super::{Shared, lock};
use crate::error::{Error, Result};
use crate::kernels::embedding;
use crate::mixer::Steps;
use crate::model::Logits;
use crate::model::whole::{BlockRooms, PassRooms};
use crate::weight::first_not_finite;
use statescan::tensor::Tensor;
use statescan::{DType, View, ViewMut};

/// Rows that go through the blocks at once: what bounds the memory of a long prompt.
const ROWS: usize = 16_384;
/// Rows whose logits are there at once.
const LOGITS: usize = 1024;

impl Shared {
    /// Carries the sequences of a state on by tokens, (sequences, steps), and gives logits: after the last step of each sequence, or after every step.
    pub(super) fn advance(&self, tokens: &[u32], state: &mut DeviceState, logits: Logits) -> Result<Vec<f32>> {
        let (sequences, length, mut out) = (state.sequences(), self.check_tokens(tokens, state)?, Vec::new());
        if length == 1 && (2..=ROWS).contains(&sequences) && !state.grows() {
            let logits = self.beside(tokens, state, Beside::logits)?;
            return self.finite(self.scaled(logits), state);
        }
        let most = (ROWS / sequences).max(1);
        for from in (0..length).step_by(most) {
            let steps = Steps { sequences, steps: most.min(length - from) };
            let part = tokens.chunks_exact(length).flat_map(|row| &row[from..from + steps.steps]);
            let part: Vec<i32> = part.map(|&token| token as i32).collect();
            let part = Tensor::from_slice(&self.exec, &part, &[part.len()])?;
            state.reserve(steps.steps)?;
            let mut rooms = lock(&self.rooms);
            rooms.stream.grow(&self.exec, DType::F32, steps.rows(), self.config.dim)?;
            rooms.block.normed.grow(&self.exec, self.weights.dtype, steps.rows(), self.config.dim)?;
            self.blocks(steps, &part, state, &mut rooms)?;
            let last = from + steps.steps == length;
            match logits {
                Logits::All => {
                    for first in (0..steps.rows()).step_by(LOGITS) {
                        let rows = first..steps.rows().min(first + LOGITS);
                        let PassRooms { stream, block: BlockRooms { normed, .. }, .. } = &mut *rooms;
                        out.extend(self.logits(stream.of(rows.end).slice(0, rows.clone()), normed.of_mut(rows.len()))?);
                    }
                }
                Logits::Last if last => {
                    let PassRooms { stream, block: BlockRooms { normed, .. }, .. } = &mut *rooms;
                    let rows = steps.of(stream.of(steps.rows())).index(1, steps.steps - 1);
                    out = self.logits(rows, normed.of_mut(sequences))?;
                }
                Logits::Last => {}
            }
            // nothing is kept of a pass that failed
            self.exec.synchronize()?;
            state.current = 1 - state.current;
            state.count(steps.steps);
        }
        self.finite(out, state)
    }

    /// Checks tokens, (sequences, steps), for the sequences of a state, and gives the number of steps.
    pub(super) fn check_tokens(&self, tokens: &[u32], state: &DeviceState) -> Result<usize> {
        state.check(self)?;
        self.config.check_tokens(tokens)?;
        let sequences = state.sequences();
        match sequences > 0 && tokens.len().is_multiple_of(sequences) {
            true => Ok(tokens.len() / sequences),
            false => Err(Error::Uneven { tokens: tokens.len(), sequences }),
        }
    }

    /// Logits, or which part of the model gave one that is not finite.
    pub(super) fn finite(&self, logits: Vec<f32>, state: &DeviceState) -> Result<Vec<f32>> {
        match first_not_finite(&logits) {
            None => Ok(logits),
            Some(at) => Err(self.overflow(state, logits[at])),
        }
    }

    /// Which part of the last pass gave a number that is not finite.
    pub(super) fn overflow(&self, state: &DeviceState, got: f32) -> Error {
        let step = state.position().saturating_sub(1);
        for sequence in 0..state.sequences() {
            match state.download(sequence).map(|state| state.first_not_finite()) {
                Ok(None) => {}
                Ok(Some((layer, got))) => return Error::Overflow { part: format!("layer {layer}"), step, got },
                Err(error) => return error,
            }
        }
        Error::Overflow { part: "the head".into(), step, got }
    }

    /// The logits of rows of the stream.
    fn logits(&self, rows: View<'_>, normed: ViewMut<'_>) -> Result<Vec<f32>> {
        let mut logits = Tensor::empty(&self.exec, DType::F32, &[rows.shape()[0], self.config.vocab])?;
        self.whole().head(rows, normed, &mut logits.view_mut())?;
        Ok(self.scaled(logits.to_vec()?))
    }

    /// Logits as the model has them, from the products of the head.
    pub(super) fn scaled(&self, mut logits: Vec<f32>) -> Vec<f32> {
        logits.iter_mut().for_each(|x| *x /= self.config.scales.logits);
        logits
    }

    /// The stream after the last block, and states on the other side.
    pub(super) fn blocks(&self, steps: Steps, tokens: &Tensor, state: &mut DeviceState, rooms: &mut PassRooms) -> Result<()> {
        let (rows, PassRooms { stream, block, added }) = (steps.rows(), rooms);
        let factor = self.config.scales.embedding;
        embedding(&self.exec, self.weights.embedding.view(), tokens.view(), factor, &mut stream.of_mut(rows))?;
        let whole = self.whole();
        for layer in 0..self.config.layers.len() {
            let part = state.part(steps, layer);
            let product = whole.mix(layer, stream.of(rows), block, |run, x, rooms| run.forward(x, vec![part], rooms, false))?;
            whole.add((layer, product), block, None, (None, &mut stream.of_mut(rows)), added)?;
        }
        Ok(())
    }
}
