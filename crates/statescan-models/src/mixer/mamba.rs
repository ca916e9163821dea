//! What is Mamba's own, and FalconMamba's, which has norms on step sizes, input and output maps:
//!
//! ```text
//! dt, B, C = x_proj(x)      dt = dt_proj(dt)
//! ```

use super::Part;
use super::backward::ScanGradients;
use super::scan::backward::Parameters;
use super::scan::{Scan, decays};
use crate::config::Kind;
use crate::error::Result;
use crate::rows::backward::{Batch, ColumnsMut, normalize_backward};
use crate::rows::{Columns, Linear, Pass, Room, normalize};
use crate::tensors::Slots;
use std::ops::Range;

pub(crate) struct Mamba {
    pub(crate) x_proj: Linear,
    pub(crate) dt_proj: Linear,
    inner: usize,
    dt_rank: usize,
    dstate: usize,
    /// What norms on step sizes and maps add to the mean square; none if there are no such norms.
    pub(crate) norms: Option<f32>,
}

impl Mamba {
    pub(super) fn take(part: &mut Part<'_>) -> Result<(Self, Scan)> {
        let config = part.config;
        let (inner, dstate, dt_rank) = (config.inner, config.dstate, config.dt_rank);
        let x_proj = part.linear("x_proj", [dt_rank + 2 * dstate, inner], false)?;
        let mut dt_proj = part.linear("dt_proj", [inner, dt_rank], true)?;
        let scan = Scan {
            a: decays(part.vector("A_log", &[inner, dstate])?),
            d: part.vector("D", &[inner])?,
            // the scan adds it
            dt_bias: dt_proj.bias.take().unwrap_or_default(),
            dt_limit: config.dt_limit,
            dstate,
            ngroups: 1,
        };
        let norms = (config.kind == Kind::FalconMamba).then_some(config.mixer_eps);
        Ok((Mamba { x_proj, dt_proj, inner, dt_rank, dstate, norms }, scan))
    }

    /// Columns of the projection that maps and step sizes come from, and those of each of them.
    fn columns(&self) -> (usize, [Range<usize>; 3]) {
        let (rank, all) = (self.dt_rank, self.dt_rank + 2 * self.dstate);
        (all, [0..rank, rank..rank + self.dstate, rank + self.dstate..all])
    }

    /// B and C, and step sizes in `dt`.
    pub(super) fn forward<'r>(
        &self,
        pass: &Pass<'_>,
        conv: Columns<'_>,
        room: &'r mut Room,
        dt: &mut [f32],
    ) -> Result<[Columns<'r>; 2]> {
        let (rows, (columns, parts)) = (pass.rows, self.columns());
        let maps = room.of(rows * columns);
        self.x_proj.forward(pass.exec, conv, rows, maps)?;
        if let Some(eps) = self.norms {
            for row in maps.chunks_exact_mut(columns) {
                parts.iter().for_each(|part| normalize(&mut row[part.clone()], None, eps));
            }
        }
        self.dt_proj.forward(pass.exec, Columns::whole(maps, columns), rows, dt)?;
        Ok(self.maps(room, rows))
    }

    /// B and C that a forward pass left.
    pub(super) fn maps<'r>(&self, room: &'r mut Room, rows: usize) -> [Columns<'r>; 2] {
        let (columns, [_, b, c]) = self.columns();
        let maps = Columns::whole(room.of(rows * columns), columns);
        [maps.from(b.start), maps.from(c.start)]
    }

    /// Gradients by the scan's parameters.
    pub(super) fn parameters(&self, own: &Parameters, a: &[f32], slots: &mut Slots<'_>) {
        // A = -exp(A_log) is its own derivative
        slots.of("A_log").iter_mut().zip(own.a.iter().zip(a)).for_each(|(to, (da, a))| *to = da * a);
        slots.of("D").copy_from_slice(&own.d);
        slots.of("dt_proj.bias").copy_from_slice(&own.dt_bias);
    }

    /// Gradients by the results of the convolution, from those by all that the scan takes.
    pub(super) fn backward(
        &self,
        batch: Batch<'_>,
        conv: Columns<'_>,
        room: &mut Room,
        grads: ScanGradients,
        slots: &mut Slots<'_>,
    ) -> Result<Vec<f32>> {
        let (rows, inner, (columns, parts)) = (batch.rows(), self.inner, self.columns());
        let ScanGradients { x: mut dconv, dt: ddt, b: db, c: dc } = grads;
        let (mut dmaps, maps) = (vec![0.0; rows * columns], Columns::whole(room.of(rows * columns), columns));
        let low_rank = ColumnsMut::whole(&mut dmaps, columns);
        self.dt_proj.backward(batch, maps, Columns::whole(&ddt, inner), low_rank, slots, "dt_proj")?;
        let both = db.chunks_exact(self.dstate).zip(dc.chunks_exact(self.dstate));
        for (row, (db, dc)) in dmaps.chunks_exact_mut(columns).zip(both) {
            row[parts[1].clone()].copy_from_slice(db);
            row[parts[2].clone()].copy_from_slice(dc);
        }
        if let Some(eps) = self.norms {
            // the rows before their norms are computed again
            let mut raw = vec![0.0; rows * columns];
            self.x_proj.forward(batch.exec, conv, rows, &mut raw)?;
            for (raw, row) in raw.chunks_exact(columns).zip(dmaps.chunks_exact_mut(columns)) {
                parts.iter().for_each(|part| normalize_backward(&raw[part.clone()], None, eps, &mut row[part.clone()]));
            }
        }
        let mut through_maps = vec![0.0; rows * inner];
        let into = ColumnsMut::whole(&mut through_maps, inner);
        self.x_proj.backward(batch, conv, Columns::whole(&dmaps, columns), into, slots, "x_proj")?;
        dconv.iter_mut().zip(&through_maps).for_each(|(to, more)| *to += more);
        Ok(dconv)
    }

    pub(super) fn products(&self) -> [&Linear; 2] {
        [&self.x_proj, &self.dt_proj]
    }
}
