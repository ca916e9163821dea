//! The operations of a device that mixers need beside those on views of every device: products, and the operations of hybrids
//! between them.

use super::Room;
use super::weights::Linear;
use crate::error::Result;
pub(crate) use crate::kernels::hybrid::Heads;
use statescan::tensor::Workspace;
use statescan::{Exec, View, ViewMut};

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

    /// The transpose of a matrix as the weight of a product; it may take a room.
    fn transposed<'t>(&self, matrix: View<'t>, room: &'t mut Room) -> Result<View<'t>>;

    /// Rotary positions: rows `y` that are rows `x` with each head turned by its position, or back, or where there are no angles as it is.
    fn rope(&self, x: View<'_>, of: &Heads<'_>, y: &mut ViewMut<'_>) -> Result<()>;

    /// Rows in another type.
    fn cast(&self, x: View<'_>, y: &mut ViewMut<'_>) -> Result<()>;

    /// Makes scores (rows, columns) the shares of what each row attends to: the softmax of `scale` times them, over the first `seen` columns in the first
    /// row and one more in each that follows. The shares of others are zero.
    fn softmax(&self, scores: &mut ViewMut<'_>, seen: usize, scale: f32) -> Result<()>;

    /// From gradients by shares to those by scores, in place.
    fn softmax_backward(&self, gradients: &mut ViewMut<'_>, shares: View<'_>, scale: f32) -> Result<()>;

    /// `y = silu(gates) ups`, from rows that have both behind one another.
    fn gate(&self, both: View<'_>, y: &mut ViewMut<'_>) -> Result<()>;

    /// From the gradients by `y` to those by gates and by ups.
    fn gate_backward(&self, both: View<'_>, dy: View<'_>, dboth: &mut ViewMut<'_>) -> Result<()>;

    /// `y = y sigmoid(gates)`, in f32: heads whose gates lie behind the queries of each, as many numbers.
    fn output_gate(&self, queries: View<'_>, headdim: usize, y: &mut ViewMut<'_>) -> Result<()>;

    /// From the gradients by the results, `gated`, to those by what was multiplied, in place, and by the gates, which lie as those in `queries` do.
    fn output_gate_backward(
        &self,
        from: [View<'_>; 2],
        headdim: usize,
        dy: &mut ViewMut<'_>,
        dqueries: &mut ViewMut<'_>,
    ) -> Result<()>;

    /// Adds a matrix in f32, or the transpose of one, to rows.
    fn accumulate(&self, x: View<'_>, y: &mut ViewMut<'_>) -> Result<()>;

    /// `y = 0`.
    fn clear(&self, y: &mut ViewMut<'_>) -> Result<()>;
}
