//! The selective scan in plain `f64` loops: the oracle that every kernel is tested against.
//!
//! Everything is complex here; a real problem has zero imaginary parts, and its output is `C h` where a complex one has `2 Re(C h)`.

use super::{Args, Cotangents, OP, Problem, Projection};
use crate::error::Result;
use crate::ops::check::Checker;
use crate::ops::oracle::{silu, softplus};
use crate::ops::sequences::Segment;
use crate::tensor::{Dense, Device, Shape, View};
use num_complex::Complex64;

/// Results of [`forward`].
#[derive(Debug, Clone)]
pub struct Forward {
    /// (B, D, L)
    pub y: Dense,
    /// As the initial state.
    pub final_state: Dense,
}

/// Results of [`backward`]; the gradients of arguments that were not given are `None`.
#[derive(Debug, Clone)]
pub struct Backward {
    /// By `x`.
    pub x: Dense,
    /// By `dt`.
    pub dt: Dense,
    /// By `a`.
    pub a: Dense,
    /// By `b`.
    pub b: Dense,
    /// By `c`.
    pub c: Dense,
    /// By `d`.
    pub d: Option<Dense>,
    /// By `z`.
    pub z: Option<Dense>,
    /// By `dt_bias`.
    pub dt_bias: Option<Dense>,
    /// By `dt_a`.
    pub dt_a: Option<Dense>,
    /// By `initial_state` (zero or given).
    pub initial_state: Dense,
}

/// One channel of one segment: everything a step needs, by index.
struct Channel<'p, 'a> {
    p: &'p Problem<'a>,
    segment: Segment,
    d: usize,
}

/// What one step computes before the state is touched.
struct Step {
    x: f64,
    /// The step after bias, softplus and clamp, and its derivative by the raw one.
    dt: (f64, f64),
    /// The decay's step.
    dt_a: f64,
    /// The cotangent's way through the gate: `silu(z)` and its derivative.
    gate: (f64, f64),
}

impl Channel<'_, '_> {
    fn step(&self, t: usize) -> Step {
        let (p, b, d) = (self.p, self.segment.batch, self.d);
        let timed = |view: &View<'_>| view.at(&[b, d, t]).re;
        let mut dt = timed(&p.dt) + p.dt_bias.map_or(0.0, |v| v.at(&[d]).re);
        let mut slope = 1.0;
        if p.options.dt_softplus {
            (dt, slope) = softplus(dt);
        }
        let (low, high) = p.options.dt_limit;
        if dt < low || dt > high {
            (dt, slope) = (dt.clamp(low, high), 0.0);
        }
        let gate = p.z.map_or((1.0, 0.0), |v| silu(timed(&v)));
        Step { x: timed(&p.x), dt: (dt, slope), dt_a: p.dt_a.map_or(dt, |v| timed(&v)), gate }
    }

    fn skip(&self) -> f64 {
        self.p.d.map_or(0.0, |v| v.at(&[self.d]).re)
    }

    /// Position of this channel's element of a map.
    fn index(&self, map: &Projection<View<'_>>, n: usize, t: usize) -> Vec<usize> {
        match map {
            Projection::Constant(_) => vec![self.d, n],
            Projection::Varying(v) => {
                let channels_per_group = self.p.dim / v.shape()[1];
                vec![self.segment.batch, self.d / channels_per_group, n, t]
            }
        }
    }

    fn map(&self, map: &Projection<View<'_>>, n: usize, t: usize) -> Complex64 {
        let index = self.index(map, n, t);
        match map {
            Projection::Constant(v) | Projection::Varying(v) => v.at(&index),
        }
    }

    fn initial(&self, n: usize) -> Complex64 {
        match (self.p.initial_state, self.segment.initial) {
            (Some(state), Some((row, sequence))) => state.at(&[row, sequence, self.d, n]),
            _ => Complex64::ZERO,
        }
    }

    /// The states `h[start - 1], h[start], .., h[end - 1]`, each of N.
    fn states(&self) -> Vec<Vec<Complex64>> {
        let p = self.p;
        let mut h: Vec<_> = (0..p.dstate).map(|n| self.initial(n)).collect();
        let mut all = vec![h.clone()];
        for t in self.segment.start..self.segment.end {
            let step = self.step(t);
            for n in 0..p.dstate {
                let a = p.a.at(&[self.d, n]);
                let decay = p.options.discretization.decay(a * step.dt_a).0;
                let input = p.options.discretization.input(step.dt.0, a).0;
                h[n] = decay * h[n] + input * self.map(&p.b, n, t) * step.x;
            }
            all.push(h.clone());
        }
        all
    }

    /// `<C, h>` and the skip: the output before the gate.
    fn output(&self, t: usize, h: &[Complex64], x: f64) -> f64 {
        let sum: Complex64 = (0..self.p.dstate).map(|n| self.map(&self.p.c, n, t) * h[n]).sum();
        sum.re * self.factor() + self.skip() * x
    }

    fn factor(&self) -> f64 {
        if self.p.complex { 2.0 } else { 1.0 }
    }
}

fn channels<'p, 'a>(p: &'p Problem<'a>) -> impl Iterator<Item = Channel<'p, 'a>> {
    p.segments.list.iter().flat_map(move |&segment| (0..p.dim).map(move |d| Channel { p, segment, d }))
}

/// `y` and the final state.
///
/// # Errors
/// As [`super::forward`].
pub fn forward(args: &Args<'_>) -> Result<Forward> {
    run(args, &[])
}

/// As [`forward`], with a final state of this shape: without an initial state it decides between the two forms that states have with
/// [`crate::Sequences::SeqIdx`].
///
/// # Errors
/// As [`super::forward`].
pub fn forward_with_state_shape(args: &Args<'_>, state: &[usize]) -> Result<Forward> {
    run(args, &[Shape::new(state)?])
}

fn run(args: &Args<'_>, states: &[Shape]) -> Result<Forward> {
    let p = Problem::new(args, &mut Checker::new(OP, Device::Cpu), states)?;
    let mut y = Dense::zeros(&[p.batch, p.dim, p.seqlen])?;
    let (shape, normal) = (p.state_shape, p.normal.state_shape(p.state_shape));
    let mut last = Dense::zeros(&normal)?;
    for channel in channels(&p) {
        let (segment, d) = (channel.segment, channel.d);
        let states = channel.states();
        for t in segment.start..segment.end {
            let step = channel.step(t);
            *y.at_mut(&[segment.batch, d, t]) =
                (channel.output(t, &states[t - segment.start + 1], step.x) * step.gate_value(&p)).into();
        }
        if let Some((row, sequence)) = segment.last {
            for n in 0..p.dstate {
                *last.at_mut(&[row, sequence, d, n]) = states[segment.len()][n];
            }
        }
    }
    Ok(Forward { y: p.normal.restore(y, 2), final_state: last.reshaped(shape) })
}

impl Step {
    fn gate_value(&self, p: &Problem<'_>) -> f64 {
        if p.z.is_some() { self.gate.0 } else { 1.0 }
    }
}

/// Every gradient.
///
/// # Errors
/// As [`super::backward`].
pub fn backward(args: &Args<'_>, cotangents: &Cotangents<'_>) -> Result<Backward> {
    let states: Vec<_> = cotangents.final_state.iter().map(|s| s.shape()).collect();
    let p = Problem::new(args, &mut Checker::new(OP, Device::Cpu), &states)?;
    let bdl = Dense::zeros(&[p.batch, p.dim, p.seqlen])?;
    let map = |m: &Projection<View<'_>>| match m {
        Projection::Constant(v) | Projection::Varying(v) => Dense::zeroed(v.shape()),
    };
    let (shape, normal) = (p.state_shape, p.normal.state_shape(p.state_shape));
    let mut out = Backward {
        x: bdl.clone(),
        dt: bdl.clone(),
        a: Dense::zeros(&[p.dim, p.dstate])?,
        b: map(&p.b),
        c: map(&p.c),
        d: p.d.map(|v| Dense::zeroed(v.shape())),
        z: p.z.map(|_| bdl.clone()),
        dt_bias: p.dt_bias.map(|v| Dense::zeroed(v.shape())),
        dt_a: p.dt_a.map(|_| bdl.clone()),
        initial_state: Dense::zeros(&normal)?,
    };
    let dy = cotangents.y.map(|v| p.normal.timed(v, 2));
    let dlast = cotangents.final_state.map(|v| p.normal.state(v));
    for channel in channels(&p) {
        channel_backward(&channel, dy, dlast, &mut out);
    }
    out.x = p.normal.restore(out.x, 2);
    out.dt = p.normal.restore(out.dt, 2);
    out.z = out.z.map(|v| p.normal.restore(v, 2));
    out.dt_a = out.dt_a.map(|v| p.normal.restore(v, 2));
    let finish = |m: &Projection<View<'_>>, given: &View<'_>, dense: Dense| match m {
        Projection::Constant(_) => dense,
        Projection::Varying(_) => p.normal.restore(dense, 3).reshaped(given.shape()),
    };
    out.b = finish(&p.b, &args.b, out.b);
    out.c = finish(&p.c, &args.c, out.c);
    out.initial_state = out.initial_state.reshaped(shape);
    // the gradient of a real argument is real, whatever it met on the way
    for (grad, view) in [(&mut out.a, &args.a), (&mut out.b, &args.b), (&mut out.c, &args.c)] {
        if !view.dtype().is_complex() {
            grad.data_mut().iter_mut().for_each(|v| v.im = 0.0);
        }
    }
    Ok(out)
}

fn channel_backward(channel: &Channel<'_, '_>, dy: Option<View<'_>>, dlast: Option<View<'_>>, out: &mut Backward) {
    let (p, segment, d) = (channel.p, channel.segment, channel.d);
    let states = channel.states();
    let at = |n| match (dlast, segment.last) {
        (Some(view), Some((row, sequence))) => view.at(&[row, sequence, d, n]),
        _ => Complex64::ZERO,
    };
    // the gradient by h[t], carried from step to step
    let mut g: Vec<_> = (0..p.dstate).map(at).collect();
    for t in (segment.start..segment.end).rev() {
        let step = channel.step(t);
        let index = [segment.batch, d, t];
        let (previous, h) = (&states[t - segment.start], &states[t - segment.start + 1]);
        let cotangent = dy.map_or(0.0, |v| v.at(&index).re);
        if let Some(dz) = &mut out.z {
            *dz.at_mut(&index) = (cotangent * channel.output(t, h, step.x) * step.gate.1).into();
        }
        let dout = cotangent * step.gate_value(p);
        let (mut dx, mut ddt, mut ddt_a) = (dout * channel.skip(), 0.0, 0.0);
        if let Some(dd) = &mut out.d {
            *dd.at_mut(&[d]) += dout * step.x;
        }
        for n in 0..p.dstate {
            let a = p.a.at(&[d, n]);
            let (b, c) = (channel.map(&p.b, n, t), channel.map(&p.c, n, t));
            let (decay, decay_by_z) = p.options.discretization.decay(a * step.dt_a);
            let (input, input_by_dt, input_by_a) = p.options.discretization.input(step.dt.0, a);
            let by_output = dout * channel.factor();
            g[n] += c.conj() * by_output;
            *out.c.at_mut(&channel.index(&p.c, n, t)) += h[n].conj() * by_output;
            *out.b.at_mut(&channel.index(&p.b, n, t)) += g[n] * input.conj() * step.x;
            dx += (g[n] * (input * b).conj()).re;
            let by_decay = g[n] * previous[n].conj();
            let by_input = g[n] * b.conj() * step.x;
            *out.a.at_mut(&[d, n]) += by_decay * decay_by_z.conj() * step.dt_a + by_input * input_by_a.conj();
            ddt += (by_input * input_by_dt.conj()).re;
            ddt_a += (by_decay * (decay_by_z * a).conj()).re;
            g[n] *= decay.conj();
        }
        match &mut out.dt_a {
            Some(grad) => *grad.at_mut(&index) = ddt_a.into(),
            None => ddt += ddt_a,
        }
        let raw = ddt * step.dt.1;
        *out.x.at_mut(&index) = dx.into();
        *out.dt.at_mut(&index) = raw.into();
        if let Some(bias) = &mut out.dt_bias {
            *bias.at_mut(&[d]) += raw;
        }
    }
    if let Some((row, sequence)) = segment.initial {
        for n in 0..p.dstate {
            *out.initial_state.at_mut(&[row, sequence, d, n]) = g[n];
        }
    }
}
