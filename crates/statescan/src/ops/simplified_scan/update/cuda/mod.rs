//! A step of a simplified scan on CUDA: two launches, for the states and for the outputs.

use super::{OP, Problem, Targets};
use crate::cuda::{COMMON, Config, DISCRETIZATION, Kernel, Launch, Program, Stream, Strided, Value, params};
use crate::error::{Error, Result};
use crate::tensor::{DType, View};

static UPDATE: Program<Params> = Program::new(OP, &[COMMON, DISCRETIZATION], include_str!("update.cu"));

const THREADS: usize = 128;
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
        /// B (dstate, dim) or C (dim, dstate)
        map: Strided,
        /// (dstate)
        a: Strided,
        /// (row, dstate)
        delta: Strided,
        delta_a: Strided,
        /// (dim)
        skip: Strided,
        /// (row)
        indices: Strided,
        rows: i64,
        states: i64,
        lines: i64,
        columns: i64,
        /// Blocks for the lines of a group of rows.
        blocks_per_group: u32,
        /// Of the real part.
        factor: f32,
    }
}

/// `indices` are the states of the rows, which only the device can read.
pub(super) fn update(stream: &Stream, problem: &Problem<'_>, indices: Option<View<'_>>, targets: &Targets) -> Result<()> {
    if problem.double {
        return Err(Error::Unavailable { what: "simplified_state_update in f64", why: "kernels for CUDA compute in f32" });
    }
    for kernel in [kernel(problem, indices, targets, true)?, kernel(problem, indices, targets, false)?] {
        // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration
        // describes their types. No two rows share a state (the caller's part, for indices that only the device can read).
        unsafe { kernel.launch(stream, &UPDATE)? };
    }
    Ok(())
}

/// The launch that drives the states, or the one that reads them.
fn kernel(p: &Problem<'_>, indices: Option<View<'_>>, targets: &Targets, drive: bool) -> Result<Kernel<Params>> {
    let (map, lines, columns) = if drive { (p.b, p.dstate, p.dim) } else { (p.c, p.dim, p.dstate) };
    let blocks_per_group = lines.div_ceil(THREADS / 32);
    let launch = Launch::new(OP, p.batch.div_ceil(ROWS).checked_mul(blocks_per_group), THREADS)?;
    let of = |view: &Option<View<'_>>, default| view.map_or(default, |v| v.dtype());
    let config = Config::default()
        .dtype("U", p.u.dtype())
        .dtype("Y", targets.y.dtype())
        .dtype("STATE", targets.state.dtype())
        .dtype("MAP", map.dtype())
        .dtype("A", p.a.dtype())
        .dtype("DELTA", p.delta.dtype())
        .dtype("DELTA_A", of(&p.delta_a, DType::F32))
        .dtype("SKIP", of(&p.d, DType::F32))
        .dtype("INDEX", of(&indices, DType::I32))
        .set("METHOD", Value::discretization(p.discretization))
        .flag("DRIVE", drive)
        .flag("COMPLEX_OUTPUT", p.real_factor.is_none())
        .flag("HAS_DELTA_A", p.delta_a.is_some())
        .flag("HAS_SKIP", p.d.is_some())
        .flag("HAS_INDICES", indices.is_some())
        .int("ROWS", ROWS)
        .int("THREADS", THREADS);
    let state = targets.state.as_read();
    let params = Params {
        u: Strided::of(&p.u),
        y: Strided::of(&targets.y.as_read()),
        state: Strided::of(&state),
        map: Strided::of(&map),
        a: Strided::of(&p.a),
        delta: Strided::of(&p.delta),
        delta_a: Strided::of_option(&p.delta_a),
        skip: Strided::of_option(&p.d),
        indices: Strided::of_option(&indices),
        rows: p.batch as i64,
        states: state.shape()[0] as i64,
        lines: lines as i64,
        columns: columns as i64,
        blocks_per_group: blocks_per_group as u32,
        factor: p.real_factor.unwrap_or(1.0) as f32,
    };
    Ok(Kernel { config, launch, params })
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::super::{Args, Head};
    use super::*;
    use crate::cuda::testing::{Suite, target, tensor};
    use crate::ops::check::Checker;
    use crate::ops::discretization::Discretization;
    use crate::tensor::Device;

    #[test]
    fn steps_of_simplified_scans_compile() {
        let Some(mut suite) = Suite::new() else { return };
        for discretization in Discretization::ALL {
            for complex in [false, true] {
                let wide = if complex { DType::Complex64 } else { DType::F32 };
                let (u, delta, state) =
                    (tensor(wide, &[5, 40]), tensor(DType::BF16, &[5, 24]), tensor(DType::Complex64, &[9, 24]));
                let maps = [tensor(wide, &[24, 40]), tensor(wide, &[40, 24])];
                let head = Head::Real { conj_sym: true, d: Some(tensor(DType::F32, &[40])) };
                let args = Args {
                    discretization,
                    delta_a: complex.then_some(delta),
                    head: if complex { Head::Complex } else { head },
                    state_batch_indices: complex.then(|| tensor(DType::I32, &[5])),
                    ..Args::new(u, delta, tensor(DType::Complex64, &[24]), maps[0], maps[1])
                };
                let problem = Problem::new(&args, &mut Checker::new(OP, Device::Cuda(0)), &[state.shape()]).unwrap();
                let y = tensor(if complex { DType::Complex64 } else { DType::F32 }, &[5, 40]);
                let targets = Targets { state: target(state), y: target(y) };
                for drive in [true, false] {
                    let kernel = kernel(&problem, args.state_batch_indices, &targets, drive).unwrap();
                    assert_eq!(kernel.launch.blocks(), if drive { 2 * 6 } else { 2 * 10 });
                    suite.add(&UPDATE, &kernel.config, 0);
                }
            }
        }
        suite.compile();
    }
}
