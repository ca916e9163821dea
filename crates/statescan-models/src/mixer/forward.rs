//! The forward pass of a mixer, for prompts, steps and training.

use super::device::{Device, part};
use super::weights::{Product, Weights};
use crate::config::Config;
use crate::error::Result;
use crate::inner::{Ends, Inner, Scanned, Steps};
use crate::rooms::Rooms;
use crate::state::LayerState;
use statescan::{View, ViewMut};
use std::ops::Range;

/// A mixer on a device.
#[derive(Clone, Copy)]
pub(crate) struct Run<'r> {
    pub(crate) device: &'r dyn Device,
    pub(crate) config: &'r Config,
    pub(crate) weights: Weights<'r>,
}

/// Rows of sequences of one length, and their states, which are carried on: inputs of the convolution, and states of the scan.
pub(crate) struct Part<'p> {
    pub(crate) rows: Range<usize>,
    pub(crate) steps: Steps,
    pub(crate) conv: Ends<'p>,
    pub(crate) scan: Ends<'p>,
}

impl Part<'_> {
    /// All rows, from zeros.
    pub(crate) fn whole(steps: Steps) -> Self {
        Part { rows: 0..steps.rows(), steps, conv: None, scan: None }
    }
}

impl<'r> Run<'r> {
    pub(crate) fn inner(&self, steps: Steps) -> Inner<'_> {
        Inner { exec: self.device.exec(), config: self.config, steps, own: self.weights.own }
    }

    /// From rows `x` to those that the last product takes, [`Rooms::mixed`]. With `keep` the scan, which then is of one part, keeps what its backward
    /// pass can begin with.
    pub(crate) fn forward(&self, x: View<'_>, parts: Vec<Part<'_>>, rooms: &mut Rooms, keep: bool) -> Result<()> {
        let (rows, Weights { in_proj, maps, .. }) = (x.shape()[0], self.weights);
        rooms.grow(self.device.exec(), self.config, rows)?;
        self.device.product(x, in_proj, &mut rooms.projected.of_mut(rows))?;
        let mut scans = Vec::with_capacity(parts.len());
        for Part { rows, steps, conv, scan } in parts {
            let to = rooms.conv.of_mut(rows.end).slice(0, rows.clone());
            self.inner(steps).convolve(part(&rooms.projected, &rows), conv, to)?;
            scans.push(((rows, steps), scan));
        }
        let Some(maps) = maps else {
            for (place, states) in scans {
                self.device.scan_heads(self, place, states, rooms)?;
            }
            let inner = self.inner(Steps { sequences: 1, steps: rows });
            return inner.gated_norm(rooms.scan.of(rows), rooms.projected.of(rows), rooms.gated.of_mut(rows));
        };
        self.maps(rows, maps, rooms)?;
        for ((rows, steps), states) in scans {
            let inner = self.inner(steps);
            let Rooms { projected, conv, maps, normed_maps, dt, scan, workspace, saved, .. } = rooms;
            let maps = if inner.norms_maps() { normed_maps } else { maps };
            let [projected, conv, dt, maps] = [projected, conv, dt, maps].map(|room| part(room, &rows));
            let y = scan.of_mut(rows.end).slice(0, rows);
            inner.scan(Scanned { projected, conv, dt, maps }, states, y, keep.then_some(saved), workspace)?;
        }
        Ok(())
    }

    /// A forward pass over rows of sequences on the host, whose states are carried on.
    pub(crate) fn carry_on(
        &self,
        x: View<'_>,
        mut states: Vec<(&mut LayerState, Range<usize>, Steps)>,
        rooms: &mut Rooms,
    ) -> Result<()> {
        let shapes = self.config.state_shapes();
        let mut next: Vec<LayerState> = states.iter().map(|(state, ..)| state.zeros_like()).collect();
        let mut parts = Vec::with_capacity(states.len());
        for ((before, rows, steps), after) in states.iter().zip(&mut next) {
            let [conv, scan] = shapes.map(|[channels, columns]| [steps.sequences, channels, columns]);
            let conv = (View::new(&before.conv, &conv)?, ViewMut::new(&mut after.conv, &conv)?);
            let scan = (View::new(&before.scan, &scan)?, ViewMut::new(&mut after.scan, &scan)?);
            parts.push(Part { rows: rows.clone(), steps: *steps, conv: Some(conv), scan: Some(scan) });
        }
        self.forward(x, parts, rooms, false)?;
        states.iter_mut().zip(next).for_each(|((state, ..), next)| **state = next);
        Ok(())
    }

    /// Step sizes, and with them of low rank B and C, from the results of the convolution.
    fn maps(&self, rows: usize, [x_proj, dt_proj]: [Product<'_>; 2], rooms: &mut Rooms) -> Result<()> {
        let (Rooms { conv, maps, normed_maps, dt, .. }, inner) = (rooms, self.inner(Steps { sequences: 1, steps: rows }));
        self.device.product(conv.of(rows), x_proj, &mut maps.of_mut(rows))?;
        let mut maps = maps.of(rows);
        if inner.norms_maps() {
            inner.norm_maps(maps, &mut normed_maps.of_mut(rows))?;
            maps = normed_maps.of(rows);
        }
        self.device.product(maps.slice(1, 0..self.config.dt_rank), dt_proj, &mut dt.of_mut(rows))
    }
}
