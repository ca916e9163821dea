//! What a block does between its norm and the stream, the mixer of Mamba, FalconMamba or Mamba-2:
//!
//! ```text
//! x, z, .. = in_proj(u)      x = silu(conv(x))      y = scan(x, dt, A, B, C, D) silu(z)      out_proj(y)
//! ```
//!
//! In Mamba dt, B and C are projections of the convolution's result, in FalconMamba with norms; in Mamba-2 they come from the first projection and the
//! convolution, and the gate is part of a norm behind the scan. `forward.rs` and `backward.rs` have the passes, on views, for every device that has the
//! verbs of `device.rs`; here are the weights as the process has them.

mod backward;
mod device;
mod forward;
mod weights;

use crate::checkpoint::Checkpoint;
use crate::config::{Config, Kind};
use crate::error::Result;
use crate::weight::Weight;
pub(crate) use backward::Back;
pub(crate) use device::{Device, Host, Multiplied};
pub(crate) use forward::{Part, Run};
use statescan::View;
pub(crate) use weights::{Gradients, OfProduct, Product, Weights, Written};

/// A linear layer.
pub(crate) struct Linear {
    pub(crate) weight: Weight,
    pub(crate) bias: Option<Vec<f32>>,
}

impl Linear {
    pub(crate) fn view(&self) -> Product<'_> {
        Product { weight: self.weight.view(), bias: self.bias.as_deref().map(vector) }
    }
}

/// The weights of a mixer. Decays are `-exp` of what checkpoints have.
pub(crate) struct Mixer {
    pub(crate) in_proj: Linear,
    /// (channels, width)
    pub(crate) conv: Weight,
    pub(crate) conv_bias: Option<Vec<f32>>,
    /// (inner, dstate), or (nheads).
    pub(crate) a: Weight,
    /// (inner), or (nheads).
    pub(crate) d: Vec<f32>,
    pub(crate) dt_bias: Vec<f32>,
    /// The projections to step sizes of low rank, B and C, and from there to step sizes; Mamba-2 has none.
    pub(crate) maps: Option<[Linear; 2]>,
    /// The norm behind the scan; only Mamba-2 has one.
    pub(crate) norm: Option<Vec<f32>>,
    pub(crate) out_proj: Linear,
    /// Decays, D and the bias of step sizes of each channel, where they are one for each head.
    channels: Option<[Vec<f32>; 3]>,
}

fn vector(numbers: &[f32]) -> View<'_> {
    View::new(numbers, &[numbers.len()]).expect("as many numbers as the shape has")
}

impl Mixer {
    /// Takes the weights of a block, `backbone.layers.{i}.mixer.*`.
    pub(crate) fn take(config: &Config, from: &mut Checkpoint, prefix: &str) -> Result<Self> {
        let Config { inner, dstate, nheads, dt_rank, bias, width, dim, .. } = *config;
        let (channels, heads, mut part) = (config.conv_channels(), config.kind == Kind::Mamba2, Taken { from, prefix });
        let in_proj = part.linear("in_proj", [config.in_proj(), dim], bias)?;
        let conv = Weight::from_slice(&part.vector("conv1d.weight", &[channels, 1, width])?, &[channels, width])?;
        let conv_bias = part.vector_if(config.conv_bias, "conv1d.bias", &[channels])?;
        let (mut maps, mut norm) = (None, None);
        let of_a: &[usize] = if heads { &[nheads] } else { &[inner, dstate] };
        let (a, dt_bias) = match heads {
            true => {
                norm = Some(part.vector("norm.weight", &[inner])?);
                (part.vector("A_log", of_a)?, part.vector("dt_bias", &[nheads])?)
            }
            false => {
                let x_proj = part.linear("x_proj", [dt_rank + 2 * dstate, inner], false)?;
                let mut dt_proj = part.linear("dt_proj", [inner, dt_rank], true)?;
                // the scan adds it
                let dt_bias = dt_proj.bias.take().unwrap_or_default();
                maps = Some([x_proj, dt_proj]);
                (part.vector("A_log", of_a)?, dt_bias)
            }
        };
        let a: Vec<f32> = a.into_iter().map(|log| -log.exp()).collect();
        let d = part.vector("D", &of_a[..1])?;
        let spread = |heads: &[f32]| heads.iter().flat_map(|&x| std::iter::repeat_n(x, inner / nheads)).collect();
        let channels = heads.then(|| [&a, &d, &dt_bias].map(|of| spread(of)));
        let (a, out_proj) = (Weight::from_slice(&a, of_a)?, part.linear("out_proj", [dim, inner], bias)?);
        Ok(Mixer { in_proj, conv, conv_bias, a, d, dt_bias, maps, norm, out_proj, channels })
    }

    /// The products of the mixer.
    pub(crate) fn products(&self) -> impl Iterator<Item = &Linear> {
        [&self.in_proj, &self.out_proj].into_iter().chain(self.maps.iter().flatten())
    }

    /// The weights as passes take them.
    pub(crate) fn weights(&self) -> Weights<'_> {
        let own = crate::inner::Parameters {
            conv: self.conv.view(),
            conv_bias: self.conv_bias.as_deref().map(vector),
            a: self.a.view(),
            d: vector(&self.d),
            dt_bias: vector(&self.dt_bias),
            norm: self.norm.as_deref().map(vector),
        };
        Weights {
            in_proj: self.in_proj.view(),
            own,
            maps: self.maps.as_ref().map(|maps| maps.each_ref().map(Linear::view)),
            out_proj: self.out_proj.view(),
            channels: self.channels.as_ref().map(|all| all.each_ref().map(|of| vector(of))),
        }
    }

    /// Makes gradients by decays those by their logarithms: `A = -exp(A_log)` is its own derivative.
    pub(crate) fn through_decays(&self, gradient: &mut [f32]) {
        gradient.iter_mut().zip(self.a.to_f32()).for_each(|(gradient, a)| *gradient *= a);
    }
}

/// Where the weights of one mixer are taken from, by their names in it.
struct Taken<'p> {
    from: &'p mut Checkpoint,
    prefix: &'p str,
}

impl Taken<'_> {
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
