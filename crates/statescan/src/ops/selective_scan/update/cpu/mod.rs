//! The kernel. For a block of channels it computes what all states of a channel share (step, input, and the decay where it is one), with
//! channels along a vector; then it walks the states, sixteen channels at a time, and finishes `y` with channels along a vector again.
//!
//! With states along a vector each channel leaves a vector of partial sums; a square of them is transposed and added up, which is cheaper
//! than adding up the lanes of each. States and `a` are used where they lie if they are dense in the compute type, else through tiles.

mod channels;
mod plan;
mod states;

use super::{Operand, Problem};
use crate::cpu::math::silu;
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile::{self, MAX_LANES, Plane, PlaneMut, Tile, TileMut};
use crate::cpu::{Arena, Array, ArrayMut, Divided, Kernel, Room};
use crate::exec::Exec;
use crate::ops::discretization::Discretization;
use crate::ops::rules::{Bilinear, ComplexField, Exponential, FieldKind, RealField, Rule, Zoh};
use crate::tensor::{DType, RawViewMut};
use channels::along_channels;
use core::marker::PhantomData;
use plan::{Axis, BLOCK, Plan, Unit};
use states::{GROUP, along_states, load_states};

/// `state` and `y` are those of the problem, to be written.
pub(crate) fn update(exec: &Exec, problem: &Problem<'_>, state: RawViewMut, y: RawViewMut) {
    let state = Target { view: state, strides: problem.state.strides };
    let y = Target { view: y, strides: problem.y.strides };
    let call = &Call { problem, state, y };
    match (problem.double, problem.complex) {
        (false, false) => with_rule::<f32, RealField>(exec, call),
        (false, true) => with_rule::<f32, ComplexField>(exec, call),
        (true, false) => with_rule::<f64, RealField>(exec, call),
        (true, true) => with_rule::<f64, ComplexField>(exec, call),
    }
}

fn with_rule<T: Real, K: FieldKind>(exec: &Exec, call: &Call<'_, '_>) {
    match call.problem.discretization {
        Discretization::Mamba | Discretization::Dirac => run::<T, K, Exponential>(exec, call),
        Discretization::Zoh => run::<T, K, Zoh>(exec, call),
        Discretization::Bilinear => run::<T, K, Bilinear>(exec, call),
    }
}

fn run<T: Real, K: FieldKind, R: Rule>(exec: &Exec, call: &Call<'_, '_>) {
    let problem = call.problem;
    let plan = &Plan::new(problem);
    exec.for_each(plan.jobs, Arena::<T>::default, |arena, job| {
        arena.lend(
            |room| Scratch::lay_out(room, problem.dstate, K::PARTS),
            |mut scratch| {
                let scratch = &mut scratch;
                exec.level().dispatch(Job { call, plan, scratch, job, variant: PhantomData::<(K, R)> })
            },
        );
    });
}

/// A call with what is written, seen as the problem's operands are.
struct Call<'c, 'a> {
    problem: &'c Problem<'a>,
    state: Target,
    y: Target,
}

/// An operand that is written.
#[derive(Clone, Copy)]
struct Target {
    view: RawViewMut,
    strides: [isize; 4],
}

/// A unit of channels, and the arrays of the thread that has it.
struct Here<'h, 'm, 'a, T> {
    call: &'h Call<'h, 'a>,
    problem: &'h Problem<'a>,
    unit: Unit,
    s: &'h mut Scratch<'m, T>,
}

/// The scratch memory of one thread's jobs: rows of one number for each channel of a block, and tiles.
struct Scratch<'m, T> {
    x: ArrayMut<'m, T>,
    dt: ArrayMut<'m, T>,
    dt_a: ArrayMut<'m, T>,
    /// The factor of B: `dt x` (`x` for `dirac`).
    u: ArrayMut<'m, T>,
    /// One argument.
    other: ArrayMut<'m, T>,
    gate: ArrayMut<'m, T>,
    sum: ArrayMut<'m, T>,
    /// (vector of channels, part, lane): decay and gain where they are the same for all states.
    decay: ArrayMut<'m, T>,
    gain: ArrayMut<'m, T>,
    /// (vector of states, part, lane)
    b: ArrayMut<'m, T>,
    c: ArrayMut<'m, T>,
    state: ArrayMut<'m, T>,
    a: ArrayMut<'m, T>,
    /// A vector of partial sums for each channel of a group.
    partial: ArrayMut<'m, T>,
}

impl<'m, T: Real> Scratch<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, dstate: usize, parts: usize) -> Self {
        let states = dstate.next_multiple_of(MAX_LANES) * parts;
        let [x, dt, dt_a, u, other, gate, sum] = [BLOCK; 7].map(|len| room.array(len));
        let [decay, gain] = [BLOCK * parts; 2].map(|len| room.array(len));
        let [b, c] = [states; 2].map(|len| room.array(len));
        let [state, a] = [states * GROUP; 2].map(|len| room.array(len));
        let partial = room.array(GROUP * MAX_LANES);
        Scratch { x, dt, dt_a, u, other, gate, sum, decay, gain, b, c, state, a, partial }
    }
}

impl<'a> Operand<'a> {
    /// The lanes and steps of a (row, head, channel) along two of the axes 0 to 3 (batch, head, channel, state).
    fn plane(&self, batch: usize, head: usize, channel: usize, lane_axis: usize, time_axis: usize) -> Plane<'a> {
        let [b, h, p, _] = self.strides;
        let plane = Plane::strided(&self.view, self.strides[lane_axis], self.strides[time_axis]);
        plane.along(batch, b).along(head, h).along(channel, p)
    }

    /// The channels of a unit where they lie, if they are whole vectors of the compute type.
    fn direct_row<T: Real>(&self, unit: Unit, lanes: usize) -> Option<Array<'a, T>> {
        let offset = start(&self.strides, (unit.batch, unit.head, unit.first));
        is_row::<T>(&self.strides, self.view.dtype(), unit, lanes).then(|| Array::of_view(&self.view).moved(offset))
    }
}

impl Target {
    /// As [`Operand::plane`].
    fn plane(&self, batch: usize, head: usize, channel: usize, lane_axis: usize, time_axis: usize) -> PlaneMut {
        let [b, h, p, _] = self.strides;
        let plane = PlaneMut::strided(&self.view, self.strides[lane_axis], self.strides[time_axis]);
        plane.along(batch, b).along(head, h).along(channel, p)
    }

    /// As [`Operand::direct_row`].
    ///
    /// # Safety
    /// As for [`Divided::part`].
    unsafe fn direct_row<T: Real>(&self, unit: Unit, lanes: usize) -> Option<ArrayMut<'_, T>> {
        let offset = start(&self.strides, (unit.batch, unit.head, unit.first));
        // SAFETY: the contract above.
        is_row::<T>(&self.strides, self.view.dtype(), unit, lanes)
            .then(|| unsafe { Divided::of_view(&self.view).moved(offset).part(0) })
    }
}

/// Returns the offset of the elements of a (row, head, channel).
fn start([b, h, p, _]: &[isize; 4], (batch, head, channel): (usize, usize, usize)) -> isize {
    batch as isize * b + head as isize * h + channel as isize * p
}

/// Whether the channels of a unit are whole vectors of the compute type.
fn is_row<T: Real>(strides: &[isize; 4], dtype: DType, unit: Unit, lanes: usize) -> bool {
    strides[2] == 1 && unit.channels.is_multiple_of(lanes) && dtype == T::DTYPE
}

struct Job<'j, 'm, 'a, T, K, R> {
    call: &'j Call<'j, 'a>,
    plan: &'j Plan,
    scratch: &'j mut Scratch<'m, T>,
    job: usize,
    variant: PhantomData<(K, R)>,
}

impl<T: Real, K: FieldKind, R: Rule> Kernel for Job<'_, '_, '_, T, K, R> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Job { call, plan, scratch, job, .. } = self;
        let problem = call.problem;
        // the groups whose maps are there
        let mut loaded = None;
        for unit in plan.units(problem, job) {
            let here = &mut Here { call, problem, unit, s: &mut *scratch };
            let Some(row) = problem.rows[unit.batch] else {
                here.s.sum.clear(unit.channels);
                here.store_y(simd);
                continue;
            };
            // one vector of real exponentials takes its factor log2(e) along with the step, which serves all vectors of a channel
            let by_step = states::short_steps::<K, R>() && plan.axis == Axis::States && !plan.uniform;
            simd.call(Prepare { here, binary: by_step });
            let groups = Some((unit.batch, unit.head / problem.b.1, unit.head / problem.c.1));
            if loaded != groups {
                here.load_maps::<K, S>(simd);
                loaded = groups;
            }
            if plan.uniform && problem.dstate > 0 {
                here.shared_decay::<K, R, S>(simd);
            }
            match (plan.axis, plan.uniform) {
                (Axis::States, false) => along_states::<T, K, R, S, false>(simd, here, row),
                (Axis::States, true) => along_states::<T, K, R, S, true>(simd, here, row),
                (Axis::Channels, uniform) => along_channels::<T, K, R, S>(simd, here, row, uniform),
            }
            simd.call(Finish { here });
        }
    }
}

/// [`Here::prepare`] as a function of its own: it is the same for every discretization, and for real and complex states.
struct Prepare<'p, 'h, 'm, 'a, T> {
    here: &'p mut Here<'h, 'm, 'a, T>,
    binary: bool,
}

impl<T: Real> Kernel for Prepare<'_, '_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        self.here.prepare(simd, self.binary)
    }
}

/// [`Here::finish`], likewise.
struct Finish<'p, 'h, 'm, 'a, T> {
    here: &'p mut Here<'h, 'm, 'a, T>,
}

impl<T: Real> Kernel for Finish<'_, '_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        self.here.finish(simd)
    }
}

/// One number for each channel of a unit, as whole vectors: where they lie if they can be used there, else none and they are loaded into a row.
#[inline(always)]
fn load_row<'a, T: Real, S: Isa>(simd: S, unit: Unit, operand: &Operand<'a>, row: &mut ArrayMut<'_, T>) -> Option<Array<'a, T>> {
    let direct = operand.direct_row::<T>(unit, T::lanes::<S>());
    if direct.is_none() {
        let padded = unit.channels.next_multiple_of(T::lanes::<S>());
        debug_assert!(padded <= BLOCK && row.has(0, padded), "the row has room for the unit");
        let area = operand.plane(unit.batch, unit.head, unit.first, 2, 0).area(unit.channels, 1);
        tile::load(simd, area, padded, TileMut::new(row.reborrow(), BLOCK));
    }
    direct
}

/// [`load_row`], wherever they are then.
#[inline(always)]
fn channel_row<'r, T: Real, S: Isa>(simd: S, unit: Unit, operand: &Operand<'r>, row: &'r mut ArrayMut<'_, T>) -> Array<'r, T> {
    load_row(simd, unit, operand, row).unwrap_or(row.read())
}

/// The stages of a unit.
impl<T: Real> Here<'_, '_, '_, T> {
    /// x, the processed steps, and what B is multiplied with; the decay's steps in units of log2(e) if `binary`.
    #[inline(always)]
    fn prepare<S: Isa>(&mut self, simd: S, binary: bool) {
        let Here { problem, unit, s, .. } = self;
        let (unit, Scratch { x, dt, dt_a, u, other, .. }) = (*unit, &mut **s);
        debug_assert!(unit.channels <= BLOCK, "at most a block of channels");
        let step = problem.step_size;
        let factor = V::constant(simd, if binary { core::f64::consts::LOG2_E } else { 1.0 });
        let x_row = channel_row(simd, unit, &problem.x, x);
        let dt_row = load_row(simd, unit, &problem.dt, dt);
        let bias = problem.dt_bias.as_ref().map(|bias| channel_row(simd, unit, bias, other));
        let dt_a_row = problem.dt_a.as_ref().map(|steps| load_row(simd, unit, steps, dt_a));
        let (mut dts, mut dts_a, mut u) = (dt.reborrow(), dt_a.reborrow(), u.reborrow());
        for at in (0..unit.channels).step_by(T::lanes::<S>()) {
            let mut dt = dt_row.unwrap_or(dts.read()).load(simd, at);
            if let Some(bias) = bias {
                dt = dt + bias.load(simd, at);
            }
            let [[dt], _] = step.of::<T, S, 1, false>([dt]);
            dts.store(at, dt);
            let dt_a = match dt_a_row {
                Some(row) => row.unwrap_or(dts_a.read()).load(simd, at),
                None => dt,
            };
            dts_a.store(at, dt_a * factor);
            let x = x_row.load(simd, at);
            u.store(at, if problem.discretization == Discretization::Dirac { x } else { x * dt });
        }
    }

    /// B and C of the unit's group.
    #[inline(always)]
    fn load_maps<K: FieldKind, S: Isa>(&mut self, simd: S) {
        let Here { problem, unit, s, .. } = self;
        for ((map, heads), to) in [(&problem.b, &mut s.b), (&problem.c, &mut s.c)] {
            let plane = map.plane(unit.batch, unit.head / heads, 0, 3, 0);
            load_states::<T, K, S>(simd, plane.area(problem.dstate, 1), to.reborrow())
        }
    }

    /// Decay and gain of each channel where `a` is the same for all its states, of which there are some.
    #[inline(always)]
    fn shared_decay<K: FieldKind, R: Rule, S: Isa>(&mut self, simd: S) {
        let Here { problem, unit, s, .. } = self;
        let (unit, lanes, Scratch { dt, dt_a, decay, gain, .. }) = (*unit, T::lanes::<S>(), &mut **s);
        let real = if K::PARTS == 1 { load_row(simd, unit, &problem.a, decay) } else { None };
        let (dts, dts_a, mut decays, mut gains) = (dt.read(), dt_a.read(), decay.reborrow(), gain.reborrow());
        for at in (0..unit.channels).step_by(lanes) {
            if K::PARTS > 1 {
                let plane = problem.a.plane(0, unit.head, unit.first + at, 2, 0);
                let area = plane.area(lanes.min(unit.channels - at), 1);
                tile::load_parts(simd, area, K::PARTS, lanes, decays.from(at * K::PARTS));
            }
            let (dt, dt_a) = (dts.load(simd, at), dts_a.load(simd, at));
            let a = R::prepare(real.unwrap_or(decays.read()).load_field::<S, K::Of<T, S>>(simd, at * K::PARTS));
            let (decay, gain) = R::step(a, dt, dt_a, problem.dt_a.is_none());
            decays.store_field(at * K::PARTS, decay);
            gains.store_field(at * K::PARTS, gain);
        }
    }

    /// Skip, gate, and the way out.
    #[inline(always)]
    fn finish<S: Isa>(&mut self, simd: S) {
        let Here { call, problem, unit, s } = self;
        let (unit, lanes, Scratch { x, other, gate, sum, .. }) = (*unit, T::lanes::<S>(), &mut **s);
        let factor = V::constant(simd, if problem.complex { 2.0 } else { 1.0 });
        // SAFETY: no other job has the unit's channels.
        let mut direct = unsafe { call.y.direct_row::<T>(unit, lanes) };
        let (x_row, mut sum) = (channel_row(simd, unit, &problem.x, x), sum.reborrow());
        let d_row = problem.d.as_ref().map(|d| channel_row(simd, unit, d, other));
        let z_row = problem.z.as_ref().map(|z| channel_row(simd, unit, z, gate));
        for at in (0..unit.channels).step_by(lanes) {
            let mut y = sum.load(simd, at) * factor;
            if let Some(d) = d_row {
                y = d.load(simd, at).mul_add(x_row.load(simd, at), y);
            }
            if let Some(z) = z_row {
                y = y * silu(z.load(simd, at));
            }
            direct.as_mut().map_or(sum.reborrow(), ArrayMut::reborrow).store(at, y);
        }
        if direct.is_none() {
            self.store_y(simd);
        }
    }

    /// Stores the sums.
    #[inline(always)]
    fn store_y<S: Isa>(&self, simd: S) {
        let Unit { batch, head, first, channels, .. } = self.unit;
        let to = self.call.y.plane(batch, head, first, 2, 0).area(channels, 1);
        tile::store(simd, Tile::new(self.s.sum.read(), BLOCK), to)
    }
}

/// `h <- decay h + gain input`; gives `sum + Re(c h)`.
#[inline(always)]
fn advance<T: Real, S: Isa, F: Field<T, S>>(
    mut h: ArrayMut<'_, T>,
    (decay, gain): (F, F),
    has_gain: bool,
    input: F,
    c: F,
    sum: V<T, S>,
) -> V<T, S> {
    let input = if has_gain { gain * input } else { input };
    let next = decay.mul_add(h.load_field(sum.simd(), 0), input);
    h.store_field(0, next);
    next.re_mul_add(c, sum)
}
