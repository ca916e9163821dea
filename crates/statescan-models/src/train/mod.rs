//! [`Trainer`]: a model that learns the bytes of a text, or tokens.

mod corpus;
mod evaluate;
mod optimizer;
mod options;
mod saved;

use crate::config::Config;
use crate::device::{DeviceTraining, Downloaded};
use crate::error::{Error, Result};
use crate::initial::initial;
use crate::memory;
use crate::model::Model;
use crate::model::gradients::Dropout;
use crate::model::score::Tokens;
use crate::random::Random;
use crate::tensors::{Array, Tensors, zeros_like};
use corpus::Corpus;
use optimizer::Moments;
pub use options::Options;
use statescan::{DType, Device, Exec};
use std::borrow::Cow;

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
    /// What the held-out set took after some steps.
    evaluations: Vec<(usize, f32)>,
    corpus: Corpus,
    gradients: Tensors,
    /// Where the latest steps were on a GPU: weights and moments as they are now.
    on_device: Option<(Device, DeviceTraining)>,
}

impl Trainer {
    /// A Mamba with random weights, to learn all but the last tenth of the bytes of a text.
    ///
    /// # Errors
    /// Options out of range, a text that is too short for a row, more memory than there is.
    pub fn new(options: Options, text: &[u8]) -> Result<Self> {
        let config = Config::mamba(VOCAB, options.dim, options.layers);
        Self::begin(options, config, Corpus::Bytes(text.to_vec()), None)
    }

    /// A model with random weights and any configuration, which says its width and its blocks, to learn all but the last tenth of tokens.
    ///
    /// # Errors
    /// As [`Trainer::new`]; sizes that do not fit together, tokens beyond the vocabulary.
    pub fn over_tokens(options: Options, config: Config, tokens: Vec<u32>) -> Result<Self> {
        let options = Options { dim: config.dim, layers: config.layers.len(), ..options };
        Self::begin(options, config, Corpus::Tokens(tokens), None)
    }

    /// A model that exists, to learn more: all but the last tenth of tokens.
    ///
    /// # Errors
    /// As [`Trainer::over_tokens`].
    pub fn from_model(options: Options, model: &Model, tokens: Vec<u32>) -> Result<Self> {
        let config = model.config().clone();
        let options = Options { dim: config.dim, layers: config.layers.len(), ..options };
        Self::begin(options, config, Corpus::Tokens(tokens), Some(model))
    }

    fn begin(options: Options, config: Config, corpus: Corpus, from: Option<&Model>) -> Result<Self> {
        options.check()?;
        config.check()?;
        let corpus = corpus.of(config.vocab);
        let least = 10 * (options.seqlen + 2);
        if corpus.len() < least {
            return Err(Error::TooShort { least, unit: corpus.unit(), got: corpus.len() });
        }
        corpus.check(&config)?;
        memory::check("this training", config.training_bytes(options.batch.saturating_mul(options.seqlen)))?;
        let mut random = Random::new(options.seed);
        let first = |(name, shape): (String, Vec<usize>)| {
            let data = match from.and_then(|model| model.weights().get(&name)) {
                Some(weight) => weight.to_f32(),
                None => initial(&config, &name, &shape, &mut random),
            };
            (name, Array { shape, data })
        };
        let weights = config.tensors().into_iter().map(first).collect();
        let (moments, gradients) = (Moments::new(&weights), zeros_like(&weights));
        let (losses, evaluations) = (Vec::new(), Vec::new());
        Ok(Trainer { options, config, weights, moments, losses, evaluations, corpus, gradients, on_device: None })
    }

    /// Another number of steps in all, so that a training that has ended goes on: from here the learning rate follows the cosine of the new number.
    ///
    /// # Errors
    /// Fewer steps than were done.
    pub fn prolong(&mut self, steps: usize) -> Result<()> {
        let options = Options { steps, ..self.options.clone() };
        options.check()?;
        if steps < self.losses.len() {
            let expected = "at least as many as were done";
            return Err(Error::Training { setting: "steps", expected, got: steps as f64 });
        }
        self.options = options;
        Ok(())
    }

    /// Sizes and options of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What losses are for: `byte` or `token`.
    pub fn unit(&self) -> &'static str {
        self.corpus.unit()
    }

    /// What is trained, and how.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The loss of every step so far, in bits for a byte or a token.
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

    /// One step on rows from random places of the text; the loss before it, in bits for a byte or a token. On a GPU weights and moments stay there from step to
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
            return Err(Error::Diverged { step: step + 1, got: loss, rate: self.options.rate });
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
        let learned = self.corpus.learned();
        let row = |_| {
            let start = (random.bits() % (learned.len() - len + 1) as u64) as usize;
            self.corpus.part(start..start + len)
        };
        (0..self.options.batch).flat_map(row).collect()
    }
}
