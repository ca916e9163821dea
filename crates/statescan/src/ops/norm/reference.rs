//! Norms in plain `f64` loops: the oracle that every kernel is tested against.

use super::{Args, Cotangents, Problem, Sources, Table};
use crate::error::Result;
use crate::ops::oracle::silu;
use crate::ops::prepared::Structs;
use crate::ops::states::NO_STATES;
use crate::tensor::{Dense, Device, Shape, View};

/// Results of [`forward`].
#[derive(Debug, Clone)]
pub struct Forward {
    /// As x.
    pub y: Dense,
    /// As x.
    pub sum: Dense,
}

/// Results of [`backward`].
#[derive(Debug, Clone)]
pub struct Backward {
    /// By `x`.
    pub x: Dense,
    /// By `weight` (one or given).
    pub weight: Dense,
    /// By `bias` (zero or given).
    pub bias: Dense,
    /// By `z` (zero where there is none).
    pub z: Dense,
    /// By `residual` (zero or given): that by `x`, times its scale.
    pub residual: Dense,
    /// By `residual_scale` (one or given).
    pub residual_scale: Dense,
}

/// A group of a row.
struct Group<'p, 'a> {
    p: &'p Problem<'a>,
    row: [usize; 3],
    first: usize,
}

/// The values that the passes of a group share.
struct Normed {
    /// x + residual.
    sum: Vec<f64>,
    /// The gate and its derivative, 1 and 0 without one.
    gate: Vec<(f64, f64)>,
    normed: Vec<f64>,
    /// 1 / sqrt(mean square + eps).
    factor: f64,
}

impl Group<'_, '_> {
    fn at(&self, view: &View<'_>, channel: usize) -> f64 {
        let [i, j, k] = self.row;
        view.at(&[i, j, k, self.first + channel]).re
    }

    fn of(&self, view: &Option<View<'_>>, channel: usize, otherwise: f64) -> f64 {
        view.as_ref().map_or(otherwise, |view| view.at(&[self.first + channel]).re)
    }

    fn normed(&self) -> Normed {
        let p = self.p;
        let channels = 0..p.group;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let add = |c| p.residual.as_ref().map_or(0.0, |residual| p.scale(self.row) * self.at(residual, c));
        let sum: Vec<f64> = channels.clone().map(|c| self.at(&p.x, c) + add(c)).collect();
        let gate: Vec<_> = channels.clone().map(|c| p.z.as_ref().map_or((1.0, 0.0), |z| silu(self.at(z, c)))).collect();
        let gated = |c: usize| if p.norm_before_gate || p.z.is_none() { sum[c] } else { sum[c] * gate[c].0 };
        let mut normed: Vec<f64> = channels.map(gated).collect();
        if p.layer {
            let mean = mean(&normed);
            normed.iter_mut().for_each(|v| *v -= mean);
        }
        if !p.normed {
            return Normed { sum, gate, normed, factor: 1.0 };
        }
        let squares: Vec<f64> = normed.iter().map(|v| v * v).collect();
        let factor = 1.0 / (mean(&squares) + p.eps).sqrt();
        normed.iter_mut().for_each(|v| *v *= factor);
        Normed { sum, gate, normed, factor }
    }
}

fn groups<'p, 'a>(p: &'p Problem<'a>) -> impl Iterator<Item = Group<'p, 'a>> {
    let rows = if p.dim() == 0 { 0 } else { p.count() };
    (0..rows).flat_map(move |row| (0..p.groups).map(move |g| Group { p, row: p.index(row), first: g * p.group }))
}

/// Returns the index of a group's channel among all numbers.
fn place(group: &Group<'_, '_>, channel: usize) -> usize {
    let [_, second, third] = group.p.leading;
    let [i, j, k] = group.row;
    ((i * second + j) * third + k) * group.p.dim() + group.first + channel
}

/// `y` and `sum`.
///
/// # Errors
/// As [`super::forward`].
pub fn forward(args: &Args<'_>) -> Result<Forward> {
    let p = Problem::new(args, Device::Cpu, NO_STATES)?;
    let (mut y, mut sum) = (Dense::zeroed(args.x.shape()), Dense::zeroed(args.x.shape()));
    for group in groups(&p) {
        let normed = group.normed();
        for c in 0..p.group {
            let out = normed.normed[c] * group.of(&p.weight, c, 1.0) + group.of(&p.bias, c, 0.0);
            let gate = if p.norm_before_gate { normed.gate[c].0 } else { 1.0 };
            y.data_mut()[place(&group, c)].re = out * gate;
            sum.data_mut()[place(&group, c)].re = normed.sum[c];
        }
    }
    Ok(Forward { y, sum })
}

/// The gradients of every argument.
///
/// # Errors
/// As [`super::backward`].
pub fn backward(args: &Args<'_>, cotangents: &Cotangents<'_>) -> Result<Backward> {
    let p = Problem::new(args, Device::Cpu, NO_STATES)?;
    let sources = Sources::new(&p, &Table::given(None, cotangents));
    let row = || Dense::zeroed(Shape::of(&[p.dim()]));
    let all = || Dense::zeroed(args.x.shape());
    let shape = args.x.shape();
    let (residual, residual_scale) = (all(), Dense::zeroed(Shape::of(&[&shape[..shape.len() - 1], &[1]].concat())));
    let mut grads = Backward { x: all(), weight: row(), bias: row(), z: all(), residual, residual_scale };
    for group in groups(&p) {
        backward_group(&group, &sources, &mut grads);
    }
    Ok(grads)
}

fn backward_group(group: &Group<'_, '_>, sources: &Sources<'_>, grads: &mut Backward) {
    let (p, Normed { sum, gate, normed, factor }) = (group.p, group.normed());
    let cotangent = |view: &Option<View<'_>>, c| view.as_ref().map_or(0.0, |view| group.at(view, c));
    let (after, before) = (p.norm_before_gate && p.z.is_some(), !p.norm_before_gate && p.z.is_some());
    let mut by_normed = vec![0.0; p.group];
    for c in 0..p.group {
        let by_y = cotangent(&sources.y, c);
        let (weight, bias) = (group.of(&p.weight, c, 1.0), group.of(&p.bias, c, 0.0));
        let by_out = if after { by_y * gate[c].0 } else { by_y };
        if after {
            grads.z.data_mut()[place(group, c)].re = by_y * (normed[c] * weight + bias) * gate[c].1;
        }
        grads.weight.data_mut()[group.first + c].re += by_out * normed[c];
        grads.bias.data_mut()[group.first + c].re += by_out;
        by_normed[c] = weight * by_out;
    }
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / p.group as f64;
    let along = if p.normed { mean(&mut (0..p.group).map(|c| by_normed[c] * normed[c])) } else { 0.0 };
    let level = if p.layer { mean(&mut by_normed.iter().copied()) } else { 0.0 };
    for c in 0..p.group {
        let by_gated = factor * (by_normed[c] - level - normed[c] * along);
        let by_sum = if before { by_gated * gate[c].0 } else { by_gated };
        if before {
            grads.z.data_mut()[place(group, c)].re = by_gated * sum[c] * gate[c].1;
        }
        let by_sum = by_sum + cotangent(&sources.sum, c);
        grads.x.data_mut()[place(group, c)].re = by_sum;
        grads.residual.data_mut()[place(group, c)].re = p.scale(group.row) * by_sum;
        if let Some(residual) = &p.residual {
            grads.residual_scale.data_mut()[place(group, c) / p.dim()].re += by_sum * group.at(residual, c);
        }
    }
}
