//! Mamba's mixer, and FalconMamba's, which has norms on step sizes, input and output maps.
//!
//! ```text
//! x, z = in_proj(u)      x = silu(conv(x))      dt, B, C = x_proj(x)      y = scan(x, dt_proj(dt), A, B, C, D) silu(z)      out_proj(y)
//! ```

mod backward;

use super::Part;
use super::conv::Conv;
use super::scan::{Inputs, Scan, decays};
use crate::config::Kind;
use crate::error::Result;
use crate::rows::{Columns, Linear, Pass, Rooms, normalize};
use crate::state::LayerState;

pub(crate) struct Mamba {
    in_proj: Linear,
    conv: Conv,
    x_proj: Linear,
    dt_proj: Linear,
    scan: Scan,
    out_proj: Linear,
    inner: usize,
    dt_rank: usize,
    /// What norms on step sizes and maps add to the mean square; none if there are no such norms.
    norms: Option<f32>,
}

impl Mamba {
    pub(super) fn take(part: &mut Part<'_>) -> Result<Self> {
        let config = part.config;
        let (inner, dstate, dt_rank) = (config.inner, config.dstate, config.dt_rank);
        let mut dt_proj = part.linear("dt_proj", [inner, dt_rank], true)?;
        Ok(Mamba {
            in_proj: part.linear("in_proj", [config.in_proj(), config.dim], config.bias)?,
            conv: Conv::take(part)?,
            x_proj: part.linear("x_proj", [dt_rank + 2 * dstate, inner], false)?,
            scan: Scan {
                a: decays(part.vector("A_log", &[inner, dstate])?),
                d: part.vector("D", &[inner])?,
                // the scan adds it
                dt_bias: dt_proj.bias.take().unwrap_or_default(),
                dt_limit: config.dt_limit,
                dstate,
                ngroups: 1,
            },
            dt_proj,
            out_proj: part.linear("out_proj", [config.dim, inner], config.bias)?,
            inner,
            dt_rank,
            norms: (config.kind == Kind::FalconMamba).then_some(config.mixer_eps),
        })
    }

    pub(super) fn forward(
        &self,
        pass: &Pass<'_>,
        x: &[f32],
        states: &mut [&mut LayerState],
        rooms: &mut Rooms,
        out: &mut [f32],
    ) -> Result<()> {
        let (rows, inner, dstate) = (pass.rows, self.inner, self.scan.dstate);
        let projected = rooms.projected.of(rows * 2 * inner);
        self.in_proj.forward(pass.exec, Columns::whole(x, x.len() / rows), rows, projected)?;
        let projected = Columns::whole(projected, 2 * inner);
        let conv = rooms.conv.of(rows * inner);
        self.conv.forward(pass, projected, states, conv)?;
        let conv = Columns::whole(conv, inner);

        let columns = self.dt_rank + 2 * dstate;
        let maps = rooms.maps.of(rows * columns);
        self.x_proj.forward(pass.exec, conv, rows, maps)?;
        if let Some(eps) = self.norms {
            for row in maps.chunks_exact_mut(columns) {
                let (dt, maps) = row.split_at_mut(self.dt_rank);
                normalize(dt, None, eps);
                maps.chunks_exact_mut(dstate).for_each(|map| normalize(map, None, eps));
            }
        }
        let maps = Columns::whole(maps, columns);
        let dt = rooms.dt.of(rows * inner);
        self.dt_proj.forward(pass.exec, maps, rows, dt)?;

        let scanned = rooms.scan.of(rows * inner);
        let from = Inputs {
            x: conv,
            dt: Columns::whole(dt, inner),
            b: maps.from(self.dt_rank),
            c: maps.from(self.dt_rank + dstate),
            z: projected.from(inner),
        };
        self.scan.forward(pass, &from, states, scanned)?;
        self.out_proj.forward(pass.exec, Columns::whole(scanned, inner), rows, out)
    }

    pub(super) fn products(&self) -> Vec<&Linear> {
        vec![&self.in_proj, &self.x_proj, &self.dt_proj, &self.out_proj]
    }
}
