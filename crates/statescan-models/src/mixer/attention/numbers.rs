//! What attention does to numbers between its products: rotation, softmax and its way back, transposition. All of it is of one row, or one number after
//! the other, so that a row's bits do not depend on other rows.

use crate::config::Attention;

/// The rotation of heads by their positions.
pub(super) struct Rotary {
    headdim: usize,
    /// Radians for each position, one for each pair of numbers that is rotated; the two of a pair are half of the rotated numbers apart.
    angles: Vec<f32>,
}

impl Rotary {
    pub(super) fn new(config: &Attention) -> Self {
        let Attention { headdim, rotary, theta, .. } = *config;
        let angle = |pair: usize| theta.powf(2.0 * pair as f64 / rotary as f64).recip() as f32;
        Rotary { headdim, angles: (0..rotary / 2).map(angle).collect() }
    }

    /// Rotates all heads of rows of so many numbers, which are at positions from `first` on; or back.
    pub(super) fn rotate(&self, rows: &mut [f32], columns: usize, first: usize, back: bool) {
        let (half, sign) = (self.angles.len(), if back { -1.0 } else { 1.0 });
        for (i, row) in rows.chunks_exact_mut(columns).enumerate().filter(|_| half > 0) {
            let turns: Vec<(f32, f32)> = self.angles.iter().map(|angle| ((first + i) as f32 * angle).sin_cos()).collect();
            for head in row.chunks_exact_mut(self.headdim) {
                let (low, high) = head.split_at_mut(half);
                for ((x, y), (sin, cos)) in low.iter_mut().zip(high).zip(&turns) {
                    let sin = sin * sign;
                    (*x, *y) = (*x * cos - *y * sin, *y * cos + *x * sin);
                }
            }
        }
    }
}

/// Makes scores (rows, columns) the shares of what each row attends to: the softmax of `scale` times them, over the first `seen` columns in the first row
/// and one more in each that follows. The shares of others are zero.
pub(super) fn softmax(scores: &mut [f32], columns: usize, seen: usize, scale: f32) {
    for (i, row) in scores.chunks_exact_mut(columns).enumerate() {
        let (row, rest) = row.split_at_mut(seen + i);
        let highest = row.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x * scale));
        row.iter_mut().for_each(|x| *x = (*x * scale - highest).exp());
        let share = row.iter().sum::<f32>().recip();
        row.iter_mut().for_each(|x| *x *= share);
        rest.fill(0.0);
    }
}

/// From gradients by shares to those by scores, in place.
pub(super) fn softmax_backward(gradients: &mut [f32], shares: &[f32], columns: usize, scale: f32) {
    for (gradients, shares) in gradients.chunks_exact_mut(columns).zip(shares.chunks_exact(columns)) {
        let mean: f32 = gradients.iter().zip(shares).map(|(g, share)| g * share).sum();
        gradients.iter_mut().zip(shares).for_each(|(g, share)| *g = share * (*g - mean) * scale);
    }
}

/// Some columns of rows, each of which becomes a row.
pub(super) fn transpose(rows: &[f32], columns: usize, chosen: std::ops::Range<usize>, to: &mut [f32]) {
    let count = rows.len() / columns;
    for (row, from) in rows.chunks_exact(columns).enumerate() {
        from[chosen.clone()].iter().enumerate().for_each(|(column, &x)| to[column * count + row] = x);
    }
}

/// Adds rows to some columns of others.
pub(super) fn add(rows: &mut [f32], columns: usize, first: usize, from: &[f32], width: usize) {
    for (to, from) in rows.chunks_exact_mut(columns).zip(from.chunks_exact(width)) {
        to[first..first + width].iter_mut().zip(from).for_each(|(to, x)| *to += x);
    }
}

/// Adds columns to some columns of rows.
pub(super) fn add_transposed(rows: &mut [f32], columns: usize, first: usize, from: &[f32], width: usize) {
    let count = rows.len() / columns;
    for (row, to) in rows.chunks_exact_mut(columns).enumerate() {
        to[first..first + width].iter_mut().enumerate().for_each(|(column, to)| *to += from[column * count + row]);
    }
}
