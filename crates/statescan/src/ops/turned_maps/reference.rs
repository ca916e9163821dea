//! Turned maps in plain `f64` loops: the oracle that every kernel is tested against.

use super::{Args, Cotangents, Problem};
use crate::error::Result;
use crate::ops::oracle::{gradients, read};
use crate::ops::states::NO_STATES;
use crate::tensor::{Dense, Device, View};
use core::f64::consts::PI;

/// Results of [`forward`].
#[derive(Debug, Clone)]
pub struct Forward {
    /// (B, L, 2, H, N)
    pub turned: Dense,
    /// (B, L, H)
    pub dots: Dense,
}

gradients! { maps, bias, rate, dt; ; }

/// A head of a row.
struct Head<'p, 'a> {
    p: &'p Problem<'a>,
    b: usize,
    h: usize,
}

impl Head<'_, '_> {
    fn group(&self) -> usize {
        self.h / self.p.heads_per_group()
    }

    /// A map with its bias.
    fn biased(&self, t: usize, map: usize) -> Vec<f64> {
        let own =
            |n| read::<f64>(&self.p.maps, &[self.b, t, map, self.group(), n]) + read::<f64>(&self.p.bias, &[map, self.h, n]);
        (0..self.p.dstate).map(own).collect()
    }

    fn dt(&self, t: usize) -> f64 {
        read(&self.p.dt, &[self.b, t, self.h])
    }

    /// tanh(rate)
    fn rate(&self, t: usize, i: usize) -> f64 {
        read::<f64>(&self.p.rate, &[self.b, t, self.h, i]).tanh()
    }

    /// The angles of every step.
    fn angles(&self) -> Vec<Vec<f64>> {
        let mut angles = vec![0.0; self.p.angles];
        let mut next = |t| {
            angles.iter_mut().enumerate().for_each(|(i, angle)| *angle += PI * self.rate(t, i) * self.dt(t));
            angles.clone()
        };
        (0..self.p.seqlen).map(&mut next).collect()
    }
}

/// Pairs of neighbours, turned.
fn turn(map: &mut [f64], angles: &[f64], sign: f64) {
    for (i, angle) in angles.iter().enumerate() {
        let ((sin, cos), [x, y]) = ((sign * angle).sin_cos(), [map[2 * i], map[2 * i + 1]]);
        (map[2 * i], map[2 * i + 1]) = (x * cos - y * sin, x * sin + y * cos);
    }
}

fn heads<'p, 'a>(p: &'p Problem<'a>) -> impl Iterator<Item = Head<'p, 'a>> {
    (0..p.batch).flat_map(move |b| (0..p.nheads).map(move |h| Head { p, b, h }))
}

/// The maps of heads, and the products of both.
///
/// # Errors
/// As [`super::forward`].
pub fn forward(args: &Args<'_>) -> Result<Forward> {
    let p = Problem::new(args, Device::Cpu, NO_STATES)?;
    let mut out = Forward { turned: Dense::zeroed(p.turned()), dots: Dense::zeroed(args.dt.shape()) };
    for head in heads(&p) {
        for (t, angles) in head.angles().iter().enumerate() {
            let mut maps = [0, 1].map(|map| head.biased(t, map));
            out.dots.at_mut(&[head.b, t, head.h]).re = maps[0].iter().zip(&maps[1]).map(|(x, y)| x * y).sum();
            for (map, values) in maps.iter_mut().enumerate() {
                turn(values, angles, 1.0);
                for (n, value) in values.iter().enumerate() {
                    out.turned.at_mut(&[head.b, t, map, head.h, n]).re = *value;
                }
            }
        }
    }
    Ok(out)
}

/// The gradients of every argument.
///
/// # Errors
/// As [`super::backward`].
pub fn backward(args: &Args<'_>, cotangents: &Cotangents<'_>) -> Result<Backward> {
    let p = Problem::new(args, Device::Cpu, NO_STATES)?;
    let like = |view: View<'_>| Dense::zeroed(view.shape());
    let mut grads = Backward { maps: like(p.maps), bias: like(p.bias), rate: like(p.rate), dt: like(p.dt) };
    for head in heads(&p) {
        let angles = head.angles();
        let mut sums = vec![0.0; p.angles];
        for t in (0..p.seqlen).rev() {
            step(&head, (t, &angles[t]), cotangents, &mut sums, &mut grads);
            for (i, sum) in sums.iter().enumerate() {
                let rate = head.rate(t, i);
                grads.rate.at_mut(&[head.b, t, head.h, i]).re = PI * head.dt(t) * (1.0 - rate * rate) * sum;
                grads.dt.at_mut(&[head.b, t, head.h]).re += PI * rate * sum;
            }
        }
    }
    Ok(grads)
}

/// A step's part of the gradients by maps and biases, and of the sums of those by its angles.
fn step(head: &Head<'_, '_>, (t, angles): (usize, &[f64]), cotangents: &Cotangents<'_>, sums: &mut [f64], grads: &mut Backward) {
    let &Head { p, b, h } = head;
    let own = |view: &Option<View<'_>>, at: &[usize]| view.as_ref().map_or(0.0, |view| read::<f64>(view, at));
    let by_dots = own(&cotangents.dots, &[b, t, h]);
    let maps = [0, 1].map(|map| head.biased(t, map));
    for map in 0..2 {
        let mut by: Vec<_> = (0..p.dstate).map(|n| own(&cotangents.turned, &[b, t, map, h, n])).collect();
        turn(&mut by, angles, -1.0);
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum += maps[map][2 * i] * by[2 * i + 1] - maps[map][2 * i + 1] * by[2 * i];
        }
        for (n, by) in by.iter().enumerate() {
            let by = by + by_dots * maps[1 - map][n];
            grads.maps.at_mut(&[b, t, map, head.group(), n]).re += by;
            grads.bias.at_mut(&[map, h, n]).re += by;
        }
    }
}
