//! What the passes of a mixer need of a device beside the operations, which take views of every device: products, and scans of heads.

use super::forward::Run;
use super::{OfProduct, Product};
use crate::error::Result;
use crate::inner::{Ends, Steps};
use crate::rooms::{Room, Rooms};
use statescan::tensor::Workspace;
use statescan::{Exec, View, ViewMut, linear};
use std::ops::Range;

/// Rows that were multiplied, by what, and the gradient by the results.
#[derive(Clone, Copy)]
pub(crate) struct Multiplied<'m> {
    pub(crate) x: View<'m>,
    pub(crate) product: Product<'m>,
    pub(crate) dy: View<'m>,
}

/// A device that mixers run on.
pub(crate) trait Device {
    fn exec(&self) -> &Exec;

    /// `y = x W^T + bias`.
    fn product(&self, x: View<'_>, of: Product<'_>, y: &mut ViewMut<'_>) -> Result<()>;

    /// Gradients of a product: by its rows to `dx`, or with `add` added to it, by its weight, and by its bias where it has one.
    fn product_backward(
        &self,
        of: Multiplied<'_>,
        dx: &mut ViewMut<'_>,
        add: bool,
        into: OfProduct<'_>,
        workspace: &mut Workspace,
    ) -> Result<()>;

    /// The scan of Mamba-2 over some rows, from `projected` and `conv` to `scan`, without the gate.
    fn scan_heads(&self, run: &Run<'_>, (rows, steps): (Range<usize>, Steps), states: Ends<'_>, rooms: &mut Rooms) -> Result<()> {
        let Rooms { projected, conv, scan, workspace, .. } = rooms;
        let from = [projected, conv].map(|room| part(room, &rows));
        run.inner(steps).ssd(from, states, scan.of_mut(rows.end).slice(0, rows), workspace)
    }
}

/// Some rows of a room.
pub(super) fn part<'r>(room: &'r Room, rows: &Range<usize>) -> View<'r> {
    room.of(rows.end).slice(0, rows.clone())
}

/// The CPU. Its scans go step by step and its products row by row, so that a state is what its tokens make it however they were cut.
pub(crate) struct Host<'h>(pub(crate) &'h Exec);

impl Device for Host<'_> {
    fn exec(&self) -> &Exec {
        self.0
    }

    fn product(&self, x: View<'_>, of: Product<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        Ok(linear::forward(self.0, x, of.weight, of.bias, y.reborrow())?)
    }

    fn product_backward(
        &self,
        of: Multiplied<'_>,
        dx: &mut ViewMut<'_>,
        add: bool,
        into: OfProduct<'_>,
        _: &mut Workspace,
    ) -> Result<()> {
        let mut grads = linear::Gradients::default().x(dx.reborrow()).add_to_x(add).weight(into.weight).bias(into.bias);
        Ok(linear::backward(self.0, of.x, of.product.weight, of.dy, &mut grads)?)
    }

    /// A head's step sizes are those of each of its channels, and so are its parameters.
    fn scan_heads(&self, run: &Run<'_>, (rows, steps): (Range<usize>, Steps), states: Ends<'_>, rooms: &mut Rooms) -> Result<()> {
        let (config, Rooms { projected, conv, dt, scan, workspace, .. }) = (run.config, rooms);
        let (columns, headdim, first) = (config.in_proj(), config.headdim(), config.conv_columns().end);
        let heads = projected.numbers().chunks_exact(columns).map(|row| &row[first..]);
        let spread = dt.numbers_mut().chunks_exact_mut(config.inner);
        for (dt, heads) in spread.zip(heads).take(rows.end).skip(rows.start) {
            dt.chunks_exact_mut(headdim).zip(heads).for_each(|(channels, &dt)| channels.fill(dt));
        }
        let from = [conv, dt].map(|room| part(room, &rows));
        let parameters = run.weights.channels.expect("those of each channel on the host");
        let y = scan.of_mut(rows.end).slice(0, rows);
        run.inner(steps).scan_channels(from, parameters, states, y, workspace)
    }
}
