//! [`RmsNorm`].

use super::check;
use crate::error::Result;
use crate::rows::backward::normalize_backward;
use crate::rows::normalize;

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
        y.copy_from_slice(&gated(x, gate));
        y.chunks_exact_mut(self.dim()).for_each(|row| normalize(row, Some(&self.weight), self.eps));
        Ok(())
    }

    /// Every gradient, from those by the results.
    ///
    /// # Errors
    /// Arguments of a wrong size.
    pub fn backward(&self, x: &[f32], gate: Option<&[f32]>, dy: &[f32]) -> Result<NormGradients> {
        self.check(x, gate, ("dy", dy.len()))?;
        let (mut dx, mut dweight, dim) = (dy.to_vec(), vec![0.0; self.weight.len()], self.dim());
        for (x, dx) in gated(x, gate).chunks_exact(dim).zip(dx.chunks_exact_mut(dim)) {
            normalize_backward(x, Some((&self.weight, &mut dweight)), self.eps, dx);
        }
        let mut dgate = Vec::new();
        if let Some(gate) = gate {
            dgate = x.iter().zip(gate).zip(&dx).map(|((x, &z), d)| d * x * slope(z)).collect();
            dx.iter_mut().zip(gate).for_each(|(d, &z)| *d *= z * sigmoid(z));
        }
        Ok(NormGradients { x: dx, gate: dgate, weight: dweight })
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

/// `x silu(z)`, or `x` where there is no gate.
fn gated(x: &[f32], gate: Option<&[f32]>) -> Vec<f32> {
    match gate {
        Some(gate) => x.iter().zip(gate).map(|(x, &z)| x * z * sigmoid(z)).collect(),
        None => x.to_vec(),
    }
}

fn sigmoid(z: f32) -> f32 {
    1.0 / (1.0 + (-z).exp())
}

/// The derivative of silu.
fn slope(z: f32) -> f32 {
    let s = sigmoid(z);
    s * (1.0 + z * (1.0 - s))
}
