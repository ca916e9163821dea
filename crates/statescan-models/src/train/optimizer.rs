//! AdamW with a clipped gradient and a learning rate that rises, and falls along a cosine.

use super::Options;
use crate::device::decays;
use crate::kernels::training::AdamW;
use crate::tensors::{Array, Tensors, zeros_like};

/// The decay rates of the running means of gradients and of their squares: beta1 and beta2.
const BETA1: f64 = 0.9;
const BETA2: f64 = 0.95;
/// Added to the root of the mean square.
const EPS: f64 = 1e-8;
/// The learning rate at the end, as a share of the highest.
const LEAST: f64 = 0.1;

/// Running means of gradients and of their squares.
pub(super) struct Moments {
    pub(super) first: Tensors,
    pub(super) second: Tensors,
}

impl Moments {
    pub(super) fn new(weights: &Tensors) -> Self {
        Moments { first: zeros_like(weights), second: zeros_like(weights) }
    }

    /// Moves the weights; the gradients are scaled down if they are too long.
    pub(super) fn step(&mut self, weights: &mut Tensors, gradients: &mut Tensors, step: usize, options: &Options) {
        clip(gradients, options.max_grad_norm);
        let rate = rate(step, options);
        let taken = step as i32 + 1;
        let (correct_first, correct_second) = (1.0 - BETA1.powi(taken), 1.0 - BETA2.powi(taken));
        for (name, weight) in weights {
            let parts = (gradients.get(name), self.first.get_mut(name), self.second.get_mut(name));
            let (Some(gradient), Some(first), Some(second)) = parts else { continue };
            let decay = if decays(name) { rate * options.weight_decay } else { 0.0 };
            for (i, weight) in weight.data.iter_mut().enumerate() {
                let g = f64::from(gradient.data[i]);
                let m = BETA1 * f64::from(first.data[i]) + (1.0 - BETA1) * g;
                let v = BETA2 * f64::from(second.data[i]) + (1.0 - BETA2) * g * g;
                (first.data[i], second.data[i]) = (m as f32, v as f32);
                let change = rate * (m / correct_first) / ((v / correct_second).sqrt() + EPS);
                *weight = (f64::from(*weight) * (1.0 - decay) - change) as f32;
            }
        }
    }
}

/// A step on a device.
pub(super) fn on_device(step: usize, options: &Options) -> AdamW {
    let betas = [BETA1, BETA2];
    AdamW { rate: rate(step, options), weight_decay: options.weight_decay, betas, eps: EPS, taken: step as u32 + 1 }
}

/// The learning rate of a step.
pub(super) fn rate(step: usize, options: &Options) -> f64 {
    let rise = options.warmup.unwrap_or(options.steps / 20).max(1);
    if step < rise {
        return options.rate * (step + 1) as f64 / rise as f64;
    }
    let way = (step - rise) as f64 / (options.steps - rise).max(1) as f64;
    let cosine = 0.5 + 0.5 * (std::f64::consts::PI * way.min(1.0)).cos();
    options.rate * (LEAST + (1.0 - LEAST) * cosine)
}

/// Scales gradients that are longer than this, all together.
fn clip(gradients: &mut Tensors, max_grad_norm: f64) {
    let squares = |array: &Array| array.data.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>();
    let length = gradients.values().map(squares).sum::<f64>().sqrt();
    if length > max_grad_norm {
        let scale = (max_grad_norm / length) as f32;
        gradients.values_mut().for_each(|array| array.data.iter_mut().for_each(|g| *g *= scale));
    }
}
