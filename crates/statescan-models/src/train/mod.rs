//! [`Trainer`]: a small Mamba that learns the bytes of a text.

mod optimizer;
mod saved;

use crate::config::Config;
use crate::device::{DeviceModel, DeviceTraining, Downloaded};
use crate::error::{Error, Result};
use crate::initial::initial;
use crate::model::Model;
use crate::model::gradients::Dropout;
use crate::random::Random;
use crate::tensors::{Array, Tensors, zeros_like};
use crate::weight::file_dtype;
use optimizer::Moments;
use statescan::{DType, Device, Exec};
use std::borrow::Cow;

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
    /// The share of random zeros in what blocks add to the stream, which keeps a small text from being learned by heart.
    pub dropout: f64,
    /// The longest gradient, by the root of the sum of squares; a longer one is scaled down.
    pub clip: f64,
    /// Weights and rows are drawn from it.
    pub seed: u64,
    /// The type that the weights of the model are written in; training has them in f32.
    pub dtype: DType,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            dim: 128,
            layers: 6,
            batch: 8,
            seqlen: 256,
            steps: 1300,
            rate: 4e-3,
            weight_decay: 1.0,
            dropout: 0.3,
            clip: 1.0,
            seed: 1,
            dtype: DType::F32,
        }
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
    /// Where the latest steps were on a GPU: weights and moments as they are now.
    on_device: Option<(Device, DeviceTraining)>,
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
        let config = Config::mamba(VOCAB, options.dim, options.layers);
        let mut random = Random::new(options.seed);
        let first = |(name, shape): (String, Vec<usize>)| {
            let data = initial(&config, &name, &shape, &mut random);
            (name, Array { shape, data })
        };
        let weights = config.tensors().into_iter().map(first).collect();
        let (moments, gradients) = (Moments::new(&weights), zeros_like(&weights));
        let tokens = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).collect();
        let (text, held_out) = (tokens(learned), tokens(held_out));
        Ok(Trainer { options, config, weights, moments, losses: Vec::new(), text, held_out, gradients, on_device: None })
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
        let weights = match &self.on_device {
            None => Cow::Borrowed(&self.weights),
            Some((_, training)) => Cow::Owned(training.weights()?),
        };
        Model::from_tensors(self.config.clone(), &weights)
    }

    /// One step on rows from random places of the text; the loss before it, in bits for a byte. On a GPU weights and moments stay there from step to
    /// step; rows and random zeros are the same on every device.
    ///
    /// # Errors
    /// Weights that have become infinite; errors of the device.
    pub fn step(&mut self, exec: &Exec) -> Result<f64> {
        let (step, rows) = (self.losses.len(), self.rows(self.losses.len()));
        let Options { seqlen, dropout, seed, clip, .. } = self.options;
        let dropout = Dropout { share: dropout, seed: seed ^ ((step as u64 + 1) << 20) };
        self.move_to(exec)?;
        let loss = match &mut self.on_device {
            Some((_, training)) => {
                let by = optimizer::on_device(step, &self.options);
                training.step_with_dropout(&rows, seqlen, dropout, clip, by)?
            }
            None => {
                let loss = self.model()?.loss_with_dropout(exec, &rows, seqlen, dropout, &mut self.gradients)?;
                self.moments.step(&mut self.weights, &mut self.gradients, step, &self.options);
                loss
            }
        };
        if !loss.is_finite() {
            return Err(Error::Training { setting: "loss", expected: "a finite number", got: loss });
        }
        let loss = loss / std::f64::consts::LN_2;
        self.losses.push(loss as f32);
        Ok(loss)
    }

    /// Takes weights and moments to where an executor computes.
    fn move_to(&mut self, exec: &Exec) -> Result<()> {
        if self.on_device.as_ref().is_some_and(|(own, _)| *own == exec.device()) {
            return Ok(());
        }
        if let Some((_, training)) = &self.on_device {
            let Downloaded { weights, first, second } = training.download()?;
            (self.weights, self.moments, self.on_device) = (weights, Moments { first, second }, None);
        }
        if exec.device() != Device::Cpu {
            let means = [&self.moments.first, &self.moments.second];
            let training = DeviceTraining::from_parts(exec, &self.config, DType::F32, &self.weights, means)?;
            self.on_device = Some((exec.device(), training));
        }
        Ok(())
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
        let model = self.model()?;
        match exec.device() {
            Device::Cpu => model.bits_per_token(exec, &self.held_out),
            _ => DeviceModel::new(exec, &model, None)?.bits_per_token(&self.held_out),
        }
    }
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
        if !(0.0..=0.9).contains(&self.dropout) {
            return Err(Error::Training { setting: "dropout", expected: "from 0 to 0.9", got: self.dropout });
        }
        if file_dtype(self.dtype).is_none() {
            let (op, argument, expected) = ("training", "type of weights", "f32, bf16 or f16");
            return Err(statescan::Error::DType { op, argument, expected, got: self.dtype }.into());
        }
        match self.weight_decay.is_finite() && self.weight_decay >= 0.0 {
            true => Ok(()),
            false => Err(Error::Training { setting: "weight decay", expected: "at least 0", got: self.weight_decay }),
        }
    }
}
