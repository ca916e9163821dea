//! Sums of the terms that the blocks and rows of a backward pass leave in the workspace.

use crate::{Address, COMMON, Config, Launch, Layout, Program, Queue, Result, Scalar, Strided, params};

static SUMS: Program<Params> = Program::new("sum_terms", &[COMMON], include_str!("sums.cu"));

const THREADS: usize = 256;
/// Threads that share an element where elements are few and terms many, and where terms are very many: so that a thread has a few dozen of them.
const SLICES: usize = 8;
const MOST_SLICES: usize = 32;
/// Elements of a job that keep a device busy with a thread for each.
const MANY: usize = 1 << 17;
const JOBS: usize = 5;
const TYPES: [&str; JOBS] = ["SUM_0", "SUM_1", "SUM_2", "SUM_3", "SUM_4"];

/// A gradient and its terms, dense (outer, count, part, rows, columns).
#[derive(Debug, Clone, Copy)]
pub struct Sum<T> {
    /// The target, of up to four axes.
    pub to: T,
    /// The address of the terms.
    pub terms: u64,
    /// Terms of an element.
    pub count: usize,
}

params! {
    /// A gradient as the kernel takes it.
    struct Job {
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
    struct Params {
        jobs: [Job; JOBS],
    }
}

/// The types of the gradients.
fn config(dtypes: impl Iterator<Item = Scalar>) -> Config {
    let dtypes = dtypes.chain(core::iter::repeat(Scalar::F32));
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

/// Adds up the terms of up to five tensors, in an order that their sizes fix.
///
/// # Errors
/// Those of [`Queue::launch`].
///
/// # Safety
/// The terms are valid for as many elements as the sums say, and the targets are of the queue's device.
pub unsafe fn sum_terms<T: Layout>(queue: &Queue<'_>, sums: &[Sum<T>]) -> Result<()> {
    debug_assert!(sums.len() <= JOBS, "{} sums", sums.len());
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
        let shape = sum.to.shape();
        let len = shape.iter().product::<usize>();
        // shapes are (columns), (rows, columns) or (outer axes, rows, columns)
        let axis = |from_end: usize| shape.len().checked_sub(from_end).map_or(1, |axis| shape[axis] as i64);
        let slices = slices(len, sum.count);
        *job = Job {
            to: Strided::of_last_axes(&sum.to),
            terms: Address::new(sum.terms),
            outer: axis(4) * axis(3),
            inner: axis(3).max(1),
            count: sum.count as i64,
            rows: axis(2),
            columns: axis(1),
            slices: slices as i64,
            first_block: blocks,
        };
        blocks += len.div_ceil(THREADS / slices) as i64;
    }
    if blocks == 0 {
        return Ok(());
    }
    let config = || config(sums.iter().map(|sum| sum.to.scalar()));
    let launch = Launch::line(blocks as u32, THREADS as u32, 0);
    // SAFETY: the caller's contract; the configuration describes the targets.
    unsafe { queue.launch(&SUMS, config, launch, &Params { jobs }) }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::Suite;

    #[test]
    fn sums_of_every_type_compile() {
        let Some(mut suite) = Suite::new() else { return };
        let types = [Scalar::F32, Scalar::F64, Scalar::BF16, Scalar::F16, Scalar::Complex64, Scalar::Complex128];
        types.iter().for_each(|&scalar| suite.add(&SUMS, &config(core::iter::repeat_n(scalar, JOBS)), 0));
        suite.compile();
    }
}
