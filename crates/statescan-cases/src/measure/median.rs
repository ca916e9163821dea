//! Medians of times.

use crate::error::Result;
use std::time::{Duration, Instant};

/// Median of repeated runs, within a time and a number of runs, after one that does not count.
///
/// # Errors
/// Those of the runs.
pub fn median(budget: Duration, most: usize, mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    run()?;
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || (times.len() < most && start.elapsed() < budget) {
        let begin = Instant::now();
        run()?;
        times.push(begin.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}

/// The median of some figures, the upper one of two.
pub fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
