//! The selective scan on the CPU: neighbouring channels in the lanes of a vector, time walked in tiles of 64 steps.
//!
//! A job is a range of segments times a range of channels. For each tile of time it loads B and C once (step x state, scalars that are
//! broadcast), then for each vector of channels x, dt and z (transposed on the way in, so that storage type and strides cost nothing in
//! the loops), and walks the states four at a time with their values in registers.

mod backward;
mod forward;
mod inputs;
mod reduce;
pub(in crate::ops) mod rules;
mod sweep;

use super::plan::{Checkpoints, Plan};
use super::{Discretization, Problem, Projection};
use crate::cpu::Level;
use crate::cpu::simd::Real;
use crate::exec::Exec;
use crate::tensor::{RawViewMut, View};
use core::marker::PhantomData;
use rules::{Bilinear, ComplexField, Exponential, FieldKind, RealField, Rule, Zoh};

/// Where a forward pass writes, in normal form.
pub(crate) struct Targets {
    pub y: Option<RawViewMut>,
    pub final_state: Option<RawViewMut>,
    pub checkpoints: Option<RawViewMut>,
}

/// What a backward pass reads besides the arguments, in normal form.
pub(crate) struct Sources<'a> {
    pub checkpoints: Option<View<'a>>,
    pub y: Option<View<'a>>,
    pub final_state: Option<View<'a>>,
}

/// Where a backward pass writes, in normal form.
pub(crate) struct GradientTargets {
    pub x: Option<RawViewMut>,
    pub dt: Option<RawViewMut>,
    pub a: Option<RawViewMut>,
    pub b: Option<Projection<RawViewMut>>,
    pub c: Option<Projection<RawViewMut>>,
    pub d: Option<RawViewMut>,
    pub z: Option<RawViewMut>,
    pub dt_bias: Option<RawViewMut>,
    pub dt_a: Option<RawViewMut>,
    pub initial_state: Option<RawViewMut>,
}

/// A pointer that jobs share; each writes its own elements.
pub(super) struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}
// SAFETY: only an address; every use says which elements it owns.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(super) fn new(ptr: *mut T) -> Self {
        Shared(ptr)
    }
    pub(super) fn get(self) -> *mut T {
        self.0
    }
}

/// The choices that are compiled in: compute type, real or complex, discretization, whether B and C vary with time.
trait Variant: Sync {
    type T: Real;
    type K: FieldKind;
    type R: Rule;
    const VARYING: bool;
}

struct Choice<T, K, R, const VARYING: bool>(PhantomData<(T, K, R)>);

impl<T: Real, K: FieldKind, R: Rule, const VARYING: bool> Variant for Choice<T, K, R, VARYING> {
    type T = T;
    type K = K;
    type R = R;
    const VARYING: bool = VARYING;
}

/// One pass with its arguments, to be run in some variant.
trait Pass {
    fn run<V: Variant>(self);
}

/// Picks the variant of a problem. Constant maps and the rarer discretizations share one body that asks at every step.
fn dispatch(problem: &Problem<'_>, pass: impl Pass) {
    match (problem.double, problem.complex) {
        (false, false) => dispatch_rule::<f32, RealField>(problem, pass),
        (false, true) => dispatch_rule::<f32, ComplexField>(problem, pass),
        (true, false) => dispatch_rule::<f64, RealField>(problem, pass),
        (true, true) => dispatch_rule::<f64, ComplexField>(problem, pass),
    }
}

fn dispatch_rule<T: Real, K: FieldKind>(problem: &Problem<'_>, pass: impl Pass) {
    let varying = matches!((&problem.b, &problem.c), (Projection::Varying(_), Projection::Varying(_)));
    match problem.discretization {
        Discretization::Mamba | Discretization::Dirac if varying => pass.run::<Choice<T, K, Exponential, true>>(),
        Discretization::Mamba | Discretization::Dirac => pass.run::<Choice<T, K, Exponential, false>>(),
        Discretization::Zoh => pass.run::<Choice<T, K, Zoh, false>>(),
        Discretization::Bilinear => pass.run::<Choice<T, K, Bilinear, false>>(),
    }
}

pub(crate) fn forward(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    dispatch(problem, forward::ForwardPass { exec, problem, targets, checkpoints: None });
}

pub(crate) fn backward(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    dispatch(problem, backward::BackwardPass { exec, problem, sources, targets });
}

/// What the jobs of one pass share.
struct Context<'c, 'a> {
    problem: &'c Problem<'a>,
    plan: Plan,
    checkpoints: Checkpoints,
    level: Level,
}

impl<'c, 'a> Context<'c, 'a> {
    fn new(exec: &Exec, problem: &'c Problem<'a>) -> Self {
        Context { problem, plan: Plan::new(problem), checkpoints: Checkpoints::new(problem), level: exec.level() }
    }
}
