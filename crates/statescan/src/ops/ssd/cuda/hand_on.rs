//! States of packed sequences without steps, handed on before the walk on Hopper, which does not see them.

use super::walk::Walk;
use super::{Inputs, States, TOO_MANY, type_of};
use crate::cuda::{COMMON, Config, Launch, Program, STEP_SIZE, Stream, params};
use crate::error::Result;
use crate::tensor::DType;

pub(super) static KERNEL: Program<Params> = Program::new(
    "ssd_hand_on",
    &[COMMON, STEP_SIZE],
    concat!(
        include_str!("../../../cuda/sequences.cuh"),
        include_str!("inputs.cuh"),
        include_str!("hand_on.cuh"),
        include_str!("hand_on.cu")
    ),
);

params! {
    /// Parameters of `ssd_hand_on`.
    pub(super) struct Params(inputs: Inputs) {
        /// The states that sequences begin and end with, in the direction of the walk.
        before: States,
        after: States,
    }
}

/// Threads of a block.
const THREADS: usize = 256;

pub(super) fn config(walk: &Walk<'_, '_>) -> Config {
    let options = walk.call.options().int("THREADS", THREADS);
    options.dtype("BEFORE", walk.before.map_or(DType::F32, |v| v.dtype())).dtype("AFTER", type_of(&walk.after))
}

/// Nothing where no states are wanted.
///
/// # Safety
/// The views are valid.
pub(super) unsafe fn launch(stream: &Stream, walk: &Walk<'_, '_>) -> Result<()> {
    let (Some(after), p) = (&walk.after, walk.call.problem) else { return Ok(()) };
    let blocks = p.batch.checked_mul(p.nheads).and_then(|n| u32::try_from(n).ok()).ok_or(TOO_MANY)?;
    let (before, after) = (States::of(&walk.before), States::of(&Some(after.as_read())));
    let params = Params { inputs: walk.call.inputs(1, 1), before, after };
    // SAFETY: the caller's contract; the configuration has the types of the states.
    unsafe { stream.launch(&KERNEL, &config(walk), Launch::line(blocks, THREADS as u32, 0), &params) }
}
