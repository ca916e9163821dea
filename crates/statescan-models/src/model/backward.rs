//! The loss of a model on some texts, and its gradient by every weight, on any device.

use super::rows::{Dropout, Rows};
use super::whole::{BlockRooms, LogitRows, Whole};
use crate::config::Config;
use crate::error::Result;
use crate::kernels::training::{TokenRows, Zeros};
use crate::mixer::{Back, Linear, Multiplied, Part, Role, Room, Rooms, Steps, Written};
use crate::norms::OfStream;
use statescan::tensor::Tensor;
use statescan::{DType, Device, ViewMut};
use std::collections::BTreeMap;

/// Room for training, which grows to the largest.
#[derive(Default)]
pub(crate) struct TrainingRooms {
    /// Whether blocks keep their activations; otherwise they are computed again on the way back.
    keep: bool,
    /// The stream before each block and after the last one, and everything that a block computes.
    streams: Vec<Room>,
    kept: Vec<BlockRooms>,
    /// The gradient by the stream, which goes from one to the other, and as the block in front takes it, in its type.
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
    pub(crate) fn new(keep: bool) -> Self {
        TrainingRooms { keep, ..TrainingRooms::default() }
    }

    fn grow(&mut self, of: &Whole<'_>, rows: usize) -> Result<()> {
        let (&Whole { device, dtype, .. }, &Config { dim, vocab, .. }) = (of, of.config);
        let (exec, layers) = (device.exec(), of.mixers.len());
        if self.keep {
            self.kept.resize_with(layers, BlockRooms::default);
        }
        self.streams.resize_with(layers + 1, Room::default);
        self.streams.iter_mut().chain(&mut self.dstream).try_for_each(|room| room.grow(exec, DType::F32, rows, dim))?;
        if self.zeros.is_none() {
            self.zeros = Some(Tensor::zeros(exec, dtype, &[dim])?);
            self.order = if exec.device() == Device::Cpu { None } else { Some(TokenRows::new(exec, rows)?) };
        }
        let some = rows_of_logits(of, rows);
        let rooms = [
            (&mut self.dmixed, dtype, rows, dim),
            (&mut self.dnormed, dtype, rows, dim),
            (&mut self.logits, DType::F32, some, vocab),
            (&mut self.dlogits, dtype, some, vocab),
            (&mut self.losses, device.losses(), rows, 1),
            (&mut self.tokens, DType::I32, 2 * rows, 1),
        ];
        rooms.into_iter().try_for_each(|(room, dtype, rows, columns)| room.grow(exec, dtype, rows, columns))
    }
}

/// Numbers of logits that are there at once on a GPU.
const LOGITS: usize = 1 << 27;

/// Rows whose logits are there at once: on the host all, elsewhere about as many each time.
fn rows_of_logits(of: &Whole<'_>, rows: usize) -> usize {
    match of.device.exec().device() {
        Device::Cpu => rows,
        _ => rows.div_ceil(rows.div_ceil((LOGITS / of.config.vocab).max(1))),
    }
}

/// The gradient by a weight, to be written.
///
/// # Panics
/// If there is no such weight: what the model is made of and what it has gradients of are the same names.
fn slot<'g, T: Written>(gradients: &'g mut BTreeMap<String, T>, name: &str) -> ViewMut<'g> {
    gradients.get_mut(name).expect("a gradient by every weight").written()
}

/// A pass over a batch.
struct Batch<'b, T> {
    of: &'b Whole<'b>,
    steps: Steps,
    rooms: &'b mut BlockRooms,
    back: &'b mut TrainingRooms,
    gradients: &'b mut BTreeMap<String, T>,
    dropout: Dropout,
    /// The factor of all gradients on the way.
    unit: f32,
}

/// The mean cross entropy over rows of a batch, in nats, with `unit` times its gradients.
pub(crate) fn loss_and_gradients<T: Written>(
    of: &Whole<'_>,
    rows: &Rows,
    (dropout, unit): (Dropout, f32),
    rooms: &mut BlockRooms,
    back: &mut TrainingRooms,
    gradients: &mut BTreeMap<String, T>,
) -> Result<f64> {
    let steps = Steps { sequences: rows.count, steps: rows.seqlen };
    rooms.normed.grow(of.device.exec(), of.dtype, steps.rows(), of.config.dim)?;
    back.grow(of, steps.rows())?;
    // sorted before they are copied, for the copy waits for what the device does
    back.order.as_mut().map_or(Ok(()), |order| order.sort(&rows.read))?;
    let tokens: Vec<i32> = rows.read.iter().chain(&rows.targets).map(|&token| token as i32).collect();
    back.tokens.write(&tokens)?;
    let mut batch = Batch { of, steps, rooms, back, gradients, dropout, unit };
    batch.forward()?;
    batch.head()?;
    for layer in (0..of.mixers.len()).rev() {
        batch.block(layer)?;
    }
    batch.embedding()?;
    of.device.mean(&back.losses, steps.rows())
}

impl<T: Written> Batch<'_, T> {
    /// The stream before each block and after the last one.
    fn forward(&mut self) -> Result<()> {
        let (of, rows, layers) = (self.of, self.steps.rows(), self.of.mixers.len());
        let (device, scales) = (of.device, of.config.scales);
        let TrainingRooms { tokens, streams, dstream: [added, _], .. } = &mut *self.back;
        let (tokens, zeros) = (tokens.of(rows), self.dropout.zeros(layers));
        let first = if zeros.is_some() { &mut *added } else { &mut streams[0] };
        device.embedding(of.embedding, tokens, scales.embedding, &mut first.of_mut(rows))?;
        if zeros.is_some() {
            device.dropout(added.of(rows), zeros, 1.0, &mut streams[0].of_mut(rows))?;
        }
        for layer in 0..layers {
            self.change_rooms(layer);
            let (stream, keep, whole) = (self.back.streams[layer].of(rows), self.back.keep, Part::whole(self.steps));
            let product = of.mix(layer, stream, self.rooms, |run, x, rooms| run.forward(x, vec![whole], rooms, keep))?;
            let TrainingRooms { streams, dstream: [room, _], .. } = &mut *self.back;
            let (before, after) = streams.split_at_mut(layer + 1);
            let stream = (Some(before[layer].of(rows)), &mut after[0].of_mut(rows));
            of.add((layer, product), self.rooms, self.dropout.zeros(layer), stream, room)?;
            self.change_rooms(layer);
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
        let (of, rows, layers) = (self.of, self.steps.rows(), self.of.mixers.len());
        let (&Whole { device, config, .. }, normed) = (of, &mut self.rooms.normed);
        let product = Linear::plain(of.head);
        let TrainingRooms { streams, tokens, logits, dlogits, losses, dnormed, .. } = &mut *self.back;
        of.norm(layers).forward(streams[layers].of(rows), normed.of_mut(rows))?;
        let (targets, some) = (tokens.of(2 * rows).slice(0, rows..2 * rows), rows_of_logits(of, rows));
        for first in (0..rows).step_by(some) {
            let part = first..rows.min(first + some);
            let (count, x) = (part.len(), normed.of(rows).slice(0, part.clone()));
            device.product(x, product, &mut logits.of_mut(count))?;
            device.cross_entropy(LogitRows {
                logits,
                gradient: dlogits,
                losses: losses.of_mut(rows).slice(0, part.clone()),
                targets: targets.slice(0, part.clone()),
                batch: rows,
                unit: self.unit,
                divisor: config.scales.logits,
            })?;
            let of = Multiplied { x, product, dy: dlogits.of(count) };
            let dhead = &mut slot(self.gradients, config.head());
            device.head_backward(of, &mut dnormed.of_mut(rows).slice(0, part), dhead, first > 0)?;
        }
        self.norm_backward(layers, config.last_norm())
    }

    /// Gradients by the weight of a norm, whose name is given, and by the stream in front of it: that by the norm's results is `dnormed`, that by the stream
    /// behind, which it is added to, is there already but for the head. The block in front gets it in its type too, with its zeros and its factor.
    fn norm_backward(&mut self, at: usize, name: &str) -> Result<()> {
        let (of, rows, zeros) = (self.of, self.steps.rows(), self.zeros_in_front(at));
        let TrainingRooms { streams, dstream, dmixed, dnormed, zeros: row, mixer, .. } = &mut *self.back;
        let ([behind, front], factor) = (&mut *dstream, of.config.scales.residual);
        let behind = (at < of.mixers.len()).then(|| behind.of(rows));
        let changes = zeros.is_some() || factor != 1.0;
        let into = OfStream {
            front: front.of_mut(rows),
            rounded: (at > 0 && !changes).then(|| dmixed.of_mut(rows)),
            weight: slot(self.gradients, name),
        };
        let (stream, row) = (streams[at].of(rows), row.as_ref().expect("grown before it is used").view());
        of.norm(at).backward(stream, dnormed.of(rows), behind, into, row, &mut mixer.workspace)?;
        if at > 0 && changes {
            of.device.dropout(front.of(rows), zeros, factor, &mut dmixed.of_mut(rows))?;
        }
        dstream.swap(0, 1);
        Ok(())
    }

    /// The zeros in what the block in front of a place has added.
    fn zeros_in_front(&self, at: usize) -> Option<Zeros> {
        at.checked_sub(1).and_then(|front| self.dropout.zeros(front))
    }

    /// From the gradient by what a norm behind a block has given, `dmixed`, to that by what the block gives it, in its place, and by the norm's weight.
    fn norm_behind_backward(&mut self, layer: usize, name: &str) -> Result<()> {
        let (of, rows) = (self.of, self.steps.rows());
        let TrainingRooms { dstream: [_, front], dmixed, dnormed, zeros, mixer, .. } = &mut *self.back;
        let into =
            OfStream { front: front.of_mut(rows), rounded: Some(dnormed.of_mut(rows)), weight: slot(self.gradients, name) };
        let (x, row) = (self.rooms.behind.of(rows), zeros.as_ref().expect("grown before it is used").view());
        of.norm(layer).backward(x, dmixed.of(rows), None, into, row, &mut mixer.workspace)?;
        std::mem::swap(dmixed, dnormed);
        Ok(())
    }

    /// The gradient by the stream in front of a block that has no norm there: that by the stream behind it and that by the rows that the block has read,
    /// `dnormed`.
    fn without_norm(&mut self, layer: usize) -> Result<()> {
        let (of, rows, zeros) = (self.of, self.steps.rows(), self.zeros_in_front(layer));
        let TrainingRooms { dstream: [behind, front], dmixed, dnormed, .. } = &mut *self.back;
        of.device.cast(dnormed.of(rows), &mut front.of_mut(rows))?;
        of.device.accumulate(behind.of(rows), &mut front.of_mut(rows))?;
        if layer > 0 {
            of.device.dropout(front.of(rows), zeros, of.config.scales.residual, &mut dmixed.of_mut(rows))?;
        }
        self.back.dstream.swap(0, 1);
        Ok(())
    }

    /// From the gradient by the stream behind a block to that by the stream in front of it.
    fn block(&mut self, layer: usize) -> Result<()> {
        let (of, config, steps) = (self.of, self.of.config, self.steps);
        let (rows, kind, prefix) = (steps.rows(), config.layers[layer], config.prefix(layer));
        self.change_rooms(layer);
        if !self.back.keep {
            let (stream, whole) = (self.back.streams[layer].of(rows), Part::whole(steps));
            of.mix(layer, stream, self.rooms, |run, x, rooms| run.forward(x, vec![whole], rooms, true))?;
        }
        let (name, is_behind) = (config.norm(layer), config.norm_is_behind(layer));
        if is_behind {
            self.norm_behind_backward(layer, &name)?;
        }
        let TrainingRooms { dmixed, dnormed, mixer, .. } = &mut *self.back;
        let BlockRooms { normed, mixer: of_mixer, .. } = &mut *self.rooms;
        let back = Back {
            steps,
            x: normed.of(rows),
            dy: dmixed.of(rows),
            dx: dnormed.of_mut(rows),
            into: kind.gradients(config, self.gradients, &prefix),
            states: Vec::new(),
        };
        let run = &of.mixers[layer];
        run.backward(back, of_mixer, mixer)?;
        for (named, decays) in kind.weights(config).iter().zip(&run.weights).filter(|(named, _)| named.role == Role::Decay) {
            // A = -exp(A_log) is its own derivative
            of.device.scale(&mut slot(self.gradients, &format!("{prefix}{}", named.name)), *decays)?;
        }
        if is_behind {
            self.without_norm(layer)?
        } else {
            self.norm_backward(layer, &name)?
        };
        self.change_rooms(layer);
        Ok(())
    }

    /// The gradient by the stream before the first block is added to that by the embedding, which a head of the same weights has begun.
    fn embedding(&mut self) -> Result<()> {
        let (&Whole { config, device, .. }, rows) = (self.of, self.steps.rows());
        let TrainingRooms { dstream: [dstream, other], tokens, order, .. } = &mut *self.back;
        let mut dstream = dstream.of(rows);
        if let zeros @ Some(_) = self.dropout.zeros(config.layers.len()) {
            device.dropout(dstream, zeros, 1.0, &mut other.of_mut(rows))?;
            dstream = other.of(rows);
        }
        let mut table = slot(self.gradients, config.embedding());
        if !config.tied {
            device.clear(&mut table)?;
        }
        device.embedding_backward((tokens.of(rows), order.as_ref()), dstream, config.scales.embedding, &mut table)
    }
}
