//! One row of one sequence on a GPU: a few fused kernels for each mixer, which are recorded in a graph.

use crate::config::Config;
use crate::error::Result;
use crate::kernels::{Before, RowProduct, row_product};
use statescan::tensor::Tensor;
use statescan::{Exec, View, ViewMut};

/// What a kind does with one row there. Everything that kernels hand on is f32.
pub(crate) trait OneRow {
    /// Numbers that its kernels hand on: from the first product, to step sizes and maps, and to the last product.
    fn rooms(&self, config: &Config) -> [usize; 3];

    /// Records the way of the stream's row through a mixer, whose states are carried on in place.
    fn record(&self, row: Row<'_>) -> Result<()>;
}

/// A row, and the mixer that it goes through.
pub(crate) struct Row<'r> {
    pub(crate) exec: &'r Exec,
    pub(crate) config: &'r Config,
    /// The norm in front of the mixer.
    pub(crate) norm: Before<'r>,
    /// The stream, (dim), which the mixer adds to.
    pub(crate) stream: ViewMut<'r>,
    pub(crate) rooms: &'r mut [Tensor; 3],
    /// In the order in which the kind names them.
    pub(crate) weights: Vec<View<'r>>,
    /// In its order too.
    pub(crate) states: Vec<ViewMut<'r>>,
}

impl Row<'_> {
    /// The first product, of the normed stream.
    pub(super) fn project(&mut self, weight: View<'_>, bias: Option<View<'_>>) -> Result<()> {
        let into = RowProduct { before: self.norm, bias, ..RowProduct::new(weight, self.stream.as_view()) };
        Ok(row_product(self.exec, &into, None, &mut self.rooms[0].view_mut())?)
    }
}
