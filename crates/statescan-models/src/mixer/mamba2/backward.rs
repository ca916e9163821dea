//! The way back through Mamba-2's mixer.

use super::Mamba2;
use crate::error::Result;
use crate::mixer::scan::Inputs;
use crate::mixer::scan::backward::Targets;
use crate::rows::backward::{Batch, ColumnsMut, normalize_backward};
use crate::rows::{Columns, Rooms};
use crate::tensors::Slots;

impl Mamba2 {
    /// Gradients of a batch, `dx`, and of the weights from those of the results, `dout`. The rooms have what the forward pass of the same
    /// batch left there.
    pub(in crate::mixer) fn backward(
        &self,
        batch: Batch<'_>,
        x: &[f32],
        dout: &[f32],
        rooms: &mut Rooms,
        slots: &mut Slots<'_>,
        dx: &mut [f32],
    ) -> Result<()> {
        let (rows, inner, channels) = (batch.rows(), self.inner, self.conv_channels);
        let (dim, columns, maps) = (x.len() / rows, inner + channels + self.nheads, self.scan.ngroups * self.scan.dstate);
        let Rooms { projected, conv, maps: normed, dt, scan } = rooms;
        let projected = Columns::whole(projected.of(rows * columns), columns);
        let (conv, dt) = (Columns::whole(conv.of(rows * channels), channels), Columns::whole(dt.of(rows * inner), inner));
        let (scanned, normed) = (&*scan.of(rows * inner), Columns::whole(normed.of(rows * inner), inner));

        let mut dscanned = vec![0.0; rows * inner];
        let into = ColumnsMut::whole(&mut dscanned, inner);
        self.out_proj.backward(batch, normed, Columns::whole(dout, dim), into, slots, "out_proj")?;
        let (group, dnorm) = (inner / self.scan.ngroups, slots.of("norm.weight"));
        dnorm.fill(0.0);
        for (scanned, dscanned) in scanned.chunks_exact(inner).zip(dscanned.chunks_exact_mut(inner)) {
            for (at, dy) in dscanned.chunks_exact_mut(group).enumerate() {
                let part = at * group..(at + 1) * group;
                let weight = (&self.norm[part.clone()], &mut dnorm[part.clone()]);
                normalize_backward(&scanned[part], Some(weight), self.eps, dy);
            }
        }

        let mut dprojected = vec![0.0; rows * columns];
        let [mut dscan_x, mut ddt, mut db, mut dc] = [inner, inner, maps, maps].map(|size| vec![0.0; rows * size]);
        let from = Inputs { x: conv, dt, b: conv.from(inner), c: conv.from(inner + maps), z: projected };
        let z = ColumnsMut::whole(&mut dprojected, columns);
        let into = Targets { x: &mut dscan_x, dt: &mut ddt, b: &mut db, c: &mut dc, z };
        let own = self.scan.backward(batch, &from, Columns::whole(&dscanned, inner), into)?;
        let headdim = inner / self.nheads;
        let over_heads = |of: &[f32]| of.chunks_exact(of.len() / self.nheads).map(|head| head.iter().sum()).collect::<Vec<f32>>();
        slots.of("D").copy_from_slice(&over_heads(&own.d));
        slots.of("dt_bias").copy_from_slice(&over_heads(&own.dt_bias));
        // A = -exp(A_log) is its own derivative
        let decays = self.scan.a.iter().step_by(headdim);
        slots.of("A_log").iter_mut().zip(over_heads(&own.a).iter().zip(decays)).for_each(|(to, (da, a))| *to = da * a);

        let mut dconv = vec![0.0; rows * channels];
        for (r, row) in dconv.chunks_exact_mut(channels).enumerate() {
            row[..inner].copy_from_slice(&dscan_x[r * inner..(r + 1) * inner]);
            row[inner..inner + maps].copy_from_slice(&db[r * maps..(r + 1) * maps]);
            row[inner + maps..].copy_from_slice(&dc[r * maps..(r + 1) * maps]);
        }
        let into = ColumnsMut { data: &mut dprojected, first: inner, pitch: columns };
        self.conv.backward(batch, projected.from(inner), Columns::whole(&dconv, channels), into, slots)?;
        for (row, ddt) in dprojected.chunks_exact_mut(columns).zip(ddt.chunks_exact(inner)) {
            row[inner + channels..].copy_from_slice(&over_heads(ddt));
        }
        let (x, dx) = (Columns::whole(x, dim), ColumnsMut::whole(dx, dim));
        self.in_proj.backward(batch, x, Columns::whole(&dprojected, columns), dx, slots, "in_proj")
    }
}
