//! The linear scan on CUDA: a checked problem becomes axes, a plan, a configuration and the parameters of launches. The gradient is the same
//! kernel in the other direction of time.

mod axes;
mod plan;
#[cfg(all(test, feature = "cuda"))]
mod tests;

use super::{GradientTargets, OP, Problem, Sources, Targets};
use crate::cuda::{Address, COMMON, Config, Kernel, Program, Queue, RUNS, Stream, are_runs, neighbours, params};
use crate::error::{Error, Result};
use crate::ops::on_cuda::{Pass, SlotTypes, read, single_only};
use crate::ops::states::Pool;
use crate::tensor::{DType, RawViewMut, View};
use axes::Axes;
use core::ffi::c_void;
pub(super) use plan::LONGEST_WHOLE;
use plan::{Plan, Shape};

static SCAN: Program<Params> = Program::new(OP, &[COMMON], include_str!("scan.cu")).including(&[RUNS]);

params! {
    /// A tensor of rows and steps; one without steps has a stride of 0 there. Absent ones are null.
    #[derive(Default)]
    struct Timed {
        data: Address<c_void>,
        /// Strides along the axes of rows.
        row: [i64; 4],
        /// The stride of steps.
        step: i64,
    }
}

params! {
    /// Parameters of `linear_scan`.
    struct Params {
        a: Timed,
        /// The cotangent of `h` in a gradient.
        b: Timed,
        /// The states that the scan writes, or reads in a gradient.
        h: Timed,
        da: Timed,
        db: Timed,
        /// (row): the first state, the state after the last step, the product of all `a`; in a gradient what belongs to them there.
        initial: Timed,
        last: Timed,
        decay: Timed,
        /// (row): the state before h\[0\], in a gradient.
        before: Timed,
        /// (row): the slots of a pool that the first state is in, and the last one goes to; both are those of slot 0 then.
        read: Timed,
        write: Timed,
        slot_step: i64,
        slots: i64,
        /// Dense (segment, row, 2): what segments compose to.
        ends: Address<f32>,
        seqlen: i64,
        segment_tiles: i64,
        rows: u32,
        row_blocks: u32,
        /// Sizes of the axes of rows.
        size: [u32; 4],
    }
}

/// The tensors that a scan reads and writes, in the order of memory: `b` is the cotangent of `h` in a gradient.
#[derive(Debug, Clone, Copy, Default)]
struct Operands<'v> {
    b: Option<View<'v>>,
    h: Option<View<'v>>,
    da: Option<View<'v>>,
    db: Option<View<'v>>,
    initial: Option<View<'v>>,
    last: Option<View<'v>>,
    decay: Option<View<'v>>,
    before: Option<View<'v>>,
    pool: Option<Pool<'v>>,
}

pub(super) fn forward(queue: &Queue<'_>, problem: &Problem<'_>, targets: &Targets) -> Result<()> {
    let call = Call { exact: problem.exact, ..Call::new(problem)? };
    let operands = Operands {
        b: Some(call.in_memory(problem.b)),
        h: call.target(&targets.h),
        initial: problem.initial_state,
        last: read(&targets.final_state),
        decay: read(&targets.decay),
        ..Default::default()
    };
    let operands = call.in_pool(operands);
    call.scan(&operands, None, false, queue, Workspace::of(&targets.workspace))
}

pub(super) fn backward(queue: &Queue<'_>, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) -> Result<()> {
    let call = Call::new(problem)?;
    let workspace = Workspace::of(&targets.workspace);
    let shape = call.shape();
    let plan = queue.find(|| Plan::new(&shape, queue.numbers(), workspace.is_some()))?;
    let mut operands = Operands {
        b: sources.h.map(|v| call.in_memory(v)),
        h: sources.states.map(|v| call.in_memory(v)),
        da: call.target(&targets.a),
        db: call.target(&targets.b),
        initial: sources.final_state,
        last: read(&targets.initial_state),
        before: problem.initial_state,
        ..Default::default()
    };
    let mut again = None;
    if operands.da.is_none() {
        operands.h = None;
    } else if operands.h.is_none() {
        let expected = "must be given for the gradient of a on CUDA, or a workspace";
        let workspace = workspace.ok_or(Error::Presence { op: OP, argument: "h", expected })?;
        let states = call.states_again(workspace.after(plan.ends_len(&shape)));
        let inputs = Operands { b: Some(call.in_memory(problem.b)), initial: problem.initial_state, ..Default::default() };
        call.scan(&inputs, Some(states), false, queue, Some(workspace))?;
        again = Some(states);
    }
    call.scan(&operands, again, true, queue, workspace)
}

/// Elements of the workspace that a forward pass wants.
pub(super) fn workspace_len(stream: &Stream, problem: &Problem<'_>) -> Result<usize> {
    let shape = Call::new(problem).map(|call| call.shape());
    let ends = |shape: Shape| Ok(Plan::new(&shape, stream.numbers(), true)?.ends_len(&shape));
    Ok(match shape.and_then(ends) {
        Ok(0) | Err(_) => 0,
        Ok(ends) => ends + Workspace::SLACK,
    })
}

/// Elements of the workspace that a backward pass wants, with room for the states if they are not given.
pub(super) fn backward_workspace_len(stream: &Stream, problem: &Problem<'_>, h_is_given: bool) -> Result<usize> {
    let Ok(call) = Call::new(problem) else { return Ok(0) };
    let ends = workspace_len(stream, problem)?;
    Ok(if h_is_given { ends } else { ends + call.states_len() + Workspace::SLACK })
}

/// Scratch memory, from an address that is aligned for every access.
#[derive(Debug, Clone, Copy)]
struct Workspace(u64);

impl Workspace {
    /// Elements that alignment may cost.
    const SLACK: usize = 4;

    fn of(target: &Option<RawViewMut>) -> Option<Self> {
        let address = target.as_ref().filter(|v| !v.as_read().is_empty())?.as_mut_ptr() as u64;
        Some(Workspace(address.next_multiple_of(16)))
    }

    /// Returns the workspace after so many elements.
    fn after(self, elements: usize) -> Workspace {
        Workspace((self.0 + 4 * elements as u64).next_multiple_of(16))
    }
}

/// States that are computed again, in the workspace.
#[derive(Debug, Clone, Copy)]
struct Again {
    address: u64,
    /// Between rows, and between steps.
    row: usize,
    step: usize,
}

struct Call<'p, 'a> {
    problem: &'p Problem<'a>,
    /// Whether steps are taken one after another, which gradients need not be.
    exact: bool,
}

impl<'p, 'a> Call<'p, 'a> {
    fn new(problem: &'p Problem<'a>) -> Result<Self> {
        single_only(problem.double, "linear_scan in f64")?;
        Ok(Call { problem, exact: false })
    }

    /// A tensor with steps, in the order of memory rather than that of the scan: the kernel turns around, so that it can read neighbours
    /// at once.
    fn in_memory<'v>(&self, view: View<'v>) -> View<'v> {
        if self.problem.reverse { view.flip(view.rank() - 1) } else { view }
    }

    fn target<'t>(&self, target: &'t Option<RawViewMut>) -> Option<View<'t>> {
        read(target).map(|view| self.in_memory(view))
    }

    fn shape(&self) -> Shape {
        let p = self.problem;
        let (rank, strides) = (p.b.rank(), p.b.strides());
        let step = strides[rank - 1].unsigned_abs();
        let nearest = (0..rank - 1).filter(|&axis| p.b.shape()[axis] > 1).map(|axis| strides[axis].unsigned_abs()).min();
        let by_time = p.seqlen > 1 && nearest.is_none_or(|nearest| step <= nearest);
        let rows = p.leading().iter().fold(1usize, |n, &size| n.saturating_mul(size));
        Shape {
            rows,
            seqlen: p.seqlen,
            complex: p.complex,
            size: p.b.dtype().size(),
            by_time,
            pooled: p.pool.is_some(),
            exact: self.exact,
        }
    }

    /// The operands with states of the first slot for each row, and slots as if they were tensors of rows. A pool without slots is none.
    fn in_pool<'v>(&self, operands: Operands<'v>) -> Operands<'v>
    where
        'a: 'v,
    {
        let Some(pool) = self.problem.pool else { return operands };
        if pool.slots() == 0 {
            return Operands { initial: None, last: None, ..operands };
        }
        let leading = self.problem.leading();
        let states = Some(pool.states.index(0, 0).expand(0, leading[0]));
        let along = |slots: View<'v>| (1..leading.len()).fold(slots, |slots, axis| slots.expand(axis, leading[axis]));
        let pool = Pool { read: along(pool.read), write: along(pool.write), ..pool };
        Operands { initial: states, last: states, pool: Some(pool), ..operands }
    }

    fn field(&self) -> DType {
        if self.problem.complex { DType::Complex64 } else { DType::F32 }
    }

    /// Steps of a row of recomputed states, so that rows are aligned.
    fn padded(&self) -> usize {
        self.problem.seqlen.next_multiple_of(8)
    }

    fn states_len(&self) -> usize {
        let parts = if self.problem.complex { 2 } else { 1 };
        self.shape().rows.saturating_mul(self.padded()).saturating_mul(parts)
    }

    fn states_again(&self, at: Workspace) -> Again {
        let shape = self.shape();
        match shape.by_time {
            true => Again { address: at.0, row: self.padded(), step: 1 },
            false => Again { address: at.0, row: 1, step: shape.rows },
        }
    }

    fn scan(
        &self,
        operands: &Operands<'_>,
        again: Option<Again>,
        gradient: bool,
        queue: &Queue<'_>,
        workspace: Option<Workspace>,
    ) -> Result<()> {
        let nothing = [operands.h, operands.da, operands.db, operands.last, operands.decay];
        if again.is_none() && nothing.iter().all(Option::is_none) {
            return Ok(());
        }
        let plan = queue.find(|| Plan::new(&self.shape(), queue.numbers(), workspace.is_some()))?;
        for &pass in Pass::all(plan.segments > 1) {
            let kernel = self.kernel(operands, again, gradient, &plan, workspace, pass)?;
            // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration
            // describes their types and layouts; a workspace has the elements that the plan with it needs.
            unsafe { kernel.launch(queue, &SCAN)? };
        }
        Ok(())
    }

    fn kernel(
        &self,
        o: &Operands<'_>,
        again: Option<Again>,
        gradient: bool,
        plan: &Plan,
        workspace: Option<Workspace>,
        pass: Pass,
    ) -> Result<Kernel<Params, impl Fn() -> Config>> {
        let (axes, timed) = self.timed(o);
        let [_, a, b, mut h, da, db, initial, last, decay, before, read, write] = timed;
        if let Some(Again { address, row, step }) = again {
            h = Timed { data: Address::new(address), row: axes.dense(row).map(|s| s as i64), step: step as i64 };
        }
        let params = Params {
            a,
            b,
            h,
            da,
            db,
            initial,
            last,
            decay,
            before,
            read,
            write,
            slot_step: o.pool.map_or(0, |pool| pool.states.strides()[0] as i64),
            slots: o.pool.map_or(0, |pool| pool.slots() as i64),
            ends: workspace.map_or(Address::NULL, |w| Address::new(w.0)),
            seqlen: self.problem.seqlen as i64,
            segment_tiles: plan.segment_tiles as i64,
            rows: axes.rows() as u32,
            row_blocks: plan.row_blocks as u32,
            size: axes.sizes.map(|size| size as u32),
        };
        let config = move || self.config(o, again, gradient, plan).set("PASS", pass.value());
        Ok(Kernel { config, launch: plan.launch(pass.segments(plan.segments))?, params })
    }

    /// The axes of rows, and the operands along them: b of the problem, whose direction of the scan decides first how rows lie, a, and those
    /// that there are of the others.
    fn timed(&self, o: &Operands<'_>) -> (Axes, [Timed; 12]) {
        let (p, leading) = (self.problem, self.problem.leading());
        let [a, b] = [p.a, p.b].map(|view| Some(self.in_memory(view)));
        let [read, write] = [o.pool.map(|pool| pool.read), o.pool.map(|pool| pool.write)];
        let given = [b, a, o.b, o.h, o.da, o.db, o.initial, o.last, o.decay, o.before, read, write];
        let along_rows = |view: &View<'_>| {
            let mut strides = [0; 4];
            strides[..leading.len()].copy_from_slice(&view.strides()[..leading.len()]);
            strides
        };
        let strides: Vec<_> = given.iter().flatten().map(along_rows).collect();
        let axes = Axes::new(&leading, &strides);
        let mut rows = axes.strides.iter();
        let timed = given.map(|view| {
            let view = view?;
            let row = rows.next().expect("one for each tensor").map(|s| s as i64);
            let step = view.strides().get(leading.len()).copied().unwrap_or(0) as i64;
            Some(Timed { data: Address::new(view.as_ptr() as u64), row, step })
        });
        (axes, timed.map(Option::unwrap_or_default))
    }

    /// Whether rows are read and written as runs, which begin anywhere. Short rows of f32, and complex ones, gain nothing.
    fn has_runs(&self, timed: &[Option<View<'_>>], items: usize) -> bool {
        let last = |view: &View<'_>| view.rank() - 1;
        let narrow = |view: &View<'_>| neighbours(view, last(view), items) * view.dtype().size() < 16;
        let gains = match self.problem.b.dtype().size() {
            2 => true,
            4 => self.problem.seqlen >= 512,
            _ => false,
        };
        let mut timed = timed.iter().flatten();
        gains && timed.clone().all(|view| are_runs(view, last(view), items)) && timed.any(narrow)
    }

    /// Returns the constants that a kernel is compiled with, but for its pass.
    fn config(&self, o: &Operands<'_>, again: Option<Again>, gradient: bool, plan: &Plan) -> Config {
        let (p, a, by_time) = (self.problem, self.in_memory(self.problem.a), self.shape().by_time);
        let vector = |view: &Option<View<'_>>| {
            let along = |v: &View<'_>| neighbours(v, v.rank() - 1, plan.items);
            view.as_ref().filter(|_| by_time).map_or(1, along)
        };
        let h_vector = match again {
            None => vector(&o.h),
            Some(Again { step: 1, .. }) => 16 / self.field().size(),
            Some(_) => 1,
        };
        let of = |view: &Option<View<'_>>| view.map_or(self.field(), |v| v.dtype());
        Config::default()
            .with(&SlotTypes::of(&o.pool))
            .dtype("A", a.dtype())
            .dtype("B", of(&o.b))
            .dtype("H", of(&o.h))
            .dtype("DA", of(&o.da))
            .dtype("DB", of(&o.db))
            .dtype("INITIAL", of(&o.initial))
            .dtype("LAST", of(&o.last))
            .dtype("DECAY", of(&o.decay))
            .dtype("BEFORE", of(&o.before))
            .flag("COMPLEX", p.complex)
            .flag("BACKWARDS", p.reverse != gradient)
            .flag("GRADIENT", gradient)
            .flag("EXACT", self.exact)
            .flag("BY_TIME", by_time)
            .flag("RUNS", by_time && self.has_runs(&[Some(a), o.b, o.h, o.da, o.db], plan.items))
            .flag("HAS_B", o.b.is_some())
            .flag("HAS_H", o.h.is_some() || again.is_some())
            .flag("HAS_DA", o.da.is_some())
            .flag("HAS_DB", o.db.is_some())
            .flag("HAS_INITIAL", o.initial.is_some())
            .flag("HAS_LAST", o.last.is_some())
            .flag("HAS_DECAY", o.decay.is_some())
            .flag("HAS_BEFORE", o.before.is_some())
            .int("A_VECTOR", vector(&Some(a)))
            .int("B_VECTOR", vector(&o.b))
            .int("H_VECTOR", h_vector)
            .int("DA_VECTOR", vector(&o.da))
            .int("DB_VECTOR", vector(&o.db))
            .int("ITEMS", plan.items)
            .int("CHANNEL_LANES", plan.channel_lanes)
            .int("TIME_LANES", plan.time_lanes)
    }
}
