//! Many rows through the blocks: as many steps of each sequence of a state.

use super::rooms::{Room, Rooms};
use super::state::{DeviceState, Ends};
use super::weights::{Block, Own};
use super::{Shared, lock};
use crate::config::{Config, Kind};
use crate::error::{Error, Result};
use crate::model::Logits;
use crate::weight::first_not_finite;
use statescan::cuda::layers::{embedding, rms_norm};
use statescan::ops::{causal_conv1d, selective_scan, ssd};
use statescan::tensor::Tensor;
use statescan::{DType, View, ViewMut};
use std::ops::Range;

/// Rows that go through the blocks at once: what bounds the memory of a long prompt.
const ROWS: usize = 16_384;
/// Rows whose logits are there at once.
pub(super) const LOGITS: usize = 1024;

/// Rows of a pass: so many steps of so many sequences.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    pub(super) sequences: usize,
    pub(super) steps: usize,
}

impl Steps {
    pub(super) fn rows(self) -> usize {
        self.sequences * self.steps
    }

    /// Rows as (sequences, steps, columns).
    pub(super) fn of(self, rows: View<'_>) -> View<'_> {
        rows.split(0, self.sequences)
    }

    /// Some columns of rows as (sequences, columns, steps).
    pub(super) fn channels(self, rows: View<'_>, columns: Range<usize>) -> View<'_> {
        self.of(rows).slice(2, columns).permute(&[0, 2, 1])
    }

    /// All columns, to be written.
    pub(super) fn channels_mut(self, rows: ViewMut<'_>) -> ViewMut<'_> {
        rows.split(0, self.sequences).permute(&[0, 2, 1])
    }
}

impl Shared {
    /// Carries the sequences of a state on by tokens, (sequences, steps), and gives logits: after the last step of each sequence, or after every step.
    pub(super) fn advance(&self, tokens: &[u32], state: &mut DeviceState, logits: Logits) -> Result<Vec<f32>> {
        state.check(self)?;
        self.config.check_tokens(tokens)?;
        let sequences = state.sequences();
        if sequences == 0 || !tokens.len().is_multiple_of(sequences) {
            return Err(Error::Uneven { tokens: tokens.len(), sequences });
        }
        let (length, mut out) = (tokens.len() / sequences, Vec::new());
        let most = (ROWS / sequences).max(1);
        for from in (0..length).step_by(most) {
            let steps = Steps { sequences, steps: most.min(length - from) };
            let part = tokens.chunks_exact(length).flat_map(|row| &row[from..from + steps.steps]);
            let part: Vec<i32> = part.map(|&token| token as i32).collect();
            let part = Tensor::from_slice(&self.exec, &part, &[part.len()])?;
            let mut rooms = lock(&self.rooms);
            rooms.grow(&self.exec, &self.config, steps.rows())?;
            self.blocks(steps, &part, state, &mut rooms)?;
            let last = from + steps.steps == length;
            match logits {
                Logits::All => {
                    for first in (0..steps.rows()).step_by(LOGITS) {
                        let rows = first..steps.rows().min(first + LOGITS);
                        let Rooms { stream, normed, .. } = &mut *rooms;
                        out.extend(self.logits(stream.of(rows.end).slice(0, rows.clone()), normed.of_mut(rows.len()))?);
                    }
                }
                Logits::Last if last => {
                    let Rooms { stream, normed, .. } = &mut *rooms;
                    let rows = steps.of(stream.of(steps.rows())).index(1, steps.steps - 1);
                    out = self.logits(rows, normed.of_mut(sequences))?;
                }
                Logits::Last => {}
            }
            // nothing is kept of a pass that failed
            self.exec.synchronize()?;
            state.current = 1 - state.current;
            state.position += steps.steps as u64;
        }
        match first_not_finite(&out) {
            None => Ok(out),
            Some(at) => Err(self.overflow(state, out[at])),
        }
    }

    /// Which part of the last pass gave a number that is not finite.
    pub(super) fn overflow(&self, state: &DeviceState, got: f32) -> Error {
        let step = state.position.saturating_sub(1);
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
    fn logits(&self, rows: View<'_>, mut normed: ViewMut<'_>) -> Result<Vec<f32>> {
        let Config { vocab, eps, .. } = self.config;
        rms_norm(&self.exec, rows, Some(self.weights.norm.view()), 1, eps, &mut normed)?;
        let mut logits = Tensor::empty(&self.exec, DType::F32, &[rows.shape()[0], vocab])?;
        self.products.multiply(normed.as_view(), self.weights.head().view(), None, &mut logits.view_mut(), false)?;
        Ok(logits.to_vec()?)
    }

    /// The stream after the last block, and states on the other side.
    fn blocks(&self, steps: Steps, tokens: &Tensor, state: &mut DeviceState, rooms: &mut Rooms) -> Result<()> {
        let rows = steps.rows();
        embedding(&self.exec, self.weights.embedding.view(), tokens.view(), &mut rooms.stream.of_mut(rows))?;
        let (from, to) = state.split();
        for (layer, block) in self.weights.blocks.iter().enumerate() {
            self.mix(steps, block, Some(Ends { from: &*from, to: &mut *to, layer }), rooms, false)?;
            let Rooms { scan, gated, stream, .. } = &mut *rooms;
            let (weight, bias) = (block.out_proj.weight.view(), block.out_proj.bias());
            self.products.multiply(mixed(block, scan, gated).of(rows), weight, bias, &mut stream.of_mut(rows), true)?;
        }
        Ok(())
    }

    /// What a block does with the stream before its last product, from zeros where there are no states; [`mixed`] are the rows that the product takes.
    /// With `keep` the scan keeps what its backward pass can begin with.
    pub(super) fn mix(&self, steps: Steps, block: &Block, ends: Option<Ends<'_>>, rooms: &mut Rooms, keep: bool) -> Result<()> {
        let (rows, eps) = (steps.rows(), self.config.eps);
        rms_norm(&self.exec, rooms.stream.of(rows), Some(block.norm.view()), 1, eps, &mut rooms.normed.of_mut(rows))?;
        let (normed, weight, bias) = (rooms.normed.of(rows), block.in_proj.weight.view(), block.in_proj.bias());
        self.products.multiply(normed, weight, bias, &mut rooms.projected.of_mut(rows), false)?;
        let (conv, scan) = ends.map(|ends| ends.views().into()).unzip();
        self.convolve(steps, block, conv, rooms)?;
        match &block.own {
            Own::Mamba { .. } => self.mamba(steps, block, scan, rooms, keep),
            Own::Mamba2 { .. } => self.mamba2(steps, block, scan, rooms),
        }
    }

    fn convolve(&self, steps: Steps, block: &Block, states: Option<(View<'_>, ViewMut<'_>)>, rooms: &mut Rooms) -> Result<()> {
        let (rows, (initial, last)) = (steps.rows(), states.unzip());
        let args = self.conv_args(steps, block, rooms.projected.of(rows)).initial_states(initial);
        let out = causal_conv1d::Outputs::default().y(steps.channels_mut(rooms.conv.of_mut(rows)));
        Ok(causal_conv1d::forward(&self.exec, &args, &mut out.final_states(last))?)
    }

    /// The convolution's columns of the first projection.
    pub(super) fn conv_columns(&self) -> Range<usize> {
        let first = if self.config.kind == Kind::Mamba2 { self.config.inner } else { 0 };
        first..first + self.config.conv_channels()
    }

    pub(super) fn conv_args<'r>(&self, steps: Steps, block: &'r Block, projected: View<'r>) -> causal_conv1d::Args<'r> {
        causal_conv1d::Args::new(steps.channels(projected, self.conv_columns()), block.conv_weight.view())
            .bias(block.conv_bias.as_ref().map(Tensor::view))
            .activation(causal_conv1d::Activation::Silu)
    }

    /// What follows the convolution in a block of Mamba or FalconMamba.
    fn mamba(
        &self,
        steps: Steps,
        block: &Block,
        states: Option<(View<'_>, ViewMut<'_>)>,
        rooms: &mut Rooms,
        keep: bool,
    ) -> Result<()> {
        let Own::Mamba { x_proj, dt_proj, norms } = &block.own else { return Ok(()) };
        let (exec, products, rows) = (&self.exec, &self.products, steps.rows());
        let (dt_rank, all) = (self.config.dt_rank, self.config.dt_rank + 2 * self.config.dstate);
        products.multiply(rooms.conv.of(rows), x_proj.weight.view(), None, &mut rooms.maps.of_mut(rows), false)?;
        if let Some(eps) = *norms {
            for (columns, groups) in [(0..dt_rank, 1), (dt_rank..all, 2)] {
                let raw = rooms.maps.of(rows).slice(1, columns.clone());
                rms_norm(exec, raw, None, groups, eps, &mut rooms.normed_maps.of_mut(rows).slice(1, columns))?;
            }
        }
        let Rooms { projected, conv, maps, normed_maps, dt, scan, workspace, saved, .. } = rooms;
        let maps = if norms.is_some() { normed_maps.of(rows) } else { maps.of(rows) };
        products.multiply(maps.slice(1, 0..dt_rank), dt_proj.weight.view(), None, &mut dt.of_mut(rows), false)?;
        let (initial, last) = states.unzip();
        let args = self.scan_args(steps, block, [projected, conv, dt].map(|room| room.of(rows)), maps).initial_state(initial);
        let saved = keep.then(|| saved.view_mut(exec, selective_scan::checkpoints_len(&args)?)).transpose()?;
        let scratch = workspace.view_mut(exec, selective_scan::workspace_len(exec, &args)?)?;
        let out = selective_scan::Outputs::default().y(steps.channels_mut(scan.of_mut(rows))).workspace(scratch);
        Ok(selective_scan::forward(exec, &args, &mut out.final_state(last).checkpoints(saved))?)
    }

    /// The scan of a block of Mamba or FalconMamba, from its projection, convolution, step sizes and maps.
    pub(super) fn scan_args<'r>(
        &self,
        steps: Steps,
        block: &'r Block,
        [projected, conv, dt]: [View<'r>; 3],
        maps: View<'r>,
    ) -> selective_scan::Args<'r> {
        let Config { inner, dt_rank, dstate, .. } = self.config;
        let (x, dt) = (steps.channels(conv, 0..inner), steps.channels(dt, 0..inner));
        let [b, c] = [dt_rank, dt_rank + dstate].map(|first| steps.channels(maps, first..first + dstate));
        selective_scan::Args::new(x, dt, block.a.view(), b, c)
            .d(block.d.view())
            .z(steps.channels(projected, inner..2 * inner))
            .dt_bias(block.dt_bias.view())
            .dt_softplus(true)
            .dt_limit(self.config.dt_limit)
    }

    /// What follows the convolution in a block of Mamba-2.
    fn mamba2(&self, steps: Steps, block: &Block, states: Option<(View<'_>, ViewMut<'_>)>, rooms: &mut Rooms) -> Result<()> {
        let Own::Mamba2 { norm, eps } = &block.own else { return Ok(()) };
        let (exec, rows) = (&self.exec, steps.rows());
        let Config { nheads, ngroups, .. } = self.config;
        let Rooms { projected, conv, scan, gated, workspace, .. } = rooms;
        let (initial, last) = states.map(|(initial, last)| (initial.split(1, nheads), last.split(1, nheads))).unzip();
        let args = self.ssd_args(steps, block, projected.of(rows), conv.of(rows)).initial_state(initial);
        let scratch = workspace.view_mut(exec, ssd::workspace_len(exec, &args)?)?;
        let y = scan.of_mut(rows).split(0, steps.sequences).split(2, nheads);
        ssd::forward(exec, &args, &mut ssd::Outputs::default().y(y).workspace(scratch).final_state(last))?;
        Ok(rms_norm(exec, scan.of(rows), Some(norm.view()), ngroups, *eps, &mut gated.of_mut(rows))?)
    }

    /// SSD of a block of Mamba-2, from its projection and convolution.
    pub(super) fn ssd_args<'r>(&self, steps: Steps, block: &'r Block, projected: View<'r>, conv: View<'r>) -> ssd::Args<'r> {
        let Config { inner, nheads, ngroups, dstate, .. } = self.config;
        let (projected, conv, maps, dt) = (steps.of(projected), steps.of(conv), ngroups * dstate, self.conv_columns().end);
        let of_groups = |first: usize| conv.slice(2, first..first + maps).split(2, ngroups);
        let (x, dt) = (conv.slice(2, 0..inner).split(2, nheads), projected.slice(2, dt..dt + nheads));
        ssd::Args::new(x, dt, block.a.view(), of_groups(inner), of_groups(inner + maps))
            .d(block.d.view())
            .z(projected.slice(2, 0..inner).split(2, nheads))
            .dt_bias(block.dt_bias.view())
            .dt_softplus(true)
            .dt_limit(self.config.dt_limit)
    }
}

/// The rows that the last product of a block takes: those of the scan, or of the norm behind it.
pub(super) fn mixed<'r>(block: &Block, scan: &'r Room, gated: &'r Room) -> &'r Room {
    if matches!(block.own, Own::Mamba2 { .. }) { gated } else { scan }
}
