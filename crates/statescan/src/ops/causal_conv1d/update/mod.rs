//! One or a few steps of a causal convolution, with its last inputs kept in place: what decoding needs.
//!
//! | argument | shape | type |
//! |---|---|---|
//! | x | (B, D), or (B, D, T) for T steps | real |
//! | conv_state | (B, D, M), or (S, D, M) with indices; M >= W-1 | real; read and written |
//! | weight, bias | (D, W), (D,) | real |
//! | cache_seqlens | (B,) | i32 or i64, not negative |
//! | conv_state_indices | (B,) | i32 or i64: the state that a row uses, negative for none |
//! | -> y | as x | real |
//!
//! Without `cache_seqlens` the state is the last M inputs, the latest last: it moves by T. With them it is a circular buffer: a
//! row that has seen `n` inputs keeps input `i` at `i mod M`, and the new ones go to `n mod M` and on. A row with a negative
//! index has a `y` of zero and touches no state. On CUDA only the device reads indices and lengths: an index that is out of range
//! counts as negative, one that is used twice gives wrong results, and a length counts modulo M.
//!
//! Several tokens at once, with states that are read in one slot and written in others: [`slotted`].

mod cpu;
mod cuda;
mod problem;
pub mod reference;

use super::{ACTIVATION, Activation};
use crate::cuda::Stream;
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::call::Call;
use crate::ops::check::{Checker, Kind};
use crate::ops::op::Step;
use crate::ops::signature::*;
use crate::ops::slots::Slots;
use crate::ops::slotted::{self, READERS, Slotted, TOKENS};
use crate::ops::table::step;
use crate::tensor::{Dense, Device, View, ViewMut};
use problem::{Problem, Sizes};

const OP: &str = SIGNATURE.name;

/// The last inputs.
static STATE: Argument = state(&["SDM"]).field("conv_state", "grad of conv_state");

step! {
    /// A few steps of a causal convolution as data.
    pub SIGNATURE = Signature {
        name: "causal_conv1d_update",
        about: "one or a few steps of a causal convolution, with the last inputs kept in place",
        sizes: &[BATCH, DIM, ('T', "steps"), ('W', "width"), ('S', "states"), ('M', "state_len"), READERS, TOKENS, BOUNDS],
        in_place: Some(&STATE),
        limit: Limit {
            names: "max(batch, states) x dim x max(steps, state_len)",
            bytes: 4,
            what: "two tiles of all states of 16 channels, where rows and channels count 2^8",
        },
        ..SCAN
    };
    facts = Facts {
        state_steps: "BDTW",
        forward: Cost { flops: &[(2.0, "BDTW")], exps: &[(1.0, "BDT")] },
        backward: Cost::NOTHING,
        oracle: &[(1.0, "BDTW")],
        independent: &[('B', Some('S')), ('D', None)],
        tensor_cores: TensorCores::Never,
        small: &[('B', 1), ('D', 1024), ('W', 4), ('M', 3)],
        ..Facts::NONE
    };
    /// The arguments of [`update`]; see the [module](self) for what they mean.
    Args;
    required {
        /// New inputs, (B, D) or (B, D, T).
        x = activation(&["BD", "BDT"]),
        /// Filters, (D, W).
        weight = parameter(&["DW"]),
    }
    optional {
        /// Added to the sum, (D,).
        bias = parameter(&["D"]),
        /// Inputs that each row has seen, (B,): the state is a circular buffer.
        cache_seqlens = index(&["B"]),
        /// The state that each row uses, (B,); negative for none.
        conv_state_indices = index(&["B"]),
    }
    options {
        /// The function after the sum.
        activation: Activation = ACTIVATION,
    }
    results { y = like("x", &["BD", "BDT"]).alias(&["out"]), }
}

static SLOT_ARGUMENTS: [Argument; ARGUMENTS.len() + 2] =
    slotted::with_slots(ARGUMENTS, "conv_state_indices", "dst_conv_state_indices");

/// The step [between slots](slotted), which takes several tokens of a sequence at once.
pub static SLOTTED: Signature = slotted::between_slots(&SIGNATURE, "causal_conv1d_update_slots", &SLOT_ARGUMENTS);

/// The step between slots.
pub(crate) static BETWEEN_SLOTS: Slotted = Slotted { step: &Table, signature: &SIGNATURE };

impl slotted::BetweenSlots for Args<'_> {
    fn between_slots(&self) -> (Call<'_>, &'static Slotted) {
        (Call { signature: &SLOTTED, ..self.call() }, &BETWEEN_SLOTS)
    }
}

/// Computes `y`, shaped as `x`, and moves `conv_state`, (B, D, M) or (S, D, M), on by the new inputs. Without `cache_seqlens` the state holds
/// the last M inputs, the latest last; with them it is a circular buffer. Rows of negative index get zeros and touch no state.
///
/// # Errors
/// Any argument of a wrong shape, type or device, views that overlap, an index that is out of range or used twice, a negative length.
/// Nothing is written then.
pub fn update(exec: &Exec, args: &Args<'_>, conv_state: &mut ViewMut<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    if let Some(stream) = exec.stream() {
        return launch(stream, args, None, conv_state, y);
    }
    cpu::update(exec, &checked(exec.device(), args, None, conv_state, y)?.problem(args, conv_state.raw(), y.raw()));
    Ok(())
}

/// Puts the kernel of a step into a stream.
fn launch(
    stream: &Stream,
    args: &Args<'_>,
    slots: Option<&Slots<'_>>,
    conv_state: &mut ViewMut<'_>,
    y: &mut ViewMut<'_>,
) -> Result<()> {
    let sizes = checked(conv_state.shared().device(), args, slots, conv_state, y)?;
    let problem = sizes.problem(args, conv_state.raw(), y.raw());
    cuda::update(&args.queue(stream, slots, [problem.state.as_read(), problem.y.as_read()]), &problem, slots)
}

/// The sizes of a step whose arguments, state and result go together. On CUDA it reads none of them.
fn checked(
    device: Device,
    args: &Args<'_>,
    slots: Option<&Slots<'_>>,
    conv_state: &ViewMut<'_>,
    y: &ViewMut<'_>,
) -> Result<Sizes> {
    let (sizes, views) = (Sizes::new(args, device, slots.is_some(), conv_state.shape())?, args.views());
    let mut checker = Checker::of(OP, device, &SIGNATURE, &views);
    slots.into_iter().for_each(|slots| slots.are_read(&mut checker));
    checker.write("conv_state", conv_state, Kind::Real, &[sizes.states, sizes.dim, sizes.state_len])?;
    checker.write("y", y, Kind::Real, &args.x.shape())?;
    checker.finish()?;
    Ok(sizes)
}

impl Step for Table {
    fn update(
        &self,
        exec: &Exec,
        call: &Call<'_>,
        state: &mut ViewMut<'_>,
        y: &mut ViewMut<'_>,
        _workspace: Option<ViewMut<'_>>,
    ) -> Result<()> {
        update(exec, &Args::of_call(call), state, y)
    }

    fn check_between(&self, (call, slots): (&Call<'_>, &Slots<'_>), state: &ViewMut<'_>, y: &ViewMut<'_>) -> Result<()> {
        checked(state.shared().device(), &Args::of_call(call), Some(slots), state, y).map(drop)
    }

    fn launch_between(
        &self,
        stream: &Stream,
        (call, slots): (&Call<'_>, &Slots<'_>),
        state: &mut ViewMut<'_>,
        y: &mut ViewMut<'_>,
    ) -> Result<()> {
        launch(stream, &Args::of_call(call), Some(slots), state, y)
    }

    fn check(&self, call: &Call<'_>, state: &ViewMut<'_>, y: &ViewMut<'_>) -> Result<()> {
        checked(state.shared().device(), &Args::of_call(call), None, state, y).map(drop)
    }

    fn reference(&self, call: &Call<'_>, state: &View<'_>) -> Result<[Dense; 2]> {
        reference::update(&Args::of_call(call), state).map(|(y, state)| [y, state])
    }
}
