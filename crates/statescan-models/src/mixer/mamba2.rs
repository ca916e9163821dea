//! Mamba-2's mixer.
//!
//! ```text
//! z, xBC, dt = in_proj(u)      x, B, C = silu(conv(xBC))      y = scan(x, dt, A, B, C, D)      out_proj(norm(y silu(z)))
//! ```

mod backward;

use super::Part;
use super::conv::Conv;
use super::scan::{Inputs, Scan, decays};
use crate::error::Result;
use crate::rows::{Columns, Linear, Pass, Rooms, normalize};
use crate::state::LayerState;

pub(crate) struct Mamba2 {
    in_proj: Linear,
    conv: Conv,
    scan: Scan,
    norm: Vec<f32>,
    out_proj: Linear,
    inner: usize,
    nheads: usize,
    conv_channels: usize,
    eps: f32,
}

impl Mamba2 {
    pub(super) fn take(part: &mut Part<'_>) -> Result<Self> {
        let config = part.config;
        let (inner, nheads, headdim) = (config.inner, config.nheads, config.headdim());
        // a head's parameters are those of each of its channels
        let spread = |heads: Vec<f32>| heads.into_iter().flat_map(|x| std::iter::repeat_n(x, headdim)).collect::<Vec<_>>();
        Ok(Mamba2 {
            in_proj: part.linear("in_proj", [config.in_proj(), config.dim], config.bias)?,
            conv: Conv::take(part)?,
            scan: Scan {
                a: spread(decays(part.vector("A_log", &[nheads])?)),
                d: spread(part.vector("D", &[nheads])?),
                dt_bias: spread(part.vector("dt_bias", &[nheads])?),
                dt_limit: config.dt_limit,
                dstate: config.dstate,
                ngroups: config.ngroups,
            },
            norm: part.vector("norm.weight", &[inner])?,
            out_proj: part.linear("out_proj", [config.dim, inner], config.bias)?,
            inner,
            nheads,
            conv_channels: config.conv_channels(),
            eps: config.mixer_eps,
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
        let (rows, inner) = (pass.rows, self.inner);
        let columns = inner + self.conv_channels + self.nheads;
        let projected = rooms.projected.of(rows * columns);
        self.in_proj.forward(pass.exec, Columns::whole(x, x.len() / rows), rows, projected)?;
        let dt = rooms.dt.of(rows * inner);
        for (row, dt) in projected.chunks_exact(columns).zip(dt.chunks_exact_mut(inner)) {
            let heads = &row[inner + self.conv_channels..];
            dt.chunks_exact_mut(inner / self.nheads).zip(heads).for_each(|(channels, &dt)| channels.fill(dt));
        }
        let projected = Columns::whole(projected, columns);
        let conv = rooms.conv.of(rows * self.conv_channels);
        self.conv.forward(pass, projected.from(inner), states, conv)?;
        let conv = Columns::whole(conv, self.conv_channels);

        let scanned = rooms.scan.of(rows * inner);
        let from = Inputs {
            x: conv,
            dt: Columns::whole(dt, inner),
            b: conv.from(inner),
            c: conv.from(inner + self.scan.ngroups * self.scan.dstate),
            z: projected,
        };
        self.scan.forward(pass, &from, states, scanned)?;
        // the rows before the norm stay, for the way back
        let (normed, group) = (rooms.maps.of(rows * inner), inner / self.scan.ngroups);
        normed.copy_from_slice(scanned);
        for row in normed.chunks_exact_mut(inner) {
            row.chunks_exact_mut(group).zip(self.norm.chunks_exact(group)).for_each(|(x, w)| normalize(x, Some(w), self.eps));
        }
        self.out_proj.forward(pass.exec, Columns::whole(normed, inner), rows, out)
    }

    pub(super) fn products(&self) -> Vec<&Linear> {
        vec![&self.in_proj, &self.out_proj]
    }
}
