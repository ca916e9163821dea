//! The CPU as a device of mixers.

use super::Room;
use super::device::{Device, Heads, Multiplied};
use super::numbers::{self, rows, rows_mut};
use super::weights::Linear;
use crate::error::Result;
use statescan::tensor::Workspace;
use statescan::{DType, Exec, View, ViewMut, linear};

/// The CPU. Its products go row by row, and everything else is of one row, or one number after the other, so that a row's bits do not depend on other rows.
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

    fn transposed<'t>(&self, matrix: View<'t>, room: &'t mut Room) -> Result<View<'t>> {
        let [count, columns] = [matrix.shape()[0], matrix.shape()[1]];
        room.grow(self.0, DType::F32, columns, count)?;
        let to = room.numbers_mut();
        for (i, row) in rows::<f32>(&matrix).enumerate() {
            row.iter().enumerate().for_each(|(column, &x)| to[column * count + i] = x);
        }
        Ok(room.of(columns))
    }

    fn rope(&self, x: View<'_>, of: &Heads<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        self.cast(x, y)?;
        rows_mut::<f32>(y).enumerate().for_each(|(i, row)| numbers::rope(row, of, of.first + i));
        Ok(())
    }

    /// Everything on the host is f32.
    fn cast(&self, x: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        rows_mut::<f32>(y).zip(rows::<f32>(&x)).for_each(|(to, from)| to.copy_from_slice(from));
        Ok(())
    }

    fn softmax(&self, scores: &mut ViewMut<'_>, seen: usize, scale: f32) -> Result<()> {
        rows_mut::<f32>(scores).enumerate().for_each(|(i, row)| numbers::softmax(row, seen + i, scale));
        Ok(())
    }

    fn softmax_backward(&self, gradients: &mut ViewMut<'_>, shares: View<'_>, scale: f32) -> Result<()> {
        numbers::softmax_backward(gradients, &shares, scale);
        Ok(())
    }

    fn gate(&self, both: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        let hidden = y.shape()[1];
        for (to, both) in rows_mut::<f32>(y).zip(rows::<f32>(&both)) {
            let (gates, ups) = both.split_at(hidden);
            to.iter_mut().zip(gates.iter().zip(ups)).for_each(|(to, (&gate, up))| *to = gate * numbers::sigmoid(gate) * up);
        }
        Ok(())
    }

    fn gate_backward(&self, both: View<'_>, dy: View<'_>, dboth: &mut ViewMut<'_>) -> Result<()> {
        numbers::gate_backward(&both, &dy, dboth);
        Ok(())
    }

    fn output_gate(&self, queries: View<'_>, headdim: usize, y: &mut ViewMut<'_>) -> Result<()> {
        numbers::output_gate(&queries, headdim, y);
        Ok(())
    }

    fn output_gate_backward(
        &self,
        [queries, gated]: [View<'_>; 2],
        headdim: usize,
        dy: &mut ViewMut<'_>,
        dqueries: &mut ViewMut<'_>,
    ) -> Result<()> {
        numbers::output_gate_backward([&queries, &gated], headdim, dqueries, &dy.as_view());
        numbers::output_gate(&queries, headdim, dy);
        Ok(())
    }

    fn accumulate(&self, x: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        match x.strides()[1] {
            1 => numbers::add(y, &x),
            _ => numbers::add_transposed(y, &x.permute(&[1, 0])),
        }
        Ok(())
    }

    fn clear(&self, y: &mut ViewMut<'_>) -> Result<()> {
        rows_mut::<f32>(y).for_each(|row| row.fill(0.0));
        Ok(())
    }
}
