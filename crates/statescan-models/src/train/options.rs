//! [`Options`]: sizes, schedule and random numbers of a training.

use super::Lora;
use crate::error::{Error, Result};
use crate::weight::{TYPES, file_dtype};
use serde_json::{Value, json};
use statescan::DType;

/// The settings of a training.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Width of the stream between blocks of a model that is made for the training.
    pub dim: usize,
    /// Number of its blocks.
    pub layers: usize,
    /// Rows of a step.
    pub batch: usize,
    /// Bytes of a row, or tokens.
    pub seqlen: usize,
    /// Steps in all.
    pub steps: usize,
    /// Batches whose gradients are added up for a step.
    pub accumulate: usize,
    /// The highest learning rate; it rises over the first steps and falls to a tenth along a cosine.
    pub rate: f64,
    /// Steps over which it rises: a twentieth of them where nothing is said.
    pub warmup: Option<usize>,
    /// How much of the weights of projections a step takes away, by the learning rate.
    pub weight_decay: f64,
    /// The share of random zeros in what blocks add to the stream, which keeps a small text from being learned by heart.
    pub dropout: f64,
    /// The longest gradient, by the root of the sum of squares; a longer one is scaled down.
    pub max_grad_norm: f64,
    /// Weights and rows are drawn from it.
    pub seed: u64,
    /// The type that the weights of the model are written in; training has them in f32.
    pub dtype: DType,
    /// Projections move by small matrices alone, which are merged where the model is written; nothing else is learned.
    pub lora: Option<Lora>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            dim: 128,
            layers: 6,
            batch: 8,
            seqlen: 256,
            steps: 1300,
            accumulate: 1,
            rate: 4e-3,
            warmup: None,
            weight_decay: 1.0,
            dropout: 0.3,
            max_grad_norm: 1.0,
            seed: 1,
            dtype: DType::F32,
            lora: None,
        }
    }
}

impl Options {
    /// Refuses what is out of range.
    ///
    /// # Errors
    /// The setting, and what it must be.
    pub fn check(&self) -> Result<()> {
        macro_rules! size {
            ($setting:ident, $most:literal) => {
                if !(1..=$most).contains(&self.$setting) {
                    let (setting, expected) = (stringify!($setting), concat!("from 1 to ", $most));
                    return Err(Error::Training { setting, expected, got: self.$setting as f64 });
                }
            };
        }
        size!(dim, 16384);
        size!(layers, 1024);
        size!(batch, 16384);
        size!(seqlen, 1048576);
        size!(steps, 1000000000);
        size!(accumulate, 16384);
        let number = |setting, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(Error::Training { setting, expected: "a positive number", got: value }),
        };
        number("rate", self.rate)?;
        number("max_grad_norm", self.max_grad_norm)?;
        if let Some(Lora { rank, alpha }) = self.lora {
            if !(1..=16384).contains(&rank) {
                return Err(Error::Training { setting: "rank of LoRA", expected: "from 1 to 16384", got: rank as f64 });
            }
            number("alpha of LoRA", alpha)?;
        }
        if let Some(got) = self.warmup.filter(|&warmup| warmup > self.steps) {
            return Err(Error::Training { setting: "warmup", expected: "at most as many as steps", got: got as f64 });
        }
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

    pub(super) fn to_json(&self) -> Value {
        let Options { dim, layers, batch, seqlen, steps, accumulate, rate, warmup, .. } = *self;
        let Options { weight_decay, dropout, max_grad_norm, seed, dtype, lora, .. } = *self;
        json!({"dim": dim, "layers": layers, "batch": batch, "seqlen": seqlen, "steps": steps, "accumulate": accumulate, "rate": rate,
            "warmup": warmup, "weight_decay": weight_decay, "dropout": dropout, "max_grad_norm": max_grad_norm, "seed": seed,
            "dtype": dtype.to_string(), "lora": lora.map(|Lora { rank, alpha }| json!([rank, alpha]))})
    }

    pub(super) fn from_json(json: &Value) -> Option<Self> {
        let size = |key: &str| json[key].as_u64().map(|size| size as usize);
        Some(Options {
            dim: size("dim")?,
            layers: size("layers")?,
            batch: size("batch")?,
            seqlen: size("seqlen")?,
            steps: size("steps")?,
            // options of earlier versions do not say it
            accumulate: size("accumulate").unwrap_or(1),
            rate: json["rate"].as_f64()?,
            warmup: size("warmup"),
            weight_decay: json["weight_decay"].as_f64()?,
            dropout: json["dropout"].as_f64()?,
            // earlier versions call it so
            max_grad_norm: json["max_grad_norm"].as_f64().or(json["clip"].as_f64())?,
            seed: json["seed"].as_u64()?,
            dtype: TYPES.into_iter().find(|(dtype, _)| json["dtype"] == dtype.to_string()).map(|(dtype, _)| dtype)?,
            lora: match &json["lora"] {
                Value::Null => None,
                lora => Some(Lora { rank: lora[0].as_u64()? as usize, alpha: lora[1].as_f64()? }),
            },
        })
    }
}
