//! The scan of Mamba and FalconMamba, and the norms that the latter has on what comes from the second projection: step sizes of low rank, B and C.

use super::{BackEnds, Ends, Inner, OfScan};
use crate::config::{Config, Kind};
use crate::error::Result;
use statescan::ops::{norm, selective_scan};
use statescan::tensor::Workspace;
use statescan::{View, ViewMut};

/// The rows that a scan reads.
#[derive(Clone, Copy)]
pub(crate) struct Scanned<'r> {
    pub(crate) projected: View<'r>,
    pub(crate) conv: View<'r>,
    pub(crate) dt: View<'r>,
    /// Step sizes of low rank, B and C.
    pub(crate) maps: View<'r>,
}

/// Rows for the gradients by those that a scan reads, which writes its columns of them.
pub(crate) struct ScanTargets<'t> {
    pub(crate) projected: ViewMut<'t>,
    pub(crate) conv: ViewMut<'t>,
    pub(crate) dt: ViewMut<'t>,
    pub(crate) maps: ViewMut<'t>,
}

impl<'i> Inner<'i> {
    /// Columns of what comes from the second projection that are normed, and in how many groups: those of step sizes, of B and of C.
    fn normed_columns(&self) -> [(std::ops::Range<usize>, usize); 2] {
        let Config { dt_rank, dstate, .. } = *self.config;
        [(0..dt_rank, 1), (dt_rank..dt_rank + 2 * dstate, 2)]
    }

    /// Whether there are such norms.
    pub(crate) fn norms_maps(&self) -> bool {
        self.config.kind == Kind::FalconMamba
    }

    fn norm_of_maps<'r>(&self, rows: View<'r>, groups: usize) -> norm::Args<'r> {
        norm::Args::new(rows).groups(groups).eps(f64::from(self.config.mixer_eps))
    }

    /// FalconMamba's norms of rows `raw`, to rows `to`.
    pub(crate) fn norm_maps(&self, raw: View<'_>, to: &mut ViewMut<'_>) -> Result<()> {
        for (columns, groups) in self.normed_columns() {
            let args = self.norm_of_maps(raw.slice(1, columns.clone()), groups);
            norm::forward(self.exec, &args, &mut norm::Outputs::default().y(to.reborrow().slice(1, columns)))?;
        }
        Ok(())
    }

    /// The way back through them, from rows `dy` to rows `to`.
    pub(crate) fn norm_maps_backward(&self, raw: View<'_>, dy: View<'_>, to: &mut ViewMut<'_>) -> Result<()> {
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
        selective_scan::Args::new(x, dt, self.own.a, b, c)
            .d(self.own.d)
            .z(steps.channels(from.projected, self.config.gate_columns()))
            .dt_bias(self.own.dt_bias)
            .dt_softplus(true)
            .dt_limit(dt_limit)
    }

    /// The scan to rows `y`; what its backward pass can begin with is kept where there is room for it.
    pub(crate) fn scan(
        &self,
        from: Scanned<'_>,
        states: Ends<'_>,
        y: ViewMut<'_>,
        saved: Option<&mut Workspace>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let (initial, last) = states.unzip();
        let args = self.scan_args(from).initial_state(initial);
        let len = if saved.is_some() { selective_scan::checkpoints_len(&args)? } else { 0 };
        let saved = saved.map(|saved| saved.view_mut(self.exec, len)).transpose()?;
        let scratch = workspace.view_mut(self.exec, selective_scan::workspace_len(self.exec, &args)?)?;
        let out = selective_scan::Outputs::default().y(self.steps.channels_mut(y)).workspace(scratch);
        Ok(selective_scan::forward(self.exec, &args, &mut out.final_state(last).checkpoints(saved))?)
    }

    /// The way back through the scan from the gradient by its results.
    pub(crate) fn scan_backward(
        &self,
        from: Scanned<'_>,
        (dy, saved): (View<'_>, Option<&mut Workspace>),
        into: ScanTargets<'_>,
        [da, dd, dbias]: OfScan<'_>,
        ends: BackEnds<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let (exec, steps) = (self.exec, self.steps);
        let Config { inner, dt_rank, dstate, .. } = *self.config;
        let args = self.scan_args(from).initial_state(ends.initial);
        let len = if saved.is_some() { selective_scan::checkpoints_len(&args)? } else { 0 };
        let saved = saved.map(|saved| saved.view_mut(exec, len)).transpose()?;
        let (db, dc) = into.maps.slice(1, dt_rank..dt_rank + 2 * dstate).split_at(1, dstate);
        let scratch = selective_scan::backward_workspace_len(exec, &args, saved.is_some())?;
        let mut grads = selective_scan::Gradients::default()
            .x(steps.channels_mut(into.conv))
            .dt(steps.channels_mut(into.dt))
            .a(da)
            .b(steps.channels_mut(db))
            .c(steps.channels_mut(dc))
            .z(steps.channels_mut(into.projected.slice(1, self.config.gate_columns())))
            .d(dd)
            .dt_bias(dbias)
            .initial_state(ends.first)
            .workspace(workspace.view_mut(exec, scratch)?);
        let cotangents = selective_scan::Cotangents::default().y(steps.channels(dy, 0..inner)).final_state(ends.last);
        let saved = saved.as_ref().map(ViewMut::as_view);
        Ok(selective_scan::backward(exec, &args, saved, &cotangents, &mut grads)?)
    }
}
