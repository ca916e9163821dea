//! Layers on their own, to be put together in other ways than a [`Model`](crate::Model) does: rows in, rows out, states, and every gradient, on the
//! device where a layer's weights are.
//!
//! | layer | rows in and out | state, with a first axis of sequences |
//! |---|---|---|
//! | [`Mixer`]: Mamba, FalconMamba, Mamba-2 | (batch x seqlen, dim) | `conv` (batch, channels, width - 1), `scan` (batch, inner, dstate) |
//! | [`Mixer`]: the gated delta rule | (batch x seqlen, dim) | `conv` as above, `scan` (batch, nheads x dstate, headdim) |
//! | [`S5`] | (batch x seqlen, dim) | `scan` (batch, dstate), complex |
//!
//! Rows are dense, with those of a sequence one behind another and sequences one behind another. Norms are [`statescan::ops::norm`], products
//! [`statescan::linear`] or [`kernels::Products`](crate::kernels::Products).
//!
//! ```
//! use statescan::{DType, Exec, Tensor};
//! use statescan_models::Config;
//! use statescan_models::layers::{Layer, Mixer};
//!
//! let (exec, batch, seqlen, dim) = (Exec::cpu(1), 2, 10, 16);
//! let layer = Mixer::random(&exec, Config::mamba(1, dim, 1), DType::F32, 1)?;
//! let x = Tensor::from_slice(&exec, &vec![0.1f32; batch * seqlen * dim], &[batch * seqlen, dim])?;
//! let mut y = Tensor::empty(&exec, DType::F32, &[batch * seqlen, dim])?;
//! let (before, mut after) = (layer.state(batch)?, layer.state(batch)?);
//! layer.forward(batch, x.view(), &before, y.view_mut(), &mut after)?;
//! let gradients = layer.backward(batch, x.view(), &before, y.view(), &[])?;
//! println!("{:?}", &gradients.weights["A_log"].to_vec::<f32>()?[..3]);
//! # Ok::<(), statescan_models::Error>(())
//! ```

mod mixer;
mod s5;

use crate::error::{Error, Result};
pub use mixer::Mixer;
pub use s5::{S5, S5Config};
use statescan::ops::check::{Checker, Kind};
use statescan::{DType, Exec, Tensor, View, ViewMut};
use std::collections::BTreeMap;

/// A tensor that a layer has: a weight, or a part of the state of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Its name, that of weights as in checkpoints.
    pub name: &'static str,
    /// Its type, that of a weight's gradient.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// Rows in, rows of the same width out, and a state.
pub trait Layer {
    /// Returns its name in errors.
    fn name(&self) -> &'static str;

    /// The executor that has its weights and runs it.
    fn exec(&self) -> &Exec;

    /// Width of the rows.
    fn dim(&self) -> usize;

    /// The type of the rows.
    fn dtype(&self) -> DType;

    /// The parts of the state of a sequence.
    fn state_parts(&self) -> Vec<Part>;

    /// The weights.
    fn weights(&self) -> Vec<Part>;

    /// Rows `x`, (batch x seqlen, dim), to rows `y` of the same shape, from an initial state, all of whose parts are given or none, which stands for zeros,
    /// and the state after the last step where there is room for it.
    ///
    /// # Errors
    /// Arguments of a wrong shape, type or device, or that are not dense; no rows for a sequence; results that overlap something. Nothing is written then.
    fn forward(&self, batch: usize, x: View<'_>, initial: &[Tensor], y: ViewMut<'_>, last: &mut [Tensor]) -> Result<()>;

    /// Every gradient of a pass over `x` from `initial`: from those by its results, `dy`, and where there are any by the state after it, `dlast`. Nothing of
    /// the forward pass is needed; it is computed again.
    ///
    /// # Errors
    /// As [`Layer::forward`].
    fn backward(&self, batch: usize, x: View<'_>, initial: &[Tensor], dy: View<'_>, dlast: &[Tensor]) -> Result<LayerGradients>;

    /// The state before the first step of some sequences: zeros.
    ///
    /// # Errors
    /// A device without room.
    fn state(&self, batch: usize) -> Result<Vec<Tensor>> {
        let zeros = |part: Part| Ok(Tensor::zeros(self.exec(), part.dtype, &[&[batch], &part.shape[..]].concat())?);
        self.state_parts().into_iter().map(zeros).collect()
    }
}

/// The gradients of a loss by all that a layer takes.
#[derive(Debug)]
pub struct LayerGradients {
    /// By the rows, (batch x seqlen, dim).
    pub x: Tensor,
    /// By the parts of the state before the first step.
    pub initial: Vec<Tensor>,
    /// By the weights, with their names and shapes.
    pub weights: BTreeMap<String, Tensor>,
}

impl LayerGradients {
    /// Room for them.
    fn new<L: Layer>(layer: &L, batch: usize, rows: usize) -> Result<Self> {
        let zeros = |part: Part| Ok((part.name.to_owned(), Tensor::zeros(layer.exec(), part.dtype, &part.shape)?));
        let weights = layer.weights().into_iter().map(zeros).collect::<Result<_>>()?;
        let x = Tensor::empty(layer.exec(), layer.dtype(), &[rows, layer.dim()])?;
        Ok(LayerGradients { x, initial: layer.state(batch)?, weights })
    }
}

/// The steps of each sequence of a call, whose rows, states and results go together: rows and states that are read, and the rows `y` and states `last` that are
/// written.
fn check<L: Layer>(
    layer: &L,
    batch: usize,
    [x, given]: [(&'static str, View<'_>); 2],
    states: &[(&'static str, &[Tensor])],
    (y, last): (Option<&ViewMut<'_>>, &mut [Tensor]),
) -> Result<usize> {
    let (name, rows) = (layer.name(), x.1.shape().first().copied().unwrap_or(0));
    let (kind, shape, parts) = (Kind::Exact(layer.dtype()), [rows, layer.dim()], layer.state_parts());
    for (argument, got) in states.iter().map(|(argument, state)| (*argument, state.len())).chain([("last", last.len())]) {
        if got != 0 && got != parts.len() {
            let shape = "all parts of a state or none";
            return Err(Error::Size { layer: name, argument, shape, expected: parts.len(), got });
        }
    }
    let of_part = |part: &Part| (Kind::Exact(part.dtype), [&[batch], &part.shape[..]].concat());
    let read =
        states.iter().flat_map(|(argument, state)| parts.iter().zip(*state).map(|(part, of)| (*argument, part, of.view())));
    let read: Vec<_> = read.collect();
    let written: Vec<_> = parts.iter().zip(last).map(|(part, of)| (part, of.view_mut())).collect();
    let mut checker = Checker::new(name, layer.exec().device());
    for (argument, view) in [&x, &given] {
        checker.read(argument, view, kind, &shape)?;
        checker.dense(argument, Some(*view))?;
    }
    if let Some(y) = y {
        checker.write("y", y, kind, &shape)?;
        checker.dense("y", Some(y.as_view()))?;
    }
    if batch == 0 || rows == 0 || !rows.is_multiple_of(batch) {
        let shape = "(batch x seqlen, dim), at least a row for each sequence";
        return Err(Error::Size {
            layer: name,
            argument: x.0,
            shape,
            expected: rows.max(1).next_multiple_of(batch.max(1)),
            got: rows,
        });
    }
    for (argument, part, view) in &read {
        let (kind, shape) = of_part(part);
        checker.read(argument, view, kind, &shape)?;
    }
    for (part, view) in &written {
        let (kind, shape) = of_part(part);
        checker.write("last", view, kind, &shape)?;
    }
    checker.finish()?;
    Ok(rows / batch)
}
