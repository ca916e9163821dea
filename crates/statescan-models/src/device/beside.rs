//! One token of each of several sequences: the kernels of a pass, recorded once for each side of a state.

use super::Shared;
use super::state::DeviceState;
use crate::error::Result;
use crate::kernels::largest;
use crate::mixer::Steps;
use crate::model::whole::PassRooms;
use statescan::cuda::Landing;
use statescan::tensor::Tensor;
use statescan::{DType, Exec};

/// The tensors that the recorded passes of a state read and write besides it and the weights.
pub(super) struct Beside {
    /// (sequences, 1)
    tokens: Tensor,
    rooms: PassRooms,
    /// (sequences, vocab)
    logits: Tensor,
    /// (sequences): the most likely tokens.
    chosen: Tensor,
    /// Both on the host, where they are asked for.
    logits_on_host: Landing<f32>,
    chosen_on_host: Landing<i32>,
}

impl Beside {
    fn new(shared: &Shared, sequences: usize) -> Result<Self> {
        let (exec, config) = (&shared.exec, &shared.config);
        let mut rooms = PassRooms::default();
        rooms.stream.grow(exec, DType::F32, sequences, config.dim)?;
        rooms.block.normed.grow(exec, shared.weights.dtype, sequences, config.dim)?;
        Ok(Beside {
            tokens: Tensor::zeros(exec, DType::I32, &[sequences])?,
            rooms,
            logits: Tensor::zeros(exec, DType::F32, &[sequences, config.vocab])?,
            chosen: Tensor::zeros(exec, DType::I32, &[sequences])?,
            logits_on_host: Landing::new(exec, sequences * config.vocab)?,
            chosen_on_host: Landing::new(exec, sequences)?,
        })
    }

    /// The logits after the last pass, (sequences, vocab).
    pub(super) fn logits(&mut self, exec: &Exec) -> Result<Vec<f32>> {
        // SAFETY: nothing is kept of what came before.
        unsafe { self.logits_on_host.send(exec, &self.logits.view())? };
        Ok(self.logits_on_host.wait()?.to_vec())
    }

    /// The most likely token of each sequence, or none where one of all logits is not finite.
    pub(super) fn most_likely(&mut self, exec: &Exec) -> Result<Option<Vec<u32>>> {
        // SAFETY: as above.
        unsafe { self.chosen_on_host.send(exec, &self.chosen.view())? };
        Ok(self.chosen_on_host.wait()?.iter().map(|&token| u32::try_from(token).ok()).collect())
    }
}

impl Shared {
    /// Carries each of several sequences of a state on by one token, and gives what is asked of the pass: one launch of a graph, and a copy.
    pub(super) fn beside<T>(
        &self,
        tokens: &[u32],
        state: &mut DeviceState,
        ask: impl FnOnce(&mut Beside, &Exec) -> Result<T>,
    ) -> Result<T> {
        let mut beside = match state.beside.take() {
            Some(beside) => beside,
            None => Beside::new(self, tokens.len())?,
        };
        let answer = self.launch_beside(&mut beside, tokens, state).and_then(|()| ask(&mut beside, &self.exec));
        // recorded passes use it
        state.beside = Some(beside);
        // nothing is kept of a pass that failed
        let answer = answer?;
        state.current = 1 - state.current;
        state.count(1);
        Ok(answer)
    }

    fn launch_beside(&self, beside: &mut Beside, tokens: &[u32], state: &mut DeviceState) -> Result<()> {
        let tokens: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
        beside.tokens.write(&tokens)?;
        let at = state.current;
        match &state.graphs[at] {
            // SAFETY: the graph uses this state's memory, the weights of a model that the state keeps alive, and what was recorded with it; all are borrowed.
            Some(graph) => unsafe { graph.launch()? },
            None => {
                // the first pass compiles kernels and makes room, which no recording may
                self.pass_beside(beside, state)?;
                state.graphs[at] = Some(self.recorded(|| self.pass_beside(beside, state))?);
            }
        }
        Ok(())
    }

    fn pass_beside(&self, Beside { tokens, rooms, logits, chosen, .. }: &mut Beside, state: &mut DeviceState) -> Result<()> {
        let steps = Steps { sequences: state.sequences(), steps: 1 };
        self.blocks(steps, tokens, state, rooms)?;
        let PassRooms { stream, block, .. } = rooms;
        self.whole().head(stream.of(steps.rows()), block.normed.of_mut(steps.rows()), &mut logits.view_mut())?;
        Ok(largest(&self.exec, logits.view(), &mut chosen.view_mut())?)
    }
}
