//! One step of a simplified scan (S5), with the state updated in place: what decoding needs.
//!
//! ```text
//! x <- Abar x + Bbar (B u)        y = C x,  or  f Re(C x) + D Re(u)
//! ```
//!
//! The formulas are those of [`simplified_scan`](super): L steps give its result, for every discretization and head.
//! B batch, H dim, P dstate, S states (B, or more with indices).
//!
//! | argument | shape | type |
//! |---|---|---|
//! | state | (S, P) | complex; read and written |
//! | u | (B, H) | real or complex |
//! | delta, delta_a | (B, P) or (P,) | real |
//! | a | (P,) or (P, 1) | real or complex |
//! | b, c | (P, H), (H, P) | real or complex |
//! | d, conj_sym | (H,), flag | what becomes of `C x`, as in the scan |
//! | state_batch_indices | (B,) | i32 or i64: the state that a row uses, negative for none |
//! | -> y | (B, H) | complex; real with `d` |
//!
//! Each argument may have its own storage type and any strides. A row with a negative index has a `y` of zero and touches no
//! state. Sums are `f32`, or `f64` where `u` or the state is. The maps are read once for up to 64 rows, where they lie; nothing
//! is packed.
//!
//! **CUDA.** Everything runs there but a `u` or a state in `f64`. Only the device reads indices: one that is out of range counts as negative,
//! one that is used twice gives wrong results.
//!
//! Several tokens at once, with states that are read in one slot and written in others: [`slotted`].

mod cpu;
mod cuda;
mod problem;
pub mod reference;

use crate::cuda::Stream;
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::call::Call;
use crate::ops::check::{Checker, Kind};
use crate::ops::discretization::Discretization;
use crate::ops::op::Step;
use crate::ops::signature::*;
use crate::ops::slots::Slots;
use crate::ops::slotted::{self, READERS, Slotted, TOKENS};
use crate::ops::table::step;
use crate::tensor::{Dense, Device, View, ViewMut};
pub(crate) use problem::{Problem, Targets};

const OP: &str = SIGNATURE.name;

const STEP: &[&str] = &["P", "BP"];
/// The state of each row.
static STATE: Argument = state(&["SP"]).field("state", "grad of state").complex(Complex::Always);

step! {
    /// One step of a simplified scan as data.
    pub SIGNATURE = Signature {
        name: "simplified_state_update",
        about: "one step of S5, with the state updated in place",
        sizes: &[BATCH, ('H', "dim"), ('P', "dstate"), ('S', "states"), READERS, TOKENS, BOUNDS],
        leaders: &[0, 2],
        in_place: Some(&STATE),
        limit: Limit { names: "max(batch, states) x dim x dstate", bytes: 4, what: "inputs and states of all rows in two parts" },
        ..SCAN
    };
    facts = Facts {
        state_steps: "BP",
        forward: Cost { flops: &[(14.0, "BP"), (8.0, "BPH")], exps: &[(3.0, "BP")] },
        backward: Cost::NOTHING,
        oracle: &[(1.0, "BP"), (0.5, "BPH")],
        independent: &[('B', Some('S'))],
        tensor_cores: TensorCores::Never,
        small: &[('B', 1), ('H', 64), ('P', 64)],
        ..Facts::NONE
    };
    /// The arguments of a step; see the [module](self) for shapes and types.
    Args;
    required {
        /// Input, (B, H).
        u = activation(&["BH"]).alias(&["x"]).complex(Complex::Always),
        /// Step sizes, (B, P) or (P,).
        delta = activation(STEP).alias(&["dt"]),
        /// State matrix, diagonal, (P,) or (P, 1).
        a = parameter(&["P", "P1"]).named("A").complex(Complex::Always),
        /// Input map, (P, H).
        b = parameter(&["PH"]).named("B").complex(Complex::Always),
        /// Output map, (H, P).
        c = parameter(&["HP"]).named("C").complex(Complex::Always),
    }
    optional {
        /// Skip, (H,). With it `y = f Re(C x) + D Re(u)`, real; without it `y = C x`, complex.
        d = parameter(&["H"]).named("D"),
        /// The decay's own step sizes, (B, P) or (P,).
        delta_a = activation(STEP).named("deltaA").alias(&["dt_a"]),
        /// The state that each row uses, (B,); negative for none.
        state_batch_indices = index(&["B"]),
    }
    options {
        /// How (A, B) become a recurrence.
        discretization: Discretization = discretization(2),
        /// Whether the states of a real result stand for conjugate pairs: `f` is 2, else 1.
        conj_sym: bool = OptionSpec::new(Choice::Flag(true)),
    }
    results { y = like("u", &["BH"]).alias(&["out"]).complex(Complex::Without("D")), }
}

static SLOT_ARGUMENTS: [Argument; ARGUMENTS.len() + 2] =
    slotted::with_slots(ARGUMENTS, "state_batch_indices", "dst_state_batch_indices");

/// The step [between slots](slotted), which takes several tokens of a sequence at once.
pub static SLOTTED: Signature = slotted::between_slots(&SIGNATURE, "simplified_state_update_slots", &SLOT_ARGUMENTS);

/// The step between slots.
pub(crate) static BETWEEN_SLOTS: Slotted = Slotted { step: &Table, signature: &SIGNATURE };

impl slotted::BetweenSlots for Args<'_> {
    fn between_slots(&self) -> (Call<'_>, &'static Slotted) {
        (Call { signature: &SLOTTED, ..self.call() }, &BETWEEN_SLOTS)
    }
}

/// Moves `state` on by one step and writes `y`.
///
/// # Errors
/// Any argument of a wrong shape, type or device, views that overlap, an index that is out of range or used twice. Nothing is written then.
pub fn update(exec: &Exec, args: &Args<'_>, state: &mut ViewMut<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    if let Some(stream) = exec.stream() {
        return launch(stream, args, None, state, y);
    }
    let problem = checked(exec.device(), args, None, state, y)?;
    cpu::update(exec, &problem, &Targets { state: state.raw(), y: y.raw() });
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
    let problem = checked(state.shared().device(), args, slots, state, y)?;
    let targets = Targets { state: state.raw(), y: y.raw() };
    let queue = args.queue(stream, slots, [targets.state.as_read(), targets.y.as_read()]);
    cuda::update(&queue, &problem, &cuda::Rows { indices: args.state_batch_indices, slots }, &targets)
}

/// The problem of a step whose arguments, state and result go together. On CUDA it reads none of them.
fn checked<'a>(
    device: Device,
    args: &Args<'a>,
    slots: Option<&Slots<'_>>,
    state: &ViewMut<'_>,
    y: &ViewMut<'_>,
) -> Result<Problem<'a>> {
    let (mut problem, views) = (Problem::new(args, device, slots.is_some(), state.shape())?, args.views());
    problem.double |= state.shared().dtype().is_double();
    let mut checker = Checker::of(OP, device, &SIGNATURE, &views);
    slots.into_iter().for_each(|slots| slots.are_read(&mut checker));
    checker.write("state", state, Kind::Complex, &[problem.states, problem.dstate])?;
    checker.write("y", y, Kind::exactly(problem.real_factor.is_none()), &[problem.batch, problem.dim])?;
    checker.finish()?;
    Ok(problem)
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
