//! The kernel. For a block of channels it computes what all states of a channel share (step, input, and the decay where it is one), with
//! channels along a vector; then it walks the states, sixteen channels at a time, and finishes `y` with channels along a vector again.
//!
//! With states along a vector each channel leaves a vector of partial sums; a square of them is transposed and added up, which is cheaper
//! than adding up the lanes of each. States and `a` are used where they lie if they are dense in the compute type, else through tiles.

mod channels;
mod plan;
mod states;

use super::{Operand, Problem};
use crate::cpu::math::{silu, softplus};
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile::{self, MAX_LANES, Plane};
use crate::cpu::{Aligned, Kernel, outline};
use crate::exec::Exec;
use crate::ops::discretization::Discretization;
use crate::ops::rules::{Bilinear, ComplexField, Exponential, FieldKind, RealField, Rule, Zoh};
use channels::along_channels;
use core::marker::PhantomData;
use plan::{Axis, BLOCK, Plan, Unit};
use states::{GROUP, along_states, load_states};

pub(crate) fn update(exec: &Exec, problem: &Problem<'_>) {
    match (problem.double, problem.complex) {
        (false, false) => with_rule::<f32, RealField>(exec, problem),
        (false, true) => with_rule::<f32, ComplexField>(exec, problem),
        (true, false) => with_rule::<f64, RealField>(exec, problem),
        (true, true) => with_rule::<f64, ComplexField>(exec, problem),
    }
}

fn with_rule<T: Real, K: FieldKind>(exec: &Exec, problem: &Problem<'_>) {
    match problem.discretization {
        Discretization::Mamba | Discretization::Dirac => run::<T, K, Exponential>(exec, problem),
        Discretization::Zoh => run::<T, K, Zoh>(exec, problem),
        Discretization::Bilinear => run::<T, K, Bilinear>(exec, problem),
    }
}

fn run<T: Real, K: FieldKind, R: Rule>(exec: &Exec, problem: &Problem<'_>) {
    let plan = Plan::new(problem);
    exec.for_each(
        plan.jobs,
        || Scratch::<T>::new(problem.dstate, K::PARTS),
        |scratch, job| exec.level().dispatch(Job { problem, plan: &plan, scratch, job, variant: PhantomData::<(K, R)> }),
    );
}

/// What the jobs of one thread work in: rows of one number for each channel of a block, and tiles, all in one piece of memory.
struct Scratch<T> {
    x: *mut T,
    dt: *mut T,
    dt_a: *mut T,
    /// What B is multiplied with: `dt x` (`x` for `dirac`).
    u: *mut T,
    /// One argument.
    other: *mut T,
    gate: *mut T,
    sum: *mut T,
    /// (vector of channels, part, lane): decay and gain where they are the same for all states.
    decay: *mut T,
    gain: *mut T,
    /// (vector of states, part, lane)
    b: *mut T,
    c: *mut T,
    state: *mut T,
    a: *mut T,
    /// A vector of partial sums for each channel of a group.
    partial: *mut T,
    /// The memory behind them.
    _memory: Aligned<T>,
}

impl<T: Real> Scratch<T> {
    fn new(dstate: usize, parts: usize) -> Self {
        let states = dstate.next_multiple_of(MAX_LANES) * parts;
        let tile = states * GROUP;
        let lens = [[BLOCK; 7].as_slice(), &[BLOCK * parts; 2], &[states; 2], &[tile; 2], &[GROUP * MAX_LANES]].concat();
        let mut memory = Aligned::<T>::zeros(lens.iter().sum());
        let mut next = memory.as_mut_ptr();
        let [x, dt, dt_a, u, other, gate, sum, decay, gain, b, c, state, a, partial] = core::array::from_fn(|i| {
            let row = next;
            next = next.wrapping_add(lens[i]);
            row
        });
        Scratch { x, dt, dt_a, u, other, gate, sum, decay, gain, b, c, state, a, partial, _memory: memory }
    }
}

impl Operand<'_> {
    /// The lanes and steps of a (row, head, channel) along two of the axes 0 to 3 (batch, head, channel, state).
    fn plane(&self, batch: usize, head: usize, channel: usize, lane_axis: usize, time_axis: usize) -> Plane {
        let [b, h, p, _] = self.strides;
        let plane = Plane::strided(&self.view, self.strides[lane_axis], self.strides[time_axis]);
        plane.along(batch, b).along(head, h).along(channel, p)
    }

    /// Where the elements of a (row, head, channel) begin, in elements of the compute type.
    fn start<T: Real>(&self, batch: usize, head: usize, channel: usize) -> *mut T {
        let [b, h, p, _] = self.strides;
        let offset = batch as isize * b + head as isize * h + channel as isize * p;
        self.view.as_ptr().cast::<T>().cast_mut().wrapping_offset(offset)
    }

    /// The channels of a unit where they lie, if they are whole vectors of the compute type.
    fn direct_row<T: Real>(&self, unit: Unit, lanes: usize) -> Option<*mut T> {
        let dense = self.strides[2] == 1 && unit.channels.is_multiple_of(lanes) && self.view.dtype() == T::DTYPE;
        dense.then(|| self.start(unit.batch, unit.head, unit.first))
    }
}

struct Job<'j, 'a, T, K, R> {
    problem: &'j Problem<'a>,
    plan: &'j Plan,
    scratch: &'j mut Scratch<T>,
    job: usize,
    variant: PhantomData<(K, R)>,
}

impl<T: Real, K: FieldKind, R: Rule> Kernel for Job<'_, '_, T, K, R> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Job { problem, plan, scratch, job, .. } = self;
        // the groups whose maps are there
        let mut loaded = None;
        for unit in plan.units(problem, job) {
            // SAFETY: units lie within the checked views, and no two of them share an element of y or of the state: the strides of
            // written views were checked, and no state serves two rows.
            unsafe {
                let Some(row) = problem.rows[unit.batch] else {
                    core::slice::from_raw_parts_mut(scratch.sum, unit.channels).fill(T::default());
                    let y = problem.y.plane(unit.batch, unit.head, unit.first, 2, 0);
                    tile::store(simd, scratch.sum, BLOCK, y, unit.channels, 1);
                    continue;
                };
                // one vector of real exponentials takes its factor log2(e) along with the step, which serves all vectors of a channel
                let by_step = states::short_steps::<K, R>() && plan.axis == Axis::States && !plan.uniform;
                outline(simd, Prepare { problem, unit, binary: by_step, scratch });
                let groups = Some((unit.batch, unit.head / problem.b.1, unit.head / problem.c.1));
                if loaded != groups {
                    load_maps::<T, K, S>(simd, problem, unit, scratch);
                    loaded = groups;
                }
                if plan.uniform && problem.dstate > 0 {
                    shared_decay::<T, K, R, S>(simd, problem, unit, scratch);
                }
                match (plan.axis, plan.uniform) {
                    (Axis::States, false) => along_states::<T, K, R, S, false>(simd, problem, unit, row, scratch),
                    (Axis::States, true) => along_states::<T, K, R, S, true>(simd, problem, unit, row, scratch),
                    (Axis::Channels, uniform) => along_channels::<T, K, R, S>(simd, problem, unit, row, uniform, scratch),
                }
                outline(simd, Finish { problem, unit, scratch });
            }
        }
    }
}

/// [`prepare`] as a function of its own: it is the same for every discretization, and for real and complex states.
struct Prepare<'p, 'a, T> {
    problem: &'p Problem<'a>,
    unit: Unit,
    binary: bool,
    scratch: &'p mut Scratch<T>,
}

impl<T: Real> Kernel for Prepare<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        // SAFETY: `Job`, the only maker of this, has units that lie within the problem.
        unsafe { prepare(simd, self.problem, self.unit, self.binary, self.scratch) }
    }
}

/// [`finish`], likewise.
struct Finish<'p, 'a, T> {
    problem: &'p Problem<'a>,
    unit: Unit,
    scratch: &'p mut Scratch<T>,
}

impl<T: Real> Kernel for Finish<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        // SAFETY: as above.
        unsafe { finish(simd, self.problem, self.unit, self.scratch) }
    }
}

/// One number for each channel of a unit, as whole vectors: where they lie if they can be used there, else loaded into a row.
///
/// # Safety
/// The unit lies within the operand, and the row has room for a block.
#[inline(always)]
unsafe fn channel_row<T: Real, S: Isa>(simd: S, operand: &Operand<'_>, unit: Unit, row: *mut T) -> *mut T {
    if let Some(there) = operand.direct_row::<T>(unit, T::lanes::<S>()) {
        return there;
    }
    let padded = unit.channels.next_multiple_of(T::lanes::<S>());
    let plane = operand.plane(unit.batch, unit.head, unit.first, 2, 0);
    // SAFETY: the caller's contract.
    unsafe { tile::load(simd, plane, unit.channels, padded, 1, row, BLOCK) }
    row
}

/// x, the processed steps, and what B is multiplied with; the decay's steps in units of log2(e) if `binary`.
///
/// # Safety
/// The unit lies within the problem.
#[inline(always)]
unsafe fn prepare<T: Real, S: Isa>(simd: S, problem: &Problem<'_>, unit: Unit, binary: bool, s: &mut Scratch<T>) {
    let lanes = T::lanes::<S>();
    // SAFETY: the caller's contract; the rows are BLOCK long, a multiple of every vector.
    unsafe {
        let x_row = channel_row(simd, &problem.x, unit, s.x);
        let dt_row = channel_row(simd, &problem.dt, unit, s.dt);
        let bias = problem.dt_bias.as_ref().map(|bias| channel_row(simd, bias, unit, s.other));
        let dt_a_row = problem.dt_a.as_ref().map(|dt_a| channel_row(simd, dt_a, unit, s.dt_a));
        let (low, high) = problem.dt_limit;
        let (low, high) = (V::constant(simd, low), V::constant(simd, high));
        let factor = V::constant(simd, if binary { core::f64::consts::LOG2_E } else { 1.0 });
        for at in (0..unit.channels).step_by(lanes) {
            let mut dt = V::load(simd, dt_row.add(at));
            if let Some(bias) = bias {
                dt = dt + V::load(simd, bias.add(at));
            }
            if problem.dt_softplus {
                dt = softplus(dt);
            }
            dt = dt.max(low).min(high);
            dt.store(s.dt.add(at));
            let dt_a = match dt_a_row {
                Some(row) => V::load(simd, row.add(at)),
                None => dt,
            };
            (dt_a * factor).store(s.dt_a.add(at));
            let x = V::load(simd, x_row.add(at));
            let u = if problem.discretization == Discretization::Dirac { x } else { x * dt };
            u.store(s.u.add(at));
        }
    }
}

/// B and C of a unit's group.
///
/// # Safety
/// The unit lies within the problem.
#[inline(always)]
unsafe fn load_maps<T: Real, K: FieldKind, S: Isa>(simd: S, problem: &Problem<'_>, unit: Unit, s: &mut Scratch<T>) {
    for ((map, heads), to) in [(&problem.b, s.b), (&problem.c, s.c)] {
        let plane = map.plane(unit.batch, unit.head / heads, 0, 3, 0);
        // SAFETY: the caller's contract; there is room for every vector of states.
        unsafe { load_states::<T, K, S>(simd, plane, 1, problem.dstate, to) }
    }
}

/// Decay and gain of each channel where `a` is the same for all its states.
///
/// # Safety
/// The unit lies within the problem, which has states.
#[inline(always)]
unsafe fn shared_decay<T: Real, K: FieldKind, R: Rule, S: Isa>(simd: S, problem: &Problem<'_>, unit: Unit, s: &mut Scratch<T>) {
    let lanes = T::lanes::<S>();
    // SAFETY: the caller's contract; the rows hold a block of channels.
    unsafe {
        let real = if K::PARTS == 1 { channel_row(simd, &problem.a, unit, s.decay) } else { s.decay };
        for at in (0..unit.channels).step_by(lanes) {
            let to = s.decay.add(at * K::PARTS);
            if K::PARTS > 1 {
                let plane = problem.a.plane(0, unit.head, unit.first + at, 2, 0);
                tile::load_parts(simd, plane, K::PARTS, lanes.min(unit.channels - at), lanes, 1, to);
            }
            let (dt, dt_a) = (V::load(simd, s.dt.add(at)), V::load(simd, s.dt_a.add(at)));
            let a = R::prepare(K::Of::<T, S>::load(simd, real.add(at * K::PARTS)));
            let (decay, gain) = R::step(a, dt, dt_a, problem.dt_a.is_none());
            decay.store(to);
            gain.store(s.gain.add(at * K::PARTS));
        }
    }
}

/// `h <- decay h + gain input`; gives `sum + Re(c h)`.
///
/// # Safety
/// One field vector can be read and written at `h`.
#[inline(always)]
unsafe fn advance<T: Real, S: Isa, F: Field<T, S>>(
    h: *mut T,
    (decay, gain): (F, F),
    has_gain: bool,
    input: F,
    c: F,
    sum: V<T, S>,
) -> V<T, S> {
    let input = if has_gain { gain * input } else { input };
    // SAFETY: the caller's contract.
    unsafe {
        let next = decay.mul_add(F::load(sum.simd(), h), input);
        next.store(h);
        next.re_mul_add(c, sum)
    }
}

/// Skip, gate, and the way out.
///
/// # Safety
/// The unit lies within the problem.
#[inline(always)]
unsafe fn finish<T: Real, S: Isa>(simd: S, problem: &Problem<'_>, unit: Unit, s: &mut Scratch<T>) {
    let lanes = T::lanes::<S>();
    let factor = V::constant(simd, if problem.complex { 2.0 } else { 1.0 });
    let direct = problem.y.direct_row::<T>(unit, lanes);
    let y_row = direct.unwrap_or(s.sum);
    // SAFETY: the caller's contract; the rows are BLOCK long, a multiple of every vector.
    unsafe {
        let x_row = channel_row(simd, &problem.x, unit, s.x);
        let d_row = problem.d.as_ref().map(|d| channel_row(simd, d, unit, s.other));
        let z_row = problem.z.as_ref().map(|z| channel_row(simd, z, unit, s.gate));
        for at in (0..unit.channels).step_by(lanes) {
            let mut y = V::load(simd, s.sum.add(at)) * factor;
            if let Some(d) = d_row {
                y = V::load(simd, d.add(at)).mul_add(V::load(simd, x_row.add(at)), y);
            }
            if let Some(z) = z_row {
                y = y * silu(V::load(simd, z.add(at)));
            }
            y.store(y_row.add(at));
        }
        if direct.is_none() {
            tile::store(simd, s.sum, BLOCK, problem.y.plane(unit.batch, unit.head, unit.first, 2, 0), unit.channels, 1);
        }
    }
}
