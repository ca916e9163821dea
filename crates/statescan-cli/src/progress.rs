//! Progress of what takes long, on standard error where that is a terminal.

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use statescan_models::Model;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A bar as wide as the terminal, with something said behind it: `{left}` is the time that is left, where each step takes about as long as others,
/// and `{rate}` how many of them a second has.
pub(crate) fn bar(says: &str, len: usize, position: usize) -> ProgressBar {
    with_left(says, len, position, linear)
}

/// A bar for tokens that a model reads: in layers of attention each takes as much longer as there are more before it.
pub(crate) fn reading(model: &Model, says: &str, len: usize) -> ProgressBar {
    match model.config().bytes_per_token() {
        0 => bar(says, len, 0),
        _ => with_left(says, len, 0, quadratic),
    }
}

/// Steps that were done after so many seconds.
type Done = (f64, f64);

fn with_left(
    says: &str,
    len: usize,
    position: usize,
    left: impl Fn(&[Done], f64) -> f64 + Clone + Send + Sync + 'static,
) -> ProgressBar {
    let bar = ProgressBar::new(len as u64).with_position(position as u64);
    let style = ProgressStyle::with_template(&format!("{{wide_bar}} {says}"));
    let done = Arc::new(Mutex::new(vec![(0.0, 0.0)]));
    let write = move |state: &ProgressState, text: &mut dyn Write| {
        let Ok(mut done) = done.lock() else { return };
        let at = (state.pos().saturating_sub(position as u64)) as f64;
        if done.last().is_none_or(|(before, _)| at > *before) {
            done.push((at, state.elapsed().as_secs_f64()));
        }
        let seconds = left(&done, len.saturating_sub(position) as f64);
        let _ = match Duration::try_from_secs_f64(seconds) {
            Ok(left) => write!(text, "{:#}", HumanDuration(left)),
            Err(_) => write!(text, "-"),
        };
    };
    let rate = |state: &ProgressState, text: &mut dyn Write| _ = write!(text, "{}", crate::text::figure(state.per_sec()));
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.with_key("left", write).with_key("rate", rate));
    bar
}

/// Returns the time that is left at the mean rate so far; no number before there is one.
fn linear(done: &[Done], len: f64) -> f64 {
    let (at, seconds) = done.last().copied().unwrap_or_default();
    seconds / at * (len - at)
}

/// Returns the time that is left if `n` steps take `a n + b n^2`, with `a` and `b` from both halves of the steps that were done.
fn quadratic(done: &[Done], len: f64) -> f64 {
    let (at, seconds) = done.last().copied().unwrap_or_default();
    let next = done.partition_point(|(before, _)| *before < at / 2.0).max(1);
    let Some(&[(n0, t0), (n1, t1)]) = done.get(next - 1..=next) else { return f64::NAN };
    let half = t0 + (t1 - t0) * (at / 2.0 - n0) / (n1 - n0);
    // no token is quicker than one before it
    let later = (2.0 * (seconds - 2.0 * half)).max(0.0) / (at * at);
    let each = seconds / at - later * at;
    (each * len + later * len * len) - seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_is_left_is_that_of_the_whole() {
        let time = |each: f64, later: f64, n: f64| each * n + later * n * n;
        for (each, later) in [(1e-3, 0.0), (1e-4, 1e-7), (0.0, 1e-6)] {
            for until in [2, 4, 20] {
                let done: Vec<Done> = (0..=until).map(|n| f64::from(n) * 512.0).map(|n| (n, time(each, later, n))).collect();
                let len = 65_536.0;
                let left = time(each, later, len) - done[until as usize].1;
                let near = |got: f64| (got - left).abs() < 1e-6 * left;
                assert!(near(quadratic(&done, len)), "{each} {later} {until}: {} beside {left}", quadratic(&done, len));
                assert_eq!(near(linear(&done, len)), later == 0.0);
            }
        }
        assert!(linear(&[(0.0, 0.0)], 9.0).is_nan() && quadratic(&[(0.0, 0.0)], 9.0).is_nan(), "nothing is known yet");
    }
}
