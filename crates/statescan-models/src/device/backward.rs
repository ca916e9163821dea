//! Training on the device: what the passes of `model/backward.rs` need of it.

use super::Shared;
use crate::config::Config;
use crate::error::Result;
use crate::kernels::training::scale_by;
use crate::model::backward::{TrainingRooms, loss_and_gradients};
use crate::model::rows::{Dropout, Rows};
use crate::model::whole::BlockRooms;
use statescan::tensor::Tensor;
use statescan::{DType, Exec};
use std::collections::BTreeMap;

/// Gradients by all weights, in f32 and with the names and shapes of checkpoints.
pub(super) type Gradients = BTreeMap<String, Tensor>;

/// Room for them.
pub(super) fn gradients_of(exec: &Exec, config: &Config) -> Result<Gradients> {
    let zeros = |(name, shape): (String, Vec<usize>)| Ok((name, Tensor::zeros(exec, DType::F32, &shape)?));
    config.tensors().into_iter().map(zeros).collect()
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
        // gradients of a mean over many rows are small for f16, whose numbers end at 6e-8
        let unit = if self.weights.dtype == DType::F16 { rows.read.len().next_power_of_two() as f32 } else { 1.0 };
        let loss = loss_and_gradients(&self.whole(), rows, (dropout, unit), rooms, back, gradients)?;
        if unit != 1.0 {
            let back = Tensor::from_slice(&self.exec, &[1.0 / unit], &[1])?;
            gradients.values_mut().try_for_each(|gradient| scale_by(&self.exec, &mut gradient.view_mut(), back.view()))?;
        }
        Ok(loss)
    }
}
