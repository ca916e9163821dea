//! A few steps in place on CUDA.

use super::{OP, Problem};
use crate::cuda::{COMMON, Config, Kernel, Launch, Program, Queue, STEP_SIZE, STEP_SLOTS, Strided, blocks_of_lines, params};
use crate::error::Result;
use crate::ops::on_cuda::{StepSlotTypes, StepSlots, single_only};
use crate::ops::slots::Slots;
use crate::tensor::{DType, View};

const THREADS: usize = 128;

static UPDATE: Program<Params> = Program::new(OP, &[COMMON, STEP_SIZE], include_str!("update.cu")).including(&[STEP_SLOTS]);

params! {
    /// Parameters of `causal_conv1d_update`.
    struct Params {
        /// (row, channel, step)
        x: Strided,
        y: Strided,
        /// (channel, tap)
        weight: Strided,
        /// (channel)
        bias: Strided,
        /// (state, channel, position)
        state: Strided,
        /// (row)
        indices: Strided,
        seen: Strided,
        slots: StepSlots,
        dim: i64,
        steps: i64,
        states: i64,
        length: i64,
        blocks_per_row: u32,
    }
}

pub(crate) fn update(queue: &Queue<'_>, problem: &Problem<'_>, slots: Option<&Slots<'_>>) -> Result<()> {
    single_only(problem.double, "causal_conv1d_update in f64")?;
    let kernel = kernel(problem, slots)?;
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration
    // describes their types. No two rows write a state (the caller's part, for indices that only the device can read).
    unsafe { kernel.launch(queue, &UPDATE) }.map_err(Into::into)
}

fn kernel<'k>(p: &'k Problem<'_>, slots: Option<&'k Slots<'k>>) -> Result<Kernel<Params, impl Fn() -> Config + 'k>> {
    let rows = slots.map_or(p.rows.len(), |slots| slots.read.len());
    let (blocks_per_row, blocks) = blocks_of_lines(rows, p.dim, THREADS);
    let launch = Launch::new(OP, blocks, THREADS)?;
    let config = move || {
        let of = |view: &Option<View<'_>>, default| view.map_or(default, |v| v.dtype());
        Config::default()
            .with(&StepSlotTypes::of(slots, p.rows.len()))
            .dtype("X", p.x.dtype())
            .dtype("Y", p.y.dtype())
            .dtype("WEIGHT", p.weight.dtype())
            .dtype("BIAS", of(&p.bias, DType::F32))
            .dtype("STATE", p.state.dtype())
            .dtype("INDEX", of(&p.indices, DType::I32))
            .dtype("SEEN", of(&p.cache_seqlens, DType::I32))
            .flag("HAS_BIAS", p.bias.is_some())
            .flag("HAS_INDICES", p.indices.is_some())
            .flag("CIRCULAR", p.cache_seqlens.is_some())
            .flag("SILU", p.silu)
            .int("WIDTH", p.width)
            .int("THREADS", THREADS)
    };
    let state = p.state.as_read();
    let params = Params {
        x: Strided::of(&p.x),
        y: Strided::of(&p.y.as_read()),
        weight: Strided::of(&p.weight),
        bias: Strided::of_option(&p.bias),
        state: Strided::of(&state),
        indices: Strided::of_option(&p.indices),
        seen: Strided::of_option(&p.cache_seqlens),
        slots: StepSlots::of(slots, p.rows.len(), state.shape()[0]),
        dim: p.dim as i64,
        steps: p.steps as i64,
        states: state.shape()[0] as i64,
        length: state.shape()[2] as i64,
        blocks_per_row: blocks_per_row as u32,
    };
    Ok(Kernel { config, launch, params })
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use crate::cuda::testing::{Suite, target, tensor};

    #[test]
    fn updates_of_convolutions_compile() {
        let Some(mut suite) = Suite::new() else { return };
        for (dtype, width) in [(DType::BF16, 4), (DType::F32, 8)] {
            for all in [false, true] {
                let optional = |dtype, shape: &[usize]| all.then(|| tensor(dtype, shape));
                let problem = Problem {
                    dim: 1000,
                    steps: 2,
                    width,
                    state_len: width,
                    silu: all,
                    double: false,
                    x: tensor(dtype, &[3, 1000, 2]),
                    weight: tensor(DType::F32, &[1000, width]),
                    bias: optional(dtype, &[1000]),
                    cache_seqlens: optional(DType::I32, &[3]),
                    indices: optional(DType::I64, &[3]),
                    state: target(tensor(dtype, &[5, 1000, width])),
                    y: target(tensor(dtype, &[3, 1000, 2])),
                    rows: vec![None; 3],
                };
                {
                    let kernel = kernel(&problem, None).unwrap();
                    assert_eq!(kernel.launch, Launch::line(24, 128, 0));
                    suite.add(&UPDATE, &(kernel.config)(), 0);
                }
                let slots = Slots::testing(1, all.then_some(3), all);
                let problem = Problem { cache_seqlens: None, indices: None, ..problem };
                suite.add(&UPDATE, &(kernel(&problem, Some(&slots)).unwrap().config)(), 0);
            }
        }
        suite.compile();
    }
}
