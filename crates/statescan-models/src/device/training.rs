//! [`DeviceTraining`]: weights, gradients and the optimizer's moments on an NVIDIA GPU.

use super::backward::{Gradients, gradients_of};
use super::{Shared, lock};
use crate::config::Config;
use crate::error::Result;
use crate::kernels::training::{AdamW, Form, Optimizer, Param, scale_by};
use crate::mixer::Role;
use crate::model::Model;
use crate::model::backward::TrainingRooms;
use crate::model::rows::{Dropout, Rows};
use crate::tensors::{Array, Tensors, zeros_like};
use statescan::tensor::Tensor;
use statescan::{DType, Exec};
use std::collections::HashMap;

/// A model in training on a GPU. Weights, gradients and moments are f32; activations and what products multiply have the type that it was made for.
pub struct DeviceTraining {
    shared: Shared,
    weights: Vec<Trained>,
    gradients: Gradients,
    optimizer: Optimizer,
    rooms: TrainingRooms,
    /// The factor of what layers add to the stream, where it is not 1.
    residual: Option<Tensor>,
}

/// A weight, and the moments of its gradients and of their squares.
struct Trained {
    name: String,
    weight: Tensor,
    first: Tensor,
    second: Tensor,
}

/// Weights and moments on the host.
pub(crate) struct Downloaded {
    pub(crate) weights: Tensors,
    pub(crate) first: Tensors,
    pub(crate) second: Tensors,
}

impl DeviceTraining {
    /// Copies weights, with the names and shapes of [`Config::tensors`], to the executor's device; activations are of a type, f32, bf16 or f16. All moments
    /// are zero.
    ///
    /// # Errors
    /// As [`Model::from_tensors`], and [`DeviceModel::new`](super::DeviceModel::new).
    pub fn new(exec: &Exec, config: &Config, weights: &Tensors, dtype: DType) -> Result<Self> {
        let moments = zeros_like(weights);
        Self::from_parts(exec, config, dtype, weights, [&moments, &moments])
    }

    pub(crate) fn from_parts(
        exec: &Exec,
        config: &Config,
        dtype: DType,
        weights: &Tensors,
        moments: [&Tensors; 2],
    ) -> Result<Self> {
        let shared = Shared::new(exec, &Model::from_tensors(config.clone(), weights)?, dtype)?;
        let upload = |array: &Array| Tensor::from_slice(exec, &array.data, &array.shape);
        let uploaded = weights.iter().map(|(name, weight)| {
            let [first, second] = moments.map(|moments| upload(&moments[name]));
            Ok(Trained { name: name.clone(), weight: upload(weight)?, first: first?, second: second? })
        });
        let weights = uploaded.collect::<Result<_>>()?;
        let (gradients, optimizer) = (gradients_of(exec, &shared.config)?, Optimizer::new(exec)?);
        let factor = config.scales.residual;
        let residual = if factor == 1.0 { None } else { Some(Tensor::from_slice(exec, &[factor], &[1])?) };
        let rooms = TrainingRooms::default();
        let mut training = DeviceTraining { shared, weights, gradients, optimizer, rooms, residual };
        // by the kernel that does it after each step, so that a training which was saved and resumed goes on with the same bits
        let (optimizer, mut params) = training.params();
        optimizer.copy(&mut params)?;
        drop(params);
        training.scale_biases()?;
        Ok(training)
    }

    /// Gives the biases that products use as they add to the stream the factor of what layers add, which weights do not have.
    fn scale_biases(&mut self) -> Result<()> {
        let Some(factor) = &self.residual else { return Ok(()) };
        let Shared { exec, config, weights, .. } = &mut self.shared;
        weights.last_biases(config).try_for_each(|bias| Ok(scale_by(exec, &mut bias.view_mut(), factor.view())?))
    }

    /// All weights, with what is used in their places.
    fn params(&mut self) -> (&mut Optimizer, Vec<Param<'_>>) {
        let DeviceTraining { shared, weights, gradients, optimizer, .. } = self;
        let forms = forms(&shared.config);
        let mut used = shared.weights.tensors_mut(&shared.config);
        let all = weights.iter_mut().map(|Trained { name, weight, first, second }| {
            let form = forms.get(name).copied().unwrap_or(Form::Same);
            let used = used.remove(name).expect("what the model is made of has the names of its weights");
            Param {
                weight: weight.view_mut(),
                gradient: gradients[name].view(),
                moments: [first.view_mut(), second.view_mut()],
                used: Some((used.view_mut(), form)),
                decays: decays(name),
            }
        });
        (optimizer, all.collect())
    }

    /// Whether blocks keep all activations of a step. By default they keep their inputs alone, and everything else is computed again. Results have the
    /// same bits.
    #[must_use]
    pub fn keep_activations(mut self, keep: bool) -> Self {
        self.rooms = TrainingRooms::new(keep);
        self
    }

    /// The loss before a step, as [`Model::loss_and_gradients`] gives it, and the step: gradients that are longer than `max_grad_norm`, all of them together,
    /// are scaled down; only the weights of projections decay.
    ///
    /// # Errors
    /// As [`Model::loss_and_gradients`]; errors of the device.
    pub fn step(&mut self, tokens: &[u32], seqlen: usize, max_grad_norm: f64, step: AdamW) -> Result<f64> {
        self.step_with_dropout(tokens, seqlen, Dropout::NONE, max_grad_norm, step)
    }

    pub(crate) fn step_with_dropout(
        &mut self,
        tokens: &[u32],
        seqlen: usize,
        dropout: Dropout,
        max_grad_norm: f64,
        step: AdamW,
    ) -> Result<f64> {
        let loss = self.loss_and_gradients(tokens, seqlen, dropout)?;
        let (optimizer, mut params) = self.params();
        optimizer.step(step, max_grad_norm, &mut params)?;
        drop(params);
        self.scale_biases()?;
        Ok(loss)
    }

    fn loss_and_gradients(&mut self, tokens: &[u32], seqlen: usize, dropout: Dropout) -> Result<f64> {
        self.shared.config.check_tokens(tokens)?;
        let rows = Rows::new(tokens, seqlen)?;
        let mut rooms = lock(&self.shared.rooms);
        self.shared.loss_and_gradients(&rows, dropout, &mut rooms.block, &mut self.rooms, &mut self.gradients)
    }

    /// The weights as they are now, with the names and shapes of checkpoints.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn weights(&self) -> Result<Tensors> {
        self.part(|trained| &trained.weight)
    }

    pub(crate) fn download(&self) -> Result<Downloaded> {
        let (first, second) = (self.part(|trained| &trained.first)?, self.part(|trained| &trained.second)?);
        Ok(Downloaded { weights: self.weights()?, first, second })
    }

    fn part(&self, of: impl Fn(&Trained) -> &Tensor) -> Result<Tensors> {
        let array = |trained: &Trained| {
            let tensor = of(trained);
            Ok((trained.name.clone(), Array { shape: tensor.shape().to_vec(), data: tensor.to_vec()? }))
        };
        self.weights.iter().map(array).collect()
    }
}

/// The forms in which a model computes with weights that it does not use as they are stored, by names.
fn forms(config: &Config) -> HashMap<String, Form> {
    let shifted = config.norm_offset() != 0.0;
    let mut all = HashMap::new();
    for (layer, kind) in config.layers.iter().enumerate() {
        let prefix = config.prefix(layer);
        for named in kind.weights(config) {
            let form = match named.role {
                Role::Decay => Form::Decay,
                Role::Norm if shifted => Form::OnePlus,
                _ => continue,
            };
            all.insert(format!("{prefix}{}", named.name), form);
        }
        all.extend(shifted.then(|| (config.norm(layer), Form::OnePlus)));
    }
    all.extend(shifted.then(|| (config.last_norm().to_owned(), Form::OnePlus)));
    all
}

/// Only projections lose weight: norms, biases, decays, skips and filters mean something by their size.
pub(crate) fn decays(name: &str) -> bool {
    let of_layer = name.strip_suffix(".weight").and_then(|name| name.rsplit('.').next());
    of_layer.is_some_and(|layer| layer.contains("proj") || layer.ends_with("_linear") || layer.starts_with("lora_"))
}

impl super::DeviceModel {
    /// The loss of rows of tokens and its gradient by every weight, as [`Model::loss_and_gradients`] gives them, but for rounded activations where weights
    /// have 16 bits.
    ///
    /// # Errors
    /// As [`Model::loss_and_gradients`]; errors of the device.
    pub fn loss_and_gradients(&self, tokens: &[u32], seqlen: usize, gradients: &mut Tensors) -> Result<f64> {
        self.loss_with_dropout(tokens, seqlen, Dropout::NONE, gradients)
    }

    /// Computes loss and gradients with random zeros in the rows that blocks add to the stream.
    pub(crate) fn loss_with_dropout(
        &self,
        tokens: &[u32],
        seqlen: usize,
        dropout: Dropout,
        gradients: &mut Tensors,
    ) -> Result<f64> {
        let Shared { exec, config, .. } = &*self.shared;
        config.check_tokens(tokens)?;
        let (rows, mut found) = (Rows::new(tokens, seqlen)?, gradients_of(exec, config)?);
        let mut rooms = lock(&self.shared.rooms);
        let loss = self.shared.loss_and_gradients(&rows, dropout, &mut rooms.block, &mut TrainingRooms::default(), &mut found)?;
        for (name, array) in gradients {
            array.data = found[name].to_vec()?;
        }
        Ok(loss)
    }
}
