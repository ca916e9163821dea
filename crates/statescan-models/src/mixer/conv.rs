//! The causal convolution in front of a scan, with SiLU.

mod backward;

use super::Part;
use crate::error::Result;
use crate::rows::{Columns, Pass, channels_mut};
use crate::state::LayerState;
use statescan::ops::causal_conv1d::{Activation, Args, Outputs, forward};
use statescan::{View, ViewMut};

pub(crate) struct Conv {
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) channels: usize,
    width: usize,
}

impl Conv {
    pub(super) fn take(part: &mut Part<'_>) -> Result<Self> {
        let (channels, width) = (part.config.conv_channels(), part.config.width);
        let weight = part.vector("conv1d.weight", &[channels, 1, width])?;
        let bias = part.vector_if(part.config.conv_bias, "conv1d.bias", &[channels])?;
        Ok(Conv { weight, bias, channels, width })
    }

    /// Columns of `x` to rows of `y`; the latest inputs of each sequence are kept.
    pub(super) fn forward(&self, pass: &Pass<'_>, x: Columns<'_>, states: &mut [&mut LayerState], y: &mut [f32]) -> Result<()> {
        let shape = [1, self.channels, self.width - 1];
        let mut next = vec![0.0; self.channels * (self.width - 1)];
        for (rows, state) in pass.sequences.iter().zip(states).filter(|(rows, _)| !rows.is_empty()) {
            let bias = self.bias.as_ref().map(|bias| View::new(bias, &[self.channels])).transpose()?;
            let args = Args::new(x.channels(rows, self.channels)?, View::new(&self.weight, &[self.channels, self.width])?)
                .bias(bias)
                .activation(Activation::Silu)
                .initial_states(View::new(&state.conv, &shape)?);
            let out = Outputs::default().y(channels_mut(y, rows, self.channels)?);
            forward(pass.exec, &args, &mut out.final_states(ViewMut::new(&mut next, &shape)?))?;
            std::mem::swap(&mut state.conv, &mut next);
        }
        Ok(())
    }
}
