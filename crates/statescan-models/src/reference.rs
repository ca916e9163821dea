//! The oracle: a whole model in plain `f64` loops, one token after the other.

use crate::config::{Config, Kind};
use std::collections::BTreeMap;

/// The weights of a model by their names in checkpoints, row-major.
pub type Weights = BTreeMap<String, Vec<f64>>;

/// The logits after every token, (tokens, vocab).
///
/// # Panics
/// If a weight is missing or too short, or a token beyond the vocabulary.
pub fn logits(config: &Config, weights: &Weights, tokens: &[u32]) -> Vec<f64> {
    let dim = config.dim;
    let embedding = &weights[config.embedding];
    let mut stream: Vec<Vec<f64>> =
        tokens.iter().map(|&token| embedding[token as usize * dim..(token as usize + 1) * dim].to_vec()).collect();
    for i in 0..config.layers {
        let part = Part { config, weights, prefix: format!("backbone.layers.{i}.") };
        let normed: Vec<_> = stream.iter().map(|x| norm(x, Some(part.get("norm.weight")), config.eps)).collect();
        for (x, y) in stream.iter_mut().zip(part.mixer(&normed)) {
            x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        }
    }
    let head = if config.tied { embedding } else { &weights["lm_head.weight"] };
    let last = |x: &Vec<f64>| product(head, None, &norm(x, Some(&weights["backbone.norm_f.weight"]), config.eps));
    stream.iter().flat_map(last).collect()
}

/// The mean cross entropy of the next token over rows of `seqlen + 1` tokens, in nats.
///
/// # Panics
/// As [`logits`].
pub fn loss(config: &Config, weights: &Weights, tokens: &[u32], seqlen: usize) -> f64 {
    let mut sum = 0.0;
    for row in tokens.chunks(seqlen + 1) {
        let logits = logits(config, weights, &row[..seqlen]);
        for (logits, &target) in logits.chunks(config.vocab).zip(&row[1..]) {
            let whole: f64 = logits.iter().map(|x| x.exp()).sum();
            sum += whole.ln() - logits[target as usize];
        }
    }
    sum / (tokens.len() / (seqlen + 1) * seqlen) as f64
}

/// The weights of one block.
struct Part<'p> {
    config: &'p Config,
    weights: &'p Weights,
    prefix: String,
}

impl Part<'_> {
    fn get(&self, name: &str) -> &[f64] {
        &self.weights[&format!("{}{name}", self.prefix)]
    }

    /// A weight of the mixer, where there is one of this name.
    fn mixer_weight(&self, name: &str) -> Option<&[f64]> {
        self.weights.get(&format!("{}mixer.{name}", self.prefix)).map(|weight| &weight[..])
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        product(self.get(&format!("mixer.{name}.weight")), self.mixer_weight(&format!("{name}.bias")), x)
    }

    /// What the block adds to the stream.
    fn mixer(&self, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let Config { inner, dstate, nheads, ngroups, dt_rank, width, .. } = *self.config;
        let (second, channels, headdim) = (self.config.kind == Kind::Mamba2, self.config.conv_channels(), inner / nheads);
        let decays: Vec<f64> = self.get("mixer.A_log").iter().map(|log| -log.exp()).collect();
        let mut inputs = vec![vec![0.0; channels]; width - 1];
        let mut states = vec![0.0; inner * dstate];
        let mut out = Vec::new();
        for row in rows {
            let projected = self.linear("in_proj", row);
            let (z, x, heads) = match second {
                true => (&projected[..inner], &projected[inner..inner + channels], &projected[inner + channels..]),
                false => (&projected[inner..], &projected[..inner], &projected[..0]),
            };
            inputs.push(x.to_vec());
            let x = self.conv(&inputs[inputs.len() - width..]);
            let (dt, b, c) = match second {
                true => {
                    let bias = self.get("mixer.dt_bias");
                    let dt: Vec<f64> = (0..inner).map(|d| heads[d / headdim] + bias[d / headdim]).collect();
                    (dt, x[inner..inner + ngroups * dstate].to_vec(), x[inner + ngroups * dstate..].to_vec())
                }
                false => {
                    let maps = self.linear("x_proj", &x);
                    let normed = |part: &[f64]| match self.config.kind {
                        Kind::FalconMamba => norm(part, None, self.config.mixer_eps),
                        _ => part.to_vec(),
                    };
                    let dt = self.linear("dt_proj", &normed(&maps[..dt_rank]));
                    (dt, normed(&maps[dt_rank..dt_rank + dstate]), normed(&maps[dt_rank + dstate..]))
                }
            };
            let mut y = Vec::new();
            for d in 0..inner {
                let (low, high) = self.config.dt_limit;
                let (dt, group) = (dt[d].exp().ln_1p().clamp(low, high), d / (inner / ngroups));
                let mut sum = self.get("mixer.D")[d / headdim] * x[d];
                for n in 0..dstate {
                    let a = if second { decays[d / headdim] } else { decays[d * dstate + n] };
                    let state = &mut states[d * dstate + n];
                    *state = (dt * a).exp() * *state + dt * b[group * dstate + n] * x[d];
                    sum += c[group * dstate + n] * *state;
                }
                y.push(sum * silu(z[d]));
            }
            if second {
                let size = inner / ngroups;
                let weight = self.get("mixer.norm.weight").chunks(size);
                y = y.chunks(size).zip(weight).flat_map(|(y, w)| norm(y, Some(w), self.config.mixer_eps)).collect();
            }
            out.push(self.linear("out_proj", &y));
        }
        out
    }

    /// The convolution at the last of as many rows as it has taps.
    fn conv(&self, rows: &[Vec<f64>]) -> Vec<f64> {
        let (weight, bias) = (self.get("mixer.conv1d.weight"), self.mixer_weight("conv1d.bias"));
        let taps = |d: usize| rows.iter().enumerate().map(|(k, row)| weight[d * rows.len() + k] * row[d]).sum::<f64>();
        (0..rows[0].len()).map(|d| silu(taps(d) + bias.map_or(0.0, |bias| bias[d]))).collect()
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn norm(x: &[f64], weight: Option<&[f64]>, eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().enumerate().map(|(i, x)| x * factor * weight.map_or(1.0, |weight| weight[i])).collect()
}

/// `W x + bias`.
fn product(weight: &[f64], bias: Option<&[f64]>, x: &[f64]) -> Vec<f64> {
    let rows = weight.chunks(x.len()).enumerate();
    rows.map(|(o, row)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + bias.map_or(0.0, |bias| bias[o])).collect()
}
