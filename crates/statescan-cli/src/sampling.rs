//! How tokens are drawn, on the command line.

use crate::error::{Error, Result};
use clap::Args;
use statescan_models::Sampler;

/// Why a seed or a limit of choice does not go with the temperature 0.
const NOT_GREEDY: &str = "left out with --temperature 0, which draws nothing";

/// How tokens are drawn.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "How tokens are drawn")]
pub struct SamplingArgs {
    /// The higher, the less likely the tokens that are drawn; 0 takes the most likely one, which soon repeats itself [default: 0.8]
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// Draw from the fewest tokens whose probabilities sum to this [default: 0.95]
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// Draw from so many of the most likely tokens; 0 means all [default: 0]
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Draw with this seed; equal seeds draw equal texts [default: 0]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Draw from the tokens that have at least this share of the most likely one's probability [default: 0]
    #[arg(long, value_name = "P")]
    pub min_p: Option<f64>,
    /// Make the latest tokens less likely: positive logits are divided by it, others multiplied; 1 changes nothing [default: 1]
    #[arg(long, value_name = "X")]
    pub repetition_penalty: Option<f64>,
    /// How many of the latest tokens the penalty is for [default: 64]
    #[arg(long, value_name = "N")]
    pub repetition_window: Option<usize>,
}

impl SamplingArgs {
    /// The temperature.
    fn temperature(&self) -> f64 {
        self.temperature.unwrap_or(0.8)
    }

    /// Refuses settings that have no effect.
    ///
    /// # Errors
    /// An option of drawing with the temperature 0.
    pub(crate) fn check(&self) -> Result<()> {
        if self.temperature() != 0.0 {
            return Ok(());
        }
        let text = |number: Option<f64>| number.map(|number| number.to_string());
        let given = [
            ("--top-p", text(self.top_p)),
            ("--min-p", text(self.min_p)),
            ("--top-k", self.top_k.map(|k| k.to_string())),
            ("--seed", self.seed.map(|seed| seed.to_string())),
        ];
        match given.into_iter().find_map(|(option, got)| Some((option, got?))) {
            Some((option, got)) => Err(Error::Usage { option, expected: NOT_GREEDY, got }),
            None => Ok(()),
        }
    }

    /// The sampler of one of several texts: the first one has the seed, the next one the number after it.
    ///
    /// # Errors
    /// Settings out of range.
    pub(crate) fn sampler(&self, text: u64) -> Result<Sampler> {
        let seed = self.seed.unwrap_or(0).wrapping_add(text);
        let sampler = Sampler::new(self.temperature(), self.top_k.unwrap_or(0), self.top_p.unwrap_or(0.95), seed)?;
        let sampler = sampler.with_min_p(self.min_p.unwrap_or(0.0))?;
        Ok(sampler.with_repetition_penalty(self.repetition_penalty.unwrap_or(1.0), self.repetition_window.unwrap_or(64))?)
    }
}
