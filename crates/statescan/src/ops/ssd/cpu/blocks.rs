//! Moves blocks of tensors to scratch memory and back: (steps, heads x headdim), (steps, dstate) and (dstate, heads x headdim).

use super::plan::HeadBlock;
use crate::cpu::simd::{Isa, Real};
use crate::cpu::tile::{self, Area, Plane, Prefetch, STEPS};
use crate::cpu::{Kernel, Level, Matrix};
use crate::ops::sequences::StateRow;
use crate::tensor::{RawViewMut, View};
use core::ops::Range;

/// A tensor's plane as a kernel, so that conversions are compiled once for each compute type and level.
struct Move<T> {
    plane: Plane,
    lanes: usize,
    padded: usize,
    steps: usize,
    tile: *mut T,
    pitch: usize,
    store: bool,
}

impl<T: Real> Kernel for Move<T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Move { plane, lanes, padded, steps, tile, pitch, store } = self;
        // SAFETY: whoever made the struct answers for plane and tile.
        unsafe {
            match store {
                false => tile::load(simd, plane, lanes, padded, steps, tile, pitch),
                true => tile::store(simd, tile, pitch, plane, lanes, steps),
            }
        }
    }
}

/// A scratch matrix: rows of contiguous elements, `pitch` apart.
#[derive(Clone, Copy)]
pub(super) struct Tile<T> {
    pub ptr: *mut T,
    pub pitch: usize,
}

impl<T: Real> Tile<T> {
    pub(super) fn matrix(self) -> Matrix<T> {
        Matrix::new(self.ptr, self.pitch)
    }
}

/// The direction of a move.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Load,
    Store,
}

/// Tensors asked for while products are computed: parts of rows of inputs, outputs and a saved state.
pub(super) type Ahead = Prefetch<32>;

/// Elements of a row that are asked for at once.
const PART: usize = 64;

/// What a block of heads has of a tensor, plane by plane: the plane from the block's first head on, its lanes, and the column of the first.
/// `head` and `dim` are the axes of the heads and of headdim, `row` that of the rows.
fn planes(view: &View<'_>, [head, dim, row]: [usize; 3], block: &HeadBlock) -> impl Iterator<Item = (Plane, usize, usize)> {
    let (stride, headdim) = (view.strides()[head], view.shape()[dim]);
    // heads that follow each other without a gap are one long row
    let merged = block.count == 1 || stride == view.strides()[dim].wrapping_mul(headdim as isize);
    let (planes, lanes) = if merged { (1, block.count * headdim) } else { (block.count, headdim) };
    let (first, plane) = (block.first, Plane::of(view, dim, row));
    (0..planes).map(move |i| (plane.along(first + i, stride), lanes, i * headdim))
}

/// Moves `rows` x (heads, headdim) between a tensor and a tile; see [`planes`]. `origin` finds the first row of a plane.
unsafe fn columns<T: Real>(
    level: Level,
    way: Way,
    view: &View<'_>,
    origin: impl Fn(Plane) -> Plane,
    axes: [usize; 3],
    block: &HeadBlock,
    rows: usize,
    tile: Tile<T>,
) {
    for (plane, lanes, column) in planes(view, axes, block) {
        let plane = origin(plane);
        for first in (0..rows).step_by(STEPS) {
            level.dispatch(Move {
                plane: plane.at(0, first),
                lanes,
                padded: lanes,
                steps: STEPS.min(rows - first),
                tile: tile.ptr.wrapping_add(first * tile.pitch + column),
                pitch: tile.pitch,
                store: way == Way::Store,
            });
        }
    }
}

/// (B, L, H, P): steps of a row, heads of a block.
///
/// # Safety
/// Everything lies inside the view; the tile has room; a store is the only access to those elements.
pub(super) unsafe fn timed<T: Real>(
    level: Level,
    way: Way,
    view: &View<'_>,
    batch: usize,
    block: &HeadBlock,
    steps: &Range<usize>,
    tile: Tile<T>,
) {
    let origin = |plane: Plane| plane.along(batch, view.strides()[0]).at(0, steps.start);
    // SAFETY: the caller's contract.
    unsafe { columns(level, way, view, origin, [2, 3, 1], block, steps.len(), tile) }
}

/// Adds what [`timed`] moves to what is asked for.
pub(super) fn ask(ahead: &mut Ahead, view: &View<'_>, batch: usize, block: &HeadBlock, steps: &Range<usize>) {
    for (plane, lanes, _) in planes(view, [2, 3, 1], block) {
        let plane = plane.along(batch, view.strides()[0]).at(0, steps.start);
        for lane in (0..lanes).step_by(PART) {
            ahead.add(Area { plane: plane.at(lane, 0), lanes: PART.min(lanes - lane), steps: steps.len() });
        }
    }
}

/// (rows, sequences, H, P, N): the state of a block of heads, as (N, head x headdim).
///
/// # Safety
/// As [`timed`].
pub(super) unsafe fn state<T: Real>(
    level: Level,
    way: Way,
    view: &View<'_>,
    (row, sequence): StateRow,
    block: &HeadBlock,
    tile: Tile<T>,
) {
    let origin = |plane: Plane| plane.along(row, view.strides()[0]).along(sequence, view.strides()[1]);
    // SAFETY: the caller's contract.
    unsafe { columns(level, way, view, origin, [2, 3, 4], block, view.shape()[4], tile) }
}

/// (B, L, G, N): steps of a row, one group.
///
/// # Safety
/// As [`timed`].
pub(super) unsafe fn map<T: Real>(
    level: Level,
    way: Way,
    view: &View<'_>,
    batch: usize,
    group: usize,
    steps: &Range<usize>,
    tile: Tile<T>,
) {
    // SAFETY: the caller's contract; a group is laid out as a head is.
    unsafe { timed(level, way, view, batch, &one(group), steps, tile) }
}

/// Adds what [`map`] moves to what is asked for.
pub(super) fn ask_map(ahead: &mut Ahead, view: &View<'_>, batch: usize, group: usize, steps: &Range<usize>) {
    ask(ahead, view, batch, &one(group), steps);
}

/// A group as if it were a head.
fn one(group: usize) -> HeadBlock {
    HeadBlock { group, index: 0, first: group, count: 1 }
}

/// (B, L, G, N): one group as (dstate, step).
///
/// # Safety
/// As [`timed`]; rows of the tile are as long as the steps at least.
pub(super) unsafe fn map_across<T: Real>(
    level: Level,
    view: &View<'_>,
    batch: usize,
    group: usize,
    steps: &Range<usize>,
    tile: Tile<T>,
) {
    let strides = view.strides();
    let plane = Plane::of(view, 1, 3).along(batch, strides[0]).along(group, strides[2]);
    let states = view.shape()[3];
    for first in (0..states).step_by(STEPS) {
        level.dispatch(Move {
            plane: plane.at(steps.start, first),
            lanes: steps.len(),
            padded: steps.len(),
            steps: STEPS.min(states - first),
            tile: tile.ptr.wrapping_add(first * tile.pitch),
            pitch: tile.pitch,
            store: false,
        });
    }
}

/// (B, L, H): steps of a row, heads of a block; loads fill the tile's row with zeros.
///
/// # Safety
/// As [`timed`].
pub(super) unsafe fn steps<T: Real>(
    level: Level,
    way: Way,
    view: &View<'_>,
    batch: usize,
    block: &HeadBlock,
    steps: &Range<usize>,
    tile: Tile<T>,
) {
    let plane = Plane::of(view, 2, 1).along(batch, view.strides()[0]).at(block.first, steps.start);
    level.dispatch(Move {
        plane,
        lanes: block.count,
        padded: tile.pitch,
        steps: steps.len(),
        tile: tile.ptr,
        pitch: tile.pitch,
        store: way == Way::Store,
    });
}

/// One number for each head, (H,), or for each column, (H,) or (H, P).
///
/// # Safety
/// The block lies inside the view.
pub(super) unsafe fn parameter<T: Real>(view: &View<'_>, block: &HeadBlock, headdim: usize, to: &mut [T]) {
    for h in 0..block.count {
        for p in 0..headdim {
            let own = if view.rank() == 2 { p as isize * view.strides()[1] } else { 0 };
            // SAFETY: the caller's contract.
            let value = unsafe { view.read((block.first + h) as isize * view.strides()[0] + own) };
            to[h * headdim + p] = T::from_f64(value.re);
        }
    }
}

/// Writes views as they are read.
pub(super) fn target(view: &Option<RawViewMut>) -> Option<View<'static>> {
    view.as_ref().map(|v| v.as_read())
}
