//! The way back through a mixer.

use super::Multiplied;
use super::forward::Run;
use super::weights::{Gradients, OfProduct, Product};
use crate::error::Result;
use crate::inner::{BackEnds, OfScan, ScanTargets, Scanned, SsdTargets, Steps};
use crate::rooms::{BackRooms, Rooms};
use statescan::{View, ViewMut};

/// The beginning of the way back: the rows that a mixer read, and the gradient by what it gave.
pub(crate) struct Back<'b> {
    pub(crate) steps: Steps,
    pub(crate) x: View<'b>,
    pub(crate) dy: View<'b>,
    /// The ends of the convolution's inputs and of the scan's states.
    pub(crate) conv: BackEnds<'b>,
    pub(crate) scan: BackEnds<'b>,
}

impl<'b> Back<'b> {
    /// From zeros, with nothing behind.
    pub(crate) fn new(steps: Steps, x: View<'b>, dy: View<'b>) -> Self {
        Back { steps, x, dy, conv: BackEnds::default(), scan: BackEnds::default() }
    }
}

impl Run<'_> {
    /// Gradients by the rows `x`, to `dx`, and by the weights. The rooms have what a forward pass over the same rows left there that kept what it could.
    pub(crate) fn backward(
        &self,
        back: Back<'_>,
        rooms: &mut Rooms,
        own: &mut BackRooms,
        dx: &mut ViewMut<'_>,
        into: Gradients<'_>,
    ) -> Result<()> {
        let (Back { steps, x, dy, conv, scan }, exec) = (back, self.device.exec());
        let rows = steps.rows();
        own.grow(exec, self.config, dy.dtype(), rows)?;
        let BackRooms { dscan, dgated, workspace, .. } = &mut *own;
        let dmixed = if self.weights.maps.is_some() { dscan } else { dgated };
        let of = Multiplied { x: rooms.mixed(self.config).of(rows), product: self.weights.out_proj, dy };
        self.device.product_backward(of, &mut dmixed.of_mut(rows), false, into.out_proj, workspace)?;
        match (self.weights.maps, into.maps, into.norm) {
            (Some(maps), Some(of_maps), _) => self.mamba_backward(steps, maps, rooms, own, (into.scan, of_maps, scan))?,
            (_, _, norm) => self.mamba2_backward(steps, rooms, own, (into.scan, norm, scan))?,
        }
        let BackRooms { dprojected, dconv, workspace, .. } = own;
        let (projected, dconv, OfProduct { weight, bias }) = (rooms.projected.of(rows), dconv.of(rows), into.conv);
        self.inner(steps).convolve_backward(projected, dconv, dprojected.of_mut(rows), (weight, bias), conv, workspace)?;
        let of = Multiplied { x, product: self.weights.in_proj, dy: dprojected.of(rows) };
        self.device.product_backward(of, dx, false, into.in_proj, workspace)
    }

    /// From the gradient by the scan's results to those by the gate's columns and by the convolution's results.
    fn mamba_backward(
        &self,
        steps: Steps,
        [x_proj, dt_proj]: [Product<'_>; 2],
        rooms: &mut Rooms,
        own: &mut BackRooms,
        (of_scan, [of_x, of_dt], ends): (OfScan<'_>, [OfProduct<'_>; 2], BackEnds<'_>),
    ) -> Result<()> {
        let (inner, rows, low) = (self.inner(steps), steps.rows(), 0..self.config.dt_rank);
        let Rooms { projected, conv, maps: raw, normed_maps, dt, saved, .. } = rooms;
        let BackRooms { dscan, dprojected, dconv, dmaps, raw_dmaps, ddt, workspace, .. } = own;
        let maps = if inner.norms_maps() { &*normed_maps } else { &*raw };
        let [projected, conv, dt, maps] = [&*projected, &*conv, &*dt, maps].map(|room| room.of(rows));
        let from = Scanned { projected, conv, dt, maps };
        let into = {
            let [projected, conv, dt, maps] = [dprojected, &mut *dconv, &mut *ddt, &mut *dmaps].map(|room| room.of_mut(rows));
            ScanTargets { projected, conv, dt, maps }
        };
        inner.scan_backward(from, (dscan.of(rows), Some(saved)), into, of_scan, ends, workspace)?;
        let of = Multiplied { x: maps.slice(1, low.clone()), product: dt_proj, dy: ddt.of(rows) };
        self.device.product_backward(of, &mut dmaps.of_mut(rows).slice(1, low), false, of_dt, workspace)?;
        let mut dmaps = dmaps.of(rows);
        if inner.norms_maps() {
            inner.norm_maps_backward(raw.of(rows), dmaps, &mut raw_dmaps.of_mut(rows))?;
            dmaps = raw_dmaps.of(rows);
        }
        let of = Multiplied { x: conv, product: x_proj, dy: dmaps };
        self.device.product_backward(of, &mut dconv.of_mut(rows), true, of_x, workspace)
    }

    /// Mamba-2's part of the way: from the gradient by the results of the norm to those by the columns of gate and step sizes and by the convolution's
    /// results.
    fn mamba2_backward(
        &self,
        steps: Steps,
        rooms: &Rooms,
        own: &mut BackRooms,
        (of_scan, of_norm, ends): (OfScan<'_>, Option<ViewMut<'_>>, BackEnds<'_>),
    ) -> Result<()> {
        let (inner, rows) = (self.inner(steps), steps.rows());
        let BackRooms { dscan, dgated, dprojected, dconv, workspace, .. } = own;
        let [projected, conv, y] = [&rooms.projected, &rooms.conv, &rooms.scan].map(|room| room.of(rows));
        let from = [y, projected, dgated.of(rows)];
        inner.gated_norm_backward(from, dscan.of_mut(rows), dprojected.of_mut(rows), of_norm, workspace)?;
        let into = SsdTargets { projected: dprojected.of_mut(rows), conv: dconv.of_mut(rows) };
        inner.ssd_backward([projected, conv, dscan.of(rows)], into, of_scan, ends, workspace)
    }
}
