//! The arrays of a thread for one tile of the backward pass.

use super::super::Problem;
use super::inputs::{Sizes, Tiles};
use super::sweep::{Stored, Walked, WalkedTiles};
use crate::cpu::simd::Real;
use crate::cpu::{Array, Room};

/// The arrays of a thread for one tile.
pub(super) struct Scratch<T> {
    /// See [`Lanes`](super::lanes::Lanes).
    pub lanes: Array<T>,
    /// The states before the tile.
    pub h: Array<T>,
    /// What the sweep reads and writes, and the same as it is loaded and stored: with one lane a channel the same arrays.
    pub walked: WalkedTiles<T>,
    pub own: WalkedTiles<T>,
    pub stored: Stored<T>,
    pub x: Array<T>,
    pub slope: Array<T>,
    pub cotangent: Array<T>,
    /// `silu(z)` and its derivative.
    pub gate: Array<T>,
    pub gate_slope: Array<T>,
    pub longest: Array<T>,
    /// Tiles of B and C, and of the gradients by them: (state, part, step).
    pub b: Array<T>,
    pub c: Array<T>,
    pub db: Array<T>,
    pub dc: Array<T>,
}

impl<T: Real> Scratch<T> {
    pub(super) fn lay_out(room: &mut Room<T>, problem: &Problem<'_>, sizes: Sizes, parts: usize) -> Self {
        let Sizes { width, tile, own_tile, map, .. } = sizes;
        let shared = problem.dt_a.is_none();
        let walked = WalkedTiles::lay_out(room, shared, tile);
        let gate = if problem.z.is_some() { own_tile } else { 0 };
        Scratch {
            walked,
            own: if own_tile == tile { walked } else { WalkedTiles::lay_out(room, shared, own_tile) },
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
            lanes: room.array(sizes.lanes),
        }
    }

    pub(super) fn tiles(&self, of: Walked<T>) -> Tiles<T> {
        let Walked { dt, dt_a, u, y, .. } = of;
        Tiles { x: self.x, dt, dt_a, u, slope: self.slope, y, longest: self.longest }
    }
}
