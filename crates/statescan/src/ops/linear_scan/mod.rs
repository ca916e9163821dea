//! Linear scan: a diagonal first-order recurrence, the primitive under S5, LRU, RG-LRU, HGRN and S7.
//!
//! ```text
//! h[t] = a[t] h[t-1] + b[t]
//! ```
//!
//! | argument | shape | type |
//! |---|---|---|
//! | a, b | (.., L), up to four leading axes | real or complex, each on its own |
//! | initial_state | (..) | real, or complex where a or b is |
//! | reverse | flag: the scan runs from t = L - 1 down | |
//! | exact | flag: bits do not depend on how time is cut | |
//! | -> h | (.., L) | complex where a or b is, else real |
//! | -> final_state, decay | (..) | as h; `decay` is the product of all a |
//!
//! Each argument may have its own storage type and any strides; `a` may be expanded along any axis. Carried values are `f32`, or `f64`
//! where `a` or `b` is. `decay` joins scans of slices: a slice scanned from zero that is entered by a state `s` ends in
//! `final_state + decay s`.
//!
//! `a[t] = 0` restarts a channel from `b[t]` as long as its state is finite; a NaN or an infinity times zero stays NaN. Operations that
//! take [`crate::Sequences`] have hard resets.
//!
//! **Backward.** With `g[t]` the gradient of `h[t]`, `p[t]` the cotangent of `h[t]` (that of the final state added at the last step) and
//! `s = conj`:
//!
//! ```text
//! g[t] = p[t] + s(a[t+1]) g[t+1]      db = g      da[t] = g[t] s(h[t-1])      d initial_state = s(a[0]) g[0]
//! ```
//!
//! Nothing but `h` is needed, and that is recomputed tile by tile (with one state kept for each 64 steps) where the caller gives none.
//! Gradients overwrite.
//!
//! **Pools.** With states in a [pool] the first axis has the rows, of which there is one at least: states are (slots, ..).
//!
//! **CUDA.** Everything runs there but an `a` or `b` in `f64`. Steps are composed in threads before states are known, so that a product of
//! decays that leaves the range of `f32` takes what is not zero with it. With `exact` a thread takes the steps of its channel one after another, as CPUs always
//! do: the bits of a text do not depend on its cuts, as long as states between calls are in `f32`. Gradients do not need it. Where `h` is not given it is computed again as a whole, in a workspace.

mod cpu;
mod cuda;
mod passes;
mod problem;
pub mod reference;
mod summary;

use crate::error::Result;
use crate::exec::Exec;
use crate::ops::call::Call;
use crate::ops::signature::*;
use crate::ops::table::operation;
use crate::ops::{pool, prepared};
use crate::tensor::Shape;
use problem::Problem;
pub use summary::{summary, summary_workspace_len};

const OP: &str = SIGNATURE.name;

const TIMED: &[&str] = &["L", "DL", "BDL", "BEDL", "BEFDL"];
const STATE: &[&str] = &["", "D", "BD", "BED", "BEFD"];
const EITHER: Complex = Complex::As(&["a", "b"]);
const STATES: Output = state_beside("b", STATE).dtype(ResultType::CarriedByBoth("a", "b")).complex(EITHER);
const EXACT: OptionSpec = OptionSpec::new(Choice::Flag(false));
const DECAY: Output = STATES.field("decay", "grad of decay").constant();

operation! {
    /// A linear scan as data.
    pub SIGNATURE = Signature {
        name: "linear_scan",
        about: "h[t] = a[t] h[t-1] + b[t]: the primitive under S5, LRU, RG-LRU and HGRN",
        sizes: &[BATCH, DIM, SEQLEN, ('E', "axis 2"), ('F', "axis 3"), SEQUENCES, SLOTS, PIECES],
        leaders: &[1],
        saved: Saved::Result(0),
        decay: Some(&DECAY),
        limit: Limit { names: "rows x seqlen", bytes: 5, what: "states of all steps, or of 128 channels before each tile" },
        ..SCAN
    };
    facts = Facts {
        state_steps: "BEFDL",
        forward: Cost { flops: &[(2.0, "BEFDL")], exps: &[] },
        backward: Cost { flops: &[(4.0, "BEFDL")], exps: &[] },
        oracle: &[(1.0, "BEFDL")],
        independent: &[('B', None), ('E', None), ('F', None), ('D', None)],
        tensor_cores: TensorCores::Never,
        small: &[('B', 1), ('D', 256), ('L', 1024)],
        ..Facts::NONE
    };
    /// The arguments of a linear scan; see the [module](self) for shapes and types.
    Args;
    required {
        /// Decay, (.., L).
        a: timed = activation(TIMED).alias(&["A"]).complex(Complex::Always),
        /// Input, (.., L).
        b: timed = activation(TIMED).alias(&["B"]).complex(Complex::Always),
    }
    optional {
        /// State before the first step, (..).
        initial_state: state = state(STATE).complex(EITHER),
    }
    options {
        /// Whether to scan from the last step to the first.
        reverse: bool = REVERSE,
        /// Whether steps are taken one after another, so that bits do not depend on how time is cut into calls.
        exact: bool = EXACT,
    }
    results {
        /// States, (.., L).
        h: timed = like("b", TIMED).alias(&["y", "out"]).dtype(ResultType::Promoted("a", "b")).complex(EITHER),
        /// State after the last step, (..).
        final_state: state = STATES.alias(&["last_state"]),
    }
    totals {
        /// Product of all `a`, (..); 1 for no steps.
        decay: state = DECAY,
    }
    again { h as states: timed, }
    workspace {
        /// Scratch memory: dense, f32, of [`workspace_len`] elements. Without it long rows of few channels are slower on CUDA.
        workspace,
    }
    backward_workspace {
        /// Scratch memory: dense, f32, of [`backward_workspace_len`] elements. CUDA needs it for the gradient by `a` where `h` is not given.
    }
}

/// States of a pool, (slots, ..), without the first axis.
static POOL: Argument = pool::state_pool(&["U", "UD", "UED", "UEFD"]).complex(EITHER);
static POOL_ARGUMENTS: [Argument; ARGUMENTS.len() + 2] = pool::with_slots(ARGUMENTS);

/// The operation with states in a [pool].
pub static POOLED: Signature = pool::pooled(&SIGNATURE, "linear_scan_pooled", &POOL, &POOL_ARGUMENTS);

/// The operation on a pool of states.
pub(super) static IN_POOL: pool::Pooled = pool::Pooled { op: &Table, signature: &SIGNATURE, by_level: false };

impl pool::InPool for Args<'_> {
    fn in_pool(&self) -> (Call<'_>, &'static pool::Pooled) {
        (Call { signature: &POOLED, ..self.call() }, &IN_POOL)
    }
}

/// The shape of `final_state` and `decay`.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn final_state_shape(args: &Args<'_>) -> Result<Shape> {
    prepared::state_shape(&Table, &args.call())
}

/// Number of `f32` elements that `Outputs::workspace` must have if it is given; none on the CPU, and none for short rows.
///
/// # Errors
/// Those of [`forward`] that concern the arguments, unless none is needed whatever they are.
pub fn workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    let short = args.b.shape().last().is_some_and(|&seqlen| seqlen <= cuda::LONGEST_WHOLE);
    if short || exec.stream().is_none() { Ok(0) } else { prepare(exec, args)?.workspace_len() }
}

/// Number of `f32` elements that `Gradients::workspace` must have if it is given; none on the CPU. Where `h` is not given, they have room
/// for it.
///
/// # Errors
/// Those of [`backward`] that concern the arguments.
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>, h_is_given: bool) -> Result<usize> {
    prepare(exec, args)?.backward_workspace_len(h_is_given)
}
