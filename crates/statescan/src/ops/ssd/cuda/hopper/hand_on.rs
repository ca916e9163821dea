//! States of packed sequences without steps, handed on before the walk on Hopper, which does not see them.

use crate::cuda::{COMMON, Config, Launch, Program, Queue, SEQUENCES, SLOTS, STEP_SIZE, params};
use crate::error::Result;
use crate::ops::on_cuda::type_of;
use crate::ops::ssd::cuda::{Call, HAND_ON, INPUTS, Inputs, States, TOO_MANY};
use crate::tensor::{DType, RawViewMut, View};

pub(in crate::ops::ssd::cuda) static KERNEL: Program<Params> =
    Program::new("ssd_hand_on", &[COMMON, STEP_SIZE], include_str!("hand_on.cu")).including(&[SLOTS, SEQUENCES, INPUTS, HAND_ON]);

params! {
    /// Parameters of `ssd_hand_on`.
    pub(in crate::ops::ssd::cuda) struct Params(inputs: Inputs) {
        /// The states that sequences begin and end with, in the direction of the walk.
        before: States,
        after: States,
    }
}

/// Threads of a block.
const THREADS: usize = 256;

pub(in crate::ops::ssd::cuda) fn config(call: &Call<'_, '_>, before: &Option<View<'_>>, after: &Option<RawViewMut>) -> Config {
    let options = call.options().int("THREADS", THREADS);
    options.dtype("BEFORE", before.map_or(DType::F32, |v| v.dtype())).dtype("AFTER", type_of(after))
}

/// From the states that a walk begins sequences with to those that it ends them with, if they are wanted.
///
/// # Safety
/// The views are valid.
pub(in crate::ops::ssd::cuda) unsafe fn launch(
    stream: &Queue<'_>,
    call: &Call<'_, '_>,
    before: &Option<View<'_>>,
    after: &Option<RawViewMut>,
) -> Result<()> {
    let (Some(to), p) = (after, call.problem) else { return Ok(()) };
    let blocks = p.batch.checked_mul(p.nheads).and_then(|n| u32::try_from(n).ok()).ok_or(TOO_MANY)?;
    let params = Params { inputs: call.inputs(1, 1), before: States::of(before), after: States::of(&Some(to.as_read())) };
    // SAFETY: the caller's contract; the configuration has the types of the states.
    unsafe { stream.launch(&KERNEL, || config(call, before, after), Launch::line(blocks, THREADS as u32, 0), &params) }
        .map_err(Into::into)
}
