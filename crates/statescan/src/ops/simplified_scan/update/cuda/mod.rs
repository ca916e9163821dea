//! A step of a simplified scan on CUDA: one launch, in clusters of blocks where a device has them.

use super::{OP, Problem, Targets};
use crate::cuda::{COMMON, Config, DISCRETIZATION, Kernel, Launch, Numbers, Program, Queue, STEP_SLOTS, Strided, params};
use crate::error::{Error, Result};
use crate::ops::on_cuda::{StepSlotTypes, StepSlots, single_only};
use crate::ops::slots::Slots;
use crate::tensor::{DType, View};

static UPDATE: Program<Params> = Program::new(OP, &[COMMON, DISCRETIZATION], include_str!("update.cu")).including(&[STEP_SLOTS]);

/// Rows that a warp reads a line of a map for.
const ROWS: usize = 4;

params! {
    /// Parameters of `simplified_state_update`.
    struct Params {
        /// (row, dim)
        u: Strided,
        y: Strided,
        /// (state, dstate)
        state: Strided,
        /// (dstate, dim)
        b: Strided,
        /// (dim, dstate)
        c: Strided,
        /// (dstate)
        a: Strided,
        /// (row, dstate)
        delta: Strided,
        delta_a: Strided,
        /// (dim)
        skip: Strided,
        /// (row)
        indices: Strided,
        slots: StepSlots,
        rows: i64,
        states: i64,
        dim: i64,
        dstate: i64,
        /// The factor of the real part.
        factor: f32,
    }
}

/// The states of rows, which only the device can read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rows<'v> {
    pub indices: Option<View<'v>>,
    pub slots: Option<&'v Slots<'v>>,
}

pub(super) fn update(queue: &Queue<'_>, problem: &Problem<'_>, rows: &Rows<'_>, targets: &Targets) -> Result<()> {
    single_only(problem.double, "simplified_state_update in f64")?;
    let kernel = kernel(problem, rows, targets, queue.numbers())?;
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration describes
    // their types. No two rows share a state (the caller's part, for indices that only the device can read).
    unsafe { kernel.launch(queue, &UPDATE) }.map_err(Into::into)
}

fn kernel<'k>(
    p: &'k Problem<'_>,
    &Rows { indices, slots }: &Rows<'k>,
    targets: &'k Targets,
    numbers: Numbers,
) -> Result<Kernel<Params, impl Fn() -> Config + 'k>> {
    // blocks of a cluster, and threads of a block
    let (cluster, threads) = if numbers.has_clusters() { (8, 256) } else { (1, 1024) };
    let rows = slots.map_or(p.batch, |slots| slots.read.len());
    let line = Launch::new(OP, rows.div_ceil(ROWS).checked_mul(cluster), threads)?;
    let size = targets.state.as_read().dtype().size();
    // the states of sequences
    let shared = slots.map_or(0, |_| ROWS * size * p.dstate);
    if shared > numbers.shared_per_block {
        return Err(Error::Unavailable { what: OP, why: "so many states between slots do not fit into a block's shared memory" });
    }
    let launch = Launch { cluster: (cluster > 1).then_some([cluster as u32, 1, 1]), shared: shared as u32, ..line };
    let config = move || {
        let of = |view: &Option<View<'_>>, default| view.map_or(default, |v| v.dtype());
        Config::default()
            .with(&StepSlotTypes::of(slots, p.batch))
            .dtype("U", p.u.dtype())
            .dtype("Y", targets.y.dtype())
            .dtype("STATE", targets.state.dtype())
            .dtype("B", p.b.dtype())
            .dtype("C", p.c.dtype())
            .dtype("A", p.a.dtype())
            .dtype("DELTA", p.delta.dtype())
            .dtype("DELTA_A", of(&p.delta_a, DType::F32))
            .dtype("SKIP", of(&p.d, DType::F32))
            .dtype("INDEX", of(&indices, DType::I32))
            .set("METHOD", p.discretization.constant())
            .flag("COMPLEX_OUTPUT", p.real_factor.is_none())
            .flag("HAS_DELTA_A", p.delta_a.is_some())
            .flag("HAS_SKIP", p.d.is_some())
            .flag("HAS_INDICES", indices.is_some())
            .int("ROWS", ROWS)
            .int("CLUSTER", cluster)
            .int("THREADS", threads)
            .int("SHARED", shared)
    };
    let state = targets.state.as_read();
    let params = Params {
        u: Strided::of(&p.u),
        y: Strided::of(&targets.y.as_read()),
        state: Strided::of(&state),
        b: Strided::of(&p.b),
        c: Strided::of(&p.c),
        a: Strided::of(&p.a),
        delta: Strided::of(&p.delta),
        delta_a: Strided::of_option(&p.delta_a),
        skip: Strided::of_option(&p.d),
        indices: Strided::of_option(&indices),
        slots: StepSlots::of(slots, p.batch, state.shape()[0]),
        rows: p.batch as i64,
        states: state.shape()[0] as i64,
        dim: p.dim as i64,
        dstate: p.dstate as i64,
        factor: p.real_factor.unwrap_or(1.0) as f32,
    };
    Ok(Kernel { config, launch, params })
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::super::Args;
    use super::*;
    use crate::cuda::testing::{Suite, target, tensor};
    use crate::ops::discretization::Discretization;
    use crate::tensor::Device;

    #[test]
    fn steps_of_simplified_scans_compile() {
        let Some(mut suite) = Suite::new() else { return };
        let old = Numbers { capability: (8, 0), ..Numbers::H200 };
        let devices: [(_, &[_]); 2] = [(Numbers::H200, &["sm_90a", "sm_100", "sm_120"]), (old, &["sm_80"])];
        for discretization in Discretization::ALL {
            for complex in [false, true] {
                let wide = if complex { DType::Complex64 } else { DType::F32 };
                let (u, delta, state) =
                    (tensor(wide, &[5, 40]), tensor(DType::BF16, &[5, 24]), tensor(DType::Complex64, &[9, 24]));
                let maps = [tensor(wide, &[24, 40]), tensor(wide, &[40, 24])];
                let args = Args {
                    discretization,
                    delta_a: complex.then_some(delta),
                    d: (!complex).then(|| tensor(DType::F32, &[40])),
                    state_batch_indices: complex.then(|| tensor(DType::I32, &[5])),
                    ..Args::new(u, delta, tensor(DType::Complex64, &[24]), maps[0], maps[1])
                };
                let problem = Problem::new(&args, Device::Cuda(0), false, state.shape()).unwrap();
                let slots = Slots::testing(3, complex.then_some(2), complex);
                let plain = (Rows { indices: args.state_batch_indices, slots: None }, 2);
                let between = (Rows { indices: None, slots: Some(&slots) }, 1);
                let y = tensor(if complex { DType::Complex64 } else { DType::F32 }, &[5, 40]);
                let targets = Targets { state: target(state), y: target(y) };
                for ((numbers, architectures), (rows, clusters)) in
                    devices.into_iter().flat_map(|device| [(device, plain), (device, between)])
                {
                    let kernel = kernel(&problem, &rows, &targets, numbers).unwrap();
                    assert_eq!(kernel.launch.blocks(), if numbers.has_clusters() { clusters * 8 } else { clusters });
                    suite.add_for(architectures, &UPDATE, &(kernel.config)());
                }
            }
        }
        suite.compile();
    }
}
