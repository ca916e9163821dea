//! Runs that take turns, and how fast the machine was around each turn.
//!
//! On a machine that others use too, a core gives its full speed at times only, and two cores at once more rarely. A loop of
//! exponentials in the first cache, timed between runs, tells when: it knows nothing of what is measured, so choosing turns by it favours no
//! side.

use super::floors;
use super::median::middle;
use std::time::{Duration, Instant};

/// One turn of every run.
pub struct Turn<F = f64> {
    /// The measured figure.
    pub figure: F,
    /// How fast the slowest thread was at other work before, between and after the runs, at its slowest.
    pub speed: f64,
}

impl Turn {
    /// Measured once, where nothing else can be going on.
    pub fn alone(figure: f64) -> Self {
        Turn { figure, speed: f64::INFINITY }
    }
}

/// The share of turns that counts: those in which the machine was fastest.
const SHARE: usize = 8;
/// So many count in any case.
const FEWEST: usize = 5;
/// Short runs are repeated for so long between two looks at the machine.
const STRETCH: Duration = Duration::from_millis(1);

/// The median of the turns in which the machine was fastest.
pub fn figure(turns: Vec<Turn>) -> f64 {
    middle(fastest(turns).collect())
}

/// Returns the figures of the turns in which the machine was fastest.
pub fn fastest<F>(mut turns: Vec<Turn<F>>) -> impl Iterator<Item = F> {
    turns.sort_by(|one, other| other.speed.total_cmp(&one.speed));
    let count = (turns.len() / SHARE).max(FEWEST).min(turns.len());
    turns.into_iter().take(count).map(|turn| turn.figure)
}

/// Turns of some runs, which use up to so many threads, after one of each that does not count. `figure` makes one of their nanoseconds.
///
/// # Errors
/// Those of the runs.
pub fn take<const N: usize, F, E>(
    budget: Duration,
    threads: usize,
    mut runs: [&mut dyn FnMut() -> Result<(), E>; N],
    figure: impl Fn([f64; N]) -> F,
) -> Result<Vec<Turn<F>>, E> {
    for run in &mut runs {
        run()?;
    }
    let (start, mut turns) = (Instant::now(), Vec::new());
    let mut now = floors::speed(threads);
    while turns.is_empty() || start.elapsed() < budget {
        let (mut times, mut speed) = ([0.0; N], now);
        for (run, time) in runs.iter_mut().zip(&mut times) {
            *time = typical(*run)?;
            now = floors::speed(threads);
            speed = speed.min(now);
        }
        turns.push(Turn { figure: figure(times), speed });
    }
    Ok(turns)
}

/// Nanoseconds of a run, the median where it is so short that it is repeated.
fn typical<E>(run: &mut dyn FnMut() -> Result<(), E>) -> Result<f64, E> {
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || start.elapsed() < STRETCH {
        let begin = Instant::now();
        run()?;
        times.push(begin.elapsed().as_nanos().max(1) as f64);
    }
    Ok(middle(times))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn the_turns_count_in_which_the_machine_was_fastest() {
        let turns = |speeds: &[f64]| speeds.iter().map(|&speed| Turn { figure: 100.0 * speed, speed }).collect::<Vec<_>>();
        assert_eq!(figure(turns(&[1.0])), 100.0);
        assert_eq!(figure(turns(&[1.0, 3.0, 2.0])), 200.0, "all of a few");
        let many: Vec<f64> = (0..80).map(f64::from).collect();
        assert_eq!(figure(turns(&many)), 7500.0, "of the ten fastest, the upper one of the two in the middle");
    }

    #[test]
    fn runs_take_turns() -> Result<(), Infallible> {
        let (order, wait) = (std::cell::RefCell::new(String::new()), || std::thread::sleep(2 * STRETCH));
        let run = |name: char| {
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                wait();
                Ok::<_, Infallible>(())
            }
        };
        let turns = take(8 * STRETCH, 2, [&mut run('a'), &mut run('b')], |[a, b]| a / b)?;
        let order = order.into_inner();
        assert_eq!(order, "ab".repeat(1 + turns.len()), "first one of each that does not count");
        assert!(turns.iter().all(|turn| turn.speed > 0.0 && turn.figure > 0.0));
        assert!(take(STRETCH, 1, [&mut || Err("no")], |[time]| time).is_err());
        Ok(())
    }

    #[test]
    fn short_runs_are_repeated() -> Result<(), Infallible> {
        let mut count = 0;
        let mut run = || {
            count += 1;
            Ok::<_, Infallible>(())
        };
        assert!(typical(&mut run)? < STRETCH.as_nanos() as f64);
        assert!(count > 1);
        Ok(())
    }
}
