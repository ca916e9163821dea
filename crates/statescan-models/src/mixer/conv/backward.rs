//! The way back through the convolution of a block.

use super::Conv;
use crate::error::Result;
use crate::rows::Columns;
use crate::rows::backward::{Batch, ColumnsMut, Ends};
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
        ends: &mut Ends<'_>,
    ) -> Result<()> {
        let (channels, shape) = (self.channels, [self.channels, self.width]);
        let states = [batch.count, channels, self.width - 1];
        let initial = ends.initial.map(|state| View::new(&state.conv, &states)).transpose()?;
        let last = ends.last.map(|state| View::new(&state.conv, &states)).transpose()?;
        let first = ends.first.as_mut().map(|state| ViewMut::new(&mut state.conv, &states)).transpose()?;
        let bias = self.bias.as_ref().map(|bias| View::new(bias, &[channels])).transpose()?;
        let args = Args::new(x.batch(batch, channels)?, View::new(&self.weight, &shape)?)
            .bias(bias)
            .activation(Activation::Silu)
            .initial_states(initial);
        let (mut weight, mut of_bias) = (vec![0.0; channels * self.width], vec![0.0; channels]);
        let mut grads = Gradients::default().x(dx.batch(batch, channels)?).weight(ViewMut::new(&mut weight, &shape)?);
        grads = grads.initial_states(first);
        if bias.is_some() {
            grads = grads.bias(ViewMut::new(&mut of_bias, &[channels])?);
        }
        backward(batch.exec, &args, &Cotangents::default().y(dy.batch(batch, channels)?).final_states(last), &mut grads)?;
        slots.of("conv1d.weight").copy_from_slice(&weight);
        if bias.is_some() {
            slots.of("conv1d.bias").copy_from_slice(&of_bias);
        }
        Ok(())
    }
}
