//! Mamba, and FalconMamba with norms on what comes from the second projection.
//!
//! `scan.rs` has the calls of the scan and of these norms, `step.rs` the way of one row on a GPU; here are names and passes.

mod scan;
mod step;

use super::convolution::{self, Around, Frame};
use super::run::{Back, BackEnds, Part, Run, Steps, first, part};
use super::weights::{Linear, Next, Role, listed};
use super::{Last, Mix, Multiplied, Rooms};
use crate::config::Config;
use crate::error::Result;
use crate::state::StateShape;
use scan::{Inner, OfScan, ScanTargets, Scanned};
use statescan::{View, ViewMut};

/// Mamba, with or without norms on step sizes, B and C.
pub(super) struct Mamba {
    pub(super) norms: bool,
}

/// The weights of a mixer.
struct Weights<T> {
    around: Around<T>,
    /// Decays, (inner, dstate).
    a: T,
    d: T,
    /// To step sizes of low rank, B and C.
    x_proj: T,
    /// From there to step sizes.
    dt_proj: T,
    /// The bias of that projection, which the scan adds.
    dt_bias: T,
}

impl<T> Weights<T> {
    fn bind(config: &Config, next: Next<'_, T>) -> Self {
        let Config { inner, dstate, dt_rank, .. } = *config;
        Weights {
            around: Around::bind(config, 2 * inner, next),
            a: next("A_log", &[inner, dstate], Role::Decay),
            d: next("D", &[inner], Role::Vector),
            x_proj: next("x_proj.weight", &[dt_rank + 2 * dstate, inner], Role::Matrix),
            dt_proj: next("dt_proj.weight", &[inner, dt_rank], Role::Matrix),
            dt_bias: next("dt_proj.bias", &[inner], Role::Vector),
        }
    }
}

/// A mixer on a device.
struct Pass<'p, 'r> {
    run: &'p Run<'r>,
    weights: Weights<View<'r>>,
    norms: bool,
}

impl<'p, 'r> Pass<'p, 'r> {
    fn inner(&self, steps: Steps) -> Inner<'_> {
        Inner { exec: self.run.device.exec(), config: self.run.config, steps, weights: &self.weights }
    }

    fn frame(&self) -> Frame<'p, 'r> {
        Frame { run: self.run, around: self.weights.around.clone(), columns: 0..self.run.config.inner }
    }

    /// Step sizes, and with them of low rank B and C, from the results of the convolution.
    fn maps(&self, rows: usize, rooms: &mut Rooms) -> Result<()> {
        let (Rooms { own: [_, conv, maps, normed_maps, dt, ..], .. }, device) = (rooms, self.run.device);
        device.product(conv.of(rows), Linear::plain(self.weights.x_proj), &mut maps.of_mut(rows))?;
        let mut maps = maps.of(rows);
        if self.norms {
            self.inner(Steps { sequences: 1, steps: rows }).norm_maps(maps, &mut normed_maps.of_mut(rows))?;
            maps = normed_maps.of(rows);
        }
        let low = maps.slice(1, 0..self.run.config.dt_rank);
        device.product(low, Linear::plain(self.weights.dt_proj), &mut dt.of_mut(rows))
    }

    /// From the gradient by the scan's results to those by the gate's columns and by the convolution's results.
    fn scan_backward(
        &self,
        (steps, ends): (Steps, BackEnds<'_>),
        into: Within<'_>,
        rooms: &mut Rooms,
        own: &mut Rooms,
    ) -> Result<()> {
        let (inner, rows, low, device) = (self.inner(steps), steps.rows(), 0..self.run.config.dt_rank, self.run.device);
        let Rooms { own: [projected, conv, raw, normed_maps, dt, ..], saved, .. } = rooms;
        let Rooms { mixed: dscan, own: [dprojected, dconv, dmaps, raw_dmaps, ddt, ..], workspace, .. } = own;
        let maps = if self.norms { &*normed_maps } else { &*raw };
        let [projected, conv, dt, maps] = [&*projected, &*conv, &*dt, maps].map(|room| room.of(rows));
        let from = Scanned { projected, conv, dt, maps };
        let to = {
            let [projected, conv, dt, maps] = [dprojected, &mut *dconv, &mut *ddt, &mut *dmaps].map(|room| room.of_mut(rows));
            ScanTargets { projected, conv, dt, maps }
        };
        inner.scan_backward(from, (dscan.of(rows), saved), to, into.scan, ends, workspace)?;
        let of = Multiplied { x: maps.slice(1, low.clone()), product: Linear::plain(self.weights.dt_proj), dy: ddt.of(rows) };
        let dlow = &mut dmaps.of_mut(rows).slice(1, low);
        device.product_backward(of, dlow, false, Linear::plain(into.dt_proj), workspace)?;
        let mut dmaps = dmaps.of(rows);
        if self.norms {
            inner.norm_maps_backward(raw.of(rows), dmaps, &mut raw_dmaps.of_mut(rows))?;
            dmaps = raw_dmaps.of(rows);
        }
        let of = Multiplied { x: conv, product: Linear::plain(self.weights.x_proj), dy: dmaps };
        device.product_backward(of, &mut dconv.of_mut(rows), true, Linear::plain(into.x_proj), workspace)
    }
}

/// Gradients by the weights between convolution and last product.
struct Within<'g> {
    scan: OfScan<'g>,
    x_proj: ViewMut<'g>,
    dt_proj: ViewMut<'g>,
}

impl Mamba {
    fn pass<'p, 'r>(&self, run: &'p Run<'r>) -> Pass<'p, 'r> {
        Pass { run, weights: Weights::bind(run.config, &mut listed(run.weights.iter().copied())), norms: self.norms }
    }

    /// Columns of a mixer's own rooms: of the projection, the convolution, the maps without norms and with them, and of step sizes.
    fn columns(&self, config: &Config) -> [usize; 5] {
        let maps = config.dt_rank + 2 * config.dstate;
        [2 * config.inner, config.inner, maps, if self.norms { maps } else { 0 }, config.inner]
    }
}

impl Mix for Mamba {
    fn weights(&self, config: &Config, each: Next<'_, ()>) {
        Weights::bind(config, each);
    }

    fn states(&self, config: &Config) -> Vec<StateShape> {
        convolution::states(config)
    }

    fn row(&self, config: &Config) -> usize {
        self.columns(config).into_iter().fold(2 * config.inner, usize::saturating_add)
    }

    fn forward<'r>(&self, run: &Run<'r>, x: View<'_>, parts: Vec<Part<'_>>, rooms: &mut Rooms, keep: bool) -> Result<Last<'r>> {
        let (rows, pass) = (x.shape()[0], self.pass(run));
        rooms.grow(run.device.exec(), (x.dtype(), rows), run.config.inner, &self.columns(run.config))?;
        let scans = pass.frame().forward(x, parts, rooms)?;
        pass.maps(rows, rooms)?;
        let Rooms { mixed, own: [projected, conv, maps, normed_maps, dt, ..], workspace, saved, .. } = rooms;
        let maps = if self.norms { normed_maps } else { maps };
        for (rows, steps, states) in scans {
            let [projected, conv, dt, maps] = [&*projected, &*conv, &*dt, &*maps].map(|room| part(room, &rows));
            let y = mixed.of_mut(rows.end).slice(0, rows);
            let saved = keep.then_some(&mut *saved);
            pass.inner(steps).scan(Scanned { projected, conv, dt, maps }, states, y, saved, workspace)?;
        }
        Ok(pass.weights.around.out_proj)
    }

    fn backward(&self, run: &Run<'_>, mut back: Back<'_>, rooms: &mut Rooms, own: &mut Rooms) -> Result<()> {
        let (pass, steps) = (self.pass(run), back.steps);
        own.grow(run.device.exec(), (back.dy.dtype(), steps.rows()), run.config.inner, &self.columns(run.config))?;
        let Weights { around, a, d, x_proj, dt_proj, dt_bias } =
            Weights::bind(run.config, &mut listed(std::mem::take(&mut back.into)));
        let [of_conv, of_scan] = first(std::mem::take(&mut back.states));
        let mut within = Some((of_scan, Within { scan: [a, d, dt_bias], x_proj, dt_proj }));
        pass.frame().backward((back, of_conv), around, (rooms, own), &mut |rooms, own| {
            let (ends, within) = within.take().expect("once");
            pass.scan_backward((steps, ends), within, rooms, own)
        })
    }
}
