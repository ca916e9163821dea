//! One step of the gated delta rule, with the state updated in place: what decoding needs.
//!
//! ```text
//! S <- exp(g) S        S <- S + k (beta (v - S^T k))^T        y = scale S^T q
//! ```
//!
//! The formulas and options are those of [`gated_delta_rule`](super), and on CPUs L steps give the bits of its result. B batch, H heads of keys, J heads of values,
//! N key width, P value width, S states (B, or more with indices).
//!
//! | argument | shape | note |
//! |---|---|---|
//! | state | (S, J, N, P) | read and written |
//! | q, k | (B, H, N) | |
//! | v | (B, J, P) | |
//! | g | (B, J) or (B, J, N) | |
//! | beta | (B, J) | |
//! | a_log, dt_bias | (J,); (J,) or (J, N) | for a raw `g` |
//! | state_batch_indices | (B,) | i32 or i64: the state that a row uses, negative for none |
//! | -> y | (B, J, P) | |
//!
//! Each argument may have its own storage type and any strides; states whose columns lie side by side in `f32` are updated where
//! they are, others go through scratch memory. A row with a negative index has a `y` of zero and touches no state. Sums are
//! `f32`, or `f64` where `v` or the state is.
//!
//! **CUDA.** Everything runs there but a `v` or a state in `f64`, as one kernel that reads and writes each state once. Only the device reads indices: one
//! that is out of range counts as negative, one that is used twice gives wrong results.
//!
//! Several tokens at once, with states that are read in one slot and written in others: [`slotted`].

mod cpu;
pub(super) mod cuda;
pub(super) mod problem;
pub mod reference;

use super::gates::GateArgs;
use super::{ALLOW_NEG_EIGVAL, BETA_SIGMOID, HEADS, KEY_WIDTH, LOWER_BOUND, QK_L2NORM, SCALE, VALUE_HEADS, VALUE_WIDTH};
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

/// The state of each row.
static STATE: Argument = state(&["SJNP"]).field("state", "grad of state");

step! {
    /// One step of the gated delta rule as data.
    pub SIGNATURE = Signature {
        name: "gated_delta_rule_update",
        about: "one step of the gated delta rule, with the state updated in place",
        sizes: &[BATCH, HEADS, VALUE_HEADS, KEY_WIDTH, VALUE_WIDTH, ('S', "states"), READERS, TOKENS, BOUNDS],
        leaders: &[2, 0],
        in_place: Some(&STATE),
        limit: Limit {
            names: "max(batch, states) x value_heads x key_width x value_width",
            bytes: 4,
            what: "a state of f64, where rows and heads count 2^8",
        },
        ..SCAN
    };
    facts = Facts {
        state_steps: "BJNP",
        forward: Cost { flops: &[(7.0, "BJNP")], exps: &[(1.0, "BJ")] },
        backward: Cost::NOTHING,
        oracle: &[(2.0, "BJNP")],
        independent: &[('B', Some('S')), ('J', Some('H')), ('P', None)],
        tensor_cores: TensorCores::Never,
        small: &[('B', 1), ('H', 2), ('J', 2), ('N', 64), ('P', 64)],
        ..Facts::NONE
    };
    /// The arguments of a step; see the [module](self) for shapes and types.
    Args;
    required {
        /// Queries, (B, H, N).
        q = activation(&["BHN"]).alias(&["query"]),
        /// Keys, (B, H, N).
        k = activation(&["BHN"]).alias(&["key"]),
        /// Values, (B, J, P).
        v = activation(&["BJP"]).alias(&["value"]),
    }
    optional {
        /// Logarithms of decays, (B, J) or (B, J, N).
        g = activation(&["BJ", "BJN"]).alias(&["decay"]),
        /// How much of a value is written, (B, J).
        beta = activation(&["BJ"]),
        /// Logarithm of the rate of a raw gate, (J,).
        a_log = parameter(&["J"]).named("A_log"),
        /// Added to a raw gate, (J,) or (J, N).
        dt_bias = parameter(&["J", "JN"]),
        /// The state that each row uses, (B,); negative for none.
        state_batch_indices = index(&["B"]),
    }
    options {
        /// The factor of the output; 0 stands for `1/sqrt(N)`.
        scale: f64 = SCALE,
        /// Whether q and k are divided by their lengths.
        qk_l2norm: bool = QK_L2NORM,
        /// The lowest logarithm of a raw gate, which is a sigmoid then; 0 for none.
        lower_bound: f64 = LOWER_BOUND,
        /// Whether `beta` goes through a sigmoid.
        beta_sigmoid: bool = BETA_SIGMOID,
        /// Whether it is doubled then.
        allow_neg_eigval: bool = ALLOW_NEG_EIGVAL,
    }
    results { y = like("v", &["BJP"]).alias(&["o", "out"]), }
}

static SLOT_ARGUMENTS: [Argument; ARGUMENTS.len() + 2] =
    slotted::with_slots(ARGUMENTS, "state_batch_indices", "dst_state_batch_indices");

/// The step [between slots](slotted), which takes several tokens of a sequence at once.
pub static SLOTTED: Signature = slotted::between_slots(&SIGNATURE, "gated_delta_rule_update_slots", &SLOT_ARGUMENTS);

/// The step between slots.
pub(crate) static BETWEEN_SLOTS: Slotted = Slotted { step: &Table, signature: &SIGNATURE };

impl slotted::BetweenSlots for Args<'_> {
    fn between_slots(&self) -> (Call<'_>, &'static Slotted) {
        (Call { signature: &SLOTTED, ..self.call() }, &BETWEEN_SLOTS)
    }
}

impl<'a> Args<'a> {
    fn gates(&self) -> GateArgs<'_, 'a> {
        GateArgs {
            op: OP,
            g: &self.g,
            beta: &self.beta,
            a_log: &self.a_log,
            dt_bias: &self.dt_bias,
            scale: self.scale,
            qk_l2norm: self.qk_l2norm,
            lower_bound: self.lower_bound,
            beta_sigmoid: self.beta_sigmoid,
            allow_neg_eigval: self.allow_neg_eigval,
        }
    }
}

/// Moves `state` on by one step and writes `y`, shaped as `v`.
///
/// # Errors
/// Any argument of a wrong shape, type or device, views that overlap, an index that is out of range or used twice. Nothing is written then.
pub fn update(exec: &Exec, args: &Args<'_>, state: &mut ViewMut<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    if let Some(stream) = exec.stream() {
        return launch(stream, args, None, state, y);
    }
    let problem = checked(exec.device(), args, None, state, y)?.problem(args, state.dtype());
    cpu::update(exec, &problem, state.raw(), y.raw());
    Ok(())
}

/// Puts the kernel of a step into a stream.
fn launch(
    stream: &Stream,
    args: &Args<'_>,
    slots: Option<&Slots<'_>>,
    state: &mut ViewMut<'_>,
    y: &mut ViewMut<'_>,
) -> Result<()> {
    let problem = checked(state.shared().device(), args, slots, state, y)?.problem(args, state.dtype());
    let (state, y) = (state.raw(), y.raw());
    let queue = args.queue(stream, slots, [state.as_read(), y.as_read()]);
    let (state, y) = (state.as_read(), y.as_read());
    let places = cuda::Places { state, before: None, y, indices: args.state_batch_indices, slots, bounds: None };
    cuda::update(&queue, &problem, &places)
}

/// The sizes of a step whose arguments, state and result go together. On CUDA it reads none of them.
fn checked(device: Device, args: &Args<'_>, slots: Option<&Slots<'_>>, state: &ViewMut<'_>, y: &ViewMut<'_>) -> Result<Sizes> {
    let (sizes, views) = (Sizes::new(args, device, slots.is_some(), state.shape())?, args.views());
    let mut checker = Checker::of(OP, device, &SIGNATURE, &views);
    slots.into_iter().for_each(|slots| slots.are_read(&mut checker));
    checker.write("state", state, Kind::Real, &sizes.state_shape())?;
    checker.write("y", y, Kind::Real, &args.v.shape())?;
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
