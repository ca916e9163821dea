//! One step of a selective scan, with the state updated in place: what decoding needs.
//!
//! ```text
//! h <- Abar(dt A) h + Bbar(dt, A) B x        y = <C, h> + D x,  then  y * silu(z)
//! ```
//!
//! The formulas, and the order of what happens to `dt`, are those of [`selective_scan`](super): L steps give its result,
//! for every discretization. B batch, D dim, N dstate, H nheads, P headdim, G ngroups, S states (B, or more with indices).
//!
//! | argument | Mamba-1 | Mamba-2 | type |
//! |---|---|---|---|
//! | state | (S, D, N) | (S, H, P, N) | real, or complex where a is; read and written |
//! | x, dt, z, dt_a | (B, D) | (B, H, P) | real |
//! | a | (D, N) | (H, P, N) | real or complex; complex: `y = 2 Re <C, h>` |
//! | b, c | (B, N) or (B, G, N) | the same | real, or complex where a is |
//! | d, dt_bias | (D,) | (H, P) | real |
//! | state_batch_indices | (B,) | (B,) | i32 or i64: the state that a row uses, negative for none |
//! | -> y | (B, D) | (B, H, P) | real |
//!
//! Each argument may have its own storage type and any strides. An argument that is the same for a whole head may come expanded,
//! with strides of zero; if `a` is the same for all states of a channel, there is one exponential for each channel instead of one
//! for each state. A row with a negative index has a `y` of zero and touches no state. Sums are `f32`, or `f64` where `x` or the
//! state is.
//!
//! **CUDA.** Everything runs there but an `x` or a state in `f64`. Only the device reads indices: one that is out of range counts as negative,
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
use crate::step_size::StepSize;
use crate::tensor::{Dense, Device, View, ViewMut};
use problem::Sizes;
pub(crate) use problem::{Operand, Problem};

const OP: &str = SIGNATURE.name;

const CHANNELS: &[&str] = &["BD", "BHP"];
const OWN: &[&str] = &["D", "HP"];
const MAPS: &[&str] = &["BN", "BGN"];
const AS_A: Complex = Complex::As(&["A"]);
/// The state of each row.
static STATE: Argument = state(&["SDN", "SHPN"]).field("state", "grad of state").complex(AS_A);

step! {
    /// One step of a selective scan or of SSD as data.
    pub SIGNATURE = Signature {
        name: "selective_state_update",
        about: "one step of a selective scan or of SSD, with the state updated in place",
        sizes: &[BATCH, DIM, ('H', "nheads"), ('P', "headdim"), DSTATE, NGROUPS, ('S', "states"), READERS, TOKENS, BOUNDS],
        free: "G",
        forms: &["BDNGSRQK", "BHPNGSRQK"],
        in_place: Some(&STATE),
        limit: Limit {
            names: "max(batch, states) x dim (or nheads x headdim) x dstate",
            bytes: 4,
            what: "two tiles of all states of 16 channels, where rows and channels count 2^8",
        },
        ..SCAN
    };
    facts = Facts {
        state_steps: "BDHPN",
        // dt A, the decayed state plus the input, the output's sum
        forward: Cost { flops: &[(6.0, "BDHPN")], exps: &[(1.0, "BDHPN")] },
        backward: Cost::NOTHING,
        oracle: &[(1.0, "BDHPN")],
        independent: &[('B', Some('S')), ('D', Some('G')), ('H', Some('G')), ('P', None)],
        tensor_cores: TensorCores::Never,
        small: &[('B', 1), ('D', 1024), ('N', 16)],
        ..Facts::NONE
    };
    /// The arguments of a step; see the [module](self) for shapes and types.
    Args;
    required {
        /// Input, (B, D) or (B, H, P).
        x = activation(CHANNELS).alias(&["u"]),
        /// Step sizes, shaped as `x`.
        dt = activation(CHANNELS).alias(&["delta"]),
        /// State matrix, diagonal, (D, N) or (H, P, N).
        a = parameter(&["DN", "HPN"]).named("A").complex(Complex::Always),
        /// Input map, (B, N) or (B, G, N).
        b = activation(MAPS).named("B").complex(AS_A),
        /// Output map, (B, N) or (B, G, N).
        c = activation(MAPS).named("C").complex(AS_A),
    }
    optional {
        /// Skip, (D,) or (H, P).
        d = parameter(OWN).named("D"),
        /// Gate, shaped as `x`.
        z = activation(CHANNELS),
        /// Added to `dt`, (D,) or (H, P).
        dt_bias = parameter(OWN).alias(&["delta_bias"]),
        /// The decay's own step (`deltaA`), shaped as `x`, used as it is.
        dt_a = activation(CHANNELS).named("deltaA").alias(&["delta_a"]),
        /// The state that each row uses, (B,); negative for none.
        state_batch_indices = index(&["B"]),
    }
    options {
        /// Whether `dt` goes through softplus after the bias.
        dt_softplus: bool = DT_SOFTPLUS,
        /// Lowest and highest step, applied last.
        dt_limit: (f64, f64) = DT_LIMIT,
        /// How (A, B) become a recurrence.
        discretization: Discretization = discretization(0),
    }
    results { y = like("x", CHANNELS).alias(&["out"]), }
}

static SLOT_ARGUMENTS: [Argument; ARGUMENTS.len() + 2] =
    slotted::with_slots(ARGUMENTS, "state_batch_indices", "dst_state_batch_indices");

/// The step [between slots](slotted), which takes several tokens of a sequence at once.
pub static SLOTTED: Signature = slotted::between_slots(&SIGNATURE, "selective_state_update_slots", &SLOT_ARGUMENTS);

/// The step between slots.
pub(crate) static BETWEEN_SLOTS: Slotted = Slotted { step: &Table, signature: &SIGNATURE };

impl slotted::BetweenSlots for Args<'_> {
    fn between_slots(&self) -> (Call<'_>, &'static Slotted) {
        (Call { signature: &SLOTTED, ..self.call() }, &BETWEEN_SLOTS)
    }
}

impl Args<'_> {
    /// How steps are made.
    fn step_size(&self) -> StepSize {
        StepSize { softplus: self.dt_softplus, limit: self.dt_limit }
    }
}

/// Moves `state` on by one step and writes `y`, shaped as `x`.
///
/// # Errors
/// Any argument of a wrong shape, type or device, views that overlap, an index that is out of range or used twice. Nothing is written then.
pub fn update(exec: &Exec, args: &Args<'_>, state: &mut ViewMut<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    if let Some(stream) = exec.stream() {
        return launch(stream, args, None, state, y);
    }
    let sizes = checked(exec.device(), args, None, state, y)?;
    let (state, y) = (state.raw(), y.raw());
    cpu::update(exec, &sizes.problem(args, &state.as_read(), &y.as_read()), state, y);
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
    let sizes = checked(state.shared().device(), args, slots, state, y)?;
    let (state, y) = (state.raw(), y.raw());
    let problem = sizes.problem(args, &state.as_read(), &y.as_read());
    let queue = args.queue(stream, slots, [state.as_read(), y.as_read()]);
    cuda::update(&queue, &problem, &cuda::Rows { indices: args.state_batch_indices, slots })
}

/// The sizes of a step whose arguments, state and result go together. On CUDA it reads none of them.
fn checked(device: Device, args: &Args<'_>, slots: Option<&Slots<'_>>, state: &ViewMut<'_>, y: &ViewMut<'_>) -> Result<Sizes> {
    let (sizes, views) = (Sizes::new(args, device, slots.is_some(), state.shape())?, args.views());
    let mut checker = Checker::of(OP, device, &SIGNATURE, &views);
    slots.into_iter().for_each(|slots| slots.are_read(&mut checker));
    checker.write("state", state, Kind::exactly(sizes.complex), &sizes.state_shape())?;
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
