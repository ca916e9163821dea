//! [`Trainer`]: a model that learns the bytes of a text, or tokens.

mod corpus;
mod evaluate;
mod lora;
mod optimizer;
mod options;
mod saved;

use crate::config::Config;
use crate::device::{DeviceModel, DeviceTraining, Downloaded};
use crate::error::{Error, Result};
use crate::initial::initial;
use crate::memory;
use crate::model::Model;
use crate::model::rows::Dropout;
use crate::random::Random;
use crate::tensors::{Array, Tensors, zeros_like};
pub use corpus::Corpus;
use lora::Adapted;
pub use lora::Lora;
use optimizer::Moments;
pub use options::Options;
use serde_json::{Map, Value};
use statescan::{DType, Device, Exec};
use std::borrow::Cow;

/// Bytes as tokens.
const VOCAB: usize = 256;

/// A model in training: weights, the optimizer's moments, and what was reached at each step. Everything that a step draws depends on the
/// seed and the number of the step alone, so a trainer that was saved and resumed goes on with the same bits.
pub struct Trainer {
    options: Options,
    config: Config,
    /// The settings in the `config.json` of the model that it began with, also those that mean nothing here.
    settings: Map<String, Value>,
    /// The weights that are learned: those of the model, or the matrices that its projections move by.
    weights: Tensors,
    /// The model that stays as it was, where matrices are learned.
    adapted: Option<Adapted>,
    moments: Moments,
    losses: Vec<f32>,
    /// The losses on the held-out set after some steps, and the least.
    evaluations: Vec<(usize, f32)>,
    best: Option<(usize, f32)>,
    corpus: Corpus,
    /// By the weights of the model.
    gradients: Tensors,
    /// The training on a GPU if the latest steps were there: weights and moments as they are now.
    on_device: Option<(Device, DeviceTraining)>,
}

impl Trainer {
    /// A Mamba with random weights, to learn the bytes of a text.
    ///
    /// # Errors
    /// Options out of range, a text that is too short for a row, more memory than there is.
    pub fn new(options: Options, text: impl Into<Corpus>) -> Result<Self> {
        options.check()?;
        let config = Config::mamba(VOCAB, options.dim, options.layers);
        Self::begin(options, config, text.into(), None)
    }

    /// A model with random weights and any configuration, which says its width and its blocks, to learn bytes or tokens.
    ///
    /// # Errors
    /// As [`Trainer::new`]; sizes that do not fit together, tokens beyond the vocabulary.
    pub fn of_config(options: Options, config: Config, corpus: impl Into<Corpus>) -> Result<Self> {
        let options = Options { dim: config.dim, layers: config.layers.len(), ..options };
        Self::begin(options, config, corpus.into(), None)
    }

    /// A model that exists, to learn more tokens.
    ///
    /// # Errors
    /// As [`Trainer::of_config`].
    pub fn from_model(options: Options, model: &Model, corpus: impl Into<Corpus>) -> Result<Self> {
        let config = model.config().clone();
        let options = Options { dim: config.dim, layers: config.layers.len(), ..options };
        Self::begin(options, config, corpus.into(), Some(model))
    }

    fn begin(options: Options, config: Config, corpus: Corpus, from: Option<&Model>) -> Result<Self> {
        options.check()?;
        config.check()?;
        let corpus = corpus.of(config.vocab);
        corpus.check(&config, options.seqlen)?;
        memory::check("this training", config.training_bytes(options.batch.saturating_mul(options.seqlen)))?;
        let mut random = Random::new(options.seed);
        let first = |(name, shape): (String, Vec<usize>)| {
            let data = match from.and_then(|model| model.weights().get(&name)) {
                Some(weight) => weight.to_f32(),
                None => initial(&config, &name, &shape, &mut random),
            };
            (name, Array { shape, data })
        };
        let weights: Tensors = config.tensors().into_iter().map(first).collect();
        let gradients = zeros_like(&weights);
        let (weights, adapted) = match options.lora {
            None => (weights, None),
            Some(lora) => (Adapted::begin(lora, &weights, &mut random), Some(Adapted { lora, base: weights })),
        };
        Ok(Trainer {
            settings: from.map(|model| model.settings.clone()).unwrap_or_default(),
            moments: Moments::new(&weights),
            options,
            config,
            weights,
            adapted,
            losses: Vec::new(),
            evaluations: Vec::new(),
            best: None,
            corpus,
            gradients,
            on_device: None,
        })
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

    /// Returns the unit of losses: `byte` or `token`.
    pub fn unit(&self) -> &'static str {
        self.corpus.unit()
    }

    /// Returns the settings of the training.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The loss of every step so far, in bits for a byte or a token.
    pub fn losses(&self) -> &[f32] {
        &self.losses
    }

    /// Number of weights of the model.
    pub fn count(&self) -> usize {
        self.config.weights()
    }

    /// Number of those that are learned.
    pub fn learned_count(&self) -> usize {
        self.weights.values().map(|array| array.data.len()).sum()
    }

    /// The learning rate of the next step.
    pub fn rate(&self) -> f64 {
        optimizer::rate(self.losses.len(), &self.options)
    }

    /// Whether what is held out is the last tenth of the text.
    pub fn is_divided(&self) -> bool {
        self.corpus.is_divided()
    }

    /// The model as it is now.
    ///
    /// # Errors
    /// Weights that are not finite.
    pub fn model(&self) -> Result<Model> {
        Model::from_tensors(self.config.clone(), &*self.merged()?)
    }

    /// The weights of the model as it is now.
    fn merged(&self) -> Result<Cow<'_, Tensors>> {
        match (&self.on_device, &self.adapted) {
            (Some((_, training)), _) => Ok(Cow::Owned(training.weights()?)),
            (None, Some(adapted)) => Ok(Cow::Owned(adapted.merged(&self.weights)?)),
            (None, None) => Ok(Cow::Borrowed(&self.weights)),
        }
    }

    /// One step on rows from random places of the text; the loss before it, in bits for a byte or a token. On a GPU weights and moments stay there from step to
    /// step; rows and random zeros are the same on every device.
    ///
    /// # Errors
    /// Weights that have become infinite; errors of the device.
    pub fn step(&mut self, exec: &Exec) -> Result<f64> {
        let (step, Options { seqlen, max_grad_norm, accumulate, .. }) = (self.losses.len(), self.options.clone());
        // a device moves the weights of a model, by the gradient of one batch
        let there = exec.device() != Device::Cpu && self.adapted.is_none() && accumulate == 1;
        self.move_to(if there { exec.device() } else { Device::Cpu }, exec)?;
        let (rows, dropout) = self.batch(step);
        let loss = match &mut self.on_device {
            Some((_, training)) => {
                let by = optimizer::on_device(step, &self.options);
                training.step_with_dropout(&rows, seqlen, dropout, max_grad_norm, by)?
            }
            None => self.step_on_host(exec, step)?,
        };
        if !loss.is_finite() {
            return Err(Error::Diverged { step: step + 1, got: loss, rate: self.options.rate });
        }
        let loss = loss / std::f64::consts::LN_2;
        self.losses.push(loss as f32);
        Ok(loss)
    }

    /// A step by gradients that come to the host, wherever they are computed.
    fn step_on_host(&mut self, exec: &Exec, step: usize) -> Result<f64> {
        let (model, Options { seqlen, accumulate, .. }) = (self.model()?, self.options.clone());
        let device = match exec.device() {
            Device::Cpu => None,
            _ => Some(DeviceModel::new(exec, &model, None)?),
        };
        let (mut loss, mut sum) = (0.0, Tensors::new());
        if self.adapted.is_some() || accumulate > 1 {
            sum = zeros_like(&self.weights);
        }
        for batch in step * accumulate..(step + 1) * accumulate {
            let (rows, dropout) = self.batch(batch);
            loss += match &device {
                None => model.loss_with_dropout(exec, &rows, seqlen, dropout, &mut self.gradients)?,
                Some(device) => device.loss_with_dropout(&rows, seqlen, dropout, &mut self.gradients)?,
            };
            match &self.adapted {
                Some(adapted) => adapted.add_gradients(&self.gradients, &self.weights, &mut sum)?,
                None => sum.values_mut().zip(self.gradients.values()).for_each(|(sum, more)| sum.add(more)),
            }
        }
        let gradients = if sum.is_empty() { &mut self.gradients } else { &mut sum };
        let share = 1.0 / accumulate as f32;
        if accumulate > 1 {
            gradients.values_mut().flat_map(|array| &mut array.data).for_each(|g| *g *= share);
        }
        self.moments.step(&mut self.weights, gradients, step, &self.options);
        Ok(loss / accumulate as f64)
    }

    /// Takes weights and moments to a device, that of the executor or the host.
    fn move_to(&mut self, device: Device, exec: &Exec) -> Result<()> {
        if self.on_device.as_ref().is_some_and(|(own, _)| *own == device) {
            return Ok(());
        }
        if let Some((_, training)) = &self.on_device {
            let Downloaded { weights, first, second } = training.download()?;
            (self.weights, self.moments, self.on_device) = (weights, Moments { first, second }, None);
        }
        if device != Device::Cpu {
            let means = [&self.moments.first, &self.moments.second];
            let training = DeviceTraining::from_parts(exec, &self.config, DType::F32, &self.weights, means)?;
            self.on_device = Some((device, training));
        }
        Ok(())
    }

    /// The rows of a batch, each with the token behind it, and its zeros.
    fn batch(&self, batch: usize) -> (Vec<u32>, Dropout) {
        let Options { seqlen, dropout: share, seed, .. } = self.options;
        let seed = seed ^ ((batch as u64 + 1) << 20);
        let (mut random, len) = (Random::new(seed), seqlen + 1);
        let learned = self.corpus.learned();
        let row = |_| {
            let start = (random.bits() % (learned.len() - len + 1) as u64) as usize;
            self.corpus.part(start..start + len)
        };
        ((0..self.options.batch).flat_map(row).collect(), Dropout { share, seed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_the_mean_of_the_batches_that_it_adds_up() {
        let options = Options {
            dim: 8,
            layers: 1,
            batch: 2,
            seqlen: 16,
            steps: 9,
            accumulate: 3,
            max_grad_norm: 1e9,
            ..Options::default()
        };
        let text: Vec<u8> = (0..2000u32).map(|i| (i * i % 251) as u8).collect();
        let (exec, mut trainer) = (Exec::cpu(1), Trainer::new(options, text).unwrap());
        let (model, mut of_batch, mut sum, mut loss) =
            (trainer.model().unwrap(), zeros_like(&trainer.weights), zeros_like(&trainer.weights), 0.0);
        for batch in 0..3 {
            let (rows, dropout) = trainer.batch(batch);
            loss += model.loss_with_dropout(&exec, &rows, 16, dropout, &mut of_batch).unwrap() / 3.0;
            sum.values_mut().zip(of_batch.values()).for_each(|(sum, more)| sum.add(more));
        }
        assert!((trainer.step(&exec).unwrap() * std::f64::consts::LN_2 - loss).abs() < 1e-9);
        for (name, sum) in &sum {
            // the first mean is a tenth of the first gradient
            for (got, sum) in trainer.moments.first[name].data.iter().zip(&sum.data) {
                assert!((got - 0.1 * sum / 3.0).abs() < 1e-6 * (1.0 + sum.abs()), "{name}: {got} beside {sum}");
            }
        }
        assert_ne!(trainer.batch(0).0, trainer.batch(3).0);
    }
}
