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
    /// The same seed draws the same text [default: 0]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Make the latest tokens less likely: positive logits are divided by it, others multiplied; 1 changes nothing
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub repetition_penalty: f64,
    /// How many of the latest tokens the penalty is for
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub repetition_window: usize,
}

impl SamplingArgs {
    /// The sampler of one of several texts: the first one has the seed, the next one the number after it.
    ///
    /// # Errors
    /// Settings out of range, or without effect.
    pub(crate) fn sampler(&self, text: u64) -> Result<Sampler> {
        let temperature = self.temperature.unwrap_or(0.8);
        if temperature == 0.0 {
            let number = |n: Option<u64>| n.map(|n| n.to_string());
            let top_k = number(self.top_k.map(|k| k as u64));
            let given = [("--top-p", self.top_p.map(|p| p.to_string())), ("--top-k", top_k), ("--seed", number(self.seed))];
            if let Some((option, Some(got))) = given.into_iter().find(|(_, got)| got.is_some()) {
                return Err(Error::Usage { option, expected: NOT_GREEDY, got });
            }
        }
        let seed = self.seed.unwrap_or(0).wrapping_add(text);
        let sampler = Sampler::new(temperature, self.top_k.unwrap_or(0), self.top_p.unwrap_or(0.95), seed)?;
        Ok(sampler.with_repetition_penalty(self.repetition_penalty, self.repetition_window)?)
    }
}
