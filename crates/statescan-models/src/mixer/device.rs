//! What the passes of a mixer need of a device beside the operations, which take views of every device: products.

use super::weights::Linear;
use crate::error::Result;
use statescan::tensor::Workspace;
use statescan::{Exec, View, ViewMut, linear};

/// Rows that were multiplied, by what, and the gradient by the results.
#[derive(Clone, Copy)]
pub(crate) struct Multiplied<'m> {
    pub(crate) x: View<'m>,
    pub(crate) product: Linear<View<'m>>,
    pub(crate) dy: View<'m>,
}

/// A device that mixers run on.
pub(crate) trait Device {
    fn exec(&self) -> &Exec;

    /// Whether scans go step by step, so that a state is what its tokens make it however they were cut.
    fn step_by_step(&self) -> bool;

    /// `y = x W^T + bias`.
    fn product(&self, x: View<'_>, of: Linear<View<'_>>, y: &mut ViewMut<'_>) -> Result<()>;

    /// Gradients of a product: by its rows to `dx`, or with `add` added to it, by its weight, and by its bias where it has one.
    fn product_backward(
        &self,
        of: Multiplied<'_>,
        dx: &mut ViewMut<'_>,
        add: bool,
        into: Linear<ViewMut<'_>>,
        workspace: &mut Workspace,
    ) -> Result<()>;
}

/// The CPU. Its products go row by row.
#[derive(Clone, Copy)]
pub(crate) struct Host<'h>(pub(crate) &'h Exec);

impl Device for Host<'_> {
    fn exec(&self) -> &Exec {
        self.0
    }

    fn step_by_step(&self) -> bool {
        true
    }

    fn product(&self, x: View<'_>, of: Linear<View<'_>>, y: &mut ViewMut<'_>) -> Result<()> {
        Ok(linear::forward(self.0, x, of.weight, of.bias, y.reborrow())?)
    }

    fn product_backward(
        &self,
        of: Multiplied<'_>,
        dx: &mut ViewMut<'_>,
        add: bool,
        into: Linear<ViewMut<'_>>,
        _: &mut Workspace,
    ) -> Result<()> {
        let mut grads = linear::Gradients::default().x(dx.reborrow()).add_to_x(add).weight(into.weight).bias(into.bias);
        Ok(linear::backward(self.0, of.x, of.product.weight, of.dy, &mut grads)?)
    }
}
