//! The gated delta rule, one step after the other.

use super::{Part, norm, silu};
use crate::config::{Config, Family};

impl Part<'_> {
    /// Computes a row of a mixer, from the latest inputs of the convolution and the state (heads, keys, values), which are carried on.
    pub(super) fn delta(&self, row: &[f64], inputs: &mut Vec<Vec<f64>>, states: &mut [f64]) -> Vec<f64> {
        let Config { nheads, ngroups, dstate, width, .. } = *self.config;
        let (headdim, keys, olmo) = (self.config.headdim(), ngroups * dstate, self.config.family == Family::OlmoHybrid);
        let project =
            |names: &[&str]| -> Vec<f64> { names.iter().flat_map(|name| self.stored(self.linear(name, row))).collect() };
        let (qkv, z, b, a) = match olmo {
            true => (project(&["q_proj", "k_proj", "v_proj"]), project(&["g_proj"]), project(&["b_proj"]), project(&["a_proj"])),
            false => (project(&["in_proj_qkv"]), project(&["in_proj_z"]), project(&["in_proj_b"]), project(&["in_proj_a"])),
        };
        inputs.push(qkv);
        let x = self.stored(self.conv(&inputs[inputs.len() - width..]));
        inputs.remove(0);
        let of_length_one = |part: &[f64]| -> Vec<f64> {
            let length = (part.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            part.iter().map(|x| x / length).collect()
        };
        let [norms, out] = if olmo { ["o_norm.weight", "o_proj"] } else { ["norm.weight", "out_proj"] };
        let mut y = Vec::new();
        for (head, state) in states.chunks_mut(dstate * headdim).enumerate() {
            let first = head / (nheads / ngroups) * dstate;
            let [q, k] = [first, keys + first].map(|first| of_length_one(&x[first..first + dstate]));
            let v = &x[2 * keys + head * headdim..][..headdim];
            let most = if self.config.allow_neg_eigval { 2.0 } else { 1.0 };
            let beta = most / (1.0 + (-b[head]).exp());
            let g = -self.get("A_log")[head].exp() * (a[head] + self.get("dt_bias")[head]).exp().ln_1p();
            state.iter_mut().for_each(|s| *s *= g.exp());
            let mut read = vec![0.0; headdim];
            for (p, y) in read.iter_mut().enumerate() {
                let known: f64 = k.iter().enumerate().map(|(n, k)| state[n * headdim + p] * k).sum();
                k.iter().enumerate().for_each(|(n, k)| state[n * headdim + p] += k * beta * (v[p] - known));
                *y = q.iter().enumerate().map(|(n, q)| state[n * headdim + p] * q).sum::<f64>() / (dstate as f64).sqrt();
            }
            let normed = norm(&self.stored(read), Some(self.get(norms)), self.config.mixer_eps);
            y.extend(normed.iter().zip(&z[head * headdim..]).map(|(y, &z)| y * silu(z)));
        }
        self.linear(out, &self.stored(y))
    }
}
