//! One row of one sequence on a GPU: a few fused kernels for each mixer, which are recorded in a graph.

use super::weights::Linear;
use crate::config::Config;
use crate::error::Result;
use crate::kernels::hybrid::accumulate;
use crate::kernels::{Before, RowProduct, row_product};
use crate::norms::StreamNorm;
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
    /// The norm in front of the mixer, and the weight of the one behind it, with rows (2, dim) for its input and its results: it has one of them.
    pub(crate) norm: Before<'r>,
    pub(crate) behind: Option<(View<'r>, ViewMut<'r>)>,
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

    /// Adds the last product, of `x`, to the stream, with the norm that follows it. `moved` is a convolution whose state moves on by its input.
    pub(super) fn add(
        &mut self,
        Linear { weight, bias }: Linear<View<'_>>,
        before: Before<'_>,
        x: View<'_>,
        moved: Option<(View<'_>, &mut ViewMut<'_>)>,
    ) -> Result<()> {
        if let Some((norm, rows)) = &mut self.behind {
            let (mut y, mut normed) = rows.reborrow().split_at(0, 1);
            let product = RowProduct { before, bias, ..RowProduct::new(weight, x) };
            row_product(self.exec, &product, moved, &mut y.reborrow().index(0, 0))?;
            let norm = StreamNorm { exec: self.exec, weight: *norm, eps: self.config.eps };
            norm.forward(y.as_view(), normed.reborrow())?;
            return Ok(accumulate(self.exec, normed.as_view(), &mut self.stream.reborrow().split(0, 1))?);
        }
        let factor = self.config.scales.residual;
        let product = RowProduct { before, factor, bias, add: true, ..RowProduct::new(weight, x) };
        Ok(row_product(self.exec, &product, moved, &mut self.stream)?)
    }
}
