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
use crate::cpu::tile::{self, MAX_LANES, Plane, PlaneMut, Tile};
use crate::cpu::{Arena, Array, Kernel, Room};
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
            |scratch| exec.level().dispatch(Job { call, plan, scratch: &scratch, job, variant: PhantomData::<(K, R)> }),
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
#[derive(Clone, Copy)]
struct Here<'h, 'a, T> {
    call: &'h Call<'h, 'a>,
    problem: &'h Problem<'a>,
    unit: Unit,
    s: &'h Scratch<T>,
}

/// What the jobs of one thread work in: rows of one number for each channel of a block, and tiles.
struct Scratch<T> {
    x: Array<T>,
    dt: Array<T>,
    dt_a: Array<T>,
    /// What B is multiplied with: `dt x` (`x` for `dirac`).
    u: Array<T>,
    /// One argument.
    other: Array<T>,
    gate: Array<T>,
    sum: Array<T>,
    /// (vector of channels, part, lane): decay and gain where they are the same for all states.
    decay: Array<T>,
    gain: Array<T>,
    /// (vector of states, part, lane)
    b: Array<T>,
    c: Array<T>,
    state: Array<T>,
    a: Array<T>,
    /// A vector of partial sums for each channel of a group.
    partial: Array<T>,
}

impl<T: Real> Scratch<T> {
    fn lay_out(room: &mut Room<T>, dstate: usize, parts: usize) -> Self {
        let states = dstate.next_multiple_of(MAX_LANES) * parts;
        let [x, dt, dt_a, u, other, gate, sum] = [BLOCK; 7].map(|len| room.array(len));
        let [decay, gain] = [BLOCK * parts; 2].map(|len| room.array(len));
        let [b, c] = [states; 2].map(|len| room.array(len));
        let [state, a] = [states * GROUP; 2].map(|len| room.array(len));
        let partial = room.array(GROUP * MAX_LANES);
        Scratch { x, dt, dt_a, u, other, gate, sum, decay, gain, b, c, state, a, partial }
    }
}

impl Operand<'_> {
    /// The lanes and steps of a (row, head, channel) along two of the axes 0 to 3 (batch, head, channel, state).
    fn plane(&self, batch: usize, head: usize, channel: usize, lane_axis: usize, time_axis: usize) -> Plane {
        let [b, h, p, _] = self.strides;
        let plane = Plane::strided(&self.view, self.strides[lane_axis], self.strides[time_axis]);
        plane.along(batch, b).along(head, h).along(channel, p)
    }

    /// The channels of a unit where they lie, if they are whole vectors of the compute type.
    fn direct_row<T: Real>(&self, unit: Unit, lanes: usize) -> Option<Array<T>> {
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
    fn direct_row<T: Real>(&self, unit: Unit, lanes: usize) -> Option<Array<T>> {
        let offset = start(&self.strides, (unit.batch, unit.head, unit.first));
        is_row::<T>(&self.strides, self.view.dtype(), unit, lanes).then(|| Array::of_view_mut(&self.view).moved(offset))
    }
}

/// Where the elements of a (row, head, channel) begin.
fn start([b, h, p, _]: &[isize; 4], (batch, head, channel): (usize, usize, usize)) -> isize {
    batch as isize * b + head as isize * h + channel as isize * p
}

/// Whether the channels of a unit are whole vectors of the compute type.
fn is_row<T: Real>(strides: &[isize; 4], dtype: DType, unit: Unit, lanes: usize) -> bool {
    strides[2] == 1 && unit.channels.is_multiple_of(lanes) && dtype == T::DTYPE
}

struct Job<'j, 'a, T, K, R> {
    call: &'j Call<'j, 'a>,
    plan: &'j Plan,
    scratch: &'j Scratch<T>,
    job: usize,
    variant: PhantomData<(K, R)>,
}

impl<T: Real, K: FieldKind, R: Rule> Kernel for Job<'_, '_, T, K, R> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Job { call, plan, scratch, job, .. } = self;
        let problem = call.problem;
        // the groups whose maps are there
        let mut loaded = None;
        for unit in plan.units(problem, job) {
            let here = &Here { call, problem, unit, s: scratch };
            let Some(row) = problem.rows[unit.batch] else {
                scratch.sum.clear(unit.channels);
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
struct Prepare<'p, 'h, 'a, T> {
    here: &'p Here<'h, 'a, T>,
    binary: bool,
}

impl<T: Real> Kernel for Prepare<'_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        self.here.prepare(simd, self.binary)
    }
}

/// [`Here::finish`], likewise.
struct Finish<'p, 'h, 'a, T> {
    here: &'p Here<'h, 'a, T>,
}

impl<T: Real> Kernel for Finish<'_, '_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        self.here.finish(simd)
    }
}

/// The stages of a unit.
impl<T: Real> Here<'_, '_, T> {
    /// One number for each channel of the unit, as whole vectors: where they lie if they can be used there, else loaded into a row.
    #[inline(always)]
    fn channel_row<S: Isa>(&self, simd: S, operand: &Operand<'_>, row: Array<T>) -> Array<T> {
        let unit = self.unit;
        if let Some(there) = operand.direct_row::<T>(unit, T::lanes::<S>()) {
            return there;
        }
        let padded = unit.channels.next_multiple_of(T::lanes::<S>());
        debug_assert!(padded <= BLOCK && row.has(0, padded), "the row has room for the unit");
        let area = operand.plane(unit.batch, unit.head, unit.first, 2, 0).area(unit.channels, 1);
        tile::load(simd, area, padded, Tile::new(row, BLOCK));
        row
    }

    /// x, the processed steps, and what B is multiplied with; the decay's steps in units of log2(e) if `binary`.
    #[inline(always)]
    fn prepare<S: Isa>(&self, simd: S, binary: bool) {
        let Here { problem, unit, s, .. } = *self;
        debug_assert!(unit.channels <= BLOCK, "at most a block of channels");
        let step = problem.step_size;
        let factor = V::constant(simd, if binary { core::f64::consts::LOG2_E } else { 1.0 });
        let x_row = self.channel_row(simd, &problem.x, s.x);
        let dt_row = self.channel_row(simd, &problem.dt, s.dt);
        let bias = problem.dt_bias.as_ref().map(|bias| self.channel_row(simd, bias, s.other));
        let dt_a_row = problem.dt_a.as_ref().map(|dt_a| self.channel_row(simd, dt_a, s.dt_a));
        for at in (0..unit.channels).step_by(T::lanes::<S>()) {
            let mut dt = dt_row.load(simd, at);
            if let Some(bias) = bias {
                dt = dt + bias.load(simd, at);
            }
            let [[dt], _] = step.of::<T, S, 1, false>([dt]);
            s.dt.store(at, dt);
            let dt_a = match dt_a_row {
                Some(row) => row.load(simd, at),
                None => dt,
            };
            s.dt_a.store(at, dt_a * factor);
            let x = x_row.load(simd, at);
            s.u.store(at, if problem.discretization == Discretization::Dirac { x } else { x * dt });
        }
    }

    /// B and C of the unit's group.
    #[inline(always)]
    fn load_maps<K: FieldKind, S: Isa>(&self, simd: S) {
        let Here { problem, unit, s, .. } = *self;
        for ((map, heads), to) in [(&problem.b, s.b), (&problem.c, s.c)] {
            let plane = map.plane(unit.batch, unit.head / heads, 0, 3, 0);
            load_states::<T, K, S>(simd, plane.area(problem.dstate, 1), to)
        }
    }

    /// Decay and gain of each channel where `a` is the same for all its states, of which there are some.
    #[inline(always)]
    fn shared_decay<K: FieldKind, R: Rule, S: Isa>(&self, simd: S) {
        let (Here { problem, unit, s, .. }, lanes) = (*self, T::lanes::<S>());
        let real = if K::PARTS == 1 { self.channel_row(simd, &problem.a, s.decay) } else { s.decay };
        for at in (0..unit.channels).step_by(lanes) {
            if K::PARTS > 1 {
                let plane = problem.a.plane(0, unit.head, unit.first + at, 2, 0);
                let area = plane.area(lanes.min(unit.channels - at), 1);
                tile::load_parts(simd, area, K::PARTS, lanes, s.decay.from(at * K::PARTS));
            }
            let (dt, dt_a) = (s.dt.load(simd, at), s.dt_a.load(simd, at));
            let a = R::prepare(real.load_field::<S, K::Of<T, S>>(simd, at * K::PARTS));
            let (decay, gain) = R::step(a, dt, dt_a, problem.dt_a.is_none());
            s.decay.store_field(at * K::PARTS, decay);
            s.gain.store_field(at * K::PARTS, gain);
        }
    }

    /// Skip, gate, and the way out.
    #[inline(always)]
    fn finish<S: Isa>(&self, simd: S) {
        let (Here { call, problem, unit, s }, lanes) = (*self, T::lanes::<S>());
        let factor = V::constant(simd, if problem.complex { 2.0 } else { 1.0 });
        let direct = call.y.direct_row::<T>(unit, lanes);
        let y_row = direct.unwrap_or(s.sum);
        let x_row = self.channel_row(simd, &problem.x, s.x);
        let d_row = problem.d.as_ref().map(|d| self.channel_row(simd, d, s.other));
        let z_row = problem.z.as_ref().map(|z| self.channel_row(simd, z, s.gate));
        for at in (0..unit.channels).step_by(lanes) {
            let mut y = s.sum.load(simd, at) * factor;
            if let Some(d) = d_row {
                y = d.load(simd, at).mul_add(x_row.load(simd, at), y);
            }
            if let Some(z) = z_row {
                y = y * silu(z.load(simd, at));
            }
            y_row.store(at, y);
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
        tile::store(simd, Tile::new(self.s.sum, BLOCK), to)
    }
}

/// `h <- decay h + gain input`; gives `sum + Re(c h)`.
#[inline(always)]
fn advance<T: Real, S: Isa, F: Field<T, S>>(
    h: Array<T>,
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
