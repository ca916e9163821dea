//! One row of one sequence on a GPU: a few fused kernels for each mixer, which are recorded in a graph.

use super::weights::Linear;
use crate::config::Config;
use crate::error::Result;
use crate::kernels::{Before, RowProduct, row_product};
use statescan::{Exec, View, ViewMut};

/// The kernels of one kind for one row. Everything that they hand on is f32.
pub(crate) trait OneRow {
    /// Numbers that its kernels hand on: from the first product, to step sizes and maps, and to the last product.
    fn rooms(&self, config: &Config) -> [usize; 3];

    /// Records the way of the stream's row through a mixer, whose states are carried on in place; it has these rooms.
    fn record(&self, row: Row<'_>, rooms: [ViewMut<'_>; 3]) -> Result<()>;
}

/// A row, and the mixer that it goes through.
pub(crate) struct Row<'r> {
    pub(crate) exec: &'r Exec,
    pub(crate) config: &'r Config,
    /// The norm in front of the mixer.
    pub(crate) norm: Before<'r>,
    /// The stream, (dim), which the mixer adds to.
    pub(crate) stream: ViewMut<'r>,
    /// Weights in the order in which the kind names them, and what it derives from them.
    pub(crate) weights: Vec<View<'r>>,
    pub(crate) derived: Vec<View<'r>>,
    /// In its order too; those that grow have room for more tokens.
    pub(crate) states: Vec<ViewMut<'r>>,
    /// Tokens that came before, (1) in i32.
    pub(crate) position: View<'r>,
}

impl Row<'_> {
    /// A product of the normed stream.
    pub(super) fn project(&self, Linear { weight, bias }: Linear<View<'_>>, to: &mut ViewMut<'_>) -> Result<()> {
        let product = RowProduct { before: self.norm, bias, ..RowProduct::new(weight, self.stream.as_view()) };
        Ok(row_product(self.exec, &product, None, to)?)
    }

    /// Adds the last product, of `x`, to the stream. `moved` is a convolution whose state moves on by its input.
    pub(super) fn add(
        &mut self,
        Linear { weight, bias }: Linear<View<'_>>,
        before: Before<'_>,
        x: View<'_>,
        moved: Option<(View<'_>, &mut ViewMut<'_>)>,
    ) -> Result<()> {
        let factor = self.config.scales.residual;
        let product = RowProduct { before, factor, bias, add: true, ..RowProduct::new(weight, x) };
        Ok(row_product(self.exec, &product, moved, &mut self.stream)?)
    }
}
