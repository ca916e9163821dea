//! Layers on their own, to be put together in other ways than a [`Model`](crate::Model) does: rows in, rows out, a state that is carried on,
//! and every gradient.
//!
//! | layer | rows in and out | state, with a first axis of sequences |
//! |---|---|---|
//! | [`Mixer`]: Mamba, Mamba with norms on dt, B and C, Mamba-2 | (batch, seqlen, dim) | `conv` (batch, channels, width - 1), `scan` (batch, inner, dstate) |
//! | [`S5`] | (batch, seqlen, dim) | `scan` (batch, dstate, 2): real and imaginary parts |
//! | [`RmsNorm`] | (rows, dim) | none |
//!
//! Everything is f32 and row-major. Products, embedding and cross entropy are [`statescan::linear`] and
//! [`Model::loss_and_gradients`](crate::Model::loss_and_gradients).
//!
//! ```
//! use statescan::{DType, Exec};
//! use statescan_models::Config;
//! use statescan_models::layers::{Layer, Mixer};
//!
//! let (exec, batch, seqlen, dim) = (Exec::cpu(1), 2, 10, 16);
//! let layer = Mixer::random(Config::mamba(1, dim, 1), DType::F32, 1)?;
//! let (x, mut y) = (vec![0.1; batch * seqlen * dim], vec![0.0; batch * seqlen * dim]);
//! let before = layer.state(batch);
//! let mut state = before.clone();
//! layer.forward_from(&exec, &x, &mut state, &mut y)?;
//! layer.step(&exec, &x[..batch * dim], &mut state, &mut y[..batch * dim])?;
//! let gradients = layer.backward(&exec, &x, &before, &vec![1.0; y.len()], None)?;
//! println!("{:?}", &gradients.weights["A_log"].data[..3]);
//! # Ok::<(), statescan_models::Error>(())
//! ```

mod mixer;
mod norm;
mod s5;

use crate::error::{Error, Result};
pub use crate::state::LayerState;
use crate::tensors::Tensors;
pub use mixer::Mixer;
pub use norm::{NormGradients, RmsNorm};
pub use s5::{S5, S5Config};
use statescan::Exec;

/// Rows in, rows of the same width out, and a state.
pub trait Layer {
    /// Returns its name in errors.
    fn name(&self) -> &'static str;

    /// Width of the rows.
    fn dim(&self) -> usize;

    /// The state before the first step of some sequences: zeros.
    fn state(&self, batch: usize) -> LayerState;

    /// Rows `x` (batch, seqlen, dim) of as many sequences as the state has, to rows `y` of the same shape, from the state, which is carried on.
    ///
    /// # Errors
    /// Arguments of a wrong size; what the operations refuse.
    fn forward_from(&self, exec: &Exec, x: &[f32], state: &mut LayerState, y: &mut [f32]) -> Result<()>;

    /// Every gradient of a pass over `x` from `initial`: from those by its results, `dy` (batch, seqlen, dim), and where there are any by the
    /// state after it, `dlast`. Nothing of the forward pass is needed; it is computed again.
    ///
    /// # Errors
    /// As [`Layer::forward_from`]; weights that are not f32.
    fn backward(
        &self,
        exec: &Exec,
        x: &[f32],
        initial: &LayerState,
        dy: &[f32],
        dlast: Option<&LayerState>,
    ) -> Result<LayerGradients>;

    /// Runs [`Layer::forward_from`] from zeros and returns the state after the last step.
    ///
    /// # Errors
    /// As [`Layer::forward_from`].
    fn forward(&self, exec: &Exec, x: &[f32], batch: usize, y: &mut [f32]) -> Result<LayerState> {
        let mut state = self.state(batch);
        self.forward_from(exec, x, &mut state, y)?;
        Ok(state)
    }

    /// One step of each sequence, `x` and `y` (batch, dim).
    ///
    /// # Errors
    /// As [`Layer::forward_from`].
    fn step(&self, exec: &Exec, x: &[f32], state: &mut LayerState, y: &mut [f32]) -> Result<()> {
        let batch = sequences(self, state)?;
        check(self.name(), "x", "(batch, dim)", batch * self.dim(), x.len())?;
        self.forward_from(exec, x, state, y)
    }
}

/// The gradients of a loss by all that a layer takes.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerGradients {
    /// By the rows, (batch, seqlen, dim).
    pub x: Vec<f32>,
    /// By the state before the first step.
    pub initial: LayerState,
    /// By the weights, with their names and shapes.
    pub weights: Tensors,
}

/// Refuses an argument that has another number of elements than its shape.
fn check(layer: &'static str, argument: &'static str, shape: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::Size { layer, argument, shape, expected, got }) }
}

/// The number of sequences of a state.
fn sequences<L: Layer + ?Sized>(layer: &L, state: &LayerState) -> Result<usize> {
    let (one, len) = (layer.state(1), |state: &LayerState| state.all().map(<[f32]>::len).sum::<usize>());
    if !one.names().eq(state.names()) {
        let (argument, shape) = ("state", "of the parts that this layer's has");
        let [expected, got] = [&one, state].map(|state| state.names().count());
        return Err(Error::Size { layer: layer.name(), argument, shape, expected, got });
    }
    let batch = len(state) / len(&one);
    check(layer.name(), "state", "of whole sequences", batch * len(&one), len(state))?;
    for (own, part) in one.all().zip(state.all()) {
        check(layer.name(), "state", "of as many sequences in each part", batch * own.len(), part.len())?;
    }
    Ok(batch)
}

/// The number of sequences and of steps of a call.
fn sizes<L: Layer + ?Sized>(layer: &L, x: &[f32], state: &LayerState, y: (&'static str, usize)) -> Result<[usize; 2]> {
    let (batch, shape) = (sequences(layer, state)?, "(batch, seqlen, dim)");
    let step = batch * layer.dim();
    let seqlen = x.len().checked_div(step).unwrap_or(0);
    check(layer.name(), "x", shape, seqlen * step, x.len())?;
    check(layer.name(), y.0, shape, x.len(), y.1)?;
    Ok([batch, seqlen])
}
