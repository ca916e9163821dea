//! The scan of Mamba and FalconMamba, and the norms that the latter has on what comes from the second projection: step sizes of low rank, B and C.

use super::Weights;
use crate::config::Config;
use crate::error::Result;
use crate::mixer::run::{BackEnds, Ends, Steps};
use statescan::ops::{norm, selective_scan};
use statescan::tensor::Workspace;
use statescan::{Exec, View, ViewMut};
use std::ops::Range;

/// A mixer between its projections, for some rows.
pub(super) struct Inner<'i> {
    pub(super) exec: &'i Exec,
    pub(super) config: &'i Config,
    pub(super) steps: Steps,
    pub(super) weights: &'i Weights<View<'i>>,
}

/// Gradients by the parameters of the scan: A, D, and the bias of step sizes.
pub(super) type OfScan<'g> = [ViewMut<'g>; 3];

/// The rows that a scan reads.
#[derive(Clone, Copy)]
pub(super) struct Scanned<'r> {
    pub(super) projected: View<'r>,
    pub(super) conv: View<'r>,
    pub(super) dt: View<'r>,
    /// Step sizes of low rank, B and C.
    pub(super) maps: View<'r>,
}

/// Rows for the gradients by those that a scan reads, which writes its columns of them.
pub(super) struct ScanTargets<'t> {
    pub(super) projected: ViewMut<'t>,
    pub(super) conv: ViewMut<'t>,
    pub(super) dt: ViewMut<'t>,
    pub(super) maps: ViewMut<'t>,
}

impl<'i> Inner<'i> {
    /// Columns of what comes from the second projection that are normed, and in how many groups: those of step sizes, of B and of C.
    fn normed_columns(&self) -> [(Range<usize>, usize); 2] {
        let Config { dt_rank, dstate, .. } = *self.config;
        [(0..dt_rank, 1), (dt_rank..dt_rank + 2 * dstate, 2)]
    }

    /// The gate's columns of the first projection.
    fn gate(&self) -> Range<usize> {
        self.config.inner..2 * self.config.inner
    }

    fn norm_of_maps<'r>(&self, rows: View<'r>, groups: usize) -> norm::Args<'r> {
        norm::Args::new(rows).groups(groups).eps(f64::from(self.config.mixer_eps))
    }

    /// FalconMamba's norms of rows `raw`, to rows `to`.
    pub(super) fn norm_maps(&self, raw: View<'_>, to: &mut ViewMut<'_>) -> Result<()> {
        for (columns, groups) in self.normed_columns() {
            let args = self.norm_of_maps(raw.slice(1, columns.clone()), groups);
            norm::forward(self.exec, &args, &mut norm::Outputs::default().y(to.reborrow().slice(1, columns)))?;
        }
        Ok(())
    }

    /// The way back through them, from rows `dy` to rows `to`.
    pub(super) fn norm_maps_backward(&self, raw: View<'_>, dy: View<'_>, to: &mut ViewMut<'_>) -> Result<()> {
        for (columns, groups) in self.normed_columns() {
            let args = self.norm_of_maps(raw.slice(1, columns.clone()), groups);
            let cotangents = norm::Cotangents::default().y(dy.slice(1, columns.clone()));
            let mut grads = norm::Gradients::default().x(to.reborrow().slice(1, columns));
            norm::backward(self.exec, &args, &cotangents, &mut grads)?;
        }
        Ok(())
    }

    fn scan_args<'r>(&self, from: Scanned<'r>) -> selective_scan::Args<'r>
    where
        'i: 'r,
    {
        let Config { inner, dt_rank, dstate, dt_limit, .. } = *self.config;
        let steps = self.steps;
        let (x, dt) = (steps.channels(from.conv, 0..inner), steps.channels(from.dt, 0..inner));
        let [b, c] = [dt_rank, dt_rank + dstate].map(|first| steps.channels(from.maps, first..first + dstate));
        selective_scan::Args::new(x, dt, self.weights.a, b, c)
            .d(self.weights.d)
            .z(steps.channels(from.projected, self.gate()))
            .dt_bias(self.weights.dt_bias)
            .dt_softplus(true)
            .dt_limit(dt_limit)
    }

    /// The scan to rows `y`; what its backward pass can begin with is kept where there is room for it.
    pub(super) fn scan(
        &self,
        from: Scanned<'_>,
        states: Ends<'_>,
        y: ViewMut<'_>,
        saved: Option<&mut Workspace>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let (initial, last) = states.unzip();
        let args = self.scan_args(from).initial_state(initial);
        let call = selective_scan::prepare(self.exec, &args)?;
        let saved = saved.map(|saved| saved.view_mut(self.exec, call.saved_len())).transpose()?;
        let scratch = workspace.view_mut(self.exec, call.workspace_len()?)?;
        let out = selective_scan::Outputs::default().y(self.steps.channels_mut(y)).workspace(scratch);
        Ok(call.forward(&mut out.final_state(last).checkpoints(saved))?)
    }

    /// The way back through the scan from the gradient by its results.
    pub(super) fn scan_backward(
        &self,
        from: Scanned<'_>,
        (dy, saved): (View<'_>, &mut Workspace),
        into: ScanTargets<'_>,
        [da, dd, dbias]: OfScan<'_>,
        ends: BackEnds<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let (exec, steps) = (self.exec, self.steps);
        let Config { inner, dt_rank, dstate, .. } = *self.config;
        let args = self.scan_args(from).initial_state(ends.initial);
        let call = selective_scan::prepare(exec, &args)?;
        let saved = saved.view_mut(exec, call.saved_len())?;
        let (db, dc) = into.maps.slice(1, dt_rank..dt_rank + 2 * dstate).split_at(1, dstate);
        let mut grads = selective_scan::Gradients::default()
            .x(steps.channels_mut(into.conv))
            .dt(steps.channels_mut(into.dt))
            .a(da)
            .b(steps.channels_mut(db))
            .c(steps.channels_mut(dc))
            .z(steps.channels_mut(into.projected.slice(1, self.gate())))
            .d(dd)
            .dt_bias(dbias)
            .initial_state(ends.first)
            .workspace(workspace.view_mut(exec, call.backward_workspace_len(true)?)?);
        let cotangents = selective_scan::Cotangents::default().y(steps.channels(dy, 0..inner)).final_state(ends.last);
        Ok(call.backward(Some(saved.as_view()), &cotangents, &mut grads)?)
    }
}
