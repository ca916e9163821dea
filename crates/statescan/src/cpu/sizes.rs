//! The sizes that kernels are built around.

/// Steps in a tile.
pub(crate) const STEPS: usize = 64;
/// The widest vector has this many lanes.
pub(crate) const MAX_LANES: usize = 16;
