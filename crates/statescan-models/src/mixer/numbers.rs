//! The operations of hybrids between their products, on the host: rows of views, rotation, softmax, the gate, and their backward
//! passes.

use super::device::Heads;
use statescan::tensor::Element;
use statescan::{Device, View, ViewMut};

/// How many rows a view on the host has, of how many columns, which are neighbours, and how far they are apart; a vector is a row.
///
/// # Panics
/// If it is something else.
fn layout<T: Element>(view: &View<'_>) -> [isize; 3] {
    assert!(view.dtype() == T::DTYPE && view.device() == Device::Cpu, "numbers of this type on the host");
    let (shape, strides) = (view.shape(), view.strides());
    let [count, columns, apart, step] = match (&shape[..], &strides[..]) {
        ([columns], [step]) => [1, *columns as isize, 0, *step],
        ([count, columns], [apart, step]) => [*count as isize, *columns as isize, *apart, *step],
        _ => panic!("rows of numbers"),
    };
    assert!(step == 1 || columns < 2, "columns are neighbours");
    [count, columns, apart]
}

/// The rows of a view.
pub(crate) fn rows<'r, T: Element + 'r>(view: &'r View<'_>) -> impl Iterator<Item = &'r [T]> {
    let ([count, columns, apart], first) = (layout::<T>(view), view.as_ptr().cast::<T>());
    // SAFETY: a view's elements are initialised and stay unwritten as long as it lives; those of a row are neighbours.
    (0..count).map(move |row| unsafe { std::slice::from_raw_parts(first.offset(row * apart), columns as usize) })
}

/// The rows of a view, to be written.
pub(crate) fn rows_mut<'r, T: Element + 'r>(view: &'r mut ViewMut<'_>) -> impl Iterator<Item = &'r mut [T]> {
    let [count, columns, apart] = layout::<T>(&view.as_view());
    assert!(apart >= columns || count < 2, "rows do not overlap");
    let first = view.as_mut_ptr().cast::<T>();
    // SAFETY: a view's elements are its own as long as it is borrowed; rows are apart, and each is given once.
    (0..count).map(move |row| unsafe { std::slice::from_raw_parts_mut(first.offset(row * apart), columns as usize) })
}

/// `1 / (1 + exp(-x))`.
pub(super) fn sigmoid(x: f32) -> f32 {
    (1.0 + (-x).exp()).recip()
}

/// Turns all heads of a row at a position, or back.
pub(super) fn rope(row: &mut [f32], of: &Heads<'_>, position: usize) {
    let Some(angles) = of.angles else { return };
    let (half, sign) = (angles.len(), if of.back { -1.0 } else { 1.0 });
    let angles = rows::<f32>(&angles).next().unwrap_or_default();
    let turns: Vec<(f32, f32)> = angles.iter().map(|angle| (position as f32 * angle).sin_cos()).collect();
    for head in row.chunks_exact_mut(of.headdim) {
        let (low, high) = head.split_at_mut(half);
        for ((x, y), (sin, cos)) in low.iter_mut().zip(high).zip(&turns) {
            let sin = sin * sign;
            (*x, *y) = (*x * cos - *y * sin, *y * cos + *x * sin);
        }
    }
}

/// Makes a row of scores the shares of what it attends to, the first `seen` of them.
pub(super) fn softmax(row: &mut [f32], seen: usize, scale: f32) {
    let (row, rest) = row.split_at_mut(seen);
    let highest = row.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x * scale));
    row.iter_mut().for_each(|x| *x = (*x * scale - highest).exp());
    let share = row.iter().sum::<f32>().recip();
    row.iter_mut().for_each(|x| *x *= share);
    rest.fill(0.0);
}

/// From gradients by shares to those by scores, in place.
pub(super) fn softmax_backward(gradients: &mut ViewMut<'_>, shares: &View<'_>, scale: f32) {
    for (gradients, shares) in rows_mut::<f32>(gradients).zip(rows::<f32>(shares)) {
        let mean: f32 = gradients.iter().zip(shares).map(|(g, share)| g * share).sum();
        gradients.iter_mut().zip(shares).for_each(|(g, share)| *g = share * (*g - mean) * scale);
    }
}

/// Multiplies heads by the sigmoid of their gates, which lie behind the queries of each.
pub(super) fn output_gate(queries: &View<'_>, headdim: usize, y: &mut ViewMut<'_>) {
    for (y, queries) in rows_mut::<f32>(y).zip(rows::<f32>(queries)) {
        for (y, head) in y.chunks_exact_mut(headdim).zip(queries.chunks_exact(2 * headdim)) {
            y.iter_mut().zip(&head[headdim..]).for_each(|(y, &gate)| *y *= sigmoid(gate));
        }
    }
}

/// The gradients by these gates, from gated heads and the gradients by them.
pub(super) fn output_gate_backward([queries, gated]: [&View<'_>; 2], headdim: usize, to: &mut ViewMut<'_>, dy: &View<'_>) {
    let all = rows_mut::<f32>(to).zip(rows::<f32>(queries)).zip(rows::<f32>(gated).zip(rows::<f32>(dy)));
    for ((to, queries), (gated, dy)) in all {
        for (i, (y, d)) in gated.iter().zip(dy).enumerate() {
            let own = i / headdim * 2 * headdim + headdim + i % headdim;
            to[own] = d * y * sigmoid(-queries[own]);
        }
    }
}

/// From the gradients by rows of the gate's results to those by gates and by ups.
pub(super) fn gate_backward(both: &View<'_>, dy: &View<'_>, to: &mut ViewMut<'_>) {
    let hidden = dy.shape()[1];
    for ((dboth, both), dy) in rows_mut::<f32>(to).zip(rows::<f32>(both)).zip(rows::<f32>(dy)) {
        let ((dgates, dups), (gates, ups)) = (dboth.split_at_mut(hidden), both.split_at(hidden));
        for (i, (&gate, &d)) in gates.iter().zip(dy).enumerate() {
            let share = sigmoid(gate);
            dgates[i] = d * ups[i] * share * (1.0 + gate * (1.0 - share));
            dups[i] = d * gate * share;
        }
    }
}

/// Adds rows to others.
pub(super) fn add(to: &mut ViewMut<'_>, from: &View<'_>) {
    rows_mut::<f32>(to).zip(rows::<f32>(from)).for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, x)| *to += x));
}

/// Adds the transpose of a matrix to rows.
pub(super) fn add_transposed(to: &mut ViewMut<'_>, from: &View<'_>) {
    for (column, from) in rows::<f32>(from).enumerate() {
        rows_mut::<f32>(to).zip(from).for_each(|(to, x)| to[column] += x);
    }
}
