//! Do written elements stay apart? Exact for the layouts that occur in practice, and on the safe side for the rest.

use super::view::View;

/// Axes with more than one index, as (|stride|, size).
fn nontrivial(view: &View<'_>) -> impl DoubleEndedIterator<Item = (isize, usize)> {
    let (strides, shape) = (view.strides(), view.shape());
    (0..view.rank()).filter(move |&axis| shape[axis] > 1).map(move |axis| (strides[axis].abs(), shape[axis]))
}

/// Returns the strides and sizes of axes longer than 1, the smallest stride first.
fn sorted(view: &View<'_>) -> Vec<(isize, usize)> {
    let mut axes: Vec<_> = nontrivial(view).collect();
    axes.sort_unstable();
    axes
}

/// Axes of which one goes on where the one before ends, as one: rows that are divided in another way are the same elements.
fn joined(axes: Vec<(isize, usize)>) -> Vec<(isize, usize)> {
    let mut all: Vec<(isize, usize)> = Vec::new();
    for (stride, size) in axes {
        match all.last_mut().filter(|last| last.0.saturating_mul(last.1 as isize) == stride) {
            Some(last) => last.1 = last.1.saturating_mul(size),
            None => all.push((stride, size)),
        }
    }
    all
}

/// Whether axes nest: each stride is larger than everything those before it reach. Nested axes never fold onto each other.
fn nests(axes: impl IntoIterator<Item = (isize, usize)>) -> bool {
    let mut reach = 0isize;
    axes.into_iter().all(|(stride, size)| {
        let apart = stride > reach;
        reach = reach.saturating_add(stride.saturating_mul(size as isize - 1));
        apart
    })
}

/// Whether no two indices of the view address the same element.
pub(crate) fn is_injective(view: &View<'_>) -> bool {
    // the last axis mostly has the smallest stride
    view.is_empty() || nests(nontrivial(view).rev()) || nests(sorted(view))
}

/// How far one view's index of an axis can be ahead of another's, and how far behind: (stride, behind, ahead).
type Axis = (isize, usize, usize);

/// Can a sum of `k * stride` with `-behind <= k <= ahead` over the axes (smallest first) fall within `slack` of `target`?
fn reachable(axes: &[Axis], target: i128, slack: i128) -> bool {
    let Some((&(stride, behind, ahead), rest)) = axes.split_last() else {
        return target.abs() < slack;
    };
    // the remaining, smaller axes can still make up for so much
    let sum = |count: fn(&Axis) -> usize| rest.iter().map(|axis| axis.0 as i128 * count(axis) as i128).sum::<i128>() + slack;
    let (least, most) = (target - sum(|axis| axis.2), target + sum(|axis| axis.1));
    let stride = stride as i128;
    let first = least.div_euclid(stride).max(-(behind as i128));
    let last = (most.div_euclid(stride) + 1).min(ahead as i128);
    (first..=last).any(|k| reachable(rest, target - k * stride, slack))
}

/// Whether two views share a byte. Exact if their strides agree and nest (halves of one buffer, interleaved slices); otherwise ranges that
/// meet count as sharing.
fn overlaps(a: &View<'_>, b: &View<'_>) -> bool {
    if a.is_empty() || b.is_empty() || a.device() != b.device() {
        return false;
    }
    let ((a_low, a_high), (b_low, b_high)) = (a.byte_range(), b.byte_range());
    if a_high <= b_low || b_high <= a_low {
        return false;
    }
    let size = a.dtype().size();
    if size != b.dtype().size() {
        return true;
    }
    let (axes, others) = (joined(sorted(a)), joined(sorted(b)));
    if !nests(axes.iter().copied()) || !nests(others.iter().copied()) {
        return true;
    }
    // the union of the axes; an axis that both have counts once
    let mut axes: Vec<Axis> = axes.into_iter().map(|(stride, n)| (stride, 0, n - 1)).collect();
    for (stride, n) in others {
        match axes.iter_mut().find(|axis| axis.0 == stride) {
            Some(axis) => axis.1 = n - 1,
            None => axes.push((stride, n - 1, 0)),
        }
    }
    axes.sort_unstable();
    if !nests(axes.iter().map(|&(stride, behind, ahead)| (stride, behind.max(ahead) + 1))) {
        return true;
    }
    let distance = b_low as i128 - a_low as i128;
    axes.iter_mut().for_each(|axis| axis.0 *= size as isize);
    reachable(&axes, distance, size as i128)
}

/// An argument of a call, and which bytes it reaches.
#[derive(Debug)]
pub(crate) struct Argument<'a> {
    name: &'static str,
    view: &'a View<'a>,
    low: usize,
    high: usize,
}

impl<'a> Argument<'a> {
    pub(crate) fn new(name: &'static str, view: &'a View<'a>) -> Self {
        let (low, high) = if view.is_empty() { (0, 0) } else { view.byte_range() };
        Argument { name, view, low, high }
    }
}

/// The first pair (written, other) that shares memory.
pub(crate) fn first_overlap(written: &[Argument<'_>], read: &[Argument<'_>]) -> Option<(&'static str, &'static str)> {
    for (i, one) in written.iter().enumerate() {
        for other in written[..i].iter().chain(read) {
            // nearly always the ranges are apart, and nothing else needs to be looked at
            if one.low < other.high && other.low < one.high && overlaps(one.view, other.view) {
                return Some((one.name, other.name));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn elements(view: &View<'_>) -> HashSet<isize> {
        let mut all = HashSet::new();
        let base = view.as_ptr() as isize;
        view.for_each_offset(|o| {
            all.insert(base + o * view.dtype().size() as isize);
        });
        all
    }

    proptest! {
        #[test]
        fn never_misses_an_overlap(
            shape_a in prop::collection::vec(1usize..4, 2), shape_b in prop::collection::vec(1usize..4, 2),
            strides in prop::collection::vec(-9isize..10, 2), start_a in 0usize..24, start_b in 0usize..24,
        ) {
            let data = vec![0f32; 128];
            let view = |start: usize, shape: &[usize]| View::strided(&data, 40 + start, shape, &strides);
            let (Ok(a), Ok(b)) = (view(start_a, &shape_a), view(start_b, &shape_b)) else { return Ok(()) };
            let (ea, eb) = (elements(&a), elements(&b));
            if is_injective(&a) {
                prop_assert_eq!(ea.len(), a.len());
            }
            let shared = ea.intersection(&eb).next().is_some();
            prop_assert!(!shared || overlaps(&a, &b));
            // exact where the strides nest
            let mut union = sorted(&a);
            union.extend(sorted(&b));
            union.sort_unstable();
            union.dedup_by_key(|axis| axis.0);
            if !shared && shape_a == shape_b && nests(sorted(&a)) {
                prop_assert!(!overlaps(&a, &b));
            }
        }
    }

    #[test]
    fn halves_of_one_buffer_are_apart() {
        // (batch, 2 x dim, seqlen) split along the channels, as a Mamba block does with x and z
        let data = vec![0f32; 2 * 6 * 5];
        let whole = View::new(&data, &[2, 6, 5]).unwrap();
        let (x, z) = (whole.slice(1, 0..3), whole.slice(1, 3..6));
        let of = |name, view| Argument::new(name, view);
        assert_eq!(first_overlap(&[of("dx", &x), of("dz", &z)], &[]), None);
        assert_eq!(first_overlap(&[of("dx", &x), of("dz", &whole)], &[]), Some(("dz", "dx")));
        assert_eq!(first_overlap(&[of("dx", &x)], &[of("z", &z), of("xz", &whole)]), Some(("dx", "xz")));
    }

    #[test]
    fn columns_that_are_divided_in_different_ways_are_apart() {
        // (rows, columns) of which some are (heads, headdim) and others (groups, dstate), as in a block of Mamba-2
        let data = [0f32; 30];
        let whole = View::new(&data, &[3, 10]).unwrap();
        let (x, b) = (whole.slice(1, 0..4).split(1, 2), whole.slice(1, 4..10).split(1, 2));
        let more = whole.slice(1, 3..9).split(1, 2);
        let of = |name, view| Argument::new(name, view);
        assert_eq!(first_overlap(&[of("dx", &x), of("db", &b)], &[]), None);
        assert_eq!(first_overlap(&[of("dx", &x), of("db", &more)], &[]), Some(("db", "dx")));
    }

    #[test]
    fn a_zero_stride_is_not_injective() {
        let data = [0f32; 4];
        assert!(!is_injective(&View::strided(&data, 0, &[2, 4], &[0, 1]).unwrap()));
        assert!(is_injective(&View::strided(&data, 0, &[1, 4], &[0, 1]).unwrap()));
    }
}
