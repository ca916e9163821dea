//! [`Trainer`]: a small Mamba that learns the bytes of a text.

mod optimizer;
mod saved;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::random::Random;
use crate::tensors::{Array, Tensors, zeros_like};
use optimizer::Moments;
use statescan::Exec;

/// What is trained, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Width of the stream between blocks.
    pub dim: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Rows of a step.
    pub batch: usize,
    /// Bytes of a row.
    pub seqlen: usize,
    /// Steps in all.
    pub steps: usize,
    /// The highest learning rate; it rises over the first twentieth of the steps and falls to a tenth along a cosine.
    pub rate: f64,
    /// How much of the weights of projections a step takes away, by the learning rate.
    pub weight_decay: f64,
    /// The longest gradient, by the root of the sum of squares; a longer one is scaled down.
    pub clip: f64,
    /// Weights and rows are drawn from it.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { dim: 128, layers: 4, batch: 8, seqlen: 256, steps: 1200, rate: 4e-3, weight_decay: 0.1, clip: 1.0, seed: 1 }
    }
}

/// Bytes as tokens.
const VOCAB: usize = 256;

/// A model in training: weights, the optimizer's moments, and what was reached at each step. Everything that a step draws depends on the
/// seed and the number of the step alone, so a trainer that was saved and resumed goes on with the same bits.
pub struct Trainer {
    options: Options,
    config: Config,
    weights: Tensors,
    moments: Moments,
    losses: Vec<f32>,
    /// The bytes that are learned from, and those that are not.
    text: Vec<u32>,
    held_out: Vec<u32>,
    gradients: Tensors,
}

impl Trainer {
    /// A model with random weights, to learn all but the last tenth of a text.
    ///
    /// # Errors
    /// Options out of range, a text that is too short for a row.
    pub fn new(options: Options, text: &[u8]) -> Result<Self> {
        options.check()?;
        let (learned, held_out) = text.split_at(text.len() - text.len() / 10);
        let least = 10 * (options.seqlen + 2);
        if text.len() < least {
            return Err(Error::Training {
                setting: "text",
                expected: "at least ten rows long, in bytes",
                got: text.len() as f64,
            });
        }
        let config = Config::small(VOCAB, options.dim, options.layers);
        let weights = first_weights(&config, options.seed);
        let (moments, gradients) = (Moments::new(&weights), zeros_like(&weights));
        let tokens = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).collect();
        let (text, held_out) = (tokens(learned), tokens(held_out));
        Ok(Trainer { options, config, weights, moments, losses: Vec::new(), text, held_out, gradients })
    }

    /// What is trained, and how.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The loss of every step so far, in bits for a byte.
    pub fn losses(&self) -> &[f32] {
        &self.losses
    }

    /// Number of weights.
    pub fn count(&self) -> usize {
        self.weights.values().map(|array| array.data.len()).sum()
    }

    /// The model as it is now.
    ///
    /// # Errors
    /// Weights that are not finite.
    pub fn model(&self) -> Result<Model> {
        Model::from_tensors(self.config.clone(), &self.weights)
    }

    /// One step on rows from random places of the text; the loss before it, in bits for a byte.
    ///
    /// # Errors
    /// Weights that have become infinite.
    pub fn step(&mut self, exec: &Exec) -> Result<f64> {
        let step = self.losses.len();
        let loss = self.model()?.loss_and_gradients(exec, &self.rows(step), self.options.seqlen, &mut self.gradients)?;
        self.moments.step(&mut self.weights, &mut self.gradients, step, &self.options);
        let loss = loss / std::f64::consts::LN_2;
        self.losses.push(loss as f32);
        Ok(loss)
    }

    /// The rows of a step, each with the byte behind it.
    fn rows(&self, step: usize) -> Vec<u32> {
        let (mut random, len) = (Random::new(self.options.seed ^ ((step as u64 + 1) << 20)), self.options.seqlen + 1);
        let row = |_| {
            let start = (random.bits() % (self.text.len() - len + 1) as u64) as usize;
            self.text[start..start + len].to_vec()
        };
        (0..self.options.batch).flat_map(row).collect()
    }

    /// The cross entropy on the last tenth of the text, which is not learned, in bits for a byte.
    ///
    /// # Errors
    /// As [`Trainer::model`].
    pub fn held_out(&self, exec: &Exec) -> Result<f64> {
        let (model, text) = (self.model()?, &self.held_out);
        let (mut state, mut sum) = (model.state(), 0.0);
        // some tokens at a time, so that not all logits are there at once
        for start in (0..text.len() - 1).step_by(1024) {
            let end = (text.len() - 1).min(start + 1024);
            let logits = model.forward_from(exec, &text[start..end], &mut state)?;
            let rows = logits.chunks_exact(VOCAB).zip(&text[start + 1..]);
            sum += rows.map(|(row, &target)| surprise(row, target as usize)).sum::<f64>();
        }
        Ok(sum / (text.len() - 1) as f64)
    }
}

/// `-log2 softmax(logits)[target]`.
fn surprise(logits: &[f32], target: usize) -> f64 {
    let highest = logits.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x));
    let whole: f64 = logits.iter().map(|x| f64::from(x - highest).exp()).sum();
    whole.log2() - f64::from(logits[target] - highest) * std::f64::consts::LOG2_E
}

impl Options {
    fn check(&self) -> Result<()> {
        let size = |setting, value: usize, most| match (1..=most).contains(&value) {
            true => Ok(()),
            false => Err(Error::Training { setting, expected: "at least 1 and not absurdly large", got: value as f64 }),
        };
        size("dim", self.dim, 1 << 14)?;
        size("layers", self.layers, 1 << 10)?;
        size("batch", self.batch, 1 << 14)?;
        size("seqlen", self.seqlen, 1 << 20)?;
        size("steps", self.steps, 1 << 30)?;
        let number = |setting, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(Error::Training { setting, expected: "a positive number", got: value }),
        };
        number("rate", self.rate)?;
        number("clip", self.clip)?;
        match self.weight_decay.is_finite() && self.weight_decay >= 0.0 {
            true => Ok(()),
            false => Err(Error::Training { setting: "weight decay", expected: "at least 0", got: self.weight_decay }),
        }
    }
}

/// Weights as Mamba begins with: projections by their width, step sizes between 0.001 and 0.1, decays of 1, 2, ..
fn first_weights(config: &Config, seed: u64) -> Tensors {
    let mut random = Random::new(seed);
    let mut weights = Tensors::new();
    for (name, shape) in config.tensors() {
        let len = shape.iter().product();
        let fan_in = shape.iter().skip(1).product::<usize>().max(1) as f64;
        let part = name.rsplit_once("mixer.").map_or(&name[..], |(_, part)| part);
        let data: Vec<f32> = match part {
            "A_log" => (0..len).map(|i| ((i % config.dstate + 1) as f32).ln()).collect(),
            "D" => vec![1.0; len],
            "dt_proj.bias" => (0..len).map(|_| random.step_bias() as f32).collect(),
            "conv1d.bias" => vec![0.0; len],
            "backbone.embeddings.weight" => (0..len).map(|_| (0.1 * random.normal()) as f32).collect(),
            "out_proj.weight" => {
                // blocks add up: each is smaller, the more there are
                let bound = (fan_in * config.layers as f64).sqrt().recip();
                (0..len).map(|_| random.uniform(-bound, bound) as f32).collect()
            }
            part if part.contains("norm") => vec![1.0; len],
            _ => (0..len).map(|_| random.uniform(-fan_in.sqrt().recip(), fan_in.sqrt().recip()) as f32).collect(),
        };
        weights.insert(name, Array { shape, data });
    }
    weights
}
