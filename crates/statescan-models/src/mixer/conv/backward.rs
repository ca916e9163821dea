//! The way back through the convolution of a block.

use super::Conv;
use crate::error::Result;
use crate::rows::Columns;
use crate::rows::backward::{Batch, ColumnsMut};
use crate::tensors::Slots;
use statescan::ops::causal_conv1d::{Activation, Args, Cotangents, Gradients, backward};
use statescan::{View, ViewMut};

impl Conv {
    /// Gradients of a batch, `dx`, and of the filters from those of the results, `dy`.
    pub(in crate::mixer) fn backward(
        &self,
        batch: Batch<'_>,
        x: Columns<'_>,
        dy: Columns<'_>,
        dx: ColumnsMut<'_>,
        slots: &mut Slots<'_>,
    ) -> Result<()> {
        let (channels, shape) = (self.channels, [self.channels, self.width]);
        let bias = self.bias.as_ref().map(|bias| View::new(bias, &[channels])).transpose()?;
        let args = Args::new(x.batch(batch, channels)?, View::new(&self.weight, &shape)?).bias(bias).activation(Activation::Silu);
        let (mut weight, mut of_bias) = (vec![0.0; channels * self.width], vec![0.0; channels]);
        let mut grads = Gradients::default().x(dx.batch(batch, channels)?).weight(ViewMut::new(&mut weight, &shape)?);
        if bias.is_some() {
            grads = grads.bias(ViewMut::new(&mut of_bias, &[channels])?);
        }
        backward(batch.exec, &args, &Cotangents::default().y(dy.batch(batch, channels)?), &mut grads)?;
        slots.of("conv1d.weight").copy_from_slice(&weight);
        if bias.is_some() {
            slots.of("conv1d.bias").copy_from_slice(&of_bias);
        }
        Ok(())
    }
}
