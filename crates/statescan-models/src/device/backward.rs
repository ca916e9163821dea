//! The loss of a model on some texts, and its gradient by every weight, on the device: as `model/gradients.rs` has it on the CPU.

use super::Shared;
use super::pass::{LOGITS, Steps, mixed};
use super::rooms::{Room, Rooms};
use super::weights::{Block, Own, Product};
use crate::config::{Config, Kind};
use crate::error::Result;
use crate::model::gradients::{Dropout, Rows};
use statescan::cuda::layers::training::{
    Normed, TokenRows, clear, column_sums, column_sums_workspace_len, cross_entropy, dropout, embedding_backward,
    rms_norm_backward, rms_norm_backward_workspace_len, scale_by,
};
use statescan::cuda::layers::{embedding, rms_norm};
use statescan::ops::{causal_conv1d, selective_scan, ssd};
use statescan::tensor::{Tensor, Workspace};
use statescan::{DType, Exec, View, ViewMut};
use std::collections::HashMap;

/// Gradients by all weights, in f32 and with the names and shapes of checkpoints.
pub(super) struct Gradients(HashMap<String, Tensor>);

impl Gradients {
    pub(super) fn new(exec: &Exec, config: &Config) -> Result<Self> {
        let zeros = |(name, shape): (String, Vec<usize>)| Ok((name, Tensor::zeros(exec, DType::F32, &shape)?));
        config.tensors().into_iter().map(zeros).collect::<Result<_>>().map(Gradients)
    }

    pub(super) fn get(&self, name: &str) -> View<'_> {
        self.0[name].view()
    }

    pub(super) fn to_vec(&self, name: &str) -> Result<Vec<f32>> {
        Ok(self.0[name].to_vec()?)
    }

    /// Those by some weights of one part.
    ///
    /// # Panics
    /// If the part has no such weights: what the model is made of and what it has gradients of are the same names.
    fn of<const N: usize>(&mut self, prefix: &str, names: [&str; N]) -> [ViewMut<'_>; N] {
        let names = names.map(|name| format!("{prefix}{name}"));
        let found = self.0.get_disjoint_mut(names.each_ref().map(String::as_str));
        found.map(|tensor| tensor.expect("a gradient by every weight").view_mut())
    }

    /// That by a weight which not every model has.
    fn of_bias(&mut self, prefix: &str, name: &str) -> Option<ViewMut<'_>> {
        self.0.get_mut(&format!("{prefix}{name}")).map(Tensor::view_mut)
    }
}

/// Room for the way back, which grows to the largest.
#[derive(Default)]
pub(super) struct BackRooms {
    /// Whether blocks keep their activations; otherwise they are computed again on the way back.
    keep: bool,
    /// The stream before each block, or everything that it computes.
    before: Vec<Room>,
    kept: Vec<Rooms>,
    /// Gradients by the stream, and by what is named as in [`Rooms`].
    dstream: Room,
    dmixed: Room,
    dscan: Room,
    dprojected: Room,
    dconv: Room,
    dmaps: Room,
    raw_dmaps: Room,
    ddt: Room,
    dnormed: Room,
    logits: Room,
    dlogits: Room,
    losses: Room,
    workspace: Workspace,
}

impl BackRooms {
    /// No room, for blocks that keep their activations or do not.
    pub(super) fn new(keep: bool) -> Self {
        BackRooms { keep, ..BackRooms::default() }
    }

    fn grow(&mut self, exec: &Exec, config: &Config, dtype: DType, rows: usize) -> Result<()> {
        let Config { kind, dim, inner, dt_rank, dstate, vocab, layers, .. } = *config;
        if self.keep {
            self.kept.resize_with(layers, || Rooms::new(dtype));
            self.kept.iter_mut().try_for_each(|rooms| rooms.grow(exec, config, rows))?;
        } else {
            self.before.resize_with(layers, Room::default);
            self.before.iter_mut().try_for_each(|room| room.grow(exec, DType::F32, rows, dim))?;
        }
        let (maps, mamba) = (dt_rank + 2 * dstate, kind != Kind::Mamba2);
        let some = rows.min(LOGITS);
        let rooms = [
            (&mut self.dstream, DType::F32, rows, dim, true),
            (&mut self.dmixed, dtype, rows, dim, true),
            (&mut self.dscan, dtype, rows, inner, true),
            (&mut self.dprojected, dtype, rows, config.in_proj(), true),
            (&mut self.dconv, dtype, rows, config.conv_channels(), true),
            (&mut self.dmaps, dtype, rows, maps, mamba),
            (&mut self.raw_dmaps, dtype, rows, maps, kind == Kind::FalconMamba),
            // that of a scan in front of the norm of Mamba-2
            (&mut self.ddt, dtype, rows, inner, true),
            (&mut self.dnormed, dtype, rows, dim, true),
            (&mut self.logits, DType::F32, some, vocab, true),
            (&mut self.dlogits, dtype, some, vocab, true),
            (&mut self.losses, DType::F32, rows, 1, true),
        ];
        let needed = rooms.into_iter().filter(|(.., needed)| *needed);
        needed.into_iter().try_for_each(|(room, dtype, rows, columns, _)| room.grow(exec, dtype, rows, columns))
    }
}

/// What a pass over a batch goes through.
struct Batch<'b> {
    shared: &'b Shared,
    steps: Steps,
    rooms: &'b mut Rooms,
    back: &'b mut BackRooms,
    gradients: &'b mut Gradients,
    dropout: Dropout,
    /// What gradients are multiplied by on the way.
    unit: f32,
}

impl Shared {
    /// The mean cross entropy over rows of a batch, in nats, with its gradients.
    pub(super) fn loss_and_gradients(
        &self,
        rows: &Rows,
        dropout: Dropout,
        rooms: &mut Rooms,
        back: &mut BackRooms,
        gradients: &mut Gradients,
    ) -> Result<f64> {
        let Rows { read, targets, count, seqlen } = rows;
        let steps = Steps { sequences: *count, steps: *seqlen };
        rooms.grow(&self.exec, &self.config, steps.rows())?;
        back.grow(&self.exec, &self.config, self.weights.dtype, steps.rows())?;
        let upload = |tokens: &[u32]| {
            let tokens: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
            Tensor::from_slice(&self.exec, &tokens, &[tokens.len()])
        };
        let (tokens, targets, order) = (upload(read)?, upload(targets)?, TokenRows::new(&self.exec, read)?);
        // gradients of a mean over many rows are small for f16, whose numbers end at 6e-8
        let unit = if self.weights.dtype == DType::F16 { steps.rows().next_power_of_two() as f32 } else { 1.0 };
        let mut batch = Batch { shared: self, steps, rooms, back, gradients, dropout, unit };
        batch.forward(&tokens)?;
        batch.head(&targets)?;
        for layer in (0..self.config.layers).rev() {
            batch.block(layer)?;
        }
        batch.embedding(&order)?;
        if unit != 1.0 {
            let back = Tensor::from_slice(&self.exec, &[1.0 / unit], &[1])?;
            gradients.0.values_mut().try_for_each(|gradient| scale_by(&self.exec, &mut gradient.view_mut(), back.view()))?;
        }
        let losses = back.losses.to_vec(steps.rows())?;
        Ok(losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / losses.len() as f64)
    }
}

impl Batch<'_> {
    /// The stream after the last block; what was before each block is kept.
    fn forward(&mut self, tokens: &Tensor) -> Result<()> {
        let Shared { exec, weights, products, config, .. } = self.shared;
        let rows = self.steps.rows();
        let added = &mut self.back.dstream;
        embedding(exec, weights.embedding.view(), tokens.view(), &mut added.of_mut(rows))?;
        dropout(exec, added.of(rows), self.dropout.zeros(config.layers), &mut self.rooms.stream.of_mut(rows), false)?;
        for (layer, block) in weights.blocks.iter().enumerate() {
            let BackRooms { keep, before, kept, .. } = &mut *self.back;
            let keep = *keep;
            let copy = if keep { &mut kept[layer].stream } else { &mut before[layer] };
            dropout(exec, self.rooms.stream.of(rows), None, &mut copy.of_mut(rows), false)?;
            self.change_rooms(layer);
            self.shared.mix(self.steps, block, None, self.rooms, keep)?;
            let Rooms { scan, gated, stream, .. } = &mut *self.rooms;
            let BackRooms { dstream: added, kept, .. } = &mut *self.back;
            let stream = if keep { &mut kept[layer].stream } else { stream };
            let (x, weight, bias) = (mixed(block, scan, gated).of(rows), block.out_proj.weight.view(), block.out_proj.bias());
            match self.dropout.zeros(layer) {
                None => products.multiply(x, weight, bias, &mut stream.of_mut(rows), true)?,
                zeros => {
                    products.multiply(x, weight, bias, &mut added.of_mut(rows), false)?;
                    dropout(exec, added.of(rows), zeros, &mut stream.of_mut(rows), true)?;
                }
            }
            self.change_rooms(layer);
        }
        Ok(())
    }

    /// Takes the rooms of a block that keeps its activations, or gives them back; scratch memory is the same for all.
    fn change_rooms(&mut self, layer: usize) {
        let keep = self.back.keep;
        if let Some(kept) = self.back.kept.get_mut(layer).filter(|_| keep) {
            std::mem::swap(self.rooms, kept);
            std::mem::swap(&mut self.rooms.workspace, &mut kept.workspace);
        }
    }

    /// Losses, and gradients by the head, its norm and the stream.
    fn head(&mut self, targets: &Tensor) -> Result<()> {
        let Shared { exec, weights, products, config, .. } = self.shared;
        let rows = self.steps.rows();
        let Rooms { stream, normed, .. } = &mut *self.rooms;
        let BackRooms { logits, dlogits, losses, dnormed, dstream, workspace, .. } = &mut *self.back;
        let (stream, norm) = (stream.of(rows), weights.norm.view());
        rms_norm(exec, stream, Some(norm), 1, config.eps, &mut normed.of_mut(rows))?;
        let head = weights.head().view();
        let name = if config.tied { config.package.embedding() } else { "lm_head.weight" };
        for first in (0..rows).step_by(LOGITS) {
            let part = first..rows.min(first + LOGITS);
            let (count, x) = (part.len(), normed.of(rows).slice(0, part.clone()));
            products.multiply(x, head, None, &mut logits.of_mut(count), false)?;
            let (targets, scale) = (targets.view().slice(0, part.clone()), self.unit / rows as f32);
            let mut losses = losses.of_mut(rows).slice(0, part.clone()).index(1, 0);
            cross_entropy(exec, logits.of(count), targets, scale, &mut losses, &mut dlogits.of_mut(count))?;
            let dy = dlogits.of(count);
            products.multiply(dy, head.permute(&[1, 0]), None, &mut dnormed.of_mut(rows).slice(0, part), false)?;
            let [mut dhead] = self.gradients.of("", [name]);
            products.multiply(dy.permute(&[1, 0]), x.permute(&[1, 0]), None, &mut dhead, first > 0)?;
        }
        let [mut dnorm] = self.gradients.of("", ["backbone.norm_f.weight"]);
        let mut scratch = workspace.view_mut(exec, rms_norm_backward_workspace_len(rows, config.dim, 1))?;
        let weight = Some((norm, &mut dnorm, &mut scratch));
        Ok(rms_norm_backward(
            exec,
            Normed { x: stream, groups: 1, eps: config.eps },
            weight,
            dnormed.of(rows),
            &mut dstream.of_mut(rows),
            false,
        )?)
    }

    /// A block's part of the gradient by the stream is added to it.
    fn block(&mut self, layer: usize) -> Result<()> {
        let Shared { exec, weights, config, .. } = self.shared;
        let (rows, block) = (self.steps.rows(), &weights.blocks[layer]);
        if self.back.keep {
            self.change_rooms(layer);
        } else {
            dropout(exec, self.back.before[layer].of(rows), None, &mut self.rooms.stream.of_mut(rows), false)?;
            self.shared.mix(self.steps, block, None, self.rooms, true)?;
        }
        let prefix = format!("backbone.layers.{layer}.mixer.");
        let BackRooms { dstream, dmixed, .. } = &mut *self.back;
        dropout(exec, dstream.of(rows), self.dropout.zeros(layer), &mut dmixed.of_mut(rows), false)?;
        self.out_proj(block, &prefix)?;
        match &block.own {
            Own::Mamba { .. } => self.mamba(block, &prefix)?,
            Own::Mamba2 { .. } => self.mamba2(block, &prefix)?,
        }
        self.convolution(block, &prefix)?;
        let BackRooms { dnormed, dprojected, dstream, workspace, .. } = &mut *self.back;
        let (x, dy) = (self.rooms.normed.of(rows), dprojected.of(rows));
        let of = Multiplied { x, product: &block.in_proj, names: (&prefix, "in_proj") };
        self.shared.product(of, dy, &mut dnormed.of_mut(rows), self.gradients, workspace)?;
        let [mut dnorm] = self.gradients.of(&format!("backbone.layers.{layer}."), ["norm.weight"]);
        let mut scratch = workspace.view_mut(exec, rms_norm_backward_workspace_len(rows, config.dim, 1))?;
        let (x, weight) = (self.rooms.stream.of(rows), Some((block.norm.view(), &mut dnorm, &mut scratch)));
        rms_norm_backward(
            exec,
            Normed { x, groups: 1, eps: config.eps },
            weight,
            dnormed.of(rows),
            &mut dstream.of_mut(rows),
            true,
        )?;
        self.change_rooms(layer);
        Ok(())
    }

    fn out_proj(&mut self, block: &Block, prefix: &str) -> Result<()> {
        let rows = self.steps.rows();
        let Rooms { scan, gated, .. } = &*self.rooms;
        let BackRooms { dmixed, dscan, workspace, .. } = &mut *self.back;
        let (x, dy) = (mixed(block, scan, gated).of(rows), dmixed.of(rows));
        let of = Multiplied { x, product: &block.out_proj, names: (prefix, "out_proj") };
        self.shared.product(of, dy, &mut dscan.of_mut(rows), self.gradients, workspace)
    }

    /// From the gradient by the scan's results to those by the gate and by the convolution's results.
    fn mamba(&mut self, block: &Block, prefix: &str) -> Result<()> {
        let Own::Mamba { x_proj, dt_proj, norms } = &block.own else { return Ok(()) };
        let Shared { exec, products, config, .. } = self.shared;
        let (steps, rows) = (self.steps, self.steps.rows());
        let Config { inner, dt_rank, dstate, .. } = *config;
        let all = dt_rank + 2 * dstate;
        let Rooms { projected, conv, maps: raw, normed_maps, dt, saved, .. } = &mut *self.rooms;
        let BackRooms { dscan, dprojected, dconv, dmaps, raw_dmaps, ddt, workspace, .. } = &mut *self.back;
        let maps = if norms.is_some() { normed_maps.of(rows) } else { raw.of(rows) };
        let args = self.shared.scan_args(steps, block, [&*projected, &*conv, &*dt].map(|room| room.of(rows)), maps);
        let saved = saved.view_mut(exec, selective_scan::checkpoints_len(&args)?)?;
        let [mut da, dd, dbias] = self.gradients.of(prefix, ["A_log", "D", "dt_proj.bias"]);
        {
            let (by_b, by_c) = dmaps.of_mut(rows).slice(1, dt_rank..all).split_at(1, dstate);
            let z = dprojected.of_mut(rows).slice(1, inner..2 * inner);
            let mut grads = selective_scan::Gradients::default()
                .x(steps.channels_mut(dconv.of_mut(rows)))
                .dt(steps.channels_mut(ddt.of_mut(rows)))
                .a(da.reborrow())
                .b(steps.channels_mut(by_b))
                .c(steps.channels_mut(by_c))
                .z(steps.channels_mut(z))
                .d(dd)
                .dt_bias(dbias)
                .workspace(workspace.view_mut(exec, selective_scan::backward_workspace_len(exec, &args, true)?)?);
            let dy = steps.channels(dscan.of(rows), 0..inner);
            let cotangents = selective_scan::Cotangents::default().y(dy);
            selective_scan::backward(exec, &args, Some(saved.as_view()), &cotangents, &mut grads)?;
        }
        // A = -exp(A_log) is its own derivative
        scale_by(exec, &mut da, block.a.view())?;
        let (low, mut into) = (maps.slice(1, 0..dt_rank), dmaps.of_mut(rows).slice(1, 0..dt_rank));
        let of = Multiplied { x: low, product: dt_proj, names: (prefix, "dt_proj") };
        self.shared.product(of, ddt.of(rows), &mut into, self.gradients, workspace)?;
        let dmaps = match norms {
            None => dmaps.of(rows),
            Some(eps) => {
                for (columns, groups) in [(0..dt_rank, 1), (dt_rank..all, 2)] {
                    let (x, dy) = (raw.of(rows).slice(1, columns.clone()), dmaps.of(rows).slice(1, columns.clone()));
                    let normed = Normed { x, groups, eps: *eps };
                    rms_norm_backward(exec, normed, None, dy, &mut raw_dmaps.of_mut(rows).slice(1, columns), false)?;
                }
                raw_dmaps.of(rows)
            }
        };
        let [mut dweight] = self.gradients.of(prefix, ["x_proj.weight"]);
        products.multiply(dmaps.permute(&[1, 0]), conv.of(rows).permute(&[1, 0]), None, &mut dweight, false)?;
        let weight = x_proj.weight.view().permute(&[1, 0]);
        Ok(products.multiply(dmaps, weight, None, &mut dconv.of_mut(rows), true)?)
    }

    /// The same in a block of Mamba-2, whose scan is followed by a norm, and gradients by step sizes.
    fn mamba2(&mut self, block: &Block, prefix: &str) -> Result<()> {
        let Own::Mamba2 { norm, eps } = &block.own else { return Ok(()) };
        let Shared { exec, config, .. } = self.shared;
        let (steps, rows) = (self.steps, self.steps.rows());
        let Config { inner, nheads, ngroups, dstate, .. } = *config;
        let Rooms { projected, conv, scan, .. } = &mut *self.rooms;
        let BackRooms { dscan: dgated, ddt: dscan, dprojected, dconv, workspace, .. } = &mut *self.back;
        {
            let [mut dnorm] = self.gradients.of(prefix, ["norm.weight"]);
            let mut scratch = workspace.view_mut(exec, rms_norm_backward_workspace_len(rows, inner, ngroups))?;
            let weight = Some((norm.view(), &mut dnorm, &mut scratch));
            let normed = Normed { x: scan.of(rows), groups: ngroups, eps: *eps };
            rms_norm_backward(exec, normed, weight, dgated.of(rows), &mut dscan.of_mut(rows), false)?;
        }
        let args = self.shared.ssd_args(steps, block, projected.of(rows), conv.of(rows));
        let [mut da, dd, dbias] = self.gradients.of(prefix, ["A_log", "D", "dt_bias"]);
        {
            let (sequences, maps) = (steps.sequences, ngroups * dstate);
            let (dx, of_maps) = dconv.of_mut(rows).split(0, sequences).split_at(2, inner);
            let (db, dc) = of_maps.split_at(2, maps);
            let (dz, rest) = dprojected.of_mut(rows).split(0, sequences).split_at(2, inner);
            let dt = self.shared.conv_columns().len();
            let mut grads = ssd::Gradients::default()
                .x(dx.split(2, nheads))
                .dt(rest.slice(2, dt..dt + nheads))
                .a(da.reborrow())
                .b(db.split(2, ngroups))
                .c(dc.split(2, ngroups))
                .z(dz.split(2, nheads))
                .d(dd)
                .dt_bias(dbias)
                .workspace(workspace.view_mut(exec, ssd::backward_workspace_len(exec, &args)?)?);
            let dy = steps.of(dscan.of(rows)).split(2, nheads);
            ssd::backward(exec, &args, None, &ssd::Cotangents::default().y(dy), &mut grads)?;
        }
        Ok(scale_by(exec, &mut da, block.a.view())?)
    }

    /// From the gradient by the convolution's results to that by its columns of the first projection.
    fn convolution(&mut self, block: &Block, prefix: &str) -> Result<()> {
        let (exec, steps, rows) = (&self.shared.exec, self.steps, self.steps.rows());
        let BackRooms { dconv, dprojected, workspace, .. } = &mut *self.back;
        let args = self.shared.conv_args(steps, block, self.rooms.projected.of(rows));
        let columns = self.shared.conv_columns();
        let dy = steps.channels(dconv.of(rows), 0..columns.len());
        let mut grads = causal_conv1d::Gradients::default()
            .x(steps.channels_mut(dprojected.of_mut(rows).slice(1, columns)))
            .workspace(workspace.view_mut(exec, causal_conv1d::backward_workspace_len(exec, &args)?)?);
        let cotangents = causal_conv1d::Cotangents::default().y(dy);
        if block.conv_bias.is_some() {
            let [weight, bias] = self.gradients.of(prefix, ["conv1d.weight", "conv1d.bias"]);
            grads = grads.weight(weight.index(1, 0)).bias(bias);
            return Ok(causal_conv1d::backward(exec, &args, &cotangents, &mut grads)?);
        }
        let [weight] = self.gradients.of(prefix, ["conv1d.weight"]);
        Ok(causal_conv1d::backward(exec, &args, &cotangents, &mut grads.weight(weight.index(1, 0)))?)
    }

    /// The gradient by the stream before the first block is added to that by the embedding, which a head of the same weights has begun.
    fn embedding(&mut self, order: &TokenRows) -> Result<()> {
        let Shared { exec, config, .. } = self.shared;
        let rows = self.steps.rows();
        let stream = &mut self.rooms.stream;
        dropout(exec, self.back.dstream.of(rows), self.dropout.zeros(config.layers), &mut stream.of_mut(rows), false)?;
        let [mut table] = self.gradients.of("", [config.package.embedding()]);
        if !config.tied {
            clear(exec, &mut table)?;
        }
        Ok(embedding_backward(exec, order, stream.of(rows), &mut table)?)
    }
}

/// Rows that were multiplied, by what, and the names of the block and of the product in it.
#[derive(Clone, Copy)]
struct Multiplied<'m> {
    x: View<'m>,
    product: &'m Product,
    names: (&'m str, &'m str),
}

impl Shared {
    /// Gradients of a product: by its rows, its weight, and its bias where it has one.
    fn product(
        &self,
        of: Multiplied<'_>,
        dy: View<'_>,
        dx: &mut ViewMut<'_>,
        gradients: &mut Gradients,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let Multiplied { x, product: of, names: (prefix, name) } = of;
        self.products.multiply(dy, of.weight.view().permute(&[1, 0]), None, dx, false)?;
        let [mut dweight] = gradients.of(prefix, [&format!("{name}.weight")]);
        self.products.multiply(dy.permute(&[1, 0]), x.permute(&[1, 0]), None, &mut dweight, false)?;
        // the scan adds, and has gradients of, the bias of step sizes
        let bias = gradients.of_bias(prefix, &format!("{name}.bias")).filter(|_| of.bias.is_some());
        let Some(mut bias) = bias else { return Ok(()) };
        let [rows, columns] = [dy.shape()[0], dy.shape()[1]];
        let mut scratch = workspace.view_mut(&self.exec, column_sums_workspace_len(rows, columns))?;
        Ok(column_sums(&self.exec, dy, &mut bias, &mut scratch)?)
    }
}
