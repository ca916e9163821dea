//! The way back through rows: gradients of linear layers and norms.

use super::{Columns, Linear};
use crate::error::Result;
use crate::state::LayerState;
use crate::tensors::Slots;
use statescan::{Exec, View, ViewMut, linear};

/// Rows of equal sequences: what training works on.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'p> {
    pub(crate) exec: &'p Exec,
    pub(crate) count: usize,
    pub(crate) seqlen: usize,
}

/// What is known, and what is asked for, at the ends of the sequences of a batch; all of it has a first axis of sequences.
#[derive(Default)]
pub(crate) struct Ends<'e> {
    /// States before the first step; zero if none are given.
    pub(crate) initial: Option<&'e LayerState>,
    /// Gradients by the states after the last step; zero if none are given.
    pub(crate) last: Option<&'e LayerState>,
    /// Gradients by the states before the first step, to be written.
    pub(crate) first: Option<&'e mut LayerState>,
}

impl Batch<'_> {
    pub(crate) fn rows(&self) -> usize {
        self.count * self.seqlen
    }
}

/// Some columns of rows, to be written.
pub(crate) struct ColumnsMut<'c> {
    pub(crate) data: &'c mut [f32],
    pub(crate) first: usize,
    pub(crate) pitch: usize,
}

impl<'c> Columns<'c> {
    /// `count` columns of a batch as (batch, channels, steps).
    pub(crate) fn batch(&self, batch: Batch<'_>, count: usize) -> statescan::Result<View<'c>> {
        View::strided(self.data, self.first, &[batch.count, count, batch.seqlen], &strides(batch, self.pitch))
    }

    /// Columns of a batch as (batch, groups, states, steps).
    pub(crate) fn batch_maps(&self, batch: Batch<'_>, groups: usize, dstate: usize) -> statescan::Result<View<'c>> {
        let [row, _, step] = strides(batch, self.pitch);
        let shape = [batch.count, groups, dstate, batch.seqlen];
        View::strided(self.data, self.first, &shape, &[row, dstate as isize, 1, step])
    }
}

impl<'c> ColumnsMut<'c> {
    /// Rows of a matrix, all columns.
    pub(crate) fn whole(data: &'c mut [f32], pitch: usize) -> Self {
        ColumnsMut { data, first: 0, pitch }
    }

    /// `count` columns of some rows as (rows, columns).
    pub(crate) fn matrix(self, rows: usize, count: usize) -> statescan::Result<ViewMut<'c>> {
        ViewMut::strided(self.data, self.first, &[rows, count], &[self.pitch as isize, 1])
    }

    /// `count` columns of a batch as (batch, channels, steps).
    pub(crate) fn batch(self, batch: Batch<'_>, count: usize) -> statescan::Result<ViewMut<'c>> {
        let strides = strides(batch, self.pitch);
        ViewMut::strided(self.data, self.first, &[batch.count, count, batch.seqlen], &strides)
    }

    /// Columns of a batch as (batch, groups, states, steps).
    pub(crate) fn batch_maps(self, batch: Batch<'_>, groups: usize, dstate: usize) -> statescan::Result<ViewMut<'c>> {
        let [row, _, step] = strides(batch, self.pitch);
        let shape = [batch.count, groups, dstate, batch.seqlen];
        ViewMut::strided(self.data, self.first, &shape, &[row, dstate as isize, 1, step])
    }
}

fn strides(batch: Batch<'_>, pitch: usize) -> [isize; 3] {
    [(batch.seqlen * pitch) as isize, 1, pitch as isize]
}

impl Linear {
    /// The gradient by the rows of `x` where it is wanted, and those by weight and bias, `name.weight` and `name.bias`.
    pub(crate) fn backward(
        &self,
        batch: Batch<'_>,
        x: Columns<'_>,
        dy: Columns<'_>,
        dx: ColumnsMut<'_>,
        slots: &mut Slots<'_>,
        name: &str,
    ) -> Result<()> {
        let (rows, [outputs, inputs]) = (batch.rows(), [self.weight.shape()[0], self.weight.shape()[1]]);
        let mut bias = vec![0.0; if self.bias.is_some() { outputs } else { 0 }];
        let weight = slots.of(&format!("{name}.weight"));
        let mut grads = linear::Gradients::default();
        grads = grads.x(dx.matrix(rows, inputs)?).weight(ViewMut::new(weight, &[outputs, inputs])?);
        if self.bias.is_some() {
            grads = grads.bias(ViewMut::new(&mut bias, &[outputs])?);
        }
        linear::backward(batch.exec, x.matrix(rows, inputs)?, self.weight.view(), dy.matrix(rows, outputs)?, &mut grads)?;
        if self.bias.is_some() {
            slots.of(&format!("{name}.bias")).copy_from_slice(&bias);
        }
        Ok(())
    }
}

/// The gradient of [`normalize`](super::normalize) by a row, from the row before it and the gradient of the row after it, which it takes the
/// place of; that by the weights is added to `dweight`.
///
/// ```text
/// n = x r,  r = 1 / sqrt(mean(x^2) + eps),  y = w n:      dn = w dy      dx = r (dn - n mean(dn n))      dw = dy n
/// ```
pub(crate) fn normalize_backward(x: &[f32], weight: Option<(&[f32], &mut [f32])>, eps: f32, dy: &mut [f32]) {
    let mean = super::sum_of_squares(x) / x.len() as f32;
    let r = 1.0 / (mean + eps).sqrt();
    if let Some((weight, dweight)) = weight {
        for i in 0..x.len() {
            dweight[i] += dy[i] * x[i] * r;
            dy[i] *= weight[i];
        }
    }
    let projection = dy.iter().zip(x).map(|(dn, x)| dn * x).sum::<f32>() * r / x.len() as f32;
    dy.iter_mut().zip(x).for_each(|(dn, x)| *dn = r * (*dn - x * r * projection));
}
