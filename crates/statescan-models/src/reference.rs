//! The oracle: a whole model, and layers, in plain `f64` loops, one token after the other.

mod delta;

use crate::config::{Attention, Config, Family, HeadNorms, Kind};
use crate::layers::S5Config;
use num_complex::Complex64;
use statescan::Discretization;
use std::collections::BTreeMap;

/// The weights of a model by their names in checkpoints, row-major.
pub type Weights = BTreeMap<String, Vec<f64>>;

/// The logits after every token, (tokens, vocab).
///
/// # Panics
/// If a weight is missing or too short, or a token beyond the vocabulary.
pub fn logits(config: &Config, weights: &Weights, tokens: &[u32]) -> Vec<f64> {
    rounded_logits(config, weights, tokens, &|x| x)
}

/// Computes logits with activations that are stored in fewer bits between operations, as [`DeviceModel`](crate::DeviceModel)
/// stores those of a prompt: all but the stream to which blocks add, sums within operations, and logits.
///
/// # Panics
/// As [`logits`].
pub fn rounded_logits(config: &Config, weights: &Weights, tokens: &[u32], round: &dyn Fn(f64) -> f64) -> Vec<f64> {
    let dim = config.dim;
    let embedding = &weights[config.embedding()];
    let [of_embedding, of_layers, of_logits] =
        [config.scales.embedding, config.scales.residual, config.scales.logits].map(f64::from);
    let embed = |&token: &u32| {
        let row = &embedding[token as usize * dim..(token as usize + 1) * dim];
        row.iter().map(|x| x * of_embedding).collect()
    };
    let mut stream: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    for (i, kind) in config.layers.iter().enumerate() {
        let norms = &weights[&config.norm(i)];
        let (behind, of_stream) = (config.norm_is_behind(i), |x: &[f64]| shifted_norm(config, x, norms));
        let before = |x: &Vec<f64>| stored(if behind { x.clone() } else { of_stream(x) }, round);
        let normed: Vec<_> = stream.iter().map(before).collect();
        let part = Part { config, weights, prefix: config.prefix(i), round };
        let (mut inputs, mut states) =
            (vec![vec![0.0; config.conv_channels()]; config.width - 1], vec![0.0; config.inner * config.dstate]);
        let added = match kind {
            Kind::Attention => part.attention(&normed),
            Kind::Mlp => normed.iter().map(|row| part.feed_forward(row)).collect(),
            _ => part.mixer(&normed, &mut inputs, &mut states),
        };
        for (x, y) in stream.iter_mut().zip(added) {
            let y = if behind { of_stream(&y) } else { y };
            x.iter_mut().zip(y).for_each(|(x, y)| *x += of_layers * y);
        }
    }
    let (head, norms) = (&weights[config.head()], &weights[config.last_norm()]);
    let last = |x: &Vec<f64>| product(head, None, &stored(shifted_norm(config, x, norms), round));
    stream.iter().flat_map(last).map(|x| x / of_logits).collect()
}

/// Rows (seqlen, dim) of one sequence through a [`Mixer`](crate::layers::Mixer), from the latest inputs of its convolution, (channels, width - 1),
/// and the states of its scan, (inner, dstate), which are carried on.
///
/// # Panics
/// If a weight is missing or too short.
pub fn mixer(config: &Config, weights: &Weights, x: &[f64], conv: &mut [f64], scan: &mut [f64]) -> Vec<f64> {
    let taps = config.width - 1;
    let rows: Vec<_> = x.chunks(config.dim).map(<[f64]>::to_vec).collect();
    let mut inputs: Vec<Vec<f64>> = (0..taps).map(|k| conv.chunks(taps).map(|channel| channel[k]).collect()).collect();
    let out = Part { config, weights, prefix: String::new(), round: &|x| x }.mixer(&rows, &mut inputs, scan);
    for (d, channel) in conv.chunks_mut(taps).enumerate() {
        channel.iter_mut().zip(&inputs).for_each(|(to, row)| *to = row[d]);
    }
    out.concat()
}

/// Rows (seqlen, dim) of one sequence through an [`S5`](crate::layers::S5), from its states, (dstate, 2), which are carried on.
///
/// # Panics
/// As [`mixer`]; a discretization that is not zero-order hold.
pub fn s5(config: &S5Config, weights: &Weights, x: &[f64], states: &mut [f64]) -> Vec<f64> {
    assert_eq!(config.discretization, Discretization::Zoh, "the one that has an oracle here");
    let (dim, complex) = (config.dim, |name: &str, i: usize| Complex64::new(weights[name][2 * i], weights[name][2 * i + 1]));
    let factor = if config.conj_sym { 2.0 } else { 1.0 };
    let mut out = Vec::new();
    for u in x.chunks(dim) {
        let mut y: Vec<f64> = u.iter().zip(&weights["D"]).map(|(u, d)| u * d).collect();
        for (p, state) in states.chunks_mut(2).enumerate() {
            let (a, dt) = (complex("A", p), weights["log_dt"][p].exp() * f64::from(config.step_rescale));
            let driven: Complex64 = u.iter().enumerate().map(|(h, u)| complex("B", p * dim + h) * u).sum();
            let next = (a * dt).exp() * Complex64::new(state[0], state[1]) + ((a * dt).exp() - 1.0) / a * driven;
            (state[0], state[1]) = (next.re, next.im);
            y.iter_mut().enumerate().for_each(|(h, y)| *y += factor * (complex("C", h * config.dstate + p) * next).re);
        }
        out.extend(y);
    }
    out
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

/// The weights of one mixer.
struct Part<'p> {
    config: &'p Config,
    weights: &'p Weights,
    prefix: String,
    /// The rounding of an activation that is stored.
    round: &'p dyn Fn(f64) -> f64,
}

impl Part<'_> {
    fn get(&self, name: &str) -> &[f64] {
        &self.weights[&format!("{}{name}", self.prefix)]
    }

    /// A weight, where there is one of this name.
    fn get_if(&self, name: &str) -> Option<&[f64]> {
        self.weights.get(&format!("{}{name}", self.prefix)).map(|weight| &weight[..])
    }

    fn stored(&self, x: Vec<f64>) -> Vec<f64> {
        stored(x, self.round)
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        product(self.get(&format!("{name}.weight")), self.get_if(&format!("{name}.bias")), x)
    }

    /// Computes the mixer's rows, from the latest inputs of the convolution and the states of the scan, which are carried on.
    fn mixer(&self, rows: &[Vec<f64>], inputs: &mut Vec<Vec<f64>>, states: &mut [f64]) -> Vec<Vec<f64>> {
        if self.config.family.scan() == Kind::GatedDelta {
            return rows.iter().map(|row| self.delta(row, inputs, states)).collect();
        }
        let Config { inner, dstate, nheads, ngroups, dt_rank, width, .. } = *self.config;
        let (second, channels, headdim) = (self.config.has_heads(), self.config.conv_channels(), inner / nheads);
        let decays: Vec<f64> = self.get("A_log").iter().map(|log| -log.exp()).collect();
        let mut out = Vec::new();
        for row in rows {
            let projected = self.stored(self.linear("in_proj", row));
            let (z, x, heads) = match second {
                true => (&projected[..inner], &projected[inner..inner + channels], &projected[inner + channels..]),
                false => (&projected[inner..], &projected[..inner], &projected[..0]),
            };
            inputs.push(x.to_vec());
            let x = self.stored(self.conv(&inputs[inputs.len() - width..]));
            let (dt, b, c) = match second {
                true => {
                    let bias = self.get("dt_bias");
                    let dt: Vec<f64> = (0..inner).map(|d| heads[d / headdim] + bias[d / headdim]).collect();
                    (dt, x[inner..inner + ngroups * dstate].to_vec(), x[inner + ngroups * dstate..].to_vec())
                }
                false => {
                    let maps = self.stored(self.linear("x_proj", &x));
                    let normed = |part: &[f64]| match self.config.family.scan() {
                        Kind::FalconMamba => self.stored(norm(part, None, self.config.mixer_eps)),
                        _ => part.to_vec(),
                    };
                    let (weight, bias) = (self.get("dt_proj.weight"), self.get_if("dt_proj.bias"));
                    let mut dt = self.stored(product(weight, None, &normed(&maps[..dt_rank])));
                    dt.iter_mut().zip(bias.into_iter().flatten()).for_each(|(dt, bias)| *dt += bias);
                    (dt, normed(&maps[dt_rank..dt_rank + dstate]), normed(&maps[dt_rank + dstate..]))
                }
            };
            let mut y = Vec::new();
            for d in 0..inner {
                let (low, high) = self.config.dt_limit;
                let (dt, group) = (dt[d].exp().ln_1p().clamp(low, high), d / (inner / ngroups));
                let mut sum = self.get("D")[d / headdim] * x[d];
                for n in 0..dstate {
                    let a = if second { decays[d / headdim] } else { decays[d * dstate + n] };
                    let state = &mut states[d * dstate + n];
                    *state = (dt * a).exp() * *state + dt * b[group * dstate + n] * x[d];
                    sum += c[group * dstate + n] * *state;
                }
                y.push(if second { sum } else { sum * silu(z[d]) });
            }
            y = self.stored(y);
            if second {
                // the gate is part of the norm
                y.iter_mut().zip(z).for_each(|(y, &z)| *y *= silu(z));
                let size = inner / ngroups;
                let weight = self.get("norm.weight").chunks(size);
                y = self.stored(y.chunks(size).zip(weight).flat_map(|(y, w)| norm(y, Some(w), self.config.mixer_eps)).collect());
            }
            out.push(self.linear("out_proj", &y));
        }
        inputs.drain(..inputs.len() + 1 - width);
        out
    }

    /// Computes the attention of rows of one sequence.
    fn attention(&self, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let Attention { heads, kv_heads, headdim, scale, .. } = self.config.attention;
        let project = |name: &str| rows.iter().map(|row| self.stored(self.linear(name, row))).collect::<Vec<_>>();
        let (mut queries, mut keys, values) = (project("q_proj"), project("k_proj"), project("v_proj"));
        let mut gates = vec![Vec::new(); rows.len()];
        if self.config.attention.gate {
            for (row, gates) in queries.iter_mut().zip(&mut gates) {
                let half = |half: usize| row.chunks(headdim).skip(half).step_by(2).flatten().copied().collect::<Vec<_>>();
                (*gates, *row) = (half(1), half(0));
            }
        }
        for (rows, name) in [(&mut queries, "q_norm.weight"), (&mut keys, "k_norm.weight")] {
            rows.iter_mut().enumerate().for_each(|(i, row)| *row = self.rotated(self.head_norms(row, name), i));
        }
        let attend = |(i, query): (usize, &Vec<f64>)| {
            let of_head = |head: usize| {
                let (own, shared) = (head * headdim, head / (heads / kv_heads) * headdim);
                let score = |key: &Vec<f64>| {
                    let products = (0..headdim).map(|d| query[own + d] * key[shared + d]);
                    (f64::from(scale) * products.sum::<f64>()).exp()
                };
                let scores: Vec<f64> = keys[..=i].iter().map(score).collect();
                let whole: f64 = scores.iter().sum();
                let value = |d: usize| scores.iter().zip(&values).map(|(score, value)| score * value[shared + d]).sum::<f64>();
                (0..headdim).map(|d| value(d) / whole).collect::<Vec<_>>()
            };
            let attended = (0..heads).flat_map(of_head).enumerate();
            let gated = attended.map(|(d, y)| gates[i].get(d).map_or(y, |gate| y / (1.0 + (-gate).exp())));
            self.linear("o_proj", &self.stored(gated.collect()))
        };
        queries.iter().enumerate().map(attend).collect()
    }

    /// Queries or keys of a row, normed.
    fn head_norms(&self, row: &[f64], name: &str) -> Vec<f64> {
        let size = match self.config.attention.norms {
            HeadNorms::None => return row.to_vec(),
            HeadNorms::Each => self.config.attention.headdim,
            HeadNorms::All => row.len(),
        };
        row.chunks(size).flat_map(|head| shifted_norm(self.config, head, self.get(name))).collect()
    }

    /// All heads of a row, rotated by its position.
    fn rotated(&self, row: Vec<f64>, position: usize) -> Vec<f64> {
        let Attention { headdim, rotary, theta, .. } = self.config.attention;
        let turn = |(i, &x): (usize, &f64)| {
            let (d, half) = (i % headdim, rotary / 2);
            if d >= rotary {
                return x;
            }
            let angle = position as f64 * theta.powf(-2.0 * (d % half) as f64 / rotary as f64);
            let other = if d < half { -row[i + half] } else { row[i - half] };
            x * angle.cos() + other * angle.sin()
        };
        row.iter().enumerate().map(turn).collect()
    }

    /// The gated feed-forward layer.
    fn feed_forward(&self, row: &[f64]) -> Vec<f64> {
        let (gates, ups, last) = match self.config.family {
            Family::GraniteHybrid => {
                let mut gates = self.linear("input_linear", row);
                let ups = gates.split_off(self.config.feed_forward.hidden);
                (gates, ups, "output_linear")
            }
            _ => (self.linear("gate_proj", row), self.linear("up_proj", row), "down_proj"),
        };
        let [gates, ups] = [gates, ups].map(|part| self.stored(part));
        let gated = gates.iter().zip(&ups).map(|(&gate, up)| silu(gate) * up);
        self.linear(last, &self.stored(gated.collect()))
    }

    /// The convolution at the last of as many rows as it has taps.
    fn conv(&self, rows: &[Vec<f64>]) -> Vec<f64> {
        let (weight, bias) = (self.get("conv1d.weight"), self.get_if("conv1d.bias"));
        let taps = |d: usize| rows.iter().enumerate().map(|(k, row)| weight[d * rows.len() + k] * row[d]).sum::<f64>();
        (0..rows[0].len()).map(|d| silu(taps(d) + bias.map_or(0.0, |bias| bias[d]))).collect()
    }
}

fn stored(mut x: Vec<f64>, round: &dyn Fn(f64) -> f64) -> Vec<f64> {
    x.iter_mut().for_each(|x| *x = round(*x));
    x
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn norm(x: &[f64], weight: Option<&[f64]>, eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().enumerate().map(|(i, x)| x * factor * weight.map_or(1.0, |weight| weight[i])).collect()
}

/// A norm whose weight has what a configuration says added.
fn shifted_norm(config: &Config, x: &[f64], weight: &[f64]) -> Vec<f64> {
    let weight: Vec<f64> = weight.iter().map(|w| w + f64::from(config.norm_offset())).collect();
    norm(x, Some(&weight), config.eps)
}

/// `W x + bias`.
fn product(weight: &[f64], bias: Option<&[f64]>, x: &[f64]) -> Vec<f64> {
    let rows = weight.chunks(x.len()).enumerate();
    rows.map(|(o, row)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + bias.map_or(0.0, |bias| bias[o])).collect()
}
