//! [`DeviceTraining`]: weights, gradients and the optimizer's means on an NVIDIA GPU.

use super::backward::{BackRooms, Gradients};
use super::{Shared, lock};
use crate::config::Config;
use crate::error::Result;
use crate::model::Model;
use crate::model::gradients::{Dropout, Rows};
use crate::tensors::{Array, Tensors, zeros_like};
use statescan::cuda::layers::training::{AdamW, ClippedGradient};
use statescan::tensor::Tensor;
use statescan::{DType, Exec};

/// A model in training on a GPU. Weights, gradients and means are f32; activations and what products multiply have the type that it was made for.
pub struct DeviceTraining {
    shared: Shared,
    weights: Vec<Moved>,
    gradients: Gradients,
    clipped: ClippedGradient,
    rooms: BackRooms,
}

/// A weight, and the means of its gradients and of their squares.
struct Moved {
    name: String,
    weight: Tensor,
    first: Tensor,
    second: Tensor,
}

/// Weights and means on the host.
pub(crate) struct Downloaded {
    pub(crate) weights: Tensors,
    pub(crate) first: Tensors,
    pub(crate) second: Tensors,
}

impl DeviceTraining {
    /// Copies weights, with the names and shapes of [`Config::tensors`], to the executor's device; activations are of a type, f32, bf16 or f16. All means
    /// are zero.
    ///
    /// # Errors
    /// As [`Model::from_tensors`], and [`DeviceModel::new`](super::DeviceModel::new).
    pub fn new(exec: &Exec, config: &Config, weights: &Tensors, dtype: DType) -> Result<Self> {
        let means = zeros_like(weights);
        Self::from_parts(exec, config, dtype, weights, [&means, &means])
    }

    pub(crate) fn from_parts(
        exec: &Exec,
        config: &Config,
        dtype: DType,
        weights: &Tensors,
        means: [&Tensors; 2],
    ) -> Result<Self> {
        let mut shared = Shared::new(exec, &Model::from_tensors(config.clone(), weights)?, dtype)?;
        let upload = |array: &Array| Tensor::from_slice(exec, &array.data, &array.shape);
        let moved = weights.iter().map(|(name, weight)| {
            let [first, second] = means.map(|means| upload(&means[name]));
            Ok(Moved { name: name.clone(), weight: upload(weight)?, first: first?, second: second? })
        });
        let weights: Vec<Moved> = moved.collect::<Result<_>>()?;
        // by the kernel that does it after each step, so that a training which was saved and resumed goes on with the same bits
        for Moved { name, weight, .. } in &weights {
            let (tensor, form) = shared.weights.of(config, name);
            AdamW::copy(exec, weight.view(), &mut tensor.view_mut(), form)?;
        }
        let gradients = Gradients::new(exec, &shared.config)?;
        let clipped = ClippedGradient::new(exec, weights.iter().map(|moved| moved.weight.view().len()))?;
        Ok(DeviceTraining { shared, weights, gradients, clipped, rooms: BackRooms::default() })
    }

    /// Whether blocks keep all activations of a step. By default they keep their inputs alone, and everything else is computed again. Results have the
    /// same bits.
    #[must_use]
    pub fn keep_activations(mut self, keep: bool) -> Self {
        self.rooms = BackRooms::new(keep);
        self
    }

    /// The loss before a step, as [`Model::loss_and_gradients`] gives it, and the step: gradients that are longer than `longest`, all of them together,
    /// are scaled down; only the weights of projections decay.
    ///
    /// # Errors
    /// As [`Model::loss_and_gradients`]; errors of the device.
    pub fn step(&mut self, tokens: &[u32], seqlen: usize, longest: f64, step: AdamW) -> Result<f64> {
        self.step_with_dropout(tokens, seqlen, Dropout::NONE, longest, step)
    }

    pub(crate) fn step_with_dropout(
        &mut self,
        tokens: &[u32],
        seqlen: usize,
        dropout: Dropout,
        longest: f64,
        step: AdamW,
    ) -> Result<f64> {
        let loss = self.loss_and_gradients(tokens, seqlen, dropout)?;
        let DeviceTraining { shared: Shared { exec, config, weights: used, .. }, weights, gradients, clipped, .. } = self;
        clipped.measure(weights.iter().map(|moved| gradients.get(&moved.name)), longest)?;
        for Moved { name, weight, first, second } in weights {
            let step = if decays(name) { step } else { AdamW { weight_decay: 0.0, ..step } };
            let (tensor, form) = used.of(config, name);
            let gradient = (gradients.get(name), clipped.factor());
            let means = [&mut first.view_mut(), &mut second.view_mut()];
            step.apply(exec, &mut weight.view_mut(), gradient, means, Some((&mut tensor.view_mut(), form)))?;
        }
        Ok(loss)
    }

    fn loss_and_gradients(&mut self, tokens: &[u32], seqlen: usize, dropout: Dropout) -> Result<f64> {
        self.shared.config.check_tokens(tokens)?;
        let rows = Rows::new(tokens, seqlen)?;
        let mut rooms = lock(&self.shared.rooms);
        self.shared.loss_and_gradients(&rows, dropout, &mut rooms, &mut self.rooms, &mut self.gradients)
    }

    /// The weights as they are now, with the names and shapes of checkpoints.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn weights(&self) -> Result<Tensors> {
        self.part(|moved| &moved.weight)
    }

    pub(crate) fn download(&self) -> Result<Downloaded> {
        let (first, second) = (self.part(|moved| &moved.first)?, self.part(|moved| &moved.second)?);
        Ok(Downloaded { weights: self.weights()?, first, second })
    }

    fn part(&self, of: impl Fn(&Moved) -> &Tensor) -> Result<Tensors> {
        let array = |moved: &Moved| {
            let tensor = of(moved);
            Ok((moved.name.clone(), Array { shape: tensor.shape().to_vec(), data: tensor.to_vec()? }))
        };
        self.weights.iter().map(array).collect()
    }
}

/// Only projections lose weight: norms, biases, decays, skips and filters mean something by their size.
pub(crate) fn decays(name: &str) -> bool {
    name.ends_with("proj.weight")
}

impl super::DeviceModel {
    /// The loss of rows of tokens and its gradient by every weight, as [`Model::loss_and_gradients`] gives them, but for rounded activations where weights
    /// have 16 bits.
    ///
    /// # Errors
    /// As [`Model::loss_and_gradients`]; errors of the device.
    pub fn loss_and_gradients(&self, tokens: &[u32], seqlen: usize, gradients: &mut Tensors) -> Result<f64> {
        let Shared { exec, config, .. } = &*self.shared;
        config.check_tokens(tokens)?;
        let (rows, mut found) = (Rows::new(tokens, seqlen)?, Gradients::new(exec, config)?);
        let mut rooms = lock(&self.shared.rooms);
        let loss = self.shared.loss_and_gradients(&rows, Dropout::NONE, &mut rooms, &mut BackRooms::default(), &mut found)?;
        for (name, array) in gradients {
            array.data = found.to_vec(name)?;
        }
        Ok(loss)
    }
}
