//! The way back through Mamba's mixer.

use super::Mamba;
use crate::error::Result;
use crate::mixer::scan::Inputs;
use crate::mixer::scan::backward::Targets;
use crate::rows::backward::{Batch, ColumnsMut, normalize_backward};
use crate::rows::{Columns, Rooms};
use crate::tensors::Slots;

impl Mamba {
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
        let (rows, inner, dstate, rank) = (batch.rows(), self.inner, self.scan.dstate, self.dt_rank);
        let (dim, columns) = (x.len() / rows, rank + 2 * dstate);
        let Rooms { projected, conv, maps, dt, scan, .. } = rooms;
        let projected = Columns::whole(projected.of(rows * 2 * inner), 2 * inner);
        let (conv, maps) = (Columns::whole(conv.of(rows * inner), inner), Columns::whole(maps.of(rows * columns), columns));
        let (dt, scanned) = (Columns::whole(dt.of(rows * inner), inner), Columns::whole(scan.of(rows * inner), inner));

        let mut dscanned = vec![0.0; rows * inner];
        let out = ColumnsMut::whole(&mut dscanned, inner);
        self.out_proj.backward(batch, scanned, Columns::whole(dout, dim), out, slots, "out_proj")?;

        let mut dprojected = vec![0.0; rows * 2 * inner];
        let [mut dconv, mut ddt, mut db, mut dc] = [inner, inner, dstate, dstate].map(|size| vec![0.0; rows * size]);
        let from = Inputs { x: conv, dt, b: maps.from(rank), c: maps.from(rank + dstate), z: projected.from(inner) };
        let z = ColumnsMut { data: &mut dprojected, first: inner, pitch: 2 * inner };
        let into = Targets { x: &mut dconv, dt: &mut ddt, b: &mut db, c: &mut dc, z };
        let own = self.scan.backward(batch, &from, Columns::whole(&dscanned, inner), into)?;
        // A = -exp(A_log) is its own derivative
        slots.of("A_log").iter_mut().zip(own.a.iter().zip(&self.scan.a)).for_each(|(to, (da, a))| *to = da * a);
        slots.of("D").copy_from_slice(&own.d);

        let mut dmaps = vec![0.0; rows * columns];
        let low_rank = ColumnsMut::whole(&mut dmaps, columns);
        self.dt_proj.backward(batch, maps, Columns::whole(&ddt, inner), low_rank, slots, "dt_proj")?;
        slots.of("dt_proj.bias").copy_from_slice(&own.dt_bias);
        for (row, (db, dc)) in dmaps.chunks_exact_mut(columns).zip(db.chunks_exact(dstate).zip(dc.chunks_exact(dstate))) {
            row[rank..rank + dstate].copy_from_slice(db);
            row[rank + dstate..].copy_from_slice(dc);
        }
        if let Some(eps) = self.norms {
            // the rows before their norms are computed again
            let mut raw = vec![0.0; rows * columns];
            self.x_proj.forward(batch.exec, conv, rows, &mut raw)?;
            for (raw, row) in raw.chunks_exact(columns).zip(dmaps.chunks_exact_mut(columns)) {
                for part in [0..rank, rank..rank + dstate, rank + dstate..columns] {
                    normalize_backward(&raw[part.clone()], None, eps, &mut row[part]);
                }
            }
        }

        let mut through_maps = vec![0.0; rows * inner];
        let into = ColumnsMut::whole(&mut through_maps, inner);
        self.x_proj.backward(batch, conv, Columns::whole(&dmaps, columns), into, slots, "x_proj")?;
        dconv.iter_mut().zip(&through_maps).for_each(|(to, more)| *to += more);
        let into = ColumnsMut::whole(&mut dprojected, 2 * inner);
        self.conv.backward(batch, projected, Columns::whole(&dconv, inner), into, slots)?;
        let (x, dx) = (Columns::whole(x, dim), ColumnsMut::whole(dx, dim));
        self.in_proj.backward(batch, x, Columns::whole(&dprojected, 2 * inner), dx, slots, "in_proj")
    }
}
