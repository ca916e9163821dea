//! The arrays of a thread for one tile of the backward pass.

use super::super::Problem;
use super::inputs::Sizes;
use super::sweep::{Stored, WalkedTiles};
use crate::cpu::simd::Real;
use crate::cpu::{ArrayMut, Room};

/// The arrays of a thread for one tile.
pub(super) struct Scratch<'m, T> {
    /// See [`Lanes`](super::lanes::Lanes).
    pub staging: ArrayMut<'m, T>,
    /// The states before the tile.
    pub h: ArrayMut<'m, T>,
    /// The tiles that the sweep reads and writes, and those tiles as they are loaded and stored: none with one lane a channel,
    /// where they are the same arrays.
    pub walked: WalkedTiles<'m, T>,
    pub own: Option<WalkedTiles<'m, T>>,
    pub stored: Stored<'m, T>,
    pub x: ArrayMut<'m, T>,
    pub slope: ArrayMut<'m, T>,
    pub cotangent: ArrayMut<'m, T>,
    /// `silu(z)` and its derivative.
    pub gate: ArrayMut<'m, T>,
    pub gate_slope: ArrayMut<'m, T>,
    pub longest: ArrayMut<'m, T>,
    /// Tiles of B and C, and of the gradients by them: (state, part, step).
    pub b: ArrayMut<'m, T>,
    pub c: ArrayMut<'m, T>,
    pub db: ArrayMut<'m, T>,
    pub dc: ArrayMut<'m, T>,
}

impl<'m, T: Real> Scratch<'m, T> {
    pub(super) fn lay_out(room: &mut Room<'m, T>, problem: &Problem<'_>, sizes: Sizes, parts: usize) -> Self {
        let Sizes { width, tile, own_tile, map, .. } = sizes;
        let shared = problem.dt_a.is_none();
        let walked = WalkedTiles::lay_out(room, shared, tile);
        let gate = if problem.z.is_some() { own_tile } else { 0 };
        Scratch {
            walked,
            own: (own_tile != tile).then(|| WalkedTiles::lay_out(room, shared, own_tile)),
            stored: Stored::lay_out(room, width, parts),
            longest: room.array(width),
            x: room.array(own_tile),
            slope: room.array(own_tile),
            cotangent: room.array(own_tile),
            gate: room.array(gate),
            gate_slope: room.array(gate),
            b: room.array(map),
            c: room.array(map),
            db: room.array(map),
            dc: room.array(map),
            h: room.array(sizes.state),
            staging: room.array(sizes.lanes),
        }
    }
}
