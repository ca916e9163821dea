//! One token of one sequence: a graph of a few kernels for each block, recorded once for each state.

use super::state::{DeviceState, Side, of_layer};
use super::weights::{Block, Own};
use super::{Shared, lock};
use crate::config::{Config, Kind};
use crate::error::{Error, Result};
use statescan::cuda::layers::{
    Before, Conv, Mamba2Step, MambaStep, RowProduct, embedding, largest, mamba_step, mamba2_step, row_product, set_token,
};
use statescan::cuda::{Graph, Landing};
use statescan::tensor::Tensor;
use statescan::{DType, Exec};
use std::sync::MutexGuard;

/// How often a recording is begun at most, and what CUDA answers when something else has ended it (`CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`).
const RECORDINGS: usize = 4;
const INVALIDATED: u32 = 901;

/// What the kernels of a step hand on; everything is f32 but the token.
pub(super) struct Step {
    /// The token that is read next: one that was set, or the most likely one after the last step.
    token: Tensor,
    /// It, as far as the host knows.
    known: Option<u32>,
    stream: Tensor,
    projected: Tensor,
    maps: Tensor,
    scanned: Tensor,
    logits: Tensor,
    /// The most likely token on the host, where every step sends it, and the logits, where they are asked for.
    most_likely: Landing<i32>,
    on_host: Landing<f32>,
}

impl Step {
    pub(super) fn new(exec: &Exec, config: &Config) -> Result<Self> {
        let room = |len: usize| Tensor::zeros(exec, DType::F32, &[len]);
        Ok(Step {
            token: Tensor::zeros(exec, DType::I32, &[1])?,
            known: None,
            stream: Tensor::zeros(exec, DType::F32, &[1, config.dim])?,
            projected: room(config.in_proj())?,
            maps: room(config.dt_rank + 2 * config.dstate)?,
            scanned: room(config.inner)?,
            logits: room(config.vocab)?,
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
        let mut step = lock(&self.step);
        let at = state.current;
        if state.graphs[at].is_none() {
            let (side, _) = state.split();
            let graph = self.graph(&mut step, side)?;
            state.graphs[at] = Some(graph);
        }
        if step.known.take() != Some(token) {
            set_token(&self.exec, &mut step.token.view_mut(), token as i32)?;
        }
        let graph = state.graphs[at].as_ref().expect("recorded above");
        // SAFETY: the graph uses this state's memory, and the weights and the step's room of a model that the state keeps alive; both are borrowed.
        unsafe { graph.launch()? };
        state.position += 1;
        Ok(step)
    }

    /// What other threads do on the device may end a recording. Nothing of it has run, so it begins again.
    fn graph(&self, step: &mut Step, side: &mut Side) -> Result<Graph> {
        for _ in 1..RECORDINGS {
            match Graph::record(&self.exec, || self.record(step, side)) {
                Err(Error::Compute(statescan::Error::Cuda { code: INVALIDATED, .. })) => {}
                made => return made,
            }
        }
        Graph::record(&self.exec, || self.record(step, side))
    }

    fn record(&self, step: &mut Step, side: &mut Side) -> Result<()> {
        let (exec, weights, config) = (&self.exec, &self.weights, &self.config);
        embedding(exec, weights.embedding.view(), step.token.view(), &mut step.stream.view_mut())?;
        for (layer, block) in weights.blocks.iter().enumerate() {
            self.record_block(step, block, side, layer)?;
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

    fn record_block(&self, step: &mut Step, block: &Block, side: &mut Side, layer: usize) -> Result<()> {
        let (exec, config) = (&self.exec, &self.config);
        let Step { stream, projected, maps, scanned, .. } = step;
        let before = Before::Norm { weight: block.norm.view(), groups: 1, eps: config.eps };
        let into = RowProduct {
            before,
            bias: block.in_proj.view().bias,
            ..RowProduct::new(block.in_proj.weight.view(), stream.view().index(0, 0))
        };
        row_product(exec, &into, None, &mut projected.view_mut())?;
        let columns = |from: usize, count: usize| projected.view().slice(0, from..from + count);
        let (inner, channels) = (config.inner, config.conv_channels());
        let conv = |input| Conv { input, weight: block.conv_weight.view(), bias: block.conv_bias.as_ref().map(Tensor::view) };
        let (dt_bias, dt_limit, a, d) = (block.dt_bias.view(), config.dt_limit, block.a.view(), block.d.view());
        match &block.own {
            Own::Mamba { x_proj, dt_proj } => {
                let (conv, z) = (conv(columns(0, inner)), columns(inner, inner));
                let before = Before::Conv(conv, of_layer(&side.conv, layer).index(0, 0));
                let to_maps = RowProduct { before, ..RowProduct::new(x_proj.weight.view(), conv.input) };
                row_product(exec, &to_maps, None, &mut maps.view_mut())?;
                let (maps, dt_weight) = (maps.view(), dt_proj.weight.view());
                let args = MambaStep {
                    conv,
                    maps,
                    norms: (config.kind == Kind::FalconMamba).then_some(config.mixer_eps),
                    dt_weight,
                    dt_bias,
                    dt_limit,
                    a,
                    d,
                    z,
                };
                let mut conv_state = side.conv.view_mut().index(0, layer).index(0, 0);
                let mut state = side.scan.view_mut().index(0, layer).index(0, 0);
                mamba_step(exec, &args, &mut conv_state, &mut state, &mut scanned.view_mut())?;
                row_product(exec, &out_of(block, scanned), None, &mut stream.view_mut().index(0, 0))?;
            }
            Own::Mamba2 { norm } => {
                let (z, dt) = (columns(0, inner), columns(inner + channels, config.nheads));
                let (conv, conv_state) = (conv(columns(inner, channels)), of_layer(&side.conv, layer).index(0, 0));
                let args = Mamba2Step { conv, conv_state, dt, dt_bias, dt_limit, a, d, z, groups: config.ngroups };
                let mut state = side.scan.view_mut().index(0, layer).index(0, 0);
                mamba2_step(exec, &args, &mut state, &mut scanned.view_mut())?;
                let before = Before::Norm { weight: norm.view(), groups: config.ngroups, eps: config.mixer_eps };
                let mut moved = side.conv.view_mut().index(0, layer).index(0, 0);
                let out_of = RowProduct { before, ..out_of(block, scanned) };
                row_product(exec, &out_of, Some((conv.input, &mut moved)), &mut stream.view_mut().index(0, 0))?;
            }
        }
        Ok(())
    }
}

/// The projection out of a block, which is added to the stream.
fn out_of<'a>(block: &'a Block, scanned: &'a Tensor) -> RowProduct<'a> {
    RowProduct { bias: block.out_proj.view().bias, add: true, ..RowProduct::new(block.out_proj.weight.view(), scanned.view()) }
}
