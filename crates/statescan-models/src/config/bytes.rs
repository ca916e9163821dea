//! How many weights a model has, and how many bytes it and its passes take.

use super::{Config, Kind};

fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product, &size| product.saturating_mul(size))
}

fn sum(sizes: impl IntoIterator<Item = usize>) -> usize {
    sizes.into_iter().fold(0, usize::saturating_add)
}

impl Config {
    /// Number of weights; the largest number where there are more than that.
    pub fn weights(&self) -> usize {
        let block = sum(self.mixer_tensors().iter().map(|(_, shape)| product(shape)).chain([self.dim]));
        let tables = if self.tied { 1 } else { 2 };
        sum([product(&[tables, self.vocab, self.dim]), self.dim, product(&[self.layers, block])])
    }

    /// Bytes of the state of one sequence.
    pub(crate) fn state_bytes(&self) -> usize {
        let [conv, scan] = self.state_shapes().map(|shape| product(&shape));
        product(&[4, self.layers, sum([conv, scan])])
    }

    /// Numbers that a row has on its way through a block.
    fn row(&self) -> usize {
        let maps = sum([self.dt_rank, self.dstate, self.dstate]);
        let maps = match self.kind {
            Kind::Mamba => maps,
            // with norms and without
            Kind::FalconMamba => product(&[2, maps]),
            Kind::Mamba2 => 0,
        };
        sum([product(&[3, self.dim]), self.in_proj(), self.conv_channels(), maps, product(&[3, self.inner])])
    }

    /// Bytes that so many rows need on their way through the blocks.
    pub(crate) fn pass_bytes(&self, rows: usize) -> usize {
        product(&[4, rows, self.row()])
    }

    /// Bytes that training needs with so many tokens in a step: weights twice, as the optimizer and the model have them, gradients, two means, the inputs of
    /// blocks, and a block and the head there and back.
    pub(crate) fn training_bytes(&self, tokens: usize) -> usize {
        let kept = product(&[tokens, self.layers, self.dim]);
        let work = product(&[2, tokens, sum([self.row(), self.vocab])]);
        product(&[4, sum([product(&[5, self.weights()]), kept, work])])
    }
}
