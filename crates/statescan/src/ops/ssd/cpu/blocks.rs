//! Moves blocks of tensors to scratch memory and back: (steps, heads x headdim), (steps, dstate) and (dstate, heads x headdim).

use super::plan::HeadBlock;
use crate::cpu::simd::Real;
use crate::cpu::tile::{self, Address, Plane, PlaneMut, PlaneOf, STEPS, Tile, TileMut};
use crate::cpu::{ArrayMut, Level};
use crate::ops::sequences::StateRow;
use crate::tensor::{RawViewMut, View};
use core::ops::Range;

/// The way of a block between a tensor and scratch memory.
pub(super) enum Way<'v, T> {
    Load(&'v View<'v>, TileMut<'v, T>),
    Store(&'v RawViewMut, Tile<'v, T>),
}

/// The steps of a row of the batch, and the heads, that a job is at.
#[derive(Clone)]
pub(super) struct Place {
    pub level: Level,
    pub batch: usize,
    pub block: HeadBlock,
    pub steps: Range<usize>,
}

// Tensors are prefetched while products are computed: parts of rows of inputs, outputs and a saved state.
pub(super) use crate::cpu::product::Ahead;

/// Elements of a row that are prefetched at once.
const PART: usize = 64;

/// Axes of a tensor: those of the heads and of headdim, and that of the rows.
#[derive(Clone, Copy)]
struct Axes {
    head: usize,
    dim: usize,
    row: usize,
}

/// (B, L, H, P)
const TIMED: Axes = Axes { head: 2, dim: 3, row: 1 };
/// (rows, sequences, H, P, N)
const STATE: Axes = Axes { head: 2, dim: 3, row: 4 };

/// Returns, for each plane of a tensor, the plane from the block's first head on, its lanes, and the column of the first.
fn planes<A: Address>(
    plane: PlaneOf<A>,
    (shape, strides): (&[usize], &[isize]),
    axes: Axes,
    block: &HeadBlock,
) -> impl Iterator<Item = (PlaneOf<A>, usize, usize)> + use<A> {
    let (stride, headdim) = (strides[axes.head], shape[axes.dim]);
    // heads that follow each other without a gap are one long row
    let merged = block.count == 1 || stride == strides[axes.dim].wrapping_mul(headdim as isize);
    let (planes, lanes) = if merged { (1, block.count * headdim) } else { (block.count, headdim) };
    let (first, plane) = (block.first, plane.with_lanes(lanes));
    (0..planes).map(move |i| (plane.along(first + i, stride), lanes, i * headdim))
}

/// Moves rows x (heads, headdim) between a tensor, at these indices of its leading axes, and a tile.
fn columns<T: Real>(place: &Place, way: Way<'_, T>, axes: Axes, leading: &[usize], rows: Range<usize>) {
    let (block, last) = (&place.block, rows.len().saturating_sub(1));
    let parts = rows.clone().step_by(STEPS).map(|start| (start, STEPS.min(rows.end - start)));
    match way {
        Way::Load(view, mut tile) => {
            debug_assert!(tile.array.has(0, last * tile.pitch), "the tile has the rows");
            let (shape, strides) = (view.shape(), view.strides());
            for (start, steps) in parts {
                let plane = at(Plane::of(view, axes.dim, axes.row), &strides, leading).at(0, start);
                for (plane, lanes, column) in planes(plane, (&shape, &strides), axes, block) {
                    tile::load_on(place.level, plane.area(lanes, steps), lanes, tile.from(start - rows.start, column));
                }
            }
        }
        Way::Store(view, tile) => {
            debug_assert!(tile.array.has(0, last * tile.pitch), "the tile has the rows");
            let (shape, strides) = (view.shape(), view.strides());
            for (start, steps) in parts {
                let plane = at(PlaneMut::of(view, axes.dim, axes.row), &strides, leading).at(0, start);
                for (plane, lanes, column) in planes(plane, (&shape, &strides), axes, block) {
                    tile::store_on(place.level, tile.from(start - rows.start, column), plane.area(lanes, steps));
                }
            }
        }
    }
}

/// A plane at indices of the leading axes.
fn at<A: Address>(plane: PlaneOf<A>, strides: &[isize], leading: &[usize]) -> PlaneOf<A> {
    leading.iter().zip(strides).fold(plane, |plane, (&index, &stride)| plane.along(index, stride))
}

/// (B, L, H, P): steps of a row, heads of a block.
pub(super) fn timed<T: Real>(place: &Place, way: Way<'_, T>) {
    columns(place, way, TIMED, &[place.batch], place.steps.clone())
}

/// Adds an area of a tensor that [`timed`] moves to what is prefetched.
pub(super) fn prefetch(ahead: &mut Ahead, place: &Place, view: &View<'_>) {
    let (shape, strides) = (view.shape(), view.strides());
    let plane = at(Plane::of(view, TIMED.dim, TIMED.row), &strides, &[place.batch]).at(0, place.steps.start);
    for (plane, lanes, _) in planes(plane, (&shape, &strides), TIMED, &place.block) {
        for lane in (0..lanes).step_by(PART) {
            ahead.add(plane.at(lane, 0).area(PART.min(lanes - lane), place.steps.len()));
        }
    }
}

/// (rows, sequences, H, P, N): the state of a block of heads, as (N, head x headdim).
pub(super) fn state<T: Real>(place: &Place, way: Way<'_, T>, (row, sequence): StateRow) {
    let states = match &way {
        Way::Load(view, _) => view.shape()[STATE.row],
        Way::Store(view, _) => view.shape()[STATE.row],
    };
    columns(place, way, STATE, &[row, sequence], 0..states)
}

/// Returns the place with a group instead of the heads: a group of (B, L, G, N) is laid out as a head is.
pub(super) fn of_group(place: &Place) -> Place {
    let group = place.block.group;
    Place { block: HeadBlock { group, index: 0, first: group, count: 1 }, ..place.clone() }
}

/// (B, L, G, N): the block's group as (dstate, step).
pub(super) fn map_across<T: Real>(place: &Place, view: &View<'_>, mut tile: TileMut<'_, T>) {
    let (strides, steps) = (view.strides(), &place.steps);
    debug_assert!(steps.len() <= tile.pitch, "a row has the steps");
    let plane = Plane::of(view, 1, 3).along(place.batch, strides[0]).along(place.block.group, strides[2]);
    let states = view.shape()[3];
    for first in (0..states).step_by(STEPS) {
        let from = plane.at(steps.start, first).area(steps.len(), STEPS.min(states - first));
        tile::load_on(place.level, from, steps.len(), tile.from(first, 0));
    }
}

/// (B, L, H): steps of a row, heads of a block; loads fill the tile's row with zeros.
pub(super) fn steps<T: Real>(place: &Place, way: Way<'_, T>) {
    let Place { level, batch, block, steps } = place;
    match way {
        Way::Load(view, tile) => {
            debug_assert!(block.count <= tile.pitch, "a row has the heads");
            let plane = Plane::of(view, 2, 1).along(*batch, view.strides()[0]).at(block.first, steps.start);
            tile::load_on(*level, plane.area(block.count, steps.len()), tile.pitch, tile);
        }
        Way::Store(view, tile) => {
            debug_assert!(block.count <= tile.pitch, "a row has the heads");
            let plane = PlaneMut::of(view, 2, 1).along(*batch, view.strides()[0]).at(block.first, steps.start);
            tile::store_on(*level, tile, plane.area(block.count, steps.len()));
        }
    }
}

/// One number for each head, (H,), or for each column, (H,) or (H, P).
pub(super) fn parameter<T: Real>(view: &View<'_>, block: &HeadBlock, headdim: usize, to: &mut ArrayMut<'_, T>) {
    debug_assert!(block.first + block.count <= view.shape()[0], "the block lies inside the view");
    debug_assert!(to.has(0, block.count * headdim), "room for every column");
    for h in 0..block.count {
        for p in 0..headdim {
            let index = [block.first + h, p];
            to.set(h * headdim + p, T::from_f64(view.at(&index[..view.rank()]).re));
        }
    }
}
