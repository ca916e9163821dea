//! Training on the device: what the passes of `model/backward.rs` need of it.

use super::Shared;
use crate::config::Config;
use crate::error::Result;
use crate::kernels::embedding;
use crate::kernels::training::{TokenRows, Zeros, clear, cross_entropy, dropout, embedding_backward, scale_by};
use crate::mixer::{Linear, Multiplied, Room};
use crate::model::backward::{TrainingRooms, loss_and_gradients};
use crate::model::rows::{Dropout, Rows};
use crate::model::whole::{Added, BlockRooms, LogitRows, Trains};
use statescan::tensor::Tensor;
use statescan::{DType, Exec, View, ViewMut};
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

impl Trains for Shared {
    fn losses(&self) -> DType {
        DType::F32
    }

    fn mean(&self, losses: &Room, rows: usize) -> Result<f64> {
        Ok(losses.to_vec(rows)?.into_iter().map(f64::from).sum::<f64>() / rows as f64)
    }

    fn embed(&self, table: View<'_>, tokens: View<'_>, factor: f32, y: &mut ViewMut<'_>) -> Result<()> {
        Ok(embedding(&self.exec, table, tokens.index(1, 0), factor, y)?)
    }

    fn embed_backward(
        &self,
        (_, order): (View<'_>, Option<&TokenRows>),
        dy: View<'_>,
        factor: f32,
        table: &mut ViewMut<'_>,
    ) -> Result<()> {
        Ok(embedding_backward(&self.exec, order.expect("sorted before it is used"), dy, factor, table)?)
    }

    fn add(&self, added: Added<'_>, before: Option<View<'_>>, y: &mut ViewMut<'_>, room: &mut Room) -> Result<()> {
        // the bias has the factor already
        let Added { x, product: Linear { weight, bias }, factor, zeros } = added;
        let Some(before) = before else { return Ok(self.products.add_multiple(x, weight, bias, factor, y)?) };
        if zeros.is_none() && factor == 1.0 {
            return Ok(self.products.multiply_add(x, weight, bias, before, y)?);
        }
        dropout(&self.exec, before, (None, 1.0), y, false)?;
        if zeros.is_none() {
            return Ok(self.products.add_multiple(x, weight, bias, factor, y)?);
        }
        let rows = y.shape()[0];
        room.grow(&self.exec, DType::F32, rows, self.config.dim)?;
        clear(&self.exec, &mut room.of_mut(rows))?;
        self.products.add_multiple(x, weight, bias, factor, &mut room.of_mut(rows))?;
        Ok(dropout(&self.exec, room.of(rows), (zeros, 1.0), y, true)?)
    }

    fn dropout(&self, x: View<'_>, zeros: Option<Zeros>, factor: f32, y: &mut ViewMut<'_>) -> Result<()> {
        Ok(dropout(&self.exec, x, (zeros, factor), y, false)?)
    }

    fn cross_entropy(&self, of: LogitRows<'_>) -> Result<()> {
        let LogitRows { logits, gradient, losses, targets, batch, unit, divisor } = of;
        let (count, scale) = (targets.shape()[0], unit / batch as f32);
        let (targets, losses, gradient) = (targets.index(1, 0), &mut losses.index(1, 0), &mut gradient.of_mut(count));
        Ok(cross_entropy(&self.exec, logits.of(count), targets, [scale, divisor], losses, gradient)?)
    }

    fn head_backward(&self, of: Multiplied<'_>, dx: &mut ViewMut<'_>, dweight: &mut ViewMut<'_>, add: bool) -> Result<()> {
        let Multiplied { x, product, dy } = of;
        self.products.multiply(dy, product.weight.permute(&[1, 0]), None, dx, false)?;
        Ok(self.products.multiply(dy.permute(&[1, 0]), x.permute(&[1, 0]), None, dweight, add)?)
    }

    fn scale(&self, y: &mut ViewMut<'_>, x: View<'_>) -> Result<()> {
        Ok(scale_by(&self.exec, y, x)?)
    }
}
