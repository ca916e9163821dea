//! How many weights a model has, and how many bytes it and its passes take.

use super::{Config, Kind};

fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product, &size| product.saturating_mul(size))
}

fn sum(sizes: impl IntoIterator<Item = usize>) -> usize {
    sizes.into_iter().fold(0, usize::saturating_add)
}

impl Config {
    /// The sum of what each layer has of something, which depends on its kind alone.
    fn over_layers(&self, of: impl Fn(Kind) -> usize) -> usize {
        let kinds = Kind::ALL.into_iter().map(|kind| (kind, self.layers.iter().filter(|&&layer| layer == kind).count()));
        sum(kinds.filter(|(_, count)| *count > 0).map(|(kind, count)| product(&[count, of(kind)])))
    }

    /// Number of weights; the largest number where there are more than that.
    pub fn weights(&self) -> usize {
        let of_layer = |kind: Kind| sum(kind.weights(self).iter().map(|weight| product(&weight.shape)).chain([self.dim]));
        let tables = if self.tied { 1 } else { 2 };
        sum([product(&[tables, self.vocab, self.dim]), self.dim, self.over_layers(of_layer)])
    }

    /// Bytes of the state of one sequence before its first token.
    pub(crate) fn state_bytes(&self) -> usize {
        let of_layer = |kind: Kind| sum(kind.states(self).iter().map(|state| product(&state.shape)));
        product(&[4, self.over_layers(of_layer)])
    }

    /// Bytes by which the state of a sequence grows with each token: its keys and values in layers of attention.
    pub fn bytes_per_token(&self) -> usize {
        let attention = self.layers.iter().filter(|&&layer| layer == Kind::Attention).count();
        product(&[4, 2, attention, self.attention.kv_heads, self.attention.headdim])
    }

    /// Numbers that a row has on its way through a layer, at most.
    fn row(&self) -> usize {
        let most = self.layers.iter().map(|kind| kind.mix().row(self)).max();
        sum([product(&[3, self.dim]), most.unwrap_or_default()])
    }

    /// Bytes that so many rows need on their way through the layers.
    pub(crate) fn pass_bytes(&self, rows: usize) -> usize {
        product(&[4, rows, self.row()])
    }

    /// Bytes that training needs with so many tokens in a step: weights twice, as the optimizer and the model have them, gradients, two means, the inputs of
    /// layers, and a layer and the head there and back.
    pub(crate) fn training_bytes(&self, tokens: usize) -> usize {
        let kept = product(&[tokens, self.layers.len(), self.dim]);
        let work = product(&[2, tokens, sum([self.row(), self.vocab])]);
        product(&[4, sum([product(&[5, self.weights()]), kept, work])])
    }
}
