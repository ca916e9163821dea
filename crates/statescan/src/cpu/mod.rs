//! The parts of every CPU kernel: instruction sets, vectors, elementary functions, tiles.
//!
//! A kernel body is written once, generic over a `simd::Isa` token and a `simd::Real` compute type; `Level::dispatch` instantiates it
//! for the instruction set that the executor chose.

mod arena;
mod array;
mod chains;
mod coefficients;
mod exp2;
mod field;
mod isa;
pub(crate) mod kept;
mod lanes;
mod level;
pub(crate) mod math;
mod matrix;
mod narrow;
mod partials;
pub(crate) mod parts;
mod pool;
pub(crate) mod product;
mod real;
pub(crate) mod recurrence;
pub(crate) mod simd;
mod sizes;
mod step_size;
pub(crate) mod tile;
pub(crate) mod wait;
mod workspace;

pub(crate) use arena::{Arena, Arrays, CellArrays, Room};
pub(crate) use array::{Array, ArrayMut, ArrayOf, Cells, Divided};
pub(crate) use chains::Chains;
pub(crate) use level::Kernel;
pub use level::Level;
pub(crate) use matrix::{Factor, Matrix, MatrixMut};
pub(crate) use partials::add_up;
pub(crate) use pool::Pool;
pub(crate) use workspace::{Lent, Workspace};
