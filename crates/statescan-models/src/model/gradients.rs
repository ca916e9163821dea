//! The loss of a model on some texts, and its gradient by every weight.

use super::{Block, Model};
use crate::error::{Error, Result};
use crate::kernels::training::Zeros;
use crate::mixer::{Back, Device as _, Host, Linear, Multiplied, Part, Rooms, Steps, Written as _};
use crate::norms::OfStream;
use crate::random::Random;
use crate::tensors::{Array, Tensors};
use statescan::{DType, Exec, View, ViewMut};

impl Model {
    /// The mean cross entropy of the next token, in nats, over rows of `seqlen + 1` tokens that are read from the start, and its gradients, by
    /// names in checkpoints. `gradients` has a tensor for each of the model's, and is overwritten.
    ///
    /// The forward pass keeps only the inputs of blocks; everything within a block is computed again on the way back.
    ///
    /// # Errors
    /// As [`Model::advance`]; weights that are not f32, tokens that are no whole rows, or none.
    pub fn loss_and_gradients(&self, exec: &Exec, tokens: &[u32], seqlen: usize, gradients: &mut Tensors) -> Result<f64> {
        self.loss_with_dropout(exec, tokens, seqlen, Dropout::NONE, gradients)
    }

    /// The same where what blocks add to the stream has random zeros.
    pub(crate) fn loss_with_dropout(
        &self,
        exec: &Exec,
        tokens: &[u32],
        seqlen: usize,
        dropout: Dropout,
        gradients: &mut Tensors,
    ) -> Result<f64> {
        if self.embedding.dtype() != DType::F32 {
            let (op, argument, expected, got) = ("loss_and_gradients", "weights", "f32", self.embedding.dtype());
            return Err(statescan::Error::DType { op, argument, expected, got }.into());
        }
        self.check_tokens(exec, tokens)?;
        for (name, shape) in self.config.tensors() {
            let (expected, to) = (shape.iter().product(), slot(gradients, &name));
            if to.data.len() != expected {
                let (layer, argument, shape, got) =
                    ("loss_and_gradients", "gradients", "of as many numbers as the weight", to.data.len());
                return Err(Error::Size { layer, argument, shape, expected, got });
            }
            to.shape = shape;
        }
        let Rows { read, targets, count, seqlen } = Rows::new(tokens, seqlen)?;
        let batch = Batch { host: Host(exec), steps: Steps { sequences: count, steps: seqlen }, dropout };
        let mut work = Work::new(read.len() * self.config.dim);
        let streams = self.keep_inputs(batch, &read, &mut work)?;
        let loss = self.head_backward(batch, &streams, &targets, gradients, &mut work)?;
        for i in (0..self.blocks.len()).rev() {
            self.block_backward(batch, i, &streams[i], gradients, &mut work)?;
        }
        let (dim, mut dstream) = (self.config.dim, work.dstream);
        let embedding = &mut slot(gradients, self.config.embedding()).data;
        dropout.apply(self.blocks.len(), &mut dstream);
        for (row, &token) in dstream.chunks_exact(dim).zip(&read) {
            let to = &mut embedding[token as usize * dim..(token as usize + 1) * dim];
            to.iter_mut().zip(row).for_each(|(to, x)| *to += self.config.scales.embedding * x);
        }
        Ok(loss)
    }

    /// The stream before each block and after the last one.
    fn keep_inputs(&self, batch: Batch<'_>, tokens: &[u32], work: &mut Work) -> Result<Vec<Vec<f32>>> {
        let mut streams = vec![vec![0.0; tokens.len() * self.config.dim]];
        self.embed(tokens, &mut streams[0]);
        batch.dropout.apply(self.blocks.len(), &mut streams[0]);
        let shape = self.shape(batch);
        for (i, block) in self.blocks.iter().enumerate() {
            let (last, mut mixed) = (self.block_forward(&batch, block, &streams[i], work, false)?, vec![0.0; streams[i].len()]);
            let x = work.rooms.mixed.of(batch.steps.rows());
            batch.host.product(x, last, &mut ViewMut::new(&mut mixed, &shape)?)?;
            batch.dropout.apply(i, &mut mixed);
            mixed.iter_mut().zip(&streams[i]).for_each(|(y, x)| *y = x + self.config.scales.residual * *y);
            streams.push(mixed);
        }
        Ok(streams)
    }

    fn shape(&self, batch: Batch<'_>) -> [usize; 2] {
        [batch.steps.rows(), self.config.dim]
    }

    /// A block before its last product, which it gives, from the stream `x`; what it normalizes and what lies between is left in the rooms.
    fn block_forward<'m>(
        &'m self,
        batch: &'m Batch<'_>,
        block: &'m Block,
        x: &[f32],
        work: &mut Work,
        keep: bool,
    ) -> Result<Linear<View<'m>>> {
        let (shape, Work { rooms, normed, .. }) = (self.shape(*batch), work);
        self.stream_norm(batch.host.0, &block.norm).forward(View::new(x, &shape)?, ViewMut::new(normed, &shape)?)?;
        self.mixer(&batch.host, block).forward(View::new(normed, &shape)?, vec![Part::whole(batch.steps)], rooms, keep)
    }

    /// The loss, and in `work` its gradient by the stream after the last block.
    fn head_backward(
        &self,
        batch: Batch<'_>,
        streams: &[Vec<f32>],
        targets: &[u32],
        gradients: &mut Tensors,
        work: &mut Work,
    ) -> Result<f64> {
        let (vocab, rows, shape) = (self.config.vocab, batch.steps.rows(), self.shape(batch));
        let stream = &streams[self.blocks.len()];
        let norm = self.stream_norm(batch.host.0, &self.norm);
        norm.forward(View::new(stream, &shape)?, ViewMut::new(&mut work.normed, &shape)?)?;
        let (x, mut logits) = (View::new(&work.normed, &shape)?, vec![0.0; rows * vocab]);
        batch.host.product(x, Linear::plain(self.head.view()), &mut ViewMut::new(&mut logits, &[rows, vocab])?)?;
        logits.iter_mut().for_each(|x| *x /= self.config.scales.logits);
        let share = |(row, &target): (&mut [f32], &u32)| cross_entropy(row, target as usize, rows);
        let loss: f64 = logits.chunks_exact_mut(vocab).zip(targets).map(share).sum();

        logits.iter_mut().for_each(|x| *x /= self.config.scales.logits);
        slot(gradients, self.config.embedding()).data.fill(0.0);
        let of = Multiplied { x, product: Linear::plain(self.head.view()), dy: View::new(&logits, &[rows, vocab])? };
        let into = Linear::plain(slot(gradients, self.config.head()).written());
        let dnormed = &mut ViewMut::new(&mut work.dnormed, &shape)?;
        batch.host.product_backward(of, dnormed, false, into, &mut work.own.workspace)?;
        self.norm_backward(batch, (&self.norm, slot(gradients, self.config.last_norm())), stream, false, work)?;
        Ok(loss)
    }

    /// Gradients by a norm's weight and by the stream in front of it, from those by its results and by the stream behind, where there is one.
    fn norm_backward(
        &self,
        batch: Batch<'_>,
        (weight, dweight): (&[f32], &mut Array),
        stream: &[f32],
        behind: bool,
        work: &mut Work,
    ) -> Result<()> {
        let (shape, Work { dnormed, dstream, front, zeros, own, .. }) = (self.shape(batch), work);
        let into = OfStream { front: ViewMut::new(front, &shape)?, rounded: None, weight: dweight.written() };
        let behind = behind.then(|| View::new(dstream, &shape)).transpose()?;
        zeros.resize(self.config.dim, 0.0);
        let (stream, dy, zeros) = (View::new(stream, &shape)?, View::new(dnormed, &shape)?, View::new(zeros, &shape[1..])?);
        self.stream_norm(batch.host.0, weight).backward(stream, dy, behind, into, zeros, &mut own.workspace)?;
        std::mem::swap(dstream, front);
        Ok(())
    }

    /// From the gradient by the stream behind a block to that by the stream in front of it, `x`.
    fn block_backward(&self, batch: Batch<'_>, i: usize, x: &[f32], gradients: &mut Tensors, work: &mut Work) -> Result<()> {
        let (block, shape) = (&self.blocks[i], self.shape(batch));
        self.block_forward(&batch, block, x, work, true)?;
        let prefix = self.config.prefix(i);
        // the other half is free until the norm
        work.front.copy_from_slice(&work.dstream);
        work.front.iter_mut().for_each(|x| *x *= self.config.scales.residual);
        batch.dropout.apply(i, &mut work.front);
        let Work { rooms, own, normed, dnormed, front, .. } = &mut *work;
        let back = Back {
            steps: batch.steps,
            x: View::new(normed, &shape)?,
            dy: View::new(front, &shape)?,
            dx: ViewMut::new(dnormed, &shape)?,
            into: self.config.layers[i].gradients(&self.config, gradients, &prefix),
            states: Vec::new(),
        };
        self.mixer(&batch.host, block).backward(back, rooms, own)?;
        block.mixer.through_decays(&self.config, gradients, &prefix);
        let dweight = slot(gradients, &self.config.norm(i));
        self.norm_backward(batch, (&block.norm, dweight), x, true, work)
    }
}

/// A batch, and what is drawn for it.
#[derive(Clone, Copy)]
struct Batch<'b> {
    host: Host<'b>,
    steps: Steps,
    dropout: Dropout,
}

/// Room for a pass over a batch.
struct Work {
    rooms: Rooms,
    own: Rooms,
    normed: Vec<f32>,
    dnormed: Vec<f32>,
    /// The gradient by the stream behind what is worked on, and room for that by the stream in front of it.
    dstream: Vec<f32>,
    front: Vec<f32>,
    /// A row of zeros.
    zeros: Vec<f32>,
}

impl Work {
    fn new(len: usize) -> Self {
        let [normed, dnormed, dstream, front] = [(); 4].map(|()| vec![0.0; len]);
        Work { rooms: Rooms::default(), own: Rooms::default(), normed, dnormed, dstream, front, zeros: Vec::new() }
    }
}

/// The gradient by a weight.
///
/// # Panics
/// If there is none: what the model is made of and what it has gradients of are the same names.
fn slot<'g>(gradients: &'g mut Tensors, name: &str) -> &'g mut Array {
    gradients.get_mut(name).unwrap_or_else(|| panic!("a gradient by `{name}`"))
}

/// Rows of a text, and what follows each of their tokens.
pub(crate) struct Rows {
    pub(crate) read: Vec<u32>,
    pub(crate) targets: Vec<u32>,
    pub(crate) count: usize,
    pub(crate) seqlen: usize,
}

impl Rows {
    /// Sizes for rows of `seqlen + 1` tokens.
    ///
    /// # Errors
    /// No rows, or no whole ones.
    pub(crate) fn new(tokens: &[u32], seqlen: usize) -> Result<Self> {
        if tokens.is_empty() || seqlen == 0 || !tokens.len().is_multiple_of(seqlen + 1) {
            return Err(Error::Rows { seqlen, got: tokens.len() });
        }
        let (mut read, mut targets) = (Vec::new(), Vec::new());
        for row in tokens.chunks_exact(seqlen + 1) {
            read.extend_from_slice(&row[..seqlen]);
            targets.extend_from_slice(&row[1..]);
        }
        Ok(Rows { read, targets, count: tokens.len() / (seqlen + 1), seqlen })
    }
}

/// Random zeros in what is added to the stream, the same on the way back as on the way there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dropout {
    /// The share of zeros; everything else grows so that the mean stays.
    pub(crate) share: f64,
    /// The zeros are drawn from it.
    pub(crate) seed: u64,
}

impl Dropout {
    pub(crate) const NONE: Dropout = Dropout { share: 0.0, seed: 0 };

    /// What the zeros of one place of a model are drawn from, if there are any.
    pub(crate) fn zeros(self, place: usize) -> Option<Zeros> {
        (self.share > 0.0).then(|| Zeros { share: self.share, seed: self.seed ^ ((place as u64 + 1) << 40) })
    }

    /// Zeros in the numbers of one place of a model.
    fn apply(self, place: usize, numbers: &mut [f32]) {
        let Some(Zeros { share, seed }) = self.zeros(place) else { return };
        let mut random = Random::new(seed);
        let (least, scale) = ((share * 65536.0) as u64, (1.0 / (1.0 - share)) as f32);
        for four in numbers.chunks_mut(4) {
            let bits = random.bits();
            for (i, x) in four.iter_mut().enumerate() {
                *x = if (bits >> (16 * i)) & 0xffff < least { 0.0 } else { *x * scale };
            }
        }
    }
}

/// The share of one row in the mean of `-log softmax(logits)[target]` over so many rows; the logits become its gradient.
fn cross_entropy(logits: &mut [f32], target: usize, rows: usize) -> f64 {
    let highest = logits.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x));
    let chosen = logits[target] - highest;
    logits.iter_mut().for_each(|x| *x = (*x - highest).exp());
    let sum: f32 = logits.iter().sum();
    let scale = 1.0 / (sum * rows as f32);
    logits.iter_mut().for_each(|x| *x *= scale);
    logits[target] -= 1.0 / rows as f32;
    (f64::from(sum).ln() - f64::from(chosen)) / rows as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::initial::initial;
    use crate::tensors::zeros_like;

    #[test]
    fn gradients_know_of_the_zeros_of_dropout() {
        let (exec, config, tokens) = (Exec::cpu(1), Config::mamba(16, 8, 2), [1, 5, 9, 2, 3, 7, 7, 1]);
        let mut random = Random::new(5);
        let weight = |(name, shape): (String, Vec<usize>)| {
            let data = initial(&config, &name, &shape, &mut random);
            (name, Array { shape, data })
        };
        let weights: Tensors = config.tensors().into_iter().map(weight).collect();
        let loss = |weights: &Tensors, dropout: Dropout, gradients: &mut Tensors| {
            let model = Model::from_tensors(config.clone(), weights).unwrap();
            model.loss_with_dropout(&exec, &tokens, 7, dropout, gradients).unwrap()
        };
        let (dropout, mut gradients, mut other) = (Dropout { share: 0.4, seed: 9 }, zeros_like(&weights), zeros_like(&weights));
        let with = loss(&weights, dropout, &mut gradients);
        assert_eq!(with, loss(&weights, dropout, &mut other), "the same zeros");
        assert_ne!(with, loss(&weights, Dropout::NONE, &mut other), "zeros matter");
        // along its own direction a gradient is the square of its length
        let squares = |(name, g): (&String, &Array)| (name.clone(), g.data.iter().map(|g| f64::from(g * g)).sum::<f64>());
        for (name, expected) in gradients.iter().map(squares) {
            let step = 2e-3 / expected.sqrt();
            let mut moved = |by: f64| {
                let mut weights = weights.clone();
                let to = weights.get_mut(&name).unwrap();
                to.data.iter_mut().zip(&gradients[&name].data).for_each(|(w, g)| *w += by as f32 * g);
                loss(&weights, dropout, &mut other)
            };
            let slope = (moved(step) - moved(-step)) / (2.0 * step);
            assert!((slope - expected).abs() < 0.02 * expected + 1e-5, "{name}: {slope} is not {expected}");
        }
    }
}
