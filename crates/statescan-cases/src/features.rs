//! The embedded case: what the layer of a model sees for a passage of text.
//!
//! The bytes of the passage are embedded, and mapped by layers whose weights come from fixed seeds; nothing is downloaded, and every
//! operation gets arguments of the distribution that it meets in a model.

use crate::error::Result;
use crate::rng::Rng;
use crate::tensors::real;
use statescan::DType;
use statescan::tensor::Tensor;

/// The opening of "Alice's Adventures in Wonderland" (Lewis Carroll, 1865; in the public domain).
pub const PASSAGE: &str = include_str!("../assets/alice.txt");

/// A sequence of vectors, (seqlen, width), time first.
#[derive(Debug, Clone)]
pub struct Features {
    width: usize,
    data: Vec<f32>,
}

impl Features {
    /// The passage's bytes, each as the vector of its value.
    pub fn of_text(width: usize) -> Self {
        let mut rng = Rng::new(0);
        let table: Vec<f32> = (0..256 * width).map(|_| rng.normal() as f32).collect();
        let data = PASSAGE.bytes().flat_map(|byte| &table[usize::from(byte) * width..][..width]).copied().collect();
        Features { width, data }
    }

    /// Number of steps.
    pub fn len(&self) -> usize {
        self.data.len() / self.width
    }

    /// Whether there is no step.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The first steps.
    pub fn first(mut self, steps: usize) -> Self {
        self.data.truncate(steps * self.width);
        self
    }

    /// A matrix product with weights of variance 1 / width.
    pub fn linear(&self, seed: u64, out: usize) -> Self {
        let mut rng = Rng::new(seed);
        let scale = 1.0 / (self.width as f64).sqrt();
        let weights: Vec<f32> = (0..self.width * out).map(|_| (rng.normal() * scale) as f32).collect();
        let mut data = vec![0.0; self.len() * out];
        for (row, target) in self.data.chunks_exact(self.width).zip(data.chunks_exact_mut(out)) {
            for (value, weight) in row.iter().zip(weights.chunks_exact(out)) {
                target.iter_mut().zip(weight).for_each(|(t, w)| *t += value * w);
            }
        }
        Features { width: out, data }
    }

    /// The weights of [`Features::conv`], (width, taps).
    pub fn conv_weights(&self, seed: u64, taps: usize) -> Vec<f32> {
        let mut rng = Rng::new(seed);
        let scale = 1.0 / (taps as f64).sqrt();
        (0..self.width * taps).map(|_| (rng.normal() * scale) as f32).collect()
    }

    /// A causal depthwise convolution.
    pub fn conv(&self, seed: u64, taps: usize) -> Self {
        let weights = self.conv_weights(seed, taps);
        let mut data = vec![0.0; self.data.len()];
        for t in 0..self.len() {
            for tap in 0..taps.min(t + 1) {
                for d in 0..self.width {
                    data[t * self.width + d] += weights[d * taps + taps - 1 - tap] * self.data[(t - tap) * self.width + d];
                }
            }
        }
        Features { width: self.width, data }
    }

    /// A function of each element.
    pub fn map(mut self, f: impl Fn(f32) -> f32) -> Self {
        self.data.iter_mut().for_each(|v| *v = f(*v));
        self
    }

    /// The product of each element with its counterpart.
    pub fn times(mut self, other: &Features) -> Self {
        self.data.iter_mut().zip(&other.data).for_each(|(v, w)| *v *= w);
        self
    }

    /// `v sigmoid(v)`.
    pub fn silu(self) -> Self {
        self.map(|v| v / (1.0 + (-v).exp()))
    }

    /// As (1, width, seqlen).
    pub fn channels_first(&self) -> Result<Tensor> {
        let (mut d, mut t) = (0, 0);
        real(DType::F32, &[1, self.width, self.len()], || {
            let value = self.data[t * self.width + d];
            t += 1;
            if t == self.len() {
                (d, t) = (d + 1, 0);
            }
            value.into()
        })
    }

    /// As (1, seqlen, ..), the axes after the first two dividing the width.
    pub fn time_first(&self, axes: &[usize]) -> Result<Tensor> {
        let mut values = self.data.iter();
        let shape: Vec<_> = [1, self.len()].into_iter().chain(axes.iter().copied()).collect();
        real(DType::F32, &shape, || values.next().copied().unwrap_or(0.0).into())
    }

    /// The last step, in a shape.
    pub fn last(&self, shape: &[usize]) -> Result<Tensor> {
        let mut values = self.data[self.data.len() - self.width..].iter();
        real(DType::F32, shape, || values.next().copied().unwrap_or(0.0).into())
    }
}
