//! A GPU as a device of mixers and of training: cuBLASLt's products, and the kernels of the crate.

use crate::error::Result;
use crate::kernels::hybrid::{
    accumulate, cast, gate, gate_backward, output_gate, output_gate_backward, rope, softmax, softmax_backward,
};
use crate::kernels::training::{
    TokenRows, Zeros, clear, column_sums, column_sums_workspace_len, cross_entropy, dropout, embedding_backward, scale_by,
};
use crate::kernels::{Products, embedding};
use crate::mixer::{Device, Heads, Linear, Multiplied, Room};
use crate::model::whole::{Added, LogitRows, Trains};
use statescan::tensor::Workspace;
use statescan::{DType, Exec, View, ViewMut};

/// A GPU.
pub(crate) struct Gpu {
    exec: Exec,
    products: Products,
}

impl Gpu {
    pub(crate) fn new(exec: &Exec) -> Result<Self> {
        Ok(Gpu { exec: exec.clone(), products: Products::new(exec)? })
    }
}

impl Device for Gpu {
    fn exec(&self) -> &Exec {
        &self.exec
    }

    fn step_by_step(&self) -> bool {
        false
    }

    fn product(&self, x: View<'_>, of: Linear<View<'_>>, y: &mut ViewMut<'_>) -> Result<()> {
        Ok(self.products.multiply(x, of.weight, of.bias, y, false)?)
    }

    fn product_backward(
        &self,
        of: Multiplied<'_>,
        dx: &mut ViewMut<'_>,
        add: bool,
        into: Linear<ViewMut<'_>>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let (Multiplied { x, product, dy }, Linear { mut weight, bias }) = (of, into);
        self.products.multiply(dy, product.weight.permute(&[1, 0]), None, dx, add)?;
        self.products.multiply(dy.permute(&[1, 0]), x.permute(&[1, 0]), None, &mut weight, false)?;
        let Some(mut bias) = bias else { return Ok(()) };
        let mut scratch = workspace.view_mut(&self.exec, column_sums_workspace_len(dy.shape()[0], dy.shape()[1]))?;
        Ok(column_sums(&self.exec, dy, &mut bias, &mut scratch)?)
    }

    fn transposed<'t>(&self, matrix: View<'t>, _: &'t mut Room) -> Result<View<'t>> {
        Ok(matrix.permute(&[1, 0]))
    }

    fn rope(&self, x: View<'_>, of: &Heads<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        Ok(rope(&self.exec, x, of, y)?)
    }

    fn cast(&self, x: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        Ok(cast(&self.exec, x, y)?)
    }

    fn softmax(&self, scores: &mut ViewMut<'_>, seen: usize, scale: f32) -> Result<()> {
        Ok(softmax(&self.exec, scores, seen, scale)?)
    }

    fn softmax_backward(&self, gradients: &mut ViewMut<'_>, shares: View<'_>, scale: f32) -> Result<()> {
        Ok(softmax_backward(&self.exec, gradients, shares, scale)?)
    }

    fn gate(&self, both: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        Ok(gate(&self.exec, both, y)?)
    }

    fn gate_backward(&self, both: View<'_>, dy: View<'_>, dboth: &mut ViewMut<'_>) -> Result<()> {
        Ok(gate_backward(&self.exec, both, dy, dboth)?)
    }

    fn output_gate(&self, queries: View<'_>, headdim: usize, y: &mut ViewMut<'_>) -> Result<()> {
        Ok(output_gate(&self.exec, queries, headdim, y)?)
    }

    fn output_gate_backward(
        &self,
        from: [View<'_>; 2],
        headdim: usize,
        dy: &mut ViewMut<'_>,
        dqueries: &mut ViewMut<'_>,
    ) -> Result<()> {
        Ok(output_gate_backward(&self.exec, from, headdim, dy, dqueries)?)
    }

    fn accumulate(&self, x: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        Ok(accumulate(&self.exec, x, y)?)
    }

    fn clear(&self, y: &mut ViewMut<'_>) -> Result<()> {
        Ok(clear(&self.exec, y)?)
    }
}

impl Trains for Gpu {
    fn losses(&self) -> DType {
        DType::F32
    }

    fn mean(&self, losses: &Room, rows: usize) -> Result<f64> {
        Ok(losses.to_vec(rows)?.into_iter().map(f64::from).sum::<f64>() / rows as f64)
    }

    fn embedding(&self, table: View<'_>, tokens: View<'_>, factor: f32, y: &mut ViewMut<'_>) -> Result<()> {
        Ok(embedding(&self.exec, table, tokens.index(1, 0), factor, y)?)
    }

    fn embedding_backward(
        &self,
        (_, order): (View<'_>, Option<&TokenRows>),
        dy: View<'_>,
        factor: f32,
        table: &mut ViewMut<'_>,
    ) -> Result<()> {
        Ok(embedding_backward(&self.exec, order.expect("sorted before it is used"), dy, factor, table)?)
    }

    fn add(&self, added: Added<'_>, before: Option<View<'_>>, y: &mut ViewMut<'_>, room: &mut Room) -> Result<()> {
        // the bias has the factor already
        let Added { x, product: Linear { weight, bias }, factor, zeros } = added;
        let Some(before) = before else { return Ok(self.products.add_multiple(x, weight, bias, factor, y)?) };
        if zeros.is_none() && factor == 1.0 {
            return Ok(self.products.multiply_add(x, weight, bias, before, y)?);
        }
        dropout(&self.exec, before, (None, 1.0), y, false)?;
        if zeros.is_none() {
            return Ok(self.products.add_multiple(x, weight, bias, factor, y)?);
        }
        let rows = y.shape()[0];
        room.grow(&self.exec, DType::F32, rows, y.shape()[1])?;
        clear(&self.exec, &mut room.of_mut(rows))?;
        self.products.add_multiple(x, weight, bias, factor, &mut room.of_mut(rows))?;
        Ok(dropout(&self.exec, room.of(rows), (zeros, 1.0), y, true)?)
    }

    fn dropout(&self, x: View<'_>, zeros: Option<Zeros>, factor: f32, y: &mut ViewMut<'_>) -> Result<()> {
        Ok(dropout(&self.exec, x, (zeros, factor), y, false)?)
    }

    fn cross_entropy(&self, of: LogitRows<'_>) -> Result<()> {
        let LogitRows { logits, gradient, losses, targets, batch, unit, divisor } = of;
        let (count, scale) = (targets.shape()[0], unit / batch as f32);
        let (targets, losses, gradient) = (targets.index(1, 0), &mut losses.index(1, 0), &mut gradient.of_mut(count));
        Ok(cross_entropy(&self.exec, logits.of(count), targets, [scale, divisor], losses, gradient)?)
    }

    fn head_backward(&self, of: Multiplied<'_>, dx: &mut ViewMut<'_>, dweight: &mut ViewMut<'_>, add: bool) -> Result<()> {
        let Multiplied { x, product, dy } = of;
        self.products.multiply(dy, product.weight.permute(&[1, 0]), None, dx, false)?;
        Ok(self.products.multiply(dy.permute(&[1, 0]), x.permute(&[1, 0]), None, dweight, add)?)
    }

    fn scale(&self, y: &mut ViewMut<'_>, x: View<'_>) -> Result<()> {
        Ok(scale_by(&self.exec, y, x)?)
    }
}
