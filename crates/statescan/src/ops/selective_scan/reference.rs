//! The selective scan in plain `f64` loops: the oracle that every kernel is tested against.
//!
//! States and what makes them are real where `A` is, and complex where that is; x, dt and gates are real. The output of a real problem is `C h` where a
//! complex one has `2 Re(C h)`.

use super::{Args, Cotangents, Problem, Projection};
use crate::error::Result;
use crate::ops::oracle::{Scalar, gradients, read, silu, sum};
use crate::ops::sequences::Segment;
use crate::ops::states::{NO_STATES, States};
use crate::tensor::{Dense, Device, Shape, View};
use core::marker::PhantomData;
use num_complex::Complex64;

/// Results of [`forward`].
#[derive(Debug, Clone)]
pub struct Forward {
    /// (B, D, L)
    pub y: Dense,
    /// As the initial state.
    pub final_state: Dense,
}

gradients! { x, dt, a, b, c; d, z, dt_bias, dt_a; initial_state }

/// One channel of one segment, with states of type `S`: everything a step needs, by index.
struct Channel<'p, 'a, S> {
    p: &'p Problem<'a>,
    segment: Segment,
    d: usize,
    states: PhantomData<S>,
}

/// The values of one step that are computed before the state is touched.
struct Step {
    x: f64,
    /// The step after bias, softplus and clamp, and its derivative by the raw one.
    dt: (f64, f64),
    /// The decay's step.
    dt_a: f64,
    /// `silu(z)` and its derivative, if there is a gate.
    gate: Option<(f64, f64)>,
}

impl Step {
    fn gated(&self, value: f64) -> f64 {
        self.gate.map_or(value, |(gate, _)| value * gate)
    }
}

impl<S: Scalar> Channel<'_, '_, S> {
    fn step(&self, t: usize) -> Step {
        let (p, b, d) = (self.p, self.segment.batch, self.d);
        let timed = |view: View<'_>| -> f64 { read(&view, &[b, d, t]) };
        let raw = p.dt_bias.map_or(timed(p.dt), |bias| timed(p.dt) + read::<f64>(&bias, &[d]));
        let dt = p.options.step_size.exact(raw);
        Step { x: timed(p.x), dt, dt_a: p.dt_a.map_or(dt.0, timed), gate: p.z.map(|z| silu(timed(z))) }
    }

    /// `D x`, if there is a skip.
    fn skip(&self, x: f64) -> Option<f64> {
        self.p.d.map(|d| read::<f64>(&d, &[self.d]) * x)
    }

    fn a(&self, n: usize) -> S {
        read(&self.p.a, &[self.d, n])
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

    fn map(&self, map: &Projection<View<'_>>, n: usize, t: usize) -> S {
        let index = self.index(map, n, t);
        match map {
            Projection::Constant(v) | Projection::Varying(v) => read(v, &index),
        }
    }

    fn initial(&self, n: usize) -> S {
        match (self.p.initial_state, self.segment.initial) {
            (Some(state), Some((row, sequence))) => read(&state, &[row, sequence, self.d, n]),
            _ => S::zero(),
        }
    }

    /// The states `h[start - 1], h[start], .., h[end - 1]`, each of N.
    fn states(&self) -> Vec<Vec<S>> {
        let (p, method) = (self.p, self.p.options.discretization);
        let mut h: Vec<_> = (0..p.dstate).map(|n| self.initial(n)).collect();
        let mut all = vec![h.clone()];
        for t in self.segment.start..self.segment.end {
            let step = self.step(t);
            for n in 0..p.dstate {
                let (a, driven) = (self.a(n), self.map(&p.b, n, t) * step.x);
                h[n] = method.decay(a * step.dt_a).0 * h[n] + method.input(step.dt.0, a, driven);
            }
            all.push(h.clone());
        }
        all
    }

    /// `<C, h>` and the skip: the output before the gate.
    fn output(&self, t: usize, h: &[S], x: f64) -> f64 {
        let read_out = sum((0..self.p.dstate).map(|n| self.map(&self.p.c, n, t) * h[n]));
        let value = read_out.re() * self.factor();
        self.skip(x).map_or(value, |skip| value + skip)
    }

    fn factor(&self) -> f64 {
        if self.p.complex { 2.0 } else { 1.0 }
    }
}

fn channels<'p, 'a, S>(p: &'p Problem<'a>) -> impl Iterator<Item = Channel<'p, 'a, S>> {
    p.segments.list.iter().flat_map(move |&segment| (0..p.dim).map(move |d| Channel { p, segment, d, states: PhantomData }))
}

/// `y` and the final state.
///
/// # Errors
/// As [`super::forward`].
pub fn forward(args: &Args<'_>) -> Result<Forward> {
    run(args, NO_STATES)
}

/// As [`forward`], with a final state of this shape: without an initial state it decides between the two forms that states have with
/// [`crate::Sequences::SeqIdx`].
///
/// # Errors
/// As [`super::forward`].
pub fn forward_with_state_shape(args: &Args<'_>, state: &[usize]) -> Result<Forward> {
    run(args, States::of_shapes([Some(Shape::new(state)?), None]))
}

fn run(args: &Args<'_>, states: States<'_>) -> Result<Forward> {
    let p = Problem::new(args, Device::Cpu, states)?;
    let mut y = Dense::zeros(&[p.batch, p.dim, p.seqlen])?;
    let (shape, normal) = (p.state_shape, p.normal.state_shape(p.state_shape));
    let mut last = Dense::zeros(&normal)?;
    match p.complex {
        false => channels::<f64>(&p).for_each(|channel| channel_forward(&channel, &mut y, &mut last)),
        true => channels::<Complex64>(&p).for_each(|channel| channel_forward(&channel, &mut y, &mut last)),
    }
    Ok(Forward { y: p.normal.restore(y, 2), final_state: last.reshaped(shape) })
}

fn channel_forward<S: Scalar>(channel: &Channel<'_, '_, S>, y: &mut Dense, last: &mut Dense) {
    let (segment, d) = (channel.segment, channel.d);
    let states = channel.states();
    for t in segment.start..segment.end {
        let step = channel.step(t);
        let value = step.gated(channel.output(t, &states[t - segment.start + 1], step.x));
        *y.at_mut(&[segment.batch, d, t]) = value.into();
    }
    if let Some((row, sequence)) = segment.last {
        for n in 0..channel.p.dstate {
            *last.at_mut(&[row, sequence, d, n]) = states[segment.len()][n].into();
        }
    }
}

/// Every gradient.
///
/// # Errors
/// As [`super::backward`].
pub fn backward(args: &Args<'_>, cotangents: &Cotangents<'_>) -> Result<Backward> {
    let states = States::of_shapes([cotangents.final_state.map(|s| s.shape()), None]);
    let p = Problem::new(args, Device::Cpu, states)?;
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
    match p.complex {
        false => channels::<f64>(&p).for_each(|channel| channel_backward(&channel, dy, dlast, &mut out)),
        true => channels::<Complex64>(&p).for_each(|channel| channel_backward(&channel, dy, dlast, &mut out)),
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

fn channel_backward<S: Scalar>(channel: &Channel<'_, '_, S>, dy: Option<View<'_>>, dlast: Option<View<'_>>, out: &mut Backward) {
    let (p, segment, d) = (channel.p, channel.segment, channel.d);
    let states = channel.states();
    let at = |n| match (dlast, segment.last) {
        (Some(view), Some((row, sequence))) => read(&view, &[row, sequence, d, n]),
        _ => S::zero(),
    };
    // the gradient by h[t], carried from step to step
    let mut g: Vec<S> = (0..p.dstate).map(at).collect();
    for t in (segment.start..segment.end).rev() {
        let step = channel.step(t);
        let index = [segment.batch, d, t];
        let (previous, h) = (&states[t - segment.start], &states[t - segment.start + 1]);
        let cotangent = dy.map_or(0.0, |v| read(&v, &index));
        if let (Some(dz), Some((_, slope))) = (&mut out.z, step.gate) {
            *dz.at_mut(&index) = (cotangent * channel.output(t, h, step.x) * slope).into();
        }
        let dout = step.gated(cotangent);
        let (mut dx, mut ddt, mut ddt_a) = (channel.skip(dout).unwrap_or(0.0), 0.0, 0.0);
        if let Some(dd) = &mut out.d {
            *dd.at_mut(&[d]) += dout * step.x;
        }
        for n in 0..p.dstate {
            let (a, b, c) = (channel.a(n), channel.map(&p.b, n, t), channel.map(&p.c, n, t));
            let (decay, decay_by_z) = p.options.discretization.decay(a * step.dt_a);
            let by_output = dout * channel.factor();
            g[n] += c.conj() * by_output;
            *out.c.at_mut(&channel.index(&p.c, n, t)) += (h[n].conj() * by_output).into();
            let by = p.options.discretization.input_adjoint(step.dt.0, a, b * step.x, g[n]);
            *out.b.at_mut(&channel.index(&p.b, n, t)) += (by.driven * step.x).into();
            dx += (by.driven * b.conj()).re();
            let by_decay = g[n] * previous[n].conj();
            *out.a.at_mut(&[d, n]) += (by_decay * decay_by_z.conj() * step.dt_a + by.a).into();
            ddt += by.d;
            ddt_a += (by_decay * (decay_by_z * a).conj()).re();
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
            *out.initial_state.at_mut(&[row, sequence, d, n]) = g[n].into();
        }
    }
}
