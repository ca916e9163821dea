//! [`Sampler`]: from logits to a token.

use crate::error::{Error, Result};
use crate::model::surprise;
use crate::random::Random;
use std::cmp::Ordering;
use std::collections::VecDeque;

/// How a token is drawn. Without a temperature it is the most likely one.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
    penalty: f32,
    /// The latest tokens of the text, which the penalty is for, and how many of them are kept.
    latest: VecDeque<u32>,
    window: usize,
    seed: u64,
    random: Random,
}

impl Sampler {
    /// The most likely token, the first one of equals.
    pub fn greedy() -> Self {
        let (latest, random) = (VecDeque::new(), Random::new(0));
        Sampler { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, penalty: 1.0, latest, window: 0, seed: 0, random }
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
        Ok(Sampler { temperature, top_k, top_p, seed, random: Random::new(seed), ..Self::greedy() })
    }

    /// Leaves out tokens with less than this share of the most likely one's probability, after the temperature
    /// (arXiv:2407.01082). 0 leaves none out.
    ///
    /// # Errors
    /// A share that is not from 0 to 1.
    pub fn with_min_p(self, min_p: f64) -> Result<Self> {
        match (0.0..=1.0).contains(&min_p) {
            true => Ok(Sampler { min_p, ..self }),
            false => Err(Error::Sampling { setting: "min-p", expected: "from 0 to 1", got: min_p }),
        }
    }

    /// Makes repetitions less likely: the logits of the latest `window` tokens, those drawn and those that [`Sampler::see`] got,
    /// are divided by the penalty where they are positive and multiplied by it elsewhere, as CTRL does (arXiv:1909.05858). 1
    /// changes nothing.
    ///
    /// # Errors
    /// A penalty that is not a positive number.
    pub fn with_repetition_penalty(self, penalty: f64, window: usize) -> Result<Self> {
        if !(penalty > 0.0 && penalty.is_finite()) {
            return Err(Error::Sampling { setting: "repetition-penalty", expected: "a positive number", got: penalty });
        }
        Ok(Sampler { penalty: penalty as f32, window, ..self })
    }

    /// Returns these settings as those of the sampler after another: with its random numbers, unless the seed is another one, and
    /// the latest tokens that it knows.
    pub fn after(self, other: &Sampler) -> Self {
        let (mut latest, surplus) = (other.latest.clone(), other.latest.len().saturating_sub(self.window));
        latest.drain(..surplus);
        let random = if self.seed == other.seed { other.random.clone() } else { self.random.clone() };
        Sampler { latest, random, ..self }
    }

    /// Whether it takes the most likely token, whatever the others are.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 && self.penalty == 1.0
    }

    /// Tokens of the text that were not drawn, such as those of a prompt.
    pub fn see(&mut self, tokens: &[u32]) {
        if self.penalty != 1.0 {
            self.latest.extend(&tokens[tokens.len().saturating_sub(self.window)..]);
            let surplus = self.latest.len().saturating_sub(self.window);
            self.latest.drain(..surplus);
        }
    }

    /// Draws a token. Logits of -inf are tokens that are never drawn.
    ///
    /// # Errors
    /// Logits with NaN or inf, or without a finite one.
    pub fn draw(&mut self, logits: &[f32]) -> Result<u32> {
        check(logits)?;
        let token = match self.penalty == 1.0 {
            true => self.choose(logits),
            false => self.choose(&self.penalized(logits)),
        };
        self.see(&[token]);
        Ok(token)
    }

    fn penalized(&self, logits: &[f32]) -> Vec<f32> {
        let mut changed = logits.to_vec();
        for &token in &self.latest {
            if let (Some(to), Some(&from)) = (changed.get_mut(token as usize), logits.get(token as usize)) {
                *to = if from > 0.0 { from / self.penalty } else { from * self.penalty };
            }
        }
        changed
    }

    fn choose(&mut self, logits: &[f32]) -> u32 {
        if self.temperature == 0.0 {
            let by_logit = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
            return (0..logits.len()).min_by(by_logit).unwrap_or(0) as u32;
        }
        let mut tokens: Vec<Candidate> =
            logits.iter().enumerate().map(|(token, &logit)| Candidate { token: token as u32, logit, weight: 0.0 }).collect();
        if (1..tokens.len()).contains(&self.top_k) {
            tokens.select_nth_unstable_by(self.top_k - 1, Candidate::by_logit);
            tokens.truncate(self.top_k);
        }
        let highest = tokens.iter().map(|own| own.logit).fold(f32::NEG_INFINITY, f32::max);
        for own in &mut tokens {
            own.weight = ((own.logit - highest) / self.temperature as f32).exp();
        }
        let whole: f64 = tokens.iter().map(|own| f64::from(own.weight)).sum();
        // tokens that are likely enough stay, among which is the first one with the weight 1, and of these the fewest that reach top_p
        tokens.retain(|own| f64::from(own.weight) >= self.min_p);
        let (count, sum) = reach(&mut tokens, self.top_p * whole);
        let drawn = reach(&mut tokens[..count], self.random.uniform(0.0, sum)).0 - 1;
        tokens[drawn].token
    }
}

/// A token that may be drawn.
struct Candidate {
    token: u32,
    logit: f32,
    /// Its probability, as a multiple of that of the most likely one.
    weight: f32,
}

impl Candidate {
    /// The more likely one comes first, and of equals that with the lower number.
    fn by_logit(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }
}

/// Puts the most likely tokens in front, as many as have weights that sum to `least`, or all, the least likely of them last, and returns their number, at
/// least 1, and the sum. Halves of what is left are told apart, which takes a time by the number of tokens alone: a sorted order of all of them is not needed.
fn reach(tokens: &mut [Candidate], least: f64) -> (usize, f64) {
    let (mut before, mut begin, mut end) = (0.0, 0, tokens.len());
    while end - begin > 1 {
        let middle = begin + (end - begin) / 2;
        tokens[begin..end].select_nth_unstable_by(middle - begin, Candidate::by_logit);
        let sum = before + tokens[begin..middle].iter().map(|own| f64::from(own.weight)).sum::<f64>();
        match sum >= least {
            true => end = middle,
            false => (before, begin) = (sum, middle),
        }
    }
    (end, before + f64::from(tokens[begin].weight))
}

/// Refuses logits that no token can be drawn from.
fn check(logits: &[f32]) -> Result<()> {
    let bad = |(at, got): (usize, &f32)| Err(Error::Logits { got: format!("{got} at token {at}") });
    match logits.iter().enumerate().find(|(_, logit)| logit.is_nan() || **logit == f32::INFINITY) {
        Some(found) => bad(found),
        None if logits.iter().any(|logit| logit.is_finite()) => Ok(()),
        None => Err(Error::Logits { got: format!("{} of -inf", logits.len()) }),
    }
}

/// The natural logarithm of a token's probability: `ln softmax(logits)[token]`.
///
/// # Panics
/// If there is no logit of the token.
pub fn log_probability(logits: &[f32], token: u32) -> f64 {
    -surprise(logits, token as usize) * std::f64::consts::LN_2
}
