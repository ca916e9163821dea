//! What a block does between its norm and the stream, the mixer of Mamba, FalconMamba or Mamba-2:
//!
//! ```text
//! x, z, .. = in_proj(u)      x = silu(conv(x))      y = scan(x, dt, A, B, C, D) silu(z)      out_proj(y)
//! ```
//!
//! Where step sizes, B and C come from, and whether a norm follows the scan, is [`Maps`].

mod backward;
mod conv;
mod mamba;
mod mamba2;
mod scan;

use crate::checkpoint::Checkpoint;
use crate::config::{Config, Kind};
use crate::error::Result;
use crate::rows::{Columns, Linear, Pass, Rooms};
use crate::state::LayerState;
pub(crate) use conv::Conv;
pub(crate) use mamba::Mamba;
pub(crate) use mamba2::Mamba2;
use scan::Inputs;
pub(crate) use scan::Scan;

/// The mixer of a block.
pub(crate) struct Mixer {
    pub(crate) in_proj: Linear,
    pub(crate) conv: Conv,
    pub(crate) scan: Scan,
    pub(crate) out_proj: Linear,
    pub(crate) maps: Maps,
    inner: usize,
    /// Columns of the first projection: all, those before the inputs of the convolution, those before the gate.
    columns: usize,
    before_conv: usize,
    before_gate: usize,
}

/// What is different from kind to kind.
pub(crate) enum Maps {
    Mamba(Mamba),
    Mamba2(Mamba2),
}

impl Mixer {
    /// Takes the weights of a block, `backbone.layers.{i}.mixer.*`.
    pub(crate) fn take(config: &Config, from: &mut Checkpoint, prefix: &str) -> Result<Self> {
        let mut part = Part { config, from, prefix };
        let (inner, bias) = (config.inner, config.bias);
        let in_proj = part.linear("in_proj", [config.in_proj(), config.dim], bias)?;
        let conv = Conv::take(&mut part)?;
        let (maps, scan) = match config.kind {
            Kind::Mamba2 => Mamba2::take(&mut part).map(|(maps, scan)| (Maps::Mamba2(maps), scan))?,
            Kind::Mamba | Kind::FalconMamba => Mamba::take(&mut part).map(|(maps, scan)| (Maps::Mamba(maps), scan))?,
        };
        let out_proj = part.linear("out_proj", [config.dim, inner], bias)?;
        let (before_conv, before_gate) = if config.kind == Kind::Mamba2 { (inner, 0) } else { (0, inner) };
        Ok(Mixer { in_proj, conv, scan, out_proj, maps, inner, columns: config.in_proj(), before_conv, before_gate })
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
        let (rows, inner, channels) = (pass.rows, self.inner, self.conv.channels);
        let Rooms { projected, conv, maps, dt, scan, normed } = rooms;
        let projected = projected.of(rows * self.columns);
        self.in_proj.forward(pass.exec, Columns::whole(x, x.len() / rows), rows, projected)?;
        let projected = Columns::whole(projected, self.columns);
        let conv = conv.of(rows * channels);
        self.conv.forward(pass, projected.from(self.before_conv), states, conv)?;
        let (conv, dt, scanned) = (Columns::whole(conv, channels), dt.of(rows * inner), scan.of(rows * inner));
        let [b, c] = match &self.maps {
            Maps::Mamba(maps_of) => maps_of.forward(pass, conv, maps, dt)?,
            Maps::Mamba2(maps_of) => maps_of.forward(projected, conv, dt),
        };
        let from = Inputs { x: conv, dt: Columns::whole(dt, inner), b, c, z: projected.from(self.before_gate) };
        self.scan.forward(pass, &from, states, scanned)?;
        let scanned = match &self.maps {
            Maps::Mamba(_) => scanned,
            Maps::Mamba2(maps) => maps.normalize(scanned, normed),
        };
        self.out_proj.forward(pass.exec, Columns::whole(scanned, inner), rows, out)
    }

    /// Its products.
    pub(crate) fn products(&self) -> Vec<&Linear> {
        let mut products = vec![&self.in_proj, &self.out_proj];
        if let Maps::Mamba(maps) = &self.maps {
            products.extend(maps.products());
        }
        products
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
