//! [`RmsNorm`].

use super::check;
use crate::error::Result;
use statescan::ops::norm;
use statescan::{Exec, View, ViewMut};

const NAME: &str = "rms_norm";

/// `y = w x / sqrt(mean(x^2) + eps)` over rows of as many elements as there are weights; with a gate `z` it takes `x silu(z)` instead of `x`, as
/// the norm after Mamba-2's scan does.
#[derive(Debug, Clone, PartialEq)]
pub struct RmsNorm {
    /// Multiplies the results, (dim).
    pub weight: Vec<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

/// The gradients of a loss by all that a norm takes.
#[derive(Debug, Clone, PartialEq)]
pub struct NormGradients {
    /// By the rows, (rows, dim).
    pub x: Vec<f32>,
    /// By the gate, (rows, dim); nothing where there is none.
    pub gate: Vec<f32>,
    /// By the weights, (dim).
    pub weight: Vec<f32>,
}

impl RmsNorm {
    /// A norm with weights of one.
    pub fn new(dim: usize, eps: f32) -> Self {
        RmsNorm { weight: vec![1.0; dim], eps }
    }

    /// Rows `x` (rows, dim), and a gate of the same shape, to rows `y`.
    ///
    /// # Errors
    /// Arguments of a wrong size.
    pub fn forward(&self, x: &[f32], gate: Option<&[f32]>, y: &mut [f32]) -> Result<()> {
        self.check(x, gate, ("y", y.len()))?;
        let (exec, y) = (Exec::cpu(1), ViewMut::new(y, &self.shape(x))?);
        Ok(norm::forward(&exec, &self.args(x, gate)?, &mut norm::Outputs::default().y(y))?)
    }

    /// Every gradient, from those by the results.
    ///
    /// # Errors
    /// Arguments of a wrong size.
    pub fn backward(&self, x: &[f32], gate: Option<&[f32]>, dy: &[f32]) -> Result<NormGradients> {
        self.check(x, gate, ("dy", dy.len()))?;
        let (exec, shape) = (Exec::cpu(1), self.shape(x));
        let (mut dx, mut dweight) = (vec![0.0; x.len()], vec![0.0; self.weight.len()]);
        let mut dgate = vec![0.0; gate.map_or(0, <[f32]>::len)];
        let by_gate = gate.map(|_| ViewMut::new(&mut dgate, &shape)).transpose()?;
        let weight = ViewMut::new(&mut dweight, &[self.weight.len()])?;
        let mut grads = norm::Gradients::default().x(ViewMut::new(&mut dx, &shape)?).z(by_gate).weight(weight);
        let cotangents = norm::Cotangents::default().y(View::new(dy, &shape)?);
        norm::backward(&exec, &self.args(x, gate)?, &cotangents, &mut grads)?;
        Ok(NormGradients { x: dx, gate: dgate, weight: dweight })
    }

    fn shape(&self, x: &[f32]) -> [usize; 2] {
        [x.len() / self.dim(), self.weight.len()]
    }

    fn args<'a>(&'a self, x: &'a [f32], gate: Option<&'a [f32]>) -> Result<norm::Args<'a>> {
        let shape = self.shape(x);
        let gate = gate.map(|gate| View::new(gate, &shape)).transpose()?;
        let weight = View::new(&self.weight, &shape[1..])?;
        Ok(norm::Args::new(View::new(x, &shape)?).weight(weight).z(gate).eps(f64::from(self.eps)))
    }

    fn dim(&self) -> usize {
        self.weight.len().max(1)
    }

    fn check(&self, x: &[f32], gate: Option<&[f32]>, y: (&'static str, usize)) -> Result<()> {
        let whole = x.len() / self.dim() * self.weight.len();
        check(NAME, "x", "(rows, dim)", whole, x.len())?;
        check(NAME, "gate", "(rows, dim)", x.len(), gate.map_or(x.len(), <[f32]>::len))?;
        check(NAME, y.0, "(rows, dim)", x.len(), y.1)
    }
}
