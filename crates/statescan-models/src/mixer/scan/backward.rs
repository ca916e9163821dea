//! The way back through the scan of a block.

use super::{Inputs, Scan};
use crate::error::Result;
use crate::rows::Columns;
use crate::rows::backward::{Batch, ColumnsMut, Ends};
use statescan::ops::selective_scan::{Args, Cotangents, Gradients, backward};
use statescan::{View, ViewMut};

/// Gradients of a scan's arguments: dense rows, of the gate some columns.
pub(in crate::mixer) struct Targets<'t> {
    pub(in crate::mixer) x: &'t mut [f32],
    pub(in crate::mixer) dt: &'t mut [f32],
    pub(in crate::mixer) b: &'t mut [f32],
    pub(in crate::mixer) c: &'t mut [f32],
    pub(in crate::mixer) z: ColumnsMut<'t>,
}

/// Gradients of a scan's parameters: decays (channels, dstate), skips and biases (channels).
pub(in crate::mixer) struct Parameters {
    pub(in crate::mixer) a: Vec<f32>,
    pub(in crate::mixer) d: Vec<f32>,
    pub(in crate::mixer) dt_bias: Vec<f32>,
}

impl Scan {
    /// Gradients of a batch from those of its results, `dy`.
    pub(in crate::mixer) fn backward(
        &self,
        batch: Batch<'_>,
        from: &Inputs<'_>,
        dy: Columns<'_>,
        into: Targets<'_>,
        ends: &mut Ends<'_>,
    ) -> Result<Parameters> {
        let (channels, dstate, groups) = (self.d.len(), self.dstate, self.ngroups);
        let states = [batch.count, channels, dstate];
        let initial = ends.initial.map(|state| View::new(&state.scan, &states)).transpose()?;
        let last = ends.last.map(|state| View::new(&state.scan, &states)).transpose()?;
        let first = ends.first.as_mut().map(|state| ViewMut::new(&mut state.scan, &states)).transpose()?;
        let args = Args::new(
            from.x.batch(batch, channels)?,
            from.dt.batch(batch, channels)?,
            self.decays()?,
            from.b.batch_maps(batch, groups, dstate)?,
            from.c.batch_maps(batch, groups, dstate)?,
        )
        .d(View::new(&self.d, &[channels])?)
        .z(from.z.batch(batch, channels)?)
        .dt_bias(View::new(&self.dt_bias, &[channels])?)
        .dt_softplus(true)
        .dt_limit(self.dt_limit)
        .initial_state(initial);
        let mut own = Parameters { a: vec![0.0; channels * dstate], d: vec![0.0; channels], dt_bias: vec![0.0; channels] };
        let maps = groups * dstate;
        let mut grads = Gradients::default()
            .x(ColumnsMut::whole(into.x, channels).batch(batch, channels)?)
            .dt(ColumnsMut::whole(into.dt, channels).batch(batch, channels)?)
            .b(ColumnsMut::whole(into.b, maps).batch_maps(batch, groups, dstate)?)
            .c(ColumnsMut::whole(into.c, maps).batch_maps(batch, groups, dstate)?)
            .z(into.z.batch(batch, channels)?)
            .a(ViewMut::new(&mut own.a, &[channels, dstate])?)
            .d(ViewMut::new(&mut own.d, &[channels])?)
            .dt_bias(ViewMut::new(&mut own.dt_bias, &[channels])?)
            .initial_state(first);
        let cotangents = Cotangents::default().y(dy.batch(batch, channels)?).final_state(last);
        backward(batch.exec, &args, None, &cotangents, &mut grads)?;
        Ok(own)
    }
}
