//! What is Mamba-2's own: B and C come from the convolution, step sizes from the first projection, one for each head, and a norm follows the
//! scan.

use super::Part;
use super::backward::ScanGradients;
use super::scan::backward::Parameters;
use super::scan::{Scan, decays};
use crate::error::Result;
use crate::rows::backward::normalize_backward;
use crate::rows::{Columns, Room, normalize};
use crate::tensors::Slots;

pub(crate) struct Mamba2 {
    pub(crate) norm: Vec<f32>,
    inner: usize,
    nheads: usize,
    ngroups: usize,
    dstate: usize,
    /// What the norm adds to the mean square.
    pub(crate) eps: f32,
}

impl Mamba2 {
    pub(super) fn take(part: &mut Part<'_>) -> Result<(Self, Scan)> {
        let config = part.config;
        let (inner, nheads, ngroups, dstate) = (config.inner, config.nheads, config.ngroups, config.dstate);
        // a head's parameters are those of each of its channels
        let headdim = config.headdim();
        let spread = |heads: Vec<f32>| heads.into_iter().flat_map(|x| std::iter::repeat_n(x, headdim)).collect::<Vec<_>>();
        let scan = Scan {
            a: spread(decays(part.vector("A_log", &[nheads])?)),
            d: spread(part.vector("D", &[nheads])?),
            dt_bias: spread(part.vector("dt_bias", &[nheads])?),
            dt_limit: config.dt_limit,
            dstate,
            ngroups,
        };
        let norm = part.vector("norm.weight", &[inner])?;
        Ok((Mamba2 { norm, inner, nheads, ngroups, dstate, eps: config.mixer_eps }, scan))
    }

    /// Channels of a group.
    fn group(&self) -> usize {
        self.inner / self.ngroups
    }

    /// Columns of the first projection before the step sizes.
    fn before_dt(&self) -> usize {
        2 * self.inner + 2 * self.ngroups * self.dstate
    }

    /// B and C, and step sizes in `dt`.
    pub(super) fn forward<'c>(&self, projected: Columns<'_>, conv: Columns<'c>, dt: &mut [f32]) -> [Columns<'c>; 2] {
        let headdim = self.inner / self.nheads;
        for (row, dt) in projected.data.chunks_exact(projected.pitch).zip(dt.chunks_exact_mut(self.inner)) {
            let heads = &row[self.before_dt()..];
            dt.chunks_exact_mut(headdim).zip(heads).for_each(|(channels, &dt)| channels.fill(dt));
        }
        self.maps(conv)
    }

    /// B and C among the results of the convolution.
    pub(super) fn maps<'c>(&self, conv: Columns<'c>) -> [Columns<'c>; 2] {
        [conv.from(self.inner), conv.from(self.inner + self.ngroups * self.dstate)]
    }

    /// The norm after the scan; the rows before it stay, for the way back.
    pub(super) fn normalize<'r>(&self, scanned: &[f32], room: &'r mut Room) -> &'r mut [f32] {
        let (normed, group) = (room.of(scanned.len()), self.group());
        normed.copy_from_slice(scanned);
        for row in normed.chunks_exact_mut(self.inner) {
            row.chunks_exact_mut(group).zip(self.norm.chunks_exact(group)).for_each(|(x, w)| normalize(x, Some(w), self.eps));
        }
        normed
    }

    /// The gradients by the norm's results become those by its rows.
    pub(super) fn normalize_backward(&self, scanned: &[f32], dscanned: &mut [f32], slots: &mut Slots<'_>) {
        let (group, dnorm) = (self.group(), slots.of("norm.weight"));
        dnorm.fill(0.0);
        for (scanned, dscanned) in scanned.chunks_exact(self.inner).zip(dscanned.chunks_exact_mut(self.inner)) {
            for (at, dy) in dscanned.chunks_exact_mut(group).enumerate() {
                let part = at * group..(at + 1) * group;
                let weight = (&self.norm[part.clone()], &mut dnorm[part.clone()]);
                normalize_backward(&scanned[part], Some(weight), self.eps, dy);
            }
        }
    }

    /// The sums of something over the channels of each head.
    fn over_heads(&self, of: &[f32]) -> Vec<f32> {
        of.chunks_exact(of.len() / self.nheads).map(|head| head.iter().sum()).collect()
    }

    /// Gradients by the scan's parameters.
    pub(super) fn parameters(&self, own: &Parameters, a: &[f32], slots: &mut Slots<'_>) {
        slots.of("D").copy_from_slice(&self.over_heads(&own.d));
        slots.of("dt_bias").copy_from_slice(&self.over_heads(&own.dt_bias));
        // A = -exp(A_log) is its own derivative
        let decays = a.iter().step_by(self.inner / self.nheads);
        slots.of("A_log").iter_mut().zip(self.over_heads(&own.a).iter().zip(decays)).for_each(|(to, (da, a))| *to = da * a);
    }

    /// Gradients by the results of the convolution, and by the step sizes of heads in those by the first projection.
    pub(super) fn backward(&self, grads: &ScanGradients, dprojected: &mut [f32]) -> Vec<f32> {
        let (inner, maps, dt) = (self.inner, self.ngroups * self.dstate, self.before_dt());
        let columns = dt + self.nheads;
        for (row, ddt) in dprojected.chunks_exact_mut(columns).zip(grads.dt.chunks_exact(inner)) {
            row[dt..].copy_from_slice(&self.over_heads(ddt));
        }
        let both = grads.b.chunks_exact(maps).zip(grads.c.chunks_exact(maps));
        let rows = grads.x.chunks_exact(inner).zip(both);
        rows.flat_map(|(dx, (db, dc))| [dx, db, dc]).flatten().copied().collect()
    }
}
