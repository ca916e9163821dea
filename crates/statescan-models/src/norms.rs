//! RMSNorm of the stream, in front of a block and of the head.

use crate::error::Result;
use statescan::ops::norm::{Args, Cotangents, Gradients, Outputs, forward, prepare};
use statescan::tensor::Workspace;
use statescan::{Exec, View, ViewMut};

/// A norm of rows (rows, dim).
#[derive(Clone, Copy)]
pub(crate) struct StreamNorm<'n> {
    pub(crate) exec: &'n Exec,
    pub(crate) weight: View<'n>,
    pub(crate) eps: f32,
}

/// Gradients that a norm of the stream writes.
pub(crate) struct OfStream<'t> {
    /// By the stream in front of the norm.
    pub(crate) front: ViewMut<'t>,
    /// This gradient for the block in front, in the type of its activations.
    pub(crate) rounded: Option<ViewMut<'t>>,
    pub(crate) weight: ViewMut<'t>,
}

impl<'n> StreamNorm<'n> {
    pub(crate) fn forward(&self, stream: View<'_>, to: ViewMut<'_>) -> Result<()> {
        let args = Args::new(stream).weight(self.weight).eps(f64::from(self.eps));
        Ok(forward(self.exec, &args, &mut Outputs::default().y(to))?)
    }

    /// The way back: from the gradient `dy` by the results, and that by the stream behind, which is the same stream, where there is one. `zeros` is a
    /// row of them, in the type of the rounded gradient.
    pub(crate) fn backward(
        &self,
        stream: View<'_>,
        dy: View<'_>,
        behind: Option<View<'_>>,
        into: OfStream<'_>,
        zeros: View<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        // the stream is its sum with zeros: the gradient by either part is the same, and each has its type
        let args = Args::new(zeros.expand(0, stream.shape()[0])).residual(stream).weight(self.weight).eps(f64::from(self.eps));
        let call = prepare(self.exec, &args)?;
        let mut grads = Gradients::default()
            .x(into.rounded)
            .residual(into.front)
            .weight(into.weight)
            .workspace(workspace.view_mut(self.exec, call.backward_workspace_len(false)?)?);
        Ok(call.backward(None, &Cotangents::default().y(dy).sum(behind), &mut grads)?)
    }
}
