//! Mamba-2: one decay for each head, everything from one projection, and a gated norm behind the scan.
//!
//! `scan.rs` has the calls of scan and norm, `step.rs` the way of one row on a GPU; here are names and passes.

mod scan;
mod step;

use super::convolution::{self, Around, Frame};
use super::run::{Back, Part, Run, Steps, first, part};
use super::weights::{Next, Role, listed};
use super::{Last, Mix, Rooms};
use crate::config::Config;
use crate::error::Result;
use crate::state::StateShape;
use crate::weight::Weight;
use scan::{Inner, SsdTargets};
use statescan::View;
use std::ops::Range;

/// Mamba-2.
pub(super) struct Mamba2;

/// The weights of a mixer.
struct Weights<T> {
    around: Around<T>,
    /// Decays, (nheads).
    a: T,
    d: T,
    dt_bias: T,
    norm: T,
}

impl<T> Weights<T> {
    fn bind(config: &Config, next: Next<'_, T>) -> Self {
        let heads = [config.nheads];
        Weights {
            around: Around::bind(config, columns(config)[0], next),
            a: next("A_log", &heads, Role::Decay),
            d: next("D", &heads, Role::Vector),
            dt_bias: next("dt_bias", &heads, Role::Vector),
            norm: next("norm.weight", &[config.inner], Role::Vector),
        }
    }
}

/// Columns of a mixer's own rooms: of the projection, the convolution and the scan, and step sizes of each channel.
fn columns(config: &Config) -> [usize; 4] {
    let Config { inner, nheads, .. } = *config;
    let channels = config.conv_channels();
    [inner + channels + nheads, channels, inner, inner]
}

/// The convolution's columns of the first projection; the gate's are in front of them, and step sizes behind.
fn conv_columns(config: &Config) -> Range<usize> {
    config.inner..config.inner + config.conv_channels()
}

/// A mixer on a device.
struct Pass<'p, 'r> {
    run: &'p Run<'r>,
    weights: Weights<View<'r>>,
}

impl<'p, 'r> Pass<'p, 'r> {
    fn new(run: &'p Run<'r>) -> Self {
        Pass { run, weights: Weights::bind(run.config, &mut listed(run.weights.iter().copied())) }
    }

    fn inner(&self, steps: Steps) -> Inner<'_> {
        Inner { exec: self.run.device.exec(), config: self.run.config, steps, weights: &self.weights }
    }

    fn frame(&self) -> Frame<'p, 'r> {
        Frame { run: self.run, around: self.weights.around.clone(), columns: conv_columns(self.run.config) }
    }

    /// A scan step by step. A head's step sizes are those of each of its channels, and so are its parameters.
    fn scan_steps(&self, (rows, steps, states): convolution::Scan<'_>, rooms: &mut Rooms) -> Result<()> {
        let (config, Rooms { own: [projected, conv, scan, dt, ..], workspace, .. }) = (self.run.config, rooms);
        let (headdim, heads) = (config.headdim(), conv_columns(config).end);
        let heads = projected.numbers().chunks_exact(columns(config)[0]).map(|row| &row[heads..]);
        let spread = dt.numbers_mut().chunks_exact_mut(config.inner);
        for (dt, heads) in spread.zip(heads).take(rows.end).skip(rows.start) {
            dt.chunks_exact_mut(headdim).zip(heads).for_each(|(channels, &dt)| channels.fill(dt));
        }
        let from = [&*conv, &*dt].map(|room| part(room, &rows));
        let parameters = first(self.run.derived.iter().copied().map(Some).collect()).map(|of| of.expect("derived on the host"));
        let y = scan.of_mut(rows.end).slice(0, rows);
        self.inner(steps).scan_channels(from, parameters, states, y, workspace)
    }
}

impl Mix for Mamba2 {
    fn weights(&self, config: &Config, each: Next<'_, ()>) {
        Weights::bind(config, each);
    }

    fn states(&self, config: &Config) -> Vec<StateShape> {
        convolution::states(config)
    }

    fn row(&self, config: &Config) -> usize {
        columns(config).into_iter().fold(config.inner, usize::saturating_add)
    }

    /// Decays, D and the bias of step sizes of each channel.
    fn derived(&self, config: &Config, weights: &[Weight], step_by_step: bool) -> Result<Vec<Weight>> {
        if !step_by_step {
            return Ok(Vec::new());
        }
        let Weights { a, d, dt_bias, .. } = Weights::bind(config, &mut listed(weights));
        let spread = |heads: &Weight| {
            let heads = heads.to_f32().into_iter();
            let channels: Vec<f32> = heads.flat_map(|x| std::iter::repeat_n(x, config.headdim())).collect();
            Ok(Weight::from_slice(&channels, &[config.inner])?)
        };
        [a, d, dt_bias].into_iter().map(spread).collect()
    }

    fn forward<'r>(&self, run: &Run<'r>, x: View<'_>, parts: Vec<Part<'_>>, rooms: &mut Rooms, _: bool) -> Result<Last<'r>> {
        let (rows, pass, device) = (x.shape()[0], Pass::new(run), run.device);
        let mut columns = columns(run.config);
        columns[3] *= usize::from(device.step_by_step());
        rooms.grow(device.exec(), (x.dtype(), rows), run.config.inner, &columns)?;
        for scan in pass.frame().forward(x, parts, rooms)? {
            if device.step_by_step() {
                pass.scan_steps(scan, rooms)?;
                continue;
            }
            let ((rows, steps, states), Rooms { own: [projected, conv, scan, ..], workspace, .. }) = (scan, &mut *rooms);
            let from = [&*projected, &*conv].map(|room| part(room, &rows));
            pass.inner(steps).ssd(from, states, scan.of_mut(rows.end).slice(0, rows), workspace)?;
        }
        let Rooms { mixed, own: [projected, _, scan, ..], .. } = rooms;
        let inner = pass.inner(Steps { sequences: 1, steps: rows });
        inner.gated_norm(scan.of(rows), projected.of(rows), mixed.of_mut(rows))?;
        Ok(pass.weights.around.out_proj)
    }

    /// From the gradient by the results of the norm the way goes to those by the columns of gate and step sizes and by the convolution's results.
    fn backward(&self, run: &Run<'_>, mut back: Back<'_>, rooms: &mut Rooms, own: &mut Rooms) -> Result<()> {
        let (pass, steps, rows) = (Pass::new(run), back.steps, back.steps.rows());
        own.grow(run.device.exec(), (back.dy.dtype(), rows), run.config.inner, &columns(run.config)[..3])?;
        let Weights { around, a, d, dt_bias, norm } = Weights::bind(run.config, &mut listed(std::mem::take(&mut back.into)));
        let [of_conv, of_scan] = first(std::mem::take(&mut back.states));
        let mut within = Some((of_scan, norm, [a, d, dt_bias]));
        pass.frame().backward((back, of_conv), around, (rooms, own), &mut |rooms, own| {
            let (ends, of_norm, of_scan) = within.take().expect("once");
            let (inner, Rooms { own: [projected, conv, scan, ..], .. }) = (pass.inner(steps), rooms);
            let Rooms { mixed: dmixed, own: [dprojected, dconv, dscan, ..], workspace, .. } = own;
            let [projected, conv, y] = [projected, conv, scan].map(|room| room.of(rows));
            let from = [y, projected, dmixed.of(rows)];
            inner.gated_norm_backward(from, dscan.of_mut(rows), dprojected.of_mut(rows), of_norm, workspace)?;
            let into = SsdTargets { projected: dprojected.of_mut(rows), conv: dconv.of_mut(rows) };
            inner.ssd_backward([projected, conv, dscan.of(rows)], into, of_scan, ends, workspace)
        })
    }
}
