//! What a block does between its norm and the stream: projection, convolution, scan, gate, projection.

mod conv;
mod mamba;
mod mamba2;
mod scan;

use crate::checkpoint::Checkpoint;
use crate::config::{Config, Kind};
use crate::error::Result;
use crate::rows::backward::Batch;
use crate::rows::{Linear, Pass, Rooms};
use crate::state::LayerState;
use crate::tensors::Slots;
use mamba::Mamba;
use mamba2::Mamba2;

/// The mixer of a block.
pub(crate) enum Mixer {
    Mamba(Box<Mamba>),
    Mamba2(Box<Mamba2>),
}

impl Mixer {
    /// Takes the weights of a block, `backbone.layers.{i}.mixer.*`.
    pub(crate) fn take(config: &Config, from: &mut Checkpoint, prefix: &str) -> Result<Self> {
        let mut part = Part { config, from, prefix };
        Ok(match config.kind {
            Kind::Mamba2 => Mixer::Mamba2(Box::new(Mamba2::take(&mut part)?)),
            Kind::Mamba | Kind::FalconMamba => Mixer::Mamba(Box::new(Mamba::take(&mut part)?)),
        })
    }

    /// Rows of `x` (rows, dim) to rows of `out`, with the state of each sequence carried on.
    pub(crate) fn forward(
        &self,
        pass: &Pass<'_>,
        x: &[f32],
        states: &mut [&mut LayerState],
        rooms: &mut Rooms,
        out: &mut [f32],
    ) -> Result<()> {
        match self {
            Mixer::Mamba(mixer) => mixer.forward(pass, x, states, rooms, out),
            Mixer::Mamba2(mixer) => mixer.forward(pass, x, states, rooms, out),
        }
    }

    /// Gradients of a batch, `dx`, and of the weights from those of the results, `dout`. The rooms have what the forward pass of the same
    /// batch left there.
    pub(crate) fn backward(
        &self,
        batch: Batch<'_>,
        x: &[f32],
        dout: &[f32],
        rooms: &mut Rooms,
        slots: &mut Slots<'_>,
        dx: &mut [f32],
    ) -> Result<()> {
        match self {
            Mixer::Mamba(mixer) => mixer.backward(batch, x, dout, rooms, slots, dx),
            Mixer::Mamba2(mixer) => mixer.backward(batch, x, dout, rooms, slots, dx),
        }
    }

    /// Its products.
    pub(crate) fn products(&self) -> Vec<&Linear> {
        match self {
            Mixer::Mamba(mixer) => mixer.products(),
            Mixer::Mamba2(mixer) => mixer.products(),
        }
    }
}

/// The weights of one mixer, by their names in it.
struct Part<'p> {
    config: &'p Config,
    from: &'p mut Checkpoint,
    prefix: &'p str,
}

impl Part<'_> {
    /// A small tensor, as f32.
    fn vector(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        Ok(self.from.take(&format!("{}{name}", self.prefix), shape)?.to_f32())
    }

    /// A small tensor that is there under a condition.
    fn vector_if(&mut self, there: bool, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>> {
        if there { self.vector(name, shape).map(Some) } else { Ok(None) }
    }

    fn linear(&mut self, name: &str, shape: [usize; 2], bias: bool) -> Result<Linear> {
        let weight = self.from.take(&format!("{}{name}.weight", self.prefix), &shape)?;
        Ok(Linear { weight, bias: self.vector_if(bias, &format!("{name}.bias"), &shape[..1])? })
    }
}
