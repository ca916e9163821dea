//! The way back through a mixer.

use super::scan::Inputs;
use super::scan::backward::Targets;
use super::{Maps, Mixer};
use crate::error::Result;
use crate::rows::backward::{Batch, ColumnsMut, Ends};
use crate::rows::{Columns, Rooms};
use crate::tensors::Slots;

/// Gradients by what a scan takes, dense rows.
pub(super) struct ScanGradients {
    pub(super) x: Vec<f32>,
    pub(super) dt: Vec<f32>,
    pub(super) b: Vec<f32>,
    pub(super) c: Vec<f32>,
}

impl Mixer {
    /// Gradients by the rows `x` of a batch, and in the slots by the weights, from those of the results, `dout`. The rooms have what the
    /// forward pass of the same batch left there.
    pub(crate) fn backward(
        &self,
        batch: Batch<'_>,
        x: &[f32],
        dout: &[f32],
        rooms: &mut Rooms,
        slots: &mut Slots<'_>,
        ends: &mut Ends<'_>,
    ) -> Result<Vec<f32>> {
        let (rows, inner, columns, channels) = (batch.rows(), self.inner, self.columns, self.conv.channels);
        let Rooms { projected, conv, maps, dt, scan, normed } = rooms;
        let projected = Columns::whole(projected.of(rows * columns), columns);
        let (conv, dt) = (Columns::whole(conv.of(rows * channels), channels), Columns::whole(dt.of(rows * inner), inner));
        let (scanned, dim) = (&*scan.of(rows * inner), x.len() / rows);

        let mut dscanned = vec![0.0; rows * inner];
        let mixed = match &self.maps {
            Maps::Mamba(_) => scanned,
            Maps::Mamba2(_) => &*normed.of(rows * inner),
        };
        let into = ColumnsMut::whole(&mut dscanned, inner);
        self.out_proj.backward(batch, Columns::whole(mixed, inner), Columns::whole(dout, dim), into, slots, "out_proj")?;
        if let Maps::Mamba2(maps) = &self.maps {
            maps.normalize_backward(scanned, &mut dscanned, slots);
        }

        let mut dprojected = vec![0.0; rows * columns];
        let size = self.scan.ngroups * self.scan.dstate;
        let [x_of, dt_of, b_of, c_of] = [inner, inner, size, size].map(|size| vec![0.0; rows * size]);
        let mut grads = ScanGradients { x: x_of, dt: dt_of, b: b_of, c: c_of };
        let [b, c] = match &self.maps {
            Maps::Mamba(of) => of.maps(maps, rows),
            Maps::Mamba2(of) => of.maps(conv),
        };
        let from = Inputs { x: conv, dt, b, c, z: projected.from(self.before_gate) };
        let ScanGradients { x: dx, dt: ddt, b: db, c: dc } = &mut grads;
        let z = ColumnsMut { data: &mut dprojected, first: self.before_gate, pitch: columns };
        let into = Targets { x: dx, dt: ddt, b: db, c: dc, z };
        let own = self.scan.backward(batch, &from, Columns::whole(&dscanned, inner), into, ends)?;
        let dconv = match &self.maps {
            Maps::Mamba(of) => {
                of.parameters(&own, &self.scan.a, slots);
                of.backward(batch, conv, maps, grads, slots)?
            }
            Maps::Mamba2(of) => {
                of.parameters(&own, &self.scan.a, slots);
                of.backward(&grads, &mut dprojected)
            }
        };

        let into = ColumnsMut { data: &mut dprojected, first: self.before_conv, pitch: columns };
        let dconv = Columns::whole(&dconv, channels);
        self.conv.backward(batch, projected.from(self.before_conv), dconv, into, slots, ends)?;
        let mut dx = vec![0.0; x.len()];
        let into = ColumnsMut::whole(&mut dx, dim);
        self.in_proj.backward(batch, Columns::whole(x, dim), Columns::whole(&dprojected, columns), into, slots, "in_proj")?;
        Ok(dx)
    }
}
