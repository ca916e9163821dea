//! The selective scan on the CPU.
//!
//! # The whole algorithm
//!
//! For every row of the batch (or packed sequence: a *segment*) and every channel `d` of it, with `N` states:
//!
//! ```text
//! forward:
//!     h[n] = initial_state[d, n]
//!     for t in 0..L:
//!         dt = clamp(softplus(dt_raw[d, t] + dt_bias[d]), dt_limit)
//!         u  = dt x[d, t]
//!         y  = D[d] x[d, t]
//!         for n in 0..N:
//!             h[n] = exp(dt A[d, n]) h[n] + B[n, t] u
//!             y   += C[n, t] h[n]
//!         y[d, t] = y silu(z[d, t])
//!     final_state[d] = h
//!
//! backward, with the states h[t] of the forward pass:
//!     g[n] = gradient by final_state[d, n]
//!     for t in (0..L).rev():
//!         p = dy[d, t] silu(z[d, t])                         the cotangent before the gate
//!         for n in 0..N:
//!             G       = C[n, t] p + g[n]                     the gradient by h[t]
//!             dC[n, t] += h[t][n] p                          summed over channels
//!             dB[n, t] += G u
//!             du       += G B[n, t]
//!             g[n]      = exp(dt A[d, n]) G                  the gradient by h[t-1]
//!             s         = g[n] h[t-1][n]                     the gradient by dt A[d, n]
//!             dA[d, n] += s dt
//!             ddt      += s A[d, n]
//!         dx[d, t]  = du dt + D[d] p,    dD[d] += p x[d, t]
//!         ddt       = (ddt + du x[d, t]) slope               through clamp and softplus
//!         dz[d, t]  = dy[d, t] y silu'(z[d, t])
//! ```
//!
//! Complex states take `2 Re(C h)` and conjugate A, B, C and h on the way back. Other discretizations replace `exp(dt A)` and multiply `u` by a
//! gain ([`Rule`]); `dt_a` replaces `dt` beside A.
//!
//! # Why the code differs
//!
//! 1. *Lanes are channels.* The loop over `n` and `t` runs for a vector of neighbouring channels, a *block*; B and C are scalars that are
//!    broadcast. Where channels are too few, the states of one are dealt over several lanes ([`lanes`]).
//! 2. *Tiles.* Inputs are converted to the compute type and transposed 64 steps at a time, which makes storage types and strides free. A tile
//!    of B and C is loaded once for all blocks of a job ([`here`], [`inputs`]).
//! 3. *The work that has no states* (dt, u, the gate) is done for a tile before and after the loops over states ([`process`]).
//! 4. *The loops are exchanged*: four states walk the 64 steps of a tile with their values in registers, then the next four. `y` is a tile in
//!    the first cache meanwhile ([`forward`]).
//! 5. *The states of the forward pass are not kept* but for one in 64 steps. The backward pass walks each tile forwards again, keeps states and
//!    decays of two states for 64 steps, and walks back over them ([`sweep`]).
//! 6. *dB and dC* are sums over channels: gathered as vectors, reduced over lanes a vector of steps at a time, added over a job's blocks in a
//!    tile, and over jobs in the order of the plan ([`block`], [`reduce`]). Long rows go in windows, whose partial sums stay in the cache.
//! 7. *A job* is a range of segments times a range of channels that share B and C ([`plan`]). Backwards, where channels are few and rows long,
//!    threads walk tiles of one row behind each other instead ([`wavefront`]).
//! 8. *Rows are prefetched* evenly over the work of a block: they lie a power of two apart, and no hardware prefetcher follows that many.
//!
//! # The way through the files
//!
//! `mod.rs` chooses types and variant; `plan.rs` divides; `forward.rs` and `backward.rs` are a job with its stages; `block.rs` one tile of the
//! backward pass; `sweep.rs` its innermost loops. [`Here`](here::Here) says where a job is, [`Arena`](crate::cpu::Arena) has its arrays by name.

mod backward;
mod block;
mod forward;
mod here;
mod inputs;
mod kept;
mod lanes;
mod plan;
mod process;
mod reduce;
mod scratch;
mod sweep;
mod wavefront;

use super::{Discretization, GradientTargets, Problem, Projection, Sources, Targets};
use crate::cpu::simd::{Isa, Real};
use crate::cpu::{Kernel, Level};
use crate::exec::Exec;
use crate::ops::rules::{Bilinear, ComplexField, Exponential, FieldKind, RealField, Rule, Zoh};
use core::marker::PhantomData;
pub(crate) use plan::Checkpoints;
use plan::Plan;

/// The types that a pass is compiled for: compute type, real or complex states.
trait Types: Sync {
    type T: Real;
    type K: FieldKind;
}

struct Pair<T, K>(PhantomData<(T, K)>);

impl<T: Real, K: FieldKind> Types for Pair<T, K> {
    type T = T;
    type K = K;
}

/// One pass with its arguments, to be run for some types.
trait Pass {
    fn run<E: Types>(self);
}

fn dispatch(problem: &Problem<'_>, pass: impl Pass) {
    match (problem.double, problem.complex) {
        (false, false) => pass.run::<Pair<f32, RealField>>(),
        (false, true) => pass.run::<Pair<f32, ComplexField>>(),
        (true, false) => pass.run::<Pair<f64, RealField>>(),
        (true, true) => pass.run::<Pair<f64, ComplexField>>(),
    }
}

/// The constants that the innermost loops are compiled with besides: the discretization, and whether B and C vary with time.
trait Variant: Types {
    type R: Rule;
    const VARYING: bool;
    /// Lanes of a channel where they are known at compile time, because nothing else is asked at every step; otherwise 0.
    const LANES: usize;
    /// States walked together. Real exponentials are so short that the multiply-adds of one state would wait for each other; everything
    /// else keeps the processor busy with one state, and is compiled once instead of four times over.
    const TOGETHER: usize = if Self::R::GAIN || Self::K::PARTS == 2 { 1 } else { 4 };
}

struct Choice<E, R, const VARYING: bool, const LANES: usize>(PhantomData<(E, R)>);

impl<E: Types, R: Rule, const VARYING: bool, const LANES: usize> Types for Choice<E, R, VARYING, LANES> {
    type T = E::T;
    type K = E::K;
}

impl<E: Types, R: Rule, const VARYING: bool, const LANES: usize> Variant for Choice<E, R, VARYING, LANES> {
    type R = R;
    const VARYING: bool = VARYING;
    const LANES: usize = LANES;
}

/// The loops over the states and steps of one tile and one vector of channels.
trait Loops<T> {
    fn walk<E: Variant<T = T>, S: Isa>(&mut self, simd: S);
}

struct Walk<'l, L, E>(&'l mut L, PhantomData<E>);

impl<L: Loops<E::T>, E: Variant> Kernel for Walk<'_, L, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        self.0.walk::<E, S>(simd)
    }
}

/// The variants of a pass for one instruction set. Each is a body of its own to compile, so that only those are here that models are made
/// of: `f64`, and complex states over several lanes of a channel, take the general one.
struct Known<E, S>(PhantomData<(E, S)>);

impl<E: Types, S: Isa> Known<E, S> {
    /// Whether there is one for channels with a lane each.
    const ONE: bool = S::F32_LANES > 1;
    /// Whether there are some for channels with several.
    const SEVERAL: bool = Self::ONE && !E::T::DOUBLE && E::K::PARTS == 1;
}

/// Runs loops in the variant of a problem, each a function of its own. `bounded` says that no exponent of the tile is near the ends of the
/// range. Constant maps, huge exponents, few channels and the rarer discretizations share one body that asks at every step.
#[inline(always)]
fn walk<E: Types, S: Isa>(simd: S, problem: &Problem<'_>, per_channel: usize, bounded: bool, loops: &mut impl Loops<E::T>) {
    let varying = matches!((&problem.b, &problem.c), (Projection::Varying(_), Projection::Varying(_)));
    let known = if varying && bounded { per_channel } else { 0 };
    match problem.options.discretization {
        Discretization::Mamba | Discretization::Dirac => {
            if Known::<E, S>::ONE && known == 1 {
                return simd.call(Walk(loops, PhantomData::<Choice<E, Exponential<true>, true, 1>>));
            }
            if Known::<E, S>::SEVERAL && known > 1 {
                return match known {
                    2 => simd.call(Walk(loops, PhantomData::<Choice<E, Exponential<true>, true, 2>>)),
                    _ => simd.call(Walk(loops, PhantomData::<Choice<E, Exponential<true>, true, 0>>)),
                };
            }
            simd.call(Walk(loops, PhantomData::<Choice<E, Exponential, false, 0>>));
        }
        Discretization::Zoh => simd.call(Walk(loops, PhantomData::<Choice<E, Zoh, false, 0>>)),
        Discretization::Bilinear => simd.call(Walk(loops, PhantomData::<Choice<E, Bilinear, false, 0>>)),
    }
}

pub(crate) fn forward(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    dispatch(problem, forward::ForwardPass { exec, problem, targets });
}

pub(crate) fn backward(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    dispatch(problem, backward::BackwardPass { exec, problem, sources, targets });
}

/// The problem and plan that the jobs of one pass share.
struct Context<'c, 'a> {
    problem: &'c Problem<'a>,
    plan: Plan,
    checkpoints: Checkpoints,
    level: Level,
    /// Lanes of a vector.
    width: usize,
}

impl<'c, 'a> Context<'c, 'a> {
    fn new(exec: &Exec, problem: &'c Problem<'a>, plan: fn(&Problem<'_>, usize) -> Plan) -> Self {
        let level = exec.level();
        let width = level.lanes(problem.double);
        Context { problem, plan: plan(problem, width), checkpoints: Checkpoints::new(problem), level, width }
    }
}
