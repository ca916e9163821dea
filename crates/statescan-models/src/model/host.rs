//! A model on the host, and what its training needs there. All of it goes row by row, or number by number.

use super::Model;
use super::whole::{Added, LogitRows, Trains, Whole};
use crate::error::Result;
use crate::kernels::training::{TokenRows, Zeros};
use crate::mixer::numbers::{rows, rows_mut};
use crate::mixer::{Device as _, Host, Multiplied, Room};
use crate::random::Random;
use statescan::{DType, View, ViewMut, linear};

impl Model {
    /// The model on the host.
    pub(super) fn whole<'m>(&'m self, host: &'m Host<'m>) -> Whole<'m> {
        let vector = |weight: &'m Vec<f32>| View::new(weight, &[weight.len()]).expect("as many as the shape has");
        Whole {
            device: host,
            config: &self.config,
            dtype: DType::F32,
            embedding: self.embedding.view(),
            head: self.head.view(),
            norms: self.blocks.iter().map(|block| &block.norm).chain([&self.norm]).map(vector).collect(),
            mixers: self.blocks.iter().map(|block| block.mixer.run(&self.config, host)).collect(),
        }
    }
}

impl Trains for Host<'_> {
    fn losses(&self) -> DType {
        DType::F64
    }

    fn mean(&self, losses: &Room, count: usize) -> Result<f64> {
        Ok(rows::<f64>(&losses.of(count)).flatten().sum())
    }

    fn embedding(&self, table: View<'_>, tokens: View<'_>, factor: f32, y: &mut ViewMut<'_>) -> Result<()> {
        for (to, token) in rows_mut::<f32>(y).zip(rows::<i32>(&tokens).flatten()) {
            let from = table.index(0, *token as usize);
            rows::<f32>(&from).for_each(|from| to.iter_mut().zip(from).for_each(|(to, x)| *to = x * factor));
        }
        Ok(())
    }

    fn embedding_backward(
        &self,
        (tokens, _): (View<'_>, Option<&TokenRows>),
        dy: View<'_>,
        factor: f32,
        table: &mut ViewMut<'_>,
    ) -> Result<()> {
        for (from, token) in rows::<f32>(&dy).zip(rows::<i32>(&tokens).flatten()) {
            let mut to = table.reborrow().index(0, *token as usize);
            rows_mut::<f32>(&mut to).for_each(|to| to.iter_mut().zip(from).for_each(|(to, x)| *to += factor * x));
        }
        Ok(())
    }

    fn add(&self, added: Added<'_>, before: Option<View<'_>>, y: &mut ViewMut<'_>, room: &mut Room) -> Result<()> {
        let [count, dim] = [y.shape()[0], y.shape()[1]];
        room.grow(self.0, DType::F32, count, dim)?;
        self.product(added.x, added.product, &mut room.of_mut(count))?;
        drop_some(added.zeros, &mut room.of_mut(count));
        if let Some(before) = before {
            rows_mut::<f32>(y).zip(rows::<f32>(&before)).for_each(|(y, before)| y.copy_from_slice(before));
        }
        for (y, term) in rows_mut::<f32>(y).zip(rows::<f32>(&room.of(count))) {
            y.iter_mut().zip(term).for_each(|(y, x)| *y += added.factor * x);
        }
        Ok(())
    }

    fn dropout(&self, x: View<'_>, zeros: Option<Zeros>, factor: f32, y: &mut ViewMut<'_>) -> Result<()> {
        for (y, x) in rows_mut::<f32>(y).zip(rows::<f32>(&x)) {
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x * factor);
        }
        drop_some(zeros, y);
        Ok(())
    }

    fn cross_entropy(&self, of: LogitRows<'_>) -> Result<()> {
        let LogitRows { logits, gradient, mut losses, targets, batch, divisor, .. } = of;
        let targets = rows::<i32>(&targets).flatten();
        let mut all = logits.of_mut(losses.shape()[0]);
        for ((row, loss), &target) in rows_mut::<f32>(&mut all).zip(rows_mut::<f64>(&mut losses)).zip(targets) {
            row.iter_mut().for_each(|x| *x /= divisor);
            loss[0] = cross_entropy(row, target as usize, batch);
            row.iter_mut().for_each(|x| *x /= divisor);
        }
        std::mem::swap(logits, gradient);
        Ok(())
    }

    /// Logits of all rows are there at once, so that nothing was there before.
    fn head_backward(&self, of: Multiplied<'_>, dx: &mut ViewMut<'_>, dweight: &mut ViewMut<'_>, _: bool) -> Result<()> {
        let mut grads = linear::Gradients::default().x(dx.reborrow()).weight(dweight.reborrow());
        Ok(linear::backward(self.0, of.x, of.product.weight, of.dy, &mut grads)?)
    }

    fn scale(&self, y: &mut ViewMut<'_>, x: View<'_>) -> Result<()> {
        for (y, x) in rows_mut::<f32>(y).zip(rows::<f32>(&x)) {
            y.iter_mut().zip(x).for_each(|(y, x)| *y *= x);
        }
        Ok(())
    }
}

/// Random zeros in dense rows.
fn drop_some(zeros: Option<Zeros>, numbers: &mut ViewMut<'_>) {
    let Some(Zeros { share, seed }) = zeros else { return };
    let mut random = Random::new(seed);
    let (least, scale) = ((share * 65536.0) as u64, (1.0 / (1.0 - share)) as f32);
    let (mut bits, mut left) = (0, 0);
    for x in rows_mut::<f32>(numbers).flatten() {
        if left == 0 {
            (bits, left) = (random.bits(), 4);
        }
        *x = if bits & 0xffff < least { 0.0 } else { *x * scale };
        (bits, left) = (bits >> 16, left - 1);
    }
}

/// The share of one row in the mean of `-log softmax(logits)[target]` over so many rows; the logits become its gradient.
fn cross_entropy(logits: &mut [f32], target: usize, rows: usize) -> f64 {
    let highest = logits.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x));
    let chosen = logits[target] - highest;
    logits.iter_mut().for_each(|x| *x = (*x - highest).exp());
    let sum: f32 = logits.iter().sum();
    let scale = 1.0 / (sum * rows as f32);
    logits.iter_mut().for_each(|x| *x *= scale);
    logits[target] -= 1.0 / rows as f32;
    (f64::from(sum).ln() - f64::from(chosen)) / rows as f64
}
