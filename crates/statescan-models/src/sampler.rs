//! [`Sampler`]: from logits to a token.

use crate::error::{Error, Result};
use crate::random::Random;

/// How a token is drawn. Without a temperature it is the most likely one.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    temperature: f64,
    top_k: usize,
    top_p: f64,
    random: Random,
}

impl Sampler {
    /// The most likely token, the first one of equals.
    pub fn greedy() -> Self {
        Sampler { temperature: 0.0, top_k: 0, top_p: 1.0, random: Random::new(0) }
    }

    /// Draws with a temperature (0 is greedy), from the `top_k` most likely tokens (0 is all), and from the fewest of these whose
    /// probabilities sum to `top_p`. The same seed draws the same tokens.
    ///
    /// # Errors
    /// A temperature that is negative or no number, a `top_p` that is not above 0 and at most 1.
    pub fn new(temperature: f64, top_k: usize, top_p: f64, seed: u64) -> Result<Self> {
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(Error::Sampling { setting: "temperature", expected: "a number of at least 0", got: temperature });
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Error::Sampling { setting: "top-p", expected: "above 0 and at most 1", got: top_p });
        }
        Ok(Sampler { temperature, top_k, top_p, random: Random::new(seed) })
    }

    /// Whether it takes the most likely token, whatever the others are.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Draws a token.
    ///
    /// # Panics
    /// If there are no logits.
    pub fn draw(&mut self, logits: &[f32]) -> u32 {
        assert!(!logits.is_empty(), "a vocabulary has at least one token");
        let by_logit = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
        if self.is_greedy() {
            return (0..logits.len()).min_by(by_logit).unwrap_or(0) as u32;
        }
        let mut order: Vec<usize> = (0..logits.len()).collect();
        if (1..logits.len()).contains(&self.top_k) {
            order.select_nth_unstable_by(self.top_k - 1, by_logit);
            order.truncate(self.top_k);
        }
        order.sort_unstable_by(by_logit);
        let highest = f64::from(logits[order[0]]);
        let weights: Vec<f64> = order.iter().map(|&i| ((f64::from(logits[i]) - highest) / self.temperature).exp()).collect();
        let whole: f64 = weights.iter().sum();
        // the fewest that reach top_p
        let (mut sum, mut count) = (0.0, 0);
        while count < weights.len() && (count == 0 || sum < self.top_p * whole) {
            sum += weights[count];
            count += 1;
        }
        let mut left = self.random.uniform(0.0, sum);
        let drawn = weights[..count].iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        order[drawn.unwrap_or(count - 1)] as u32
    }
}
