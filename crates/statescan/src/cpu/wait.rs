//! Waiting for other threads, which may need the core that this one is on.
//!
//! Threads that have a core each are done with what is waited for within microseconds, and one that sleeps takes 50 us to wake: so a wait begins by
//! looking again and again. Where there are more threads than free cores nothing comes of that, and the core is better left to whoever has work.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long to look for something before sleeping.
const SPIN: Duration = Duration::from_micros(50);

/// Looking for something before sleeping, as long as something comes of it.
#[derive(Default)]
pub(crate) struct Spin {
    /// How often in a row nothing came of it.
    failures: AtomicUsize,
}

impl Spin {
    /// So many failures in a row say that the thread which is waited for has no core of its own, or that it takes long.
    const FAILURES: usize = 8;
    /// From then on only one wait of so many looks longer than once.
    const AGAIN: usize = 16;

    /// Looks until something has happened, for [`SPIN`] at most.
    pub(crate) fn until(&self, happened: impl Fn() -> bool) {
        if happened() {
            return;
        }
        let failures = self.failures.load(Ordering::Relaxed);
        let found = (failures < Self::FAILURES || failures.is_multiple_of(Self::AGAIN)) && {
            let start = Instant::now();
            loop {
                core::hint::spin_loop();
                match happened() {
                    true => break true,
                    false if start.elapsed() >= SPIN => break false,
                    false => {}
                }
            }
        };
        // several threads may count at the same time: it is a guess anyway
        self.failures.store(if found { 0 } else { failures + 1 }, Ordering::Relaxed);
    }
}

/// The way in which a [`Patience`] has paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paused {
    Spun,
    Slept,
}

/// Waiting for a thread that says how far it is: looking as long as it gets on, then sleeping, longer and longer.
pub(crate) struct Patience {
    patience: Duration,
    /// How far it was when this was last known to be new, and when that was.
    seen: Option<(usize, Instant)>,
    sleep: Duration,
}

impl Patience {
    const FIRST_SLEEP: Duration = Duration::from_micros(50);
    const LONGEST_SLEEP: Duration = Duration::from_millis(1);

    /// For a thread that gets on within so long, if it has a core.
    pub(crate) fn new(patience: Duration) -> Self {
        Patience { patience, seen: None, sleep: Self::FIRST_SLEEP }
    }

    /// Pauses before the next look; `progress` changes whenever the other thread gets on.
    pub(crate) fn pause(&mut self, progress: usize) -> Paused {
        match self.seen {
            Some((seen, since)) if seen == progress => {
                if since.elapsed() > self.patience {
                    std::thread::sleep(self.sleep);
                    self.sleep = (2 * self.sleep).min(Self::LONGEST_SLEEP);
                    return Paused::Slept;
                }
            }
            _ => *self = Patience { seen: Some((progress, Instant::now())), ..Self::new(self.patience) },
        }
        core::hint::spin_loop();
        Paused::Spun
    }
}

#[cfg(test)]
mod tests {
    use super::{Patience, Paused, Spin};
    use core::cell::Cell;
    use std::time::Duration;

    /// How often a wait looks for something that happens at look number `at`.
    fn looks(spin: &Spin, at: usize) -> usize {
        let count = Cell::new(0);
        spin.until(|| {
            count.set(count.get() + 1);
            count.get() >= at
        });
        count.get()
    }

    #[test]
    fn who_waits_in_vain_looks_once() {
        let spin = Spin::default();
        assert!((0..Spin::FAILURES).all(|_| looks(&spin, usize::MAX) > 1));
        let rest: Vec<_> = (Spin::FAILURES..4 * Spin::AGAIN).filter(|_| looks(&spin, usize::MAX) > 1).collect();
        assert_eq!(rest, [16, 32, 48], "and now and then tries again");
    }

    #[test]
    fn who_waits_with_success_goes_on_looking() {
        let spin = Spin::default();
        for _ in 0..2 {
            (0..Spin::AGAIN).for_each(|_| _ = looks(&spin, usize::MAX));
            assert_eq!(looks(&spin, 3), 3, "the attempt that is made now and then");
            assert!((1..Spin::FAILURES).all(|_| looks(&spin, usize::MAX) > 1), "counts from the start");
            assert_eq!(looks(&spin, 1), 1);
            assert_eq!(looks(&spin, 3), 3, "what has happened already says nothing");
        }
    }

    #[test]
    fn patience_lasts_as_long_as_the_other_thread_gets_on() {
        let mut long = Patience::new(Duration::from_secs(3600));
        assert!((0..1000).all(|_| long.pause(7) == Paused::Spun));
        let mut short = Patience::new(Duration::ZERO);
        assert_eq!(short.pause(0), Paused::Spun, "nobody knows yet whether it gets on");
        for progress in 1..100 {
            assert_eq!(short.pause(progress), Paused::Spun);
        }
        let spun = (0..10_000).take_while(|_| short.pause(99) == Paused::Spun).count();
        assert!(spun < 10_000, "patience ends");
        for _ in 0..8 {
            assert_eq!(short.pause(99), Paused::Slept);
        }
        assert_eq!(short.sleep, Patience::LONGEST_SLEEP);
        assert_eq!(short.pause(100), Paused::Spun);
        assert_eq!(short.sleep, Patience::FIRST_SLEEP);
    }
}
