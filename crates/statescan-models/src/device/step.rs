//! One token of one sequence: a graph of a few kernels for each block, recorded once for each state.

use super::state::DeviceState;
use super::{Shared, lock};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::kernels::{Before, RowProduct, embedding, largest, row_product, set_token};
use crate::mixer::Row;
use statescan::cuda::{Graph, Landing};
use statescan::tensor::Tensor;
use statescan::{DType, Exec};
use std::sync::MutexGuard;

/// How often a recording is begun at most, and what CUDA answers when something else has ended it (`CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`). The first ones are
/// open as long as it takes to compile a kernel, of which hybrids have a dozen.
const RECORDINGS: usize = 16;
const INVALIDATED: u32 = 901;

/// The values that the kernels of a step hand on; everything is f32 but the token.
pub(super) struct Step {
    /// The token that is read next: one that was set, or the most likely one after the last step.
    token: Tensor,
    /// It, as far as the host knows.
    known: Option<u32>,
    stream: Tensor,
    /// The values that kernels of mixers hand on.
    rooms: [Tensor; 3],
    /// A row before and after a norm behind a layer.
    behind: Tensor,
    /// Tokens that came before, where a layer keeps something of each.
    position: Tensor,
    logits: Tensor,
    /// The most likely token on the host, where every step sends it, and the logits, where they are asked for.
    most_likely: Landing<i32>,
    on_host: Landing<f32>,
}

impl Step {
    pub(super) fn new(exec: &Exec, config: &Config) -> Result<Self> {
        let room = |len: usize| Tensor::zeros(exec, DType::F32, &[len]);
        let mut rooms = [0; 3];
        for kind in &config.layers {
            rooms.iter_mut().zip(kind.mix().rooms(config)).for_each(|(most, len)| *most = len.max(*most));
        }
        Ok(Step {
            token: Tensor::zeros(exec, DType::I32, &[1])?,
            known: None,
            stream: Tensor::zeros(exec, DType::F32, &[1, config.dim])?,
            rooms: [room(rooms[0])?, room(rooms[1])?, room(rooms[2])?],
            behind: Tensor::zeros(exec, DType::F32, &[2, config.dim])?,
            logits: room(config.vocab)?,
            position: Tensor::zeros(exec, DType::I32, &[1])?,
            most_likely: Landing::new(exec, 1)?,
            on_host: Landing::new(exec, config.vocab)?,
        })
    }

    /// The most likely token after the last step, or none where a logit is not finite.
    pub(super) fn most_likely(&mut self) -> Result<Option<u32>> {
        self.known = u32::try_from(self.most_likely.wait()?[0]).ok();
        Ok(self.known)
    }

    /// The logits after the last step.
    pub(super) fn logits(&mut self, exec: &Exec) -> Result<Vec<f32>> {
        // SAFETY: nothing is kept of what came before.
        unsafe { self.on_host.send(exec, &self.logits.view())? };
        Ok(self.on_host.wait()?.to_vec())
    }
}

impl Shared {
    /// Reads one more token; results are there when the stream has come to them.
    pub(super) fn step(&self, token: u32, state: &mut DeviceState) -> Result<MutexGuard<'_, Step>> {
        state.check_single(self)?;
        self.config.check_tokens(&[token])?;
        state.reserve(1)?;
        let mut step = lock(&self.step);
        let at = state.current;
        if state.graphs[at].is_none() {
            let graph = self.recorded(|| self.record(&mut step, state))?;
            state.graphs[at] = Some(graph);
        }
        if state.grows() {
            set_token(&self.exec, &mut step.position.view_mut(), state.position() as i32)?;
        }
        if step.known.take() != Some(token) {
            set_token(&self.exec, &mut step.token.view_mut(), token as i32)?;
        }
        let graph = state.graphs[at].as_ref().expect("recorded above");
        // SAFETY: the graph uses this state's memory, and the weights and the step's room of a model that the state keeps alive; both are borrowed.
        unsafe { graph.launch()? };
        state.count(1);
        Ok(step)
    }

    /// Records the graph of a step. Other threads' work on the device may end a recording; nothing of it has run, so it begins
    /// again.
    pub(super) fn recorded(&self, mut calls: impl FnMut() -> Result<()>) -> Result<Graph> {
        for _ in 1..RECORDINGS {
            match Graph::record(&self.exec, &mut calls) {
                Err(Error::Compute(statescan::Error::Cuda { code: INVALIDATED, .. })) => {}
                made => return made,
            }
        }
        Graph::record(&self.exec, calls)
    }

    fn record(&self, step: &mut Step, state: &mut DeviceState) -> Result<()> {
        let (exec, weights, config) = (&self.exec, &self.weights, &self.config);
        let factor = config.scales.embedding;
        embedding(exec, weights.embedding.view(), step.token.view(), factor, &mut step.stream.view_mut())?;
        for layer in 0..config.layers.len() {
            self.record_block(step, layer, state)?;
        }
        let Step { token, stream, logits, most_likely, .. } = step;
        let before = Before::Norm { weight: weights.norm.view(), groups: 1, eps: config.eps };
        let head = RowProduct { before, ..RowProduct::new(weights.head().view(), stream.view().index(0, 0)) };
        row_product(exec, &head, None, &mut logits.view_mut())?;
        largest(exec, logits.view().expand(0, 1), &mut token.view_mut())?;
        // SAFETY: it is read before the next step, and nothing is kept of it.
        unsafe { most_likely.send(exec, &token.view())? };
        Ok(())
    }

    fn record_block(&self, step: &mut Step, layer: usize, state: &mut DeviceState) -> Result<()> {
        let (config, block, mix) = (&self.config, &self.weights.blocks[layer], self.config.layers[layer].mix());
        let mut sizes = mix.rooms(config).into_iter();
        let rooms = step.rooms.each_mut().map(|room| room.view_mut().slice(0, 0..sizes.next().unwrap_or_default()));
        let (norm, is_behind) = (block.norm.view(), config.norm_is_behind(layer));
        let before = Before::Norm { weight: norm, groups: 1, eps: config.eps };
        let row = Row {
            exec: &self.exec,
            config,
            norm: if is_behind { Before::Nothing } else { before },
            behind: is_behind.then(|| (norm, step.behind.view_mut())),
            stream: step.stream.view_mut().index(0, 0),
            weights: block.mixer.iter().map(Tensor::view).collect(),
            derived: block.derived.iter().map(Tensor::view).collect(),
            states: state.row(layer),
            position: step.position.view(),
        };
        mix.record(row, rooms)
    }
}
