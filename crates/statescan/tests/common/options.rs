//! The calls of scans and steps may have these options, as bits of one number; an operation that lacks some ignores them.

pub const GATE: u32 = 1;
pub const SKIP: u32 = 2;
pub const BIAS: u32 = 4;
pub const SOFTPLUS: u32 = 8;
pub const LIMIT: u32 = 16;
pub const OWN_DECAY_STEP: u32 = 32;
pub const INITIAL: u32 = 64;
pub const REVERSE: u32 = 128;
pub const BOUNDS: u32 = 256;
pub const INDEX: u32 = 512;
pub const INDEX_STATES: u32 = 1024;
/// A skip for each channel of a head.
pub const WIDE_SKIP: u32 = 2048;
/// Rank 3 maps, heads before time, states (.., N, P).
pub const UNGROUPED: u32 = 4096;
