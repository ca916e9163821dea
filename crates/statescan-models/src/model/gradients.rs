//! The loss of a model on the host, and its gradient by every weight.

use super::Model;
use super::backward::{TrainingRooms, loss_and_gradients};
use super::rows::{Dropout, Rows};
use super::whole::BlockRooms;
use crate::error::{Error, Result};
use crate::mixer::Host;
use crate::tensors::Tensors;
use statescan::{DType, Exec};

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

    /// Computes loss and gradients with random zeros in the rows that blocks add to the stream.
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
            let expected = shape.iter().product();
            let to = gradients.get_mut(&name).unwrap_or_else(|| panic!("a gradient by `{name}`"));
            if to.data.len() != expected {
                let (layer, argument, shape, got) =
                    ("loss_and_gradients", "gradients", "of as many numbers as the weight", to.data.len());
                return Err(Error::Size { layer, argument, shape, expected, got });
            }
            to.shape = shape;
        }
        let (rows, host) = (Rows::new(tokens, seqlen)?, Host(exec));
        let (mut rooms, mut back) = (BlockRooms::default(), TrainingRooms::default());
        loss_and_gradients(&self.whole(&host), &rows, (dropout, 1.0), &mut rooms, &mut back, gradients)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::initial::initial;
    use crate::random::Random;
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
