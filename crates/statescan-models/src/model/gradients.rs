//! The loss of a model on some texts, and its gradient by every weight.

use super::Model;
use crate::error::{Error, Result};
use crate::random::Random;
use crate::rows::backward::{Batch, ColumnsMut, Ends, normalize_backward};
use crate::rows::{Columns, Pass, Rooms, normalize};
use crate::state::LayerState;
use crate::tensors::{Slots, Tensors};
use statescan::cuda::layers::training::Zeros;
use statescan::{DType, Exec};

impl Model {
    /// The mean cross entropy of the next token, in nats, over rows of `seqlen + 1` tokens that are read from the start, and its gradients, by
    /// names in checkpoints. `gradients` has a tensor for each of the model's, and is overwritten.
    ///
    /// Of the forward pass only the inputs of blocks are kept; everything within a block is computed again on the way back.
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
        let Rows { read, targets, count, seqlen } = Rows::new(tokens, seqlen)?;
        let batch = Batch { exec, count, seqlen };
        let (mut before, mut rooms) = (Vec::new(), Rooms::default());
        let stream = self.keep_inputs(batch, &read, dropout, &mut before, &mut rooms)?;
        let (loss, mut dstream) = self.head_backward(batch, &stream, &targets, gradients)?;
        for (i, x) in before.iter().enumerate().rev() {
            let mut dmixed = dstream.clone();
            dropout.apply(i, &mut dmixed);
            let dx = self.block_backward(batch, i, x, &dmixed, &mut rooms, gradients)?;
            dstream.iter_mut().zip(&dx).for_each(|(to, more)| *to += more);
        }
        let dim = self.config.dim;
        let embedding = &mut Slots { tensors: &mut *gradients, prefix: "" };
        let embedding = embedding.of(self.config.package.embedding());
        dropout.apply(self.blocks.len(), &mut dstream);
        for (row, &token) in dstream.chunks_exact(dim).zip(&read) {
            let to = &mut embedding[token as usize * dim..(token as usize + 1) * dim];
            to.iter_mut().zip(row).for_each(|(to, x)| *to += x);
        }
        Ok(loss)
    }

    /// The stream after the last block; what was before each block is kept.
    fn keep_inputs(
        &self,
        batch: Batch<'_>,
        tokens: &[u32],
        dropout: Dropout,
        before: &mut Vec<Vec<f32>>,
        rooms: &mut Rooms,
    ) -> Result<Vec<f32>> {
        let mut stream = vec![0.0; tokens.len() * self.config.dim];
        self.embed(tokens, &mut stream);
        dropout.apply(self.blocks.len(), &mut stream);
        for i in 0..self.blocks.len() {
            let (_, mut mixed) = self.block_forward(batch, i, &stream, rooms)?;
            dropout.apply(i, &mut mixed);
            before.push(stream.clone());
            stream.iter_mut().zip(mixed).for_each(|(x, y)| *x += y);
        }
        Ok(stream)
    }

    /// What a block normalizes, and what it adds to the stream `x`; the rooms have what lies between.
    fn block_forward(&self, batch: Batch<'_>, i: usize, x: &[f32], rooms: &mut Rooms) -> Result<(Vec<f32>, Vec<f32>)> {
        let block = &self.blocks[i];
        let mut states: Vec<LayerState> = (0..batch.count).map(|_| LayerState::new(&self.config)).collect();
        let sequences: Vec<_> = (0..batch.count).map(|row| row * batch.seqlen..(row + 1) * batch.seqlen).collect();
        let pass = Pass { exec: batch.exec, rows: batch.rows(), sequences: &sequences };
        let (mut normed, mut mixed) = (x.to_vec(), vec![0.0; x.len()]);
        normed.chunks_exact_mut(self.config.dim).for_each(|row| normalize(row, Some(&block.norm), self.config.eps));
        block.mixer.forward(&pass, &normed, &mut states.iter_mut().collect::<Vec<_>>(), rooms, &mut mixed)?;
        Ok((normed, mixed))
    }

    /// The loss, and its gradient by the stream after the last block.
    fn head_backward(
        &self,
        batch: Batch<'_>,
        stream: &[f32],
        targets: &[u32],
        gradients: &mut Tensors,
    ) -> Result<(f64, Vec<f32>)> {
        let (dim, vocab, rows) = (self.config.dim, self.config.vocab, batch.rows());
        let mut normed = stream.to_vec();
        normed.chunks_exact_mut(dim).for_each(|row| normalize(row, Some(&self.norm), self.config.eps));
        let mut logits = vec![0.0; rows * vocab];
        self.head.forward(batch.exec, Columns::whole(&normed, dim), rows, &mut logits)?;
        let share = |(row, &target): (&mut [f32], &u32)| cross_entropy(row, target as usize, rows);
        let loss: f64 = logits.chunks_exact_mut(vocab).zip(targets).map(share).sum();

        let mut slots = Slots { tensors: &mut *gradients, prefix: "" };
        slots.of(self.config.package.embedding()).fill(0.0);
        let head = if self.config.tied { self.config.package.embedding() } else { "lm_head.weight" };
        let mut dstream = vec![0.0; rows * dim];
        let into = ColumnsMut::whole(&mut dstream, dim);
        let (normed, dlogits) = (Columns::whole(&normed, dim), Columns::whole(&logits, vocab));
        self.head.backward(batch, normed, dlogits, into, &mut slots, head.trim_end_matches(".weight"))?;
        let dnorm = slots.of("backbone.norm_f.weight");
        dnorm.fill(0.0);
        for (x, dy) in stream.chunks_exact(dim).zip(dstream.chunks_exact_mut(dim)) {
            normalize_backward(x, Some((&self.norm[..], &mut *dnorm)), self.config.eps, dy);
        }
        Ok((loss, dstream))
    }

    /// The gradient by the stream before a block through its mixer, from that by what the mixer adds.
    fn block_backward(
        &self,
        batch: Batch<'_>,
        i: usize,
        x: &[f32],
        dmixed: &[f32],
        rooms: &mut Rooms,
        gradients: &mut Tensors,
    ) -> Result<Vec<f32>> {
        let (block, dim) = (&self.blocks[i], self.config.dim);
        let (normed, _) = self.block_forward(batch, i, x, rooms)?;
        let prefix = format!("backbone.layers.{i}.mixer.");
        let mut slots = Slots { tensors: &mut *gradients, prefix: &prefix };
        let mut dx = block.mixer.backward(batch, &normed, dmixed, rooms, &mut slots, &mut Ends::default())?;
        let prefix = format!("backbone.layers.{i}.norm.");
        let mut slots = Slots { tensors: &mut *gradients, prefix: &prefix };
        let dnorm = slots.of("weight");
        dnorm.fill(0.0);
        for (x, dy) in x.chunks_exact(dim).zip(dx.chunks_exact_mut(dim)) {
            normalize_backward(x, Some((&block.norm[..], &mut *dnorm)), self.config.eps, dy);
        }
        Ok(dx)
    }
}

/// Rows of a text, and what follows each of their tokens.
pub(crate) struct Rows {
    pub(crate) read: Vec<u32>,
    pub(crate) targets: Vec<u32>,
    pub(crate) count: usize,
    pub(crate) seqlen: usize,
}

impl Rows {
    /// Of rows of `seqlen + 1` tokens.
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
    use crate::tensors::{Array, zeros_like};

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
