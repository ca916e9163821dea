//! The loss of a model on some texts, and its gradient by every weight, on the device: as `model/gradients.rs` has it on the CPU.

use super::{BlockRooms, Shared};
use crate::config::Config;
use crate::error::Result;
use crate::kernels::embedding;
use crate::kernels::training::{TokenRows, clear, cross_entropy, dropout, embedding_backward, scale_by};
use crate::mixer::{Back, Linear, Part, Role, Room, Rooms, Steps};
use crate::model::gradients::{Dropout, Rows};
use crate::norms::OfStream;
use statescan::tensor::Tensor;
use statescan::{DType, Exec, View, ViewMut};
use std::collections::BTreeMap;

/// Gradients by all weights, in f32 and with the names and shapes of checkpoints.
pub(super) struct Gradients(BTreeMap<String, Tensor>);

impl Gradients {
    pub(super) fn new(exec: &Exec, config: &Config) -> Result<Self> {
        let zeros = |(name, shape): (String, Vec<usize>)| Ok((name, Tensor::zeros(exec, DType::F32, &shape)?));
        config.tensors().into_iter().map(zeros).collect::<Result<_>>().map(Gradients)
    }

    pub(super) fn get(&self, name: &str) -> View<'_> {
        self.0[name].view()
    }

    /// The gradient by a weight, to be written.
    ///
    /// # Panics
    /// If there is no such weight: what the model is made of and what it has gradients of are the same names.
    fn of(&mut self, name: &str) -> ViewMut<'_> {
        self.0.get_mut(name).expect("a gradient by every weight").view_mut()
    }

    pub(super) fn to_vec(&self, name: &str) -> Result<Vec<f32>> {
        Ok(self.0[name].to_vec()?)
    }
}

/// Room for training, which grows to the largest.
#[derive(Default)]
pub(super) struct TrainingRooms {
    /// Whether blocks keep their activations; otherwise they are computed again on the way back.
    keep: bool,
    /// The stream before each block and after the last one, and everything that a block computes.
    streams: Vec<Room>,
    kept: Vec<BlockRooms>,
    /// The gradient by the stream, which goes from one to the other, and rounded for the products of the block in front.
    dstream: [Room; 2],
    dmixed: Room,
    dnormed: Room,
    mixer: Rooms,
    logits: Room,
    dlogits: Room,
    losses: Room,
    /// The tokens that are read, then those that follow.
    tokens: Room,
    order: Option<TokenRows>,
    /// A row of zeros.
    zeros: Option<Tensor>,
}

impl TrainingRooms {
    /// No room, for blocks that keep their activations or do not.
    pub(super) fn new(keep: bool) -> Self {
        TrainingRooms { keep, ..TrainingRooms::default() }
    }

    fn grow(&mut self, exec: &Exec, config: &Config, dtype: DType, rows: usize) -> Result<()> {
        let (&Config { dim, vocab, .. }, layers) = (config, config.layers.len());
        if self.keep {
            self.kept.resize_with(layers, BlockRooms::default);
        }
        self.streams.resize_with(layers + 1, Room::default);
        self.streams.iter_mut().chain(&mut self.dstream).try_for_each(|room| room.grow(exec, DType::F32, rows, dim))?;
        if self.zeros.is_none() {
            self.zeros = Some(Tensor::zeros(exec, dtype, &[dim])?);
            self.order = Some(TokenRows::new(exec, rows)?);
        }
        let some = rows_of_logits(rows, vocab);
        let rooms = [
            (&mut self.dmixed, dtype, rows, dim),
            (&mut self.dnormed, dtype, rows, dim),
            (&mut self.logits, DType::F32, some, vocab),
            (&mut self.dlogits, dtype, some, vocab),
            (&mut self.losses, DType::F32, rows, 1),
            (&mut self.tokens, DType::I32, 2 * rows, 1),
        ];
        rooms.into_iter().try_for_each(|(room, dtype, rows, columns)| room.grow(exec, dtype, rows, columns))
    }
}

/// Numbers of logits that are there at once.
const LOGITS: usize = 1 << 27;

/// Rows whose logits are there at once, about as many each time.
fn rows_of_logits(rows: usize, vocab: usize) -> usize {
    let parts = rows.div_ceil((LOGITS / vocab).max(1));
    rows.div_ceil(parts)
}

/// A pass over a batch.
struct Batch<'b> {
    shared: &'b Shared,
    steps: Steps,
    rooms: &'b mut BlockRooms,
    back: &'b mut TrainingRooms,
    gradients: &'b mut Gradients,
    dropout: Dropout,
    /// The factor of all gradients on the way.
    unit: f32,
}

impl Shared {
    /// The mean cross entropy over rows of a batch, in nats, with its gradients.
    pub(super) fn loss_and_gradients(
        &self,
        rows: &Rows,
        dropout: Dropout,
        rooms: &mut BlockRooms,
        back: &mut TrainingRooms,
        gradients: &mut Gradients,
    ) -> Result<f64> {
        let steps = Steps { sequences: rows.count, steps: rows.seqlen };
        rooms.normed.grow(&self.exec, self.weights.dtype, steps.rows(), self.config.dim)?;
        back.grow(&self.exec, &self.config, self.weights.dtype, steps.rows())?;
        // sorted before they are copied, for the copy waits for what the device does
        back.order.as_mut().expect("grown above").sort(&rows.read)?;
        let tokens: Vec<i32> = rows.read.iter().chain(&rows.targets).map(|&token| token as i32).collect();
        back.tokens.write(&tokens)?;
        // gradients of a mean over many rows are small for f16, whose numbers end at 6e-8
        let unit = if self.weights.dtype == DType::F16 { steps.rows().next_power_of_two() as f32 } else { 1.0 };
        let mut batch = Batch { shared: self, steps, rooms, back, gradients, dropout, unit };
        batch.forward()?;
        batch.head()?;
        for layer in (0..self.config.layers.len()).rev() {
            batch.block(layer)?;
        }
        batch.embedding()?;
        if unit != 1.0 {
            let back = Tensor::from_slice(&self.exec, &[1.0 / unit], &[1])?;
            gradients.0.values_mut().try_for_each(|gradient| scale_by(&self.exec, &mut gradient.view_mut(), back.view()))?;
        }
        let losses = back.losses.to_vec(steps.rows())?;
        Ok(losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / losses.len() as f64)
    }
}

/// The norm in front of a block, or of the head, on the way back.
struct NormOf<'n> {
    /// The number of the block; the head's is that of blocks.
    at: usize,
    weight: &'n Tensor,
    name: &'n str,
}

impl Batch<'_> {
    /// The stream before each block and after the last one.
    fn forward(&mut self) -> Result<()> {
        let Shared { exec, weights, config, .. } = self.shared;
        let rows = self.steps.rows();
        let TrainingRooms { tokens, streams, dstream: [added, _], .. } = &mut *self.back;
        let (tokens, zeros) = (tokens.of(rows).index(1, 0), self.dropout.zeros(config.layers.len()));
        let first = if zeros.is_some() { &mut *added } else { &mut streams[0] };
        embedding(exec, weights.embedding.view(), tokens, 1.0, &mut first.of_mut(rows))?;
        if zeros.is_some() {
            dropout(exec, added.of(rows), zeros, &mut streams[0].of_mut(rows), false)?;
        }
        for layer in 0..config.layers.len() {
            self.change_rooms(layer);
            let stream = self.back.streams[layer].of(rows);
            let last = self.shared.mix(layer, Part::whole(self.steps), stream, self.rooms, self.back.keep)?;
            self.add(layer, last)?;
            self.change_rooms(layer);
        }
        Ok(())
    }

    /// The stream after a block: that before it, and the last product.
    fn add(&mut self, layer: usize, Linear { weight, bias }: Linear<View<'_>>) -> Result<()> {
        let (Shared { exec, products, .. }, rows) = (self.shared, self.steps.rows());
        let TrainingRooms { streams, dstream: [added, _], .. } = &mut *self.back;
        let (before, after) = streams.split_at_mut(layer + 1);
        let (before, after) = (before[layer].of(rows), &mut after[0].of_mut(rows));
        let x = self.rooms.mixer.mixed.of(rows);
        match self.dropout.zeros(layer) {
            None => products.multiply_add(x, weight, bias, before, after)?,
            zeros => {
                products.multiply(x, weight, bias, &mut added.of_mut(rows), false)?;
                dropout(exec, before, None, after, false)?;
                dropout(exec, added.of(rows), zeros, after, true)?;
            }
        }
        Ok(())
    }

    /// Takes the rooms of a block that keeps its activations, or gives them back; scratch memory is the same for all.
    fn change_rooms(&mut self, layer: usize) {
        let keep = self.back.keep;
        if let Some(kept) = self.back.kept.get_mut(layer).filter(|_| keep) {
            std::mem::swap(self.rooms, kept);
            std::mem::swap(&mut self.rooms.mixer.workspace, &mut kept.mixer.workspace);
        }
    }

    /// Losses, and gradients by the head, its norm and the stream.
    fn head(&mut self) -> Result<()> {
        let (Shared { exec, weights, products, config, .. }, rows) = (self.shared, self.steps.rows());
        let normed = &mut self.rooms.normed;
        let TrainingRooms { streams, tokens, logits, dlogits, losses, dnormed, .. } = &mut *self.back;
        self.shared.norm(&weights.norm).forward(streams[config.layers.len()].of(rows), normed.of_mut(rows))?;
        let (head, targets) = (weights.head().view(), tokens.of(2 * rows).index(1, 0).slice(0, rows..2 * rows));
        let some = rows_of_logits(rows, config.vocab);
        for first in (0..rows).step_by(some) {
            let part = first..rows.min(first + some);
            let (count, x) = (part.len(), normed.of(rows).slice(0, part.clone()));
            products.multiply(x, head, None, &mut logits.of_mut(count), false)?;
            let (targets, scale) = (targets.slice(0, part.clone()), self.unit / rows as f32);
            let mut losses = losses.of_mut(rows).slice(0, part.clone()).index(1, 0);
            cross_entropy(exec, logits.of(count), targets, scale, &mut losses, &mut dlogits.of_mut(count))?;
            let dy = dlogits.of(count);
            products.multiply(dy, head.permute(&[1, 0]), None, &mut dnormed.of_mut(rows).slice(0, part), false)?;
            let mut dhead = self.gradients.of(config.head());
            products.multiply(dy.permute(&[1, 0]), x.permute(&[1, 0]), None, &mut dhead, first > 0)?;
        }
        self.norm_backward(NormOf { at: config.layers.len(), weight: &weights.norm, name: config.last_norm() })
    }

    /// Gradients by a norm's weight and by the stream in front of it: that by the norm's results is `dnormed`, that by the stream behind, which it is
    /// added to, is there already but for the head. The block in front gets it rounded too, and with its zeros.
    fn norm_backward(&mut self, of: NormOf<'_>) -> Result<()> {
        let (Shared { exec, config, .. }, rows) = (self.shared, self.steps.rows());
        let TrainingRooms { streams, dstream, dmixed, dnormed, zeros: row, mixer, .. } = &mut *self.back;
        let [behind, front] = dstream;
        let behind = (of.at < config.layers.len()).then(|| behind.of(rows));
        let zeros = of.at.checked_sub(1).and_then(|front| self.dropout.zeros(front));
        let into = OfStream {
            front: front.of_mut(rows),
            rounded: (of.at > 0 && zeros.is_none()).then(|| dmixed.of_mut(rows)),
            weight: self.gradients.of(of.name),
        };
        let (stream, row) = (streams[of.at].of(rows), row.as_ref().expect("grown before it is used").view());
        self.shared.norm(of.weight).backward(stream, dnormed.of(rows), behind, into, row, &mut mixer.workspace)?;
        if zeros.is_some() {
            dropout(exec, front.of(rows), zeros, &mut dmixed.of_mut(rows), false)?;
        }
        dstream.swap(0, 1);
        Ok(())
    }

    /// From the gradient by the stream behind a block to that by the stream in front of it.
    fn block(&mut self, layer: usize) -> Result<()> {
        let (Shared { exec, weights, config, .. }, steps) = (self.shared, self.steps);
        let (rows, block, kind) = (steps.rows(), &weights.blocks[layer], config.layers[layer]);
        self.change_rooms(layer);
        if !self.back.keep {
            self.shared.mix(layer, Part::whole(steps), self.back.streams[layer].of(rows), self.rooms, true)?;
        }
        let prefix = config.prefix(layer);
        let TrainingRooms { dmixed, dnormed, mixer, .. } = &mut *self.back;
        let BlockRooms { normed, mixer: of_mixer } = &mut *self.rooms;
        let back = Back {
            steps,
            x: normed.of(rows),
            dy: dmixed.of(rows),
            dx: dnormed.of_mut(rows),
            into: kind.gradients(config, &mut self.gradients.0, &prefix),
            states: Vec::new(),
        };
        self.shared.mixer(layer).backward(back, of_mixer, mixer)?;
        for (named, decays) in kind.weights(config).iter().zip(&block.mixer).filter(|(named, _)| named.role == Role::Decay) {
            // A = -exp(A_log) is its own derivative
            scale_by(exec, &mut self.gradients.of(&format!("{prefix}{}", named.name)), decays.view())?;
        }
        self.norm_backward(NormOf { at: layer, weight: &block.norm, name: &config.norm(layer) })?;
        self.change_rooms(layer);
        Ok(())
    }

    /// The gradient by the stream before the first block is added to that by the embedding, which a head of the same weights has begun.
    fn embedding(&mut self) -> Result<()> {
        let (Shared { exec, config, .. }, rows) = (self.shared, self.steps.rows());
        let TrainingRooms { dstream: [dstream, other], order, .. } = &mut *self.back;
        let mut dstream = dstream.of(rows);
        if let zeros @ Some(_) = self.dropout.zeros(config.layers.len()) {
            dropout(exec, dstream, zeros, &mut other.of_mut(rows), false)?;
            dstream = other.of(rows);
        }
        let mut table = self.gradients.of(config.embedding());
        if !config.tied {
            clear(exec, &mut table)?;
        }
        Ok(embedding_backward(exec, order.as_ref().expect("grown before it is used"), dstream, &mut table)?)
    }
}
