//! Sums of the terms that the blocks and rows of a backward pass leave in the workspace.

use super::{Address, COMMON, Config, Launch, Program, Queue, Strided, params};
use crate::error::Result;
use crate::tensor::{DType, RawViewMut};

pub(super) static SUMS: Program<Params> = Program::new("sum_terms", &[COMMON], include_str!("sums.cu"));

const THREADS: usize = 256;
/// Threads that share an element where elements are few and terms many, and where terms are very many: so that a thread has a few dozen of them.
const SLICES: usize = 8;
const MOST_SLICES: usize = 32;
/// Elements of a job that keep a device busy with a thread for each.
const MANY: usize = 1 << 17;
const JOBS: usize = 5;
const TYPES: [&str; JOBS] = ["SUM_0", "SUM_1", "SUM_2", "SUM_3", "SUM_4"];

/// A gradient and its terms, dense (outer, count, part, rows, columns).
pub(crate) struct Sum {
    pub to: RawViewMut,
    pub terms: u64,
    pub count: usize,
}

params! {
    /// A gradient as the kernel takes it.
    pub(super) struct Job {
        /// (outer / inner, outer % inner, row, column)
        to: Strided,
        terms: Address<f32>,
        outer: i64,
        inner: i64,
        count: i64,
        rows: i64,
        columns: i64,
        /// Threads for each element.
        slices: i64,
        /// This job's blocks end where the next one's begin.
        first_block: i64,
    }
}

params! {
    /// Parameters of `sum_terms`.
    pub(super) struct Params {
        jobs: [Job; JOBS],
    }
}

/// The types of the gradients.
pub(super) fn config(dtypes: impl Iterator<Item = DType>) -> Config {
    let dtypes = dtypes.chain(core::iter::repeat(DType::F32));
    TYPES.iter().zip(dtypes).fold(Config::default().int("THREADS", THREADS), |config, (name, dtype)| config.dtype(name, dtype))
}

/// Threads for each of so many elements with so many terms.
fn slices(elements: usize, terms: usize) -> usize {
    match terms {
        _ if elements >= MANY || terms < 2 * SLICES => 1,
        _ if elements >= MANY / 8 || terms < 16 * MOST_SLICES => SLICES,
        _ => MOST_SLICES,
    }
}

/// # Safety
/// The terms are valid for as many elements as the sums say, and the targets are of the queue's device.
pub(crate) unsafe fn sum_terms(queue: &Queue<'_>, sums: &[Sum]) -> Result<()> {
    let none = Job {
        to: Strided::default(),
        terms: Address::NULL,
        outer: 0,
        inner: 1,
        count: 0,
        rows: 0,
        columns: 0,
        slices: 1,
        first_block: i64::MAX,
    };
    let mut jobs = [none; JOBS];
    let mut blocks = 0;
    for (job, sum) in jobs.iter_mut().zip(sums) {
        let view = sum.to.as_read();
        // shapes are (columns), (rows, columns) or (outer axes, rows, columns)
        let axis = |from_end: usize| view.rank().checked_sub(from_end).map_or(1, |axis| view.shape()[axis] as i64);
        let slices = slices(view.len(), sum.count);
        *job = Job {
            to: Strided::of_last_axes(&view),
            terms: Address::new(sum.terms),
            outer: axis(4) * axis(3),
            inner: axis(3).max(1),
            count: sum.count as i64,
            rows: axis(2),
            columns: axis(1),
            slices: slices as i64,
            first_block: blocks,
        };
        blocks += view.len().div_ceil(THREADS / slices) as i64;
    }
    if blocks == 0 {
        return Ok(());
    }
    let config = || config(sums.iter().map(|sum| sum.to.as_read().dtype()));
    let launch = Launch::line(blocks as u32, THREADS as u32, 0);
    // SAFETY: the caller's contract; the configuration describes the targets.
    unsafe { queue.launch(&SUMS, config, launch, &Params { jobs }) }
}
