//! The gated delta rule, whose queries, keys and values come from the convolution and whose decays and weights of values from the projections, and the gated
//! norm of each head behind it.

use super::{Columns, Weights};
use crate::config::Config;
use crate::error::Result;
use crate::mixer::run::{BackEnds, Ends, Steps};
use statescan::ops::gated_delta_rule::update;
use statescan::ops::{gated_delta_rule, norm};
use statescan::tensor::Workspace;
use statescan::{Exec, View, ViewMut};

/// A mixer between its projections, for some rows.
pub(super) struct Inner<'i> {
    pub(super) exec: &'i Exec,
    pub(super) config: &'i Config,
    pub(super) steps: Steps,
    pub(super) columns: &'i Columns,
    pub(super) weights: &'i Weights<View<'i>>,
}

/// Rows for the gradients by those that the rule reads, which writes its columns of them.
pub(super) struct RuleTargets<'t> {
    pub(super) projected: ViewMut<'t>,
    pub(super) conv: ViewMut<'t>,
}

impl<'i> Inner<'i> {
    /// The rule's arguments from the rows of the projections and of the convolution.
    fn args<'r>(&self, projected: View<'r>, conv: View<'r>) -> gated_delta_rule::Args<'r>
    where
        'i: 'r,
    {
        let Config { nheads, ngroups, dstate, allow_neg_eigval, .. } = *self.config;
        let (projected, conv, keys) = (self.steps.of(projected), self.steps.of(conv), ngroups * dstate);
        let [q, k] = [0, keys].map(|first| conv.slice(2, first..first + keys).split(2, ngroups));
        let v = conv.slice(2, 2 * keys..self.columns.conv.end).split(2, nheads);
        gated_delta_rule::Args::new(q, k, v)
            .g(projected.slice(2, self.columns.decay.clone()))
            .beta(projected.slice(2, self.columns.beta.clone()))
            .a_log(self.weights.a_log)
            .dt_bias(self.weights.dt_bias)
            .qk_l2norm(true)
            .beta_sigmoid(true)
            .allow_neg_eigval(allow_neg_eigval)
    }

    /// The rule to rows `y`.
    pub(super) fn rule(
        &self,
        [projected, conv]: [View<'_>; 2],
        states: Ends<'_>,
        y: ViewMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let nheads = self.config.nheads;
        let (initial, last) = states.map(|(initial, last)| (initial.split(1, nheads), last.split(1, nheads))).unzip();
        let args = self.args(projected, conv).initial_state(initial);
        let call = gated_delta_rule::prepare(self.exec, &args)?;
        let scratch = workspace.view_mut(self.exec, call.workspace_len()?)?;
        let y = y.split(0, self.steps.sequences).split(2, nheads);
        Ok(call.forward(&mut gated_delta_rule::Outputs::default().y(y).workspace(scratch).final_state(last))?)
    }

    /// One step of one sequence, (1, columns) each, whose state, (1, numbers of keys of all heads, numbers of a value), is carried on in place.
    pub(super) fn step(&self, projected: View<'_>, conv: View<'_>, state: ViewMut<'_>, y: ViewMut<'_>) -> Result<()> {
        let (all, nheads) = (self.args(projected, conv), self.config.nheads);
        let [q, k, v] = [all.q, all.k, all.v].map(|of_steps| of_steps.index(1, 0));
        let args = update::Args::new(q, k, v)
            .g(all.g.map(|g| g.index(1, 0)))
            .beta(all.beta.map(|beta| beta.index(1, 0)))
            .a_log(all.a_log)
            .dt_bias(all.dt_bias)
            .qk_l2norm(all.qk_l2norm)
            .beta_sigmoid(all.beta_sigmoid)
            .allow_neg_eigval(all.allow_neg_eigval);
        Ok(update::update(self.exec, &args, &mut state.split(1, nheads), &mut y.split(1, nheads))?)
    }

    /// The way back through the rule, from the gradient by its results.
    pub(super) fn rule_backward(
        &self,
        [projected, conv, dy]: [View<'_>; 3],
        into: RuleTargets<'_>,
        [da_log, dbias]: [ViewMut<'_>; 2],
        ends: BackEnds<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let Config { nheads, ngroups, dstate, .. } = *self.config;
        let (sequences, keys) = (self.steps.sequences, ngroups * dstate);
        let args = self.args(projected, conv).initial_state(ends.initial.map(|state| state.split(1, nheads)));
        let call = gated_delta_rule::prepare(self.exec, &args)?;
        let (dq, rest) = into.conv.split(0, sequences).split_at(2, keys);
        let (dk, dv) = rest.split_at(2, keys);
        let (before, dg) = into.projected.split(0, sequences).split_at(2, self.columns.decay.start);
        let mut grads = gated_delta_rule::Gradients::default()
            .q(dq.split(2, ngroups))
            .k(dk.split(2, ngroups))
            .v(dv.split(2, nheads))
            .g(dg)
            .beta(before.slice(2, self.columns.beta.clone()))
            .a_log(da_log)
            .dt_bias(dbias)
            .initial_state(ends.first.map(|state| state.split(1, nheads)))
            .workspace(workspace.view_mut(self.exec, call.backward_workspace_len(false)?)?);
        let dy = self.steps.of(dy).split(2, nheads);
        let cotangents = gated_delta_rule::Cotangents::default().y(dy).final_state(ends.last.map(|state| state.split(1, nheads)));
        Ok(call.backward(None, &cotangents, &mut grads)?)
    }

    /// The arguments of the norm of each head of rows `y`, (rows, inner).
    fn norm_args<'r>(&self, y: View<'r>, projected: View<'r>) -> norm::Args<'r>
    where
        'i: 'r,
    {
        let nheads = self.config.nheads;
        norm::Args::new(y.split(1, nheads))
            .weight(self.weights.norm)
            .z(projected.slice(1, self.columns.gate.clone()).split(1, nheads))
            .norm_before_gate(true)
            .eps(f64::from(self.config.mixer_eps))
    }

    /// The norm of the rule's rows `y`, and then the gate, to rows `to`.
    pub(super) fn gated_norm(&self, y: View<'_>, projected: View<'_>, to: ViewMut<'_>) -> Result<()> {
        let to = to.split(1, self.config.nheads);
        Ok(norm::forward(self.exec, &self.norm_args(y, projected), &mut norm::Outputs::default().y(to))?)
    }

    /// From the gradient `dgated` by its results to those by the rule's, `dy`, by the gate's columns and by its weight.
    pub(super) fn gated_norm_backward(
        &self,
        [y, projected, dgated]: [View<'_>; 3],
        dy: ViewMut<'_>,
        dprojected: ViewMut<'_>,
        dweight: ViewMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let (args, nheads) = (self.norm_args(y, projected), self.config.nheads);
        let call = norm::prepare(self.exec, &args)?;
        let mut grads = norm::Gradients::default()
            .x(dy.split(1, nheads))
            .z(dprojected.slice(1, self.columns.gate.clone()).split(1, nheads))
            .weight(dweight)
            .workspace(workspace.view_mut(self.exec, call.backward_workspace_len(false)?)?);
        Ok(call.backward(None, &norm::Cotangents::default().y(dgated.split(1, nheads)), &mut grads)?)
    }
}
