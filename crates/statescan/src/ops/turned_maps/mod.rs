//! Mamba-3's maps: input and output maps of groups become those of heads, each with its head's bias, turned by angles that add up over time.
//!
//! ```text
//! theta[t] = theta[t-1] + pi tanh(rate[t]) dt[t]          u[t] = maps[t] + bias
//! (turned[2i], turned[2i+1]) = (u[2i] cos theta_i - u[2i+1] sin theta_i, u[2i] sin theta_i + u[2i+1] cos theta_i)          i < A
//! dots[t] = <u[t, 0], u[t, 1]>                                                                                  (Mamba-3, 2026, section 3)
//! ```
//!
//! B batch, L seqlen, G ngroups, H nheads, N dstate, A angles; H/G neighbouring heads share a map. The last N - 2A columns are not turned.
//!
//! | argument | shape | type |
//! |---|---|---|
//! | maps | (B, L, 2, G, N) | real: both maps of each step |
//! | bias | (2, H, N) | real |
//! | rate | (B, L, H, A), 2A at most N | real |
//! | dt | (B, L, H) | real |
//! | -> turned | (B, L, 2, H, N) | that of maps |
//! | -> dots | (B, L, H) | that of dt: products of both maps of a step, which a turn of both leaves as they are |
//!
//! Angles begin at 0 in each row. Products of maps of different steps depend on differences of their angles alone, so that neither an angle to start
//! from nor packed sequences need another form. Each argument may have its own storage type and any strides. Numbers are computed in `f32`, or in
//! `f64` where maps are, and angles summed in `f64`, in turns, of which whole ones are left out.
//!
//! **Backward.** With `v` the cotangent of `turned`, turned back, and `c` that of `dots`,
//!
//! ```text
//! du[0] = v[0] + c u[1]        du[1] = v[1] + c u[0]        dmaps = sum over the heads of a group of du        dbias = sum over steps of du
//! dtheta_i = sum over both maps of u[2i] v[2i+1] - u[2i+1] v[2i]                  s[t] = sum of dtheta from t on
//! drate = pi dt (1 - tanh(rate)^2) s                                              ddt = pi sum over angles of tanh(rate) s
//! ```
//!
//! Nothing is saved. Gradients overwrite; sums have an order that the sizes fix.
//!
//! **CUDA.** Everything runs there but maps in `f64`, or of more than 256 columns.

mod cpu;
mod cuda;
mod passes;
mod problem;
pub mod reference;

use crate::error::Result;
use crate::exec::Exec;
use crate::ops::signature::*;
use crate::ops::table::{Plain, operation};
use problem::Problem;

const OP: &str = SIGNATURE.name;

operation! {
    /// Turned maps as data.
    pub SIGNATURE = Signature {
        name: "turned_maps",
        about: "Mamba-3's maps: those of groups with each head's bias, turned by angles that add up over time",
        sizes: &[BATCH, SEQLEN, NGROUPS, ('H', "nheads"), DSTATE, ('A', "angles")],
        limit: Limit {
            names: "batch x seqlen x nheads x dstate",
            bytes: 5,
            what: "angles and their gradients at all steps, and sums of slices of time",
        },
        ..SCAN
    };
    facts = Facts {
        state_steps: "BLHN",
        forward: Cost { flops: &[(10.0, "BLHN")], exps: &[] },
        backward: Cost { flops: &[(18.0, "BLHN")], exps: &[] },
        oracle: &[(1.0, "BLHN")],
        independent: &[('B', None), ('H', Some('G'))],
        small: &[('B', 1), ('L', 128), ('H', 4), ('N', 64), ('A', 16)],
        ..Facts::NONE
    };
    /// The arguments; see the [module](self) for shapes and types.
    Args;
    required {
        /// Both maps, (B, L, 2, G, N).
        maps: plain = activation(&["BL2GN"]),
        /// Their biases, (2, H, N).
        bias: plain = parameter(&["2HN"]),
        /// Rates of the angles, before the tanh, (B, L, H, A).
        rate: plain = activation(&["BLHA"]),
        /// Step sizes, (B, L, H).
        dt: plain = activation(&["BLH"]),
    }
    optional {}
    options {}
    results {
        /// Maps of heads, (B, L, 2, H, N).
        turned: plain = state_beside("maps", &["BL2HN"]).dtype(ResultType::Of("maps")),
        /// Products of both maps of a step, (B, L, H).
        dots: plain = like("dt", &["BLH"]),
    }
    workspace {
        /// Scratch memory: dense, f32, of [`workspace_len`] elements. Needed on CUDA.
        workspace,
    }
    backward_workspace {
        /// Scratch memory: dense, f32, of [`backward_workspace_len`] elements. Needed on CUDA.
    }
}

/// Number of `f32` elements that `Outputs::workspace` must have, none on the CPU.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    prepare(exec, args)?.workspace_len()
}

/// Number of `f32` elements that `Gradients::workspace` must have, none on the CPU.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    prepare(exec, args)?.backward_workspace_len(false)
}
