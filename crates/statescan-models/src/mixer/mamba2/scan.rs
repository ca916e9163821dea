//! The scan of Mamba-2, whose step sizes come from the first projection and whose B and C from the convolution, and the gated norm behind it.

use super::{Weights, conv_columns};
use crate::config::Config;
use crate::error::Result;
use crate::mixer::run::{BackEnds, Ends, Steps};
use statescan::ops::{norm, selective_scan, ssd};
use statescan::tensor::Workspace;
use statescan::{Exec, View, ViewMut};

/// A mixer between its projections, for some rows.
pub(super) struct Inner<'i> {
    pub(super) exec: &'i Exec,
    pub(super) config: &'i Config,
    pub(super) steps: Steps,
    pub(super) weights: &'i Weights<View<'i>>,
}

/// Rows for the gradients by those that the scan reads, which writes its columns of them.
pub(super) struct SsdTargets<'t> {
    pub(super) projected: ViewMut<'t>,
    pub(super) conv: ViewMut<'t>,
}

impl<'i> Inner<'i> {
    /// B and C, (sequences, steps, groups, dstate), from the rows of the convolution.
    fn maps<'r>(&self, conv: View<'r>) -> [View<'r>; 2] {
        let Config { inner, ngroups, dstate, .. } = *self.config;
        let (conv, maps) = (self.steps.of(conv), ngroups * dstate);
        [inner, inner + maps].map(|first| conv.slice(2, first..first + maps).split(2, ngroups))
    }

    /// The scan's arguments from the rows of the first projection and of the convolution.
    fn ssd_args<'r>(&self, projected: View<'r>, conv: View<'r>) -> ssd::Args<'r>
    where
        'i: 'r,
    {
        let Config { inner, nheads, dt_limit, .. } = *self.config;
        let ([b, c], dt) = (self.maps(conv), conv_columns(self.config).end);
        let dt = self.steps.of(projected).slice(2, dt..dt + nheads);
        ssd::Args::new(self.steps.of(conv).slice(2, 0..inner).split(2, nheads), dt, self.weights.a, b, c)
            .d(self.weights.d)
            .dt_bias(self.weights.dt_bias)
            .dt_softplus(true)
            .dt_limit(dt_limit)
    }

    /// The scan to rows `y`, without the gate.
    pub(super) fn ssd(
        &self,
        [projected, conv]: [View<'_>; 2],
        states: Ends<'_>,
        y: ViewMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let nheads = self.config.nheads;
        let (initial, last) = states.map(|(initial, last)| (initial.split(1, nheads), last.split(1, nheads))).unzip();
        let args = self.ssd_args(projected, conv).initial_state(initial);
        let call = ssd::prepare(self.exec, &args)?;
        let scratch = workspace.view_mut(self.exec, call.workspace_len()?)?;
        let y = y.split(0, self.steps.sequences).split(2, nheads);
        Ok(call.forward(&mut ssd::Outputs::default().y(y).workspace(scratch).final_state(last))?)
    }

    /// The scan step by step, from rows of the convolution and of step sizes of each channel, with decays, D and a bias of step sizes of each channel.
    pub(super) fn scan_channels(
        &self,
        [conv, dt]: [View<'_>; 2],
        [a, d, dt_bias]: [View<'_>; 3],
        states: Ends<'_>,
        y: ViewMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let Config { inner, dstate, dt_limit, .. } = *self.config;
        let (steps, (initial, last)) = (self.steps, states.unzip());
        let (x, dt) = (steps.channels(conv, 0..inner), steps.channels(dt, 0..inner));
        let [b, c] = self.maps(conv).map(|map| map.permute(&[0, 2, 3, 1]));
        let args = selective_scan::Args::new(x, dt, a.expand(1, dstate), b, c)
            .d(d)
            .dt_bias(dt_bias)
            .dt_softplus(true)
            .dt_limit(dt_limit)
            .initial_state(initial);
        let call = selective_scan::prepare(self.exec, &args)?;
        let scratch = workspace.view_mut(self.exec, call.workspace_len()?)?;
        let out = selective_scan::Outputs::default().y(steps.channels_mut(y)).workspace(scratch);
        Ok(call.forward(&mut out.final_state(last))?)
    }

    /// The way back through the scan, from the gradient by its results.
    pub(super) fn ssd_backward(
        &self,
        [projected, conv, dy]: [View<'_>; 3],
        into: SsdTargets<'_>,
        [da, dd, dbias]: [ViewMut<'_>; 3],
        ends: BackEnds<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let Config { inner, nheads, ngroups, dstate, .. } = *self.config;
        let sequences = self.steps.sequences;
        let args = self.ssd_args(projected, conv).initial_state(ends.initial.map(|state| state.split(1, nheads)));
        let call = ssd::prepare(self.exec, &args)?;
        let (dx, of_maps) = into.conv.split(0, sequences).split_at(2, inner);
        let (db, dc) = of_maps.split_at(2, ngroups * dstate);
        let dt = conv_columns(self.config).end;
        let mut grads = ssd::Gradients::default()
            .x(dx.split(2, nheads))
            .dt(into.projected.split(0, sequences).slice(2, dt..dt + nheads))
            .a(da)
            .b(db.split(2, ngroups))
            .c(dc.split(2, ngroups))
            .d(dd)
            .dt_bias(dbias)
            .initial_state(ends.first.map(|state| state.split(1, nheads)))
            .workspace(workspace.view_mut(self.exec, call.backward_workspace_len(false)?)?);
        let dy = self.steps.of(dy).split(2, nheads);
        let cotangents = ssd::Cotangents::default().y(dy).final_state(ends.last.map(|state| state.split(1, nheads)));
        Ok(call.backward(None, &cotangents, &mut grads)?)
    }

    fn norm_args<'r>(&self, y: View<'r>, projected: View<'r>) -> norm::Args<'r>
    where
        'i: 'r,
    {
        norm::Args::new(y)
            .weight(self.weights.norm)
            .z(projected.slice(1, 0..self.config.inner))
            .groups(self.config.ngroups)
            .eps(f64::from(self.config.mixer_eps))
    }

    /// The norm of the scan's rows `y` times the gate, to rows `to`.
    pub(super) fn gated_norm(&self, y: View<'_>, projected: View<'_>, to: ViewMut<'_>) -> Result<()> {
        Ok(norm::forward(self.exec, &self.norm_args(y, projected), &mut norm::Outputs::default().y(to))?)
    }

    /// From the gradient `dgated` by its results to those by the scan's, `dy`, by the gate's columns and by its weight.
    pub(super) fn gated_norm_backward(
        &self,
        [y, projected, dgated]: [View<'_>; 3],
        dy: ViewMut<'_>,
        dprojected: ViewMut<'_>,
        dweight: ViewMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let args = self.norm_args(y, projected);
        let call = norm::prepare(self.exec, &args)?;
        let mut grads = norm::Gradients::default()
            .x(dy)
            .z(dprojected.slice(1, 0..self.config.inner))
            .weight(dweight)
            .workspace(workspace.view_mut(self.exec, call.backward_workspace_len(false)?)?);
        Ok(call.backward(None, &norm::Cotangents::default().y(dgated), &mut grads)?)
    }
}
