//! The kernel. For a block of channels it computes what all states of a channel share (step, input, and the decay where it is one), with
//! channels along a vector; then it walks the states, sixteen channels at a time, and finishes `y` with channels along a vector again.
//!
//! With states along a vector each channel leaves a vector of partial sums; a square of them is transposed and added up, which is cheaper
//! than adding up the lanes of each. States and `a` are used where they lie if they are dense in the compute type, else through tiles.

use super::plan::{Axis, BLOCK, Plan, Unit};
use super::{Operand, Problem};
use crate::cpu::Kernel;
use crate::cpu::math::{silu, softplus};
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile::{self, MAX_LANES, Plane};
use crate::exec::Exec;
use crate::ops::discretization::Discretization;
use crate::ops::rules::{Bilinear, ComplexField, Exponential, FieldKind, RealField, Rule, Zoh};
use core::marker::PhantomData;

/// Channels whose states are walked together.
const GROUP: usize = 16;

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

/// What the jobs of one thread work in.
struct Scratch<T> {
    x: Vec<T>,
    dt: Vec<T>,
    dt_a: Vec<T>,
    /// What B is multiplied with: `dt x` (`x` for `dirac`).
    u: Vec<T>,
    /// One argument, or the output.
    other: Vec<T>,
    sum: Vec<T>,
    /// (vector of channels, part, lane): decay and gain where they are the same for all states.
    decay: Vec<T>,
    gain: Vec<T>,
    /// (vector of states, part, lane)
    b: Vec<T>,
    c: Vec<T>,
    state: Vec<T>,
    a: Vec<T>,
    /// Partial sums of a group, and their transposition.
    partial: Vec<T>,
    turned: Vec<T>,
}

impl<T: Real> Scratch<T> {
    fn new(dstate: usize, parts: usize) -> Self {
        let zeros = |len: usize| vec![T::default(); len];
        let [x, dt, dt_a, u, other, sum] = core::array::from_fn(|_| zeros(BLOCK));
        let [decay, gain] = core::array::from_fn(|_| zeros(BLOCK * parts));
        let padded = dstate.next_multiple_of(MAX_LANES) * parts;
        let [b, c] = core::array::from_fn(|_| zeros(padded));
        let [state, a] = core::array::from_fn(|_| zeros(padded * GROUP));
        let [partial, turned] = core::array::from_fn(|_| zeros(GROUP * MAX_LANES));
        Scratch { x, dt, dt_a, u, other, sum, decay, gain, b, c, state, a, partial, turned }
    }
}

impl Operand<'_> {
    /// The lanes and steps of a (row, head, channel) along two of the axes 0 to 3 (batch, head, channel, state).
    fn plane(&self, batch: usize, head: usize, channel: usize, lane_axis: usize, time_axis: usize) -> Plane {
        let [b, h, p, _] = self.strides;
        let plane = Plane::strided(&self.view, self.strides[lane_axis], self.strides[time_axis]);
        plane.along(batch, b).along(head, h).along(channel, p)
    }

    /// Where the states of a channel begin, if vectors of them can be used where they lie.
    fn direct<T: Real>(&self, states: usize, lanes: usize, (batch, head, channel): (usize, usize, usize)) -> Option<*mut T> {
        let [b, h, p, n] = self.strides;
        let dense = n == 1 && states.is_multiple_of(lanes) && self.view.dtype() == T::DTYPE;
        let offset = batch as isize * b + head as isize * h + channel as isize * p;
        dense.then(|| self.view.as_ptr().cast::<T>().cast_mut().wrapping_offset(offset))
    }
}

/// Vectors of states of a group of channels.
#[derive(Clone, Copy)]
struct Rows<T> {
    ptr: *mut T,
    channel_step: isize,
    vector_step: usize,
}

impl<T> Rows<T> {
    #[inline(always)]
    fn at(self, channel: usize, vector: usize) -> *mut T {
        self.ptr.wrapping_offset(channel as isize * self.channel_step).wrapping_add(vector * self.vector_step)
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
        for unit in plan.units(problem, job) {
            let y = problem.y.plane(unit.batch, unit.head, unit.first, 2, 0);
            // SAFETY: units lie within the checked views, and no two of them share an element of y or of the state: the strides of
            // written views were checked, and no state serves two rows.
            unsafe {
                let Some(row) = problem.rows[unit.batch] else {
                    scratch.sum.fill(T::default());
                    tile::store(simd, scratch.sum.as_ptr(), BLOCK, y, unit.channels, 1);
                    continue;
                };
                prepare::<T, S>(simd, problem, unit, scratch);
                load_maps::<T, K, S>(simd, problem, unit, scratch);
                if plan.uniform && problem.dstate > 0 {
                    shared_decay::<T, K, R, S>(simd, problem, unit, scratch);
                }
                match (plan.axis, plan.uniform) {
                    (Axis::States, false) => along_states::<T, K, R, S, false>(simd, problem, unit, row, scratch),
                    (Axis::States, true) => along_states::<T, K, R, S, true>(simd, problem, unit, row, scratch),
                    (Axis::Channels, uniform) => along_channels::<T, K, R, S>(simd, problem, unit, row, uniform, scratch),
                }
                finish::<T, S>(simd, problem, unit, scratch);
                tile::store(simd, scratch.sum.as_ptr(), BLOCK, y, unit.channels, 1);
            }
        }
    }
}

/// Loads one number for each channel of a unit; the lanes after them are zero.
///
/// # Safety
/// The unit lies within the operand, and `to` has room for a block.
#[inline(always)]
unsafe fn channel_row<T: Real, S: Isa>(simd: S, operand: &Operand<'_>, unit: Unit, to: &mut [T]) {
    let padded = unit.channels.next_multiple_of(T::lanes::<S>());
    let plane = operand.plane(unit.batch, unit.head, unit.first, 2, 0);
    // SAFETY: the caller's contract.
    unsafe { tile::load(simd, plane, unit.channels, padded, 1, to.as_mut_ptr(), BLOCK) }
}

/// x, the processed steps, and what B is multiplied with.
///
/// # Safety
/// The unit lies within the problem.
#[inline(always)]
unsafe fn prepare<T: Real, S: Isa>(simd: S, problem: &Problem<'_>, unit: Unit, s: &mut Scratch<T>) {
    // SAFETY: the caller's contract; the rows are BLOCK long, a multiple of every vector.
    unsafe {
        channel_row(simd, &problem.x, unit, &mut s.x);
        channel_row(simd, &problem.dt, unit, &mut s.dt);
        match &problem.dt_bias {
            Some(bias) => channel_row(simd, bias, unit, &mut s.other),
            None => s.other.fill(T::default()),
        }
        let (low, high) = problem.dt_limit;
        let (low, high) = (V::constant(simd, low), V::constant(simd, high));
        for at in (0..unit.channels).step_by(T::lanes::<S>()) {
            let mut dt = V::load(simd, s.dt.as_ptr().add(at)) + V::load(simd, s.other.as_ptr().add(at));
            if problem.dt_softplus {
                dt = softplus(dt);
            }
            dt = dt.max(low).min(high);
            dt.store(s.dt.as_mut_ptr().add(at));
            dt.store(s.dt_a.as_mut_ptr().add(at));
            let x = V::load(simd, s.x.as_ptr().add(at));
            let u = if problem.discretization == Discretization::Dirac { x } else { x * dt };
            u.store(s.u.as_mut_ptr().add(at));
        }
        if let Some(dt_a) = &problem.dt_a {
            channel_row(simd, dt_a, unit, &mut s.dt_a);
        }
    }
}

/// B and C of a unit's group.
///
/// # Safety
/// The unit lies within the problem.
#[inline(always)]
unsafe fn load_maps<T: Real, K: FieldKind, S: Isa>(simd: S, problem: &Problem<'_>, unit: Unit, s: &mut Scratch<T>) {
    for ((map, heads), to) in [(&problem.b, &mut s.b), (&problem.c, &mut s.c)] {
        let plane = map.plane(unit.batch, unit.head / heads, 0, 3, 0);
        // SAFETY: the caller's contract; there is room for every vector of states.
        unsafe { load_states::<T, K, S>(simd, plane, 1, problem.dstate, to.as_mut_ptr()) }
    }
}

/// Loads states as (vector of states, channel, part, lane); lanes after the last are zero.
///
/// # Safety
/// The plane (lanes along states, steps along channels) is readable there, and `to` has room.
#[inline(always)]
unsafe fn load_states<T: Real, K: FieldKind, S: Isa>(simd: S, plane: Plane, channels: usize, states: usize, to: *mut T) {
    let lanes = T::lanes::<S>();
    for (i, n) in (0..states).step_by(lanes).enumerate() {
        // SAFETY: the caller's contract.
        unsafe {
            let to = to.add(i * channels * K::PARTS * lanes);
            tile::load_parts(simd, plane.at(n, 0), K::PARTS, lanes.min(states - n), lanes, channels, to);
        }
    }
}

/// Decay and gain of each channel where `a` is the same for all its states.
///
/// # Safety
/// The unit lies within the problem, which has states.
#[inline(always)]
unsafe fn shared_decay<T: Real, K: FieldKind, R: Rule, S: Isa>(simd: S, problem: &Problem<'_>, unit: Unit, s: &mut Scratch<T>) {
    let lanes = T::lanes::<S>();
    for at in (0..unit.channels).step_by(lanes) {
        let plane = problem.a.plane(0, unit.head, unit.first + at, 2, 0);
        // SAFETY: the caller's contract; the rows hold a block of channels.
        unsafe {
            let to = s.decay.as_mut_ptr().add(at * K::PARTS);
            tile::load_parts(simd, plane, K::PARTS, lanes.min(unit.channels - at), lanes, 1, to);
            let (dt, dt_a) = (V::load(simd, s.dt.as_ptr().add(at)), V::load(simd, s.dt_a.as_ptr().add(at)));
            let a = R::prepare(K::Of::<T, S>::load(simd, to));
            let (decay, gain) = R::step(a, dt, dt_a, problem.dt_a.is_none());
            decay.store(to);
            gain.store(s.gain.as_mut_ptr().add(at * K::PARTS));
        }
    }
}

/// The states of a unit, neighbouring states along a vector.
///
/// # Safety
/// The unit lies within the problem.
#[inline(always)]
unsafe fn along_states<T: Real, K: FieldKind, R: Rule, S: Isa, const UNIFORM: bool>(
    simd: S,
    problem: &Problem<'_>,
    unit: Unit,
    row: usize,
    s: &mut Scratch<T>,
) {
    let (lanes, states) = (T::lanes::<S>(), problem.dstate);
    let vectors = states.div_ceil(lanes);
    let shared = problem.dt_a.is_none();
    for first in (0..unit.channels).step_by(GROUP) {
        let channels = GROUP.min(unit.channels - first);
        let channel = unit.first + first;
        let staged = |ptr| Rows { ptr, channel_step: (K::PARTS * lanes) as isize, vector_step: channels * K::PARTS * lanes };
        let plane = problem.state.plane(row, unit.head, channel, 3, 2);
        let state_direct = problem.state.direct::<T>(states, lanes, (row, unit.head, channel));
        // SAFETY: the caller's contract; tiles have room for a group of channels with all their states.
        unsafe {
            let h = match state_direct {
                Some(ptr) => Rows { ptr, channel_step: problem.state.strides[2], vector_step: lanes },
                None => {
                    load_states::<T, K, S>(simd, plane, channels, states, s.state.as_mut_ptr());
                    staged(s.state.as_mut_ptr())
                }
            };
            let a = match problem.a.direct::<T>(states, lanes, (0, unit.head, channel)) {
                _ if UNIFORM => h,
                Some(ptr) => Rows { ptr, channel_step: problem.a.strides[2], vector_step: lanes },
                None => {
                    let plane = problem.a.plane(0, unit.head, channel, 3, 2);
                    load_states::<T, K, S>(simd, plane, channels, states, s.a.as_mut_ptr());
                    staged(s.a.as_mut_ptr())
                }
            };
            // the compiler must not have to read these addresses again after each store
            let (dt_row, dt_a_row, u_row, partial) = (s.dt.as_ptr(), s.dt_a.as_ptr(), s.u.as_ptr(), s.partial.as_mut_ptr());
            let (decay_rows, gain_rows, b_rows, c_rows) = (s.decay.as_ptr(), s.gain.as_ptr(), s.b.as_ptr(), s.c.as_ptr());
            for i in 0..channels {
                let at = first + i;
                let (dt, dt_a) = (V::splat(simd, *dt_row.add(at)), V::splat(simd, *dt_a_row.add(at)));
                let u = V::splat(simd, *u_row.add(at));
                // the one decay and gain of the channel
                let lane = (at / lanes) * K::PARTS * lanes + at % lanes;
                let decay = K::Of::<T, S>::broadcast(simd, decay_rows.add(lane), lanes);
                let gain = K::Of::<T, S>::broadcast(simd, gain_rows.add(lane), lanes);
                let mut sum = V::splat(simd, T::default());
                for v in 0..vectors {
                    let map = v * K::PARTS * lanes;
                    let b = K::Of::<T, S>::load(simd, b_rows.add(map));
                    let c = K::Of::<T, S>::load(simd, c_rows.add(map));
                    let (decay, gain) = match UNIFORM {
                        true => (decay, gain),
                        false => R::step(R::prepare(K::Of::<T, S>::load(simd, a.at(i, v))), dt, dt_a, shared),
                    };
                    sum = advance::<T, S, K::Of<T, S>>(h.at(i, v), (decay, gain), R::GAIN, b.scale(u), c, sum);
                }
                sum.store(partial.add(i * lanes));
            }
            add_up::<T, S>(simd, &s.partial, &mut s.turned, &mut s.sum[first..first + GROUP]);
            if state_direct.is_none() {
                for (i, n) in (0..states).step_by(lanes).enumerate() {
                    let from = s.state.as_ptr().add(i * channels * K::PARTS * lanes);
                    tile::store_parts(simd, from, K::PARTS, lanes, plane.at(n, 0), lanes.min(states - n), channels);
                }
            }
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

/// The sums of the lanes of each of a group's partial sums.
///
/// # Safety
/// The rows hold a group of vectors.
#[inline(always)]
unsafe fn add_up<T: Real, S: Isa>(simd: S, partial: &[T], turned: &mut [T], to: &mut [T]) {
    let lanes = T::lanes::<S>();
    for first in (0..GROUP).step_by(lanes) {
        // SAFETY: a square of vectors on both sides; GROUP is a multiple of every number of lanes.
        unsafe {
            T::transpose(simd, partial.as_ptr().add(first * lanes), lanes as isize, turned.as_mut_ptr(), lanes as isize);
            let mut sum = [V::splat(simd, T::default()); 2];
            for j in 0..lanes {
                sum[j % 2] = sum[j % 2] + V::load(simd, turned.as_ptr().add(j * lanes));
            }
            (sum[0] + sum[1]).store(to.as_mut_ptr().add(first));
        }
    }
}

/// The states of a unit, neighbouring channels along a vector.
///
/// # Safety
/// The unit lies within the problem.
#[inline(always)]
unsafe fn along_channels<T: Real, K: FieldKind, R: Rule, S: Isa>(
    simd: S,
    problem: &Problem<'_>,
    unit: Unit,
    row: usize,
    uniform: bool,
    s: &mut Scratch<T>,
) {
    let (lanes, states) = (T::lanes::<S>(), problem.dstate);
    let shared = problem.dt_a.is_none();
    for at in (0..unit.channels).step_by(lanes) {
        let (count, channel) = (lanes.min(unit.channels - at), unit.first + at);
        let plane = problem.state.plane(row, unit.head, channel, 2, 3);
        // SAFETY: the caller's contract; tiles have room for a vector of channels with all their states.
        unsafe {
            let (h, a) = (s.state.as_mut_ptr(), s.a.as_mut_ptr());
            tile::load_parts(simd, plane, K::PARTS, count, lanes, states, h);
            if !uniform {
                let plane = problem.a.plane(0, unit.head, channel, 2, 3);
                tile::load_parts(simd, plane, K::PARTS, count, lanes, states, a);
            }
            let (dt, dt_a) = (V::load(simd, s.dt.as_ptr().add(at)), V::load(simd, s.dt_a.as_ptr().add(at)));
            let u = V::load(simd, s.u.as_ptr().add(at));
            let mut sum = V::splat(simd, T::default());
            let decay = K::Of::<T, S>::load(simd, s.decay.as_ptr().add(at * K::PARTS));
            let gain = K::Of::<T, S>::load(simd, s.gain.as_ptr().add(at * K::PARTS));
            for n in 0..states {
                let map = (n / lanes) * K::PARTS * lanes + n % lanes;
                let b = K::Of::<T, S>::broadcast(simd, s.b.as_ptr().add(map), lanes);
                let c = K::Of::<T, S>::broadcast(simd, s.c.as_ptr().add(map), lanes);
                let step = n * K::PARTS * lanes;
                let factors = match uniform {
                    true => (decay, gain),
                    false => R::step(R::prepare(K::Of::<T, S>::load(simd, a.add(step))), dt, dt_a, shared),
                };
                sum = advance::<T, S, K::Of<T, S>>(h.add(step), factors, R::GAIN, b.scale(u), c, sum);
            }
            sum.store(s.sum.as_mut_ptr().add(at));
            tile::store_parts(simd, h, K::PARTS, lanes, plane, count, states);
        }
    }
}

/// Skip and gate.
///
/// # Safety
/// The unit lies within the problem.
#[inline(always)]
unsafe fn finish<T: Real, S: Isa>(simd: S, problem: &Problem<'_>, unit: Unit, s: &mut Scratch<T>) {
    let factor = V::constant(simd, if problem.complex { 2.0 } else { 1.0 });
    // SAFETY: the caller's contract; the rows are BLOCK long, a multiple of every vector.
    unsafe {
        match &problem.d {
            Some(d) => channel_row(simd, d, unit, &mut s.other),
            None => s.other.fill(T::default()),
        }
        for at in (0..unit.channels).step_by(T::lanes::<S>()) {
            let mut y = V::load(simd, s.sum.as_ptr().add(at)) * factor;
            if problem.d.is_some() {
                y = V::load(simd, s.other.as_ptr().add(at)).mul_add(V::load(simd, s.x.as_ptr().add(at)), y);
            }
            y.store(s.sum.as_mut_ptr().add(at));
        }
        if let Some(z) = &problem.z {
            channel_row(simd, z, unit, &mut s.other);
            for at in (0..unit.channels).step_by(T::lanes::<S>()) {
                let gate = silu(V::load(simd, s.other.as_ptr().add(at)));
                (V::load(simd, s.sum.as_ptr().add(at)) * gate).store(s.sum.as_mut_ptr().add(at));
            }
        }
    }
}
