//! Calls that XLA makes, by its foreign function interface: what JAX's `jit` compiles, on the CPU and on CUDA. One handler serves all passes of
//! all operations; attributes say which one, and which of its arguments and results the buffers are ([`Positions`]).
//!
//! While JAX traces a function, there are no tensors yet: [`plan`] checks a call by what they will be.

mod abi;
mod frame;
mod handler;
pub mod plan;
mod rounding;

pub use handler::handlers;

use statescan::ops::signature::MAX_ARGUMENTS;

/// Which arguments or results of a pass the buffers of a call are, in this order: a bit for each by its position in the signature, and then
/// one for each of the others.
#[derive(Clone, Copy)]
struct Positions(i64);

impl Positions {
    /// Saved states, or the result that the backward pass uses.
    const SAVED: usize = MAX_ARGUMENTS;
    /// Scratch memory, which is written, or the first of two cotangents, which are read.
    const WORKSPACE: usize = MAX_ARGUMENTS + 1;
    const COTANGENTS: [usize; 2] = [MAX_ARGUMENTS + 1, MAX_ARGUMENTS + 2];
    /// The state of a step. What is read is what is written: one buffer serves for both.
    const STATE: usize = MAX_ARGUMENTS + 3;

    fn has(self, position: usize) -> bool {
        self.0 >> position & 1 == 1
    }

    fn count(self) -> usize {
        self.0.count_ones() as usize
    }
}

/// The passes by their numbers in the attribute `pass`.
const FORWARD: i64 = 0;
const BACKWARD: i64 = 1;
const UPDATE: i64 = 2;
