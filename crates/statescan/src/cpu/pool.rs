//! Threads that wait for work. The thread that has some does it itself, and those that wake in time help: who comes late is not waited for.
//! So short work costs no more than the calls that wake them, and a process that lost its threads, by a fork, computes all the same.

use super::wait::Spin;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Helpers of the threads that call [`Pool::run`].
pub(crate) struct Pool {
    shared: Arc<Shared>,
    helpers: usize,
}

struct Shared {
    state: Mutex<State>,
    /// Says that there is work, or that there will be none any more.
    work: Condvar,
    /// Says that the last helper has left.
    left: Condvar,
    /// Changes when a piece of work begins and when it ends; odd in between.
    number: AtomicUsize,
    /// Helpers at work; changed with the state locked.
    running: AtomicUsize,
    /// Helpers look for new work before they sleep: phases of a call are close together.
    idle: Spin,
    /// The thread that has work looks for others to finish: jobs are balanced.
    finishing: Spin,
}

struct State {
    work: Option<Work>,
    /// How many more helpers the work wants.
    wanted: usize,
    /// The message of the first helper that panicked.
    panic: Option<Box<dyn Any + Send>>,
    closed: bool,
}

/// Work whose lifetime is forgotten: nobody runs it once [`Pool::run`] has returned.
#[derive(Clone, Copy)]
struct Work(&'static (dyn Fn() + Sync));

impl Pool {
    /// With as many helpers, or fewer if the system refuses them.
    pub(crate) fn new(helpers: usize) -> Self {
        let state = State { work: None, wanted: 0, panic: None, closed: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            left: Condvar::new(),
            number: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            idle: Spin::default(),
            finishing: Spin::default(),
        });
        let helper = |i: usize| {
            let shared = shared.clone();
            std::thread::Builder::new().name(format!("statescan-{i}")).spawn(move || shared.help())
        };
        let helpers = (0..helpers).map_while(|i| helper(i).ok()).count();
        Pool { shared, helpers }
    }

    pub(crate) fn helpers(&self) -> usize {
        self.helpers
    }

    /// Runs `work` here and at the same time on at most so many helpers. Beside another call, or within one, it runs here alone.
    pub(crate) fn run(&self, helpers: usize, work: &(dyn Fn() + Sync)) {
        let helpers = helpers.min(self.helpers);
        // SAFETY: only a lifetime changes. Helpers find the work until `finish`, which waits for those that run it.
        let forgotten = Work(unsafe { core::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work) });
        if helpers == 0 || !self.shared.offer(forgotten, helpers) {
            return work();
        }
        let here = catch_unwind(AssertUnwindSafe(work));
        let there = self.shared.finish();
        if let Some(panic) = here.err().or(there) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // no panic happens while it is locked
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the helpers are free for this work.
    fn offer(&self, work: Work, helpers: usize) -> bool {
        let mut state = self.lock();
        if state.work.is_some() {
            return false;
        }
        (state.work, state.wanted) = (Some(work), helpers);
        self.number.fetch_add(1, Ordering::Relaxed);
        drop(state);
        (0..helpers).for_each(|_| self.work.notify_one());
        true
    }

    /// Takes the work back and waits for those that have begun it; gives the panic of one.
    fn finish(&self) -> Option<Box<dyn Any + Send>> {
        // nobody begins from now on, but until the end no other call does either
        self.lock().wanted = 0;
        self.finishing.until(|| self.running.load(Ordering::Acquire) == 0);
        let mut state = self.lock();
        while self.running.load(Ordering::Acquire) > 0 {
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.work = None;
        self.number.fetch_add(1, Ordering::Relaxed);
        state.panic.take()
    }

    /// Helps until the pool is dropped.
    fn help(&self) {
        let mut seen = 0;
        loop {
            self.idle.until(|| self.number.load(Ordering::Relaxed) % 2 == 1);
            let mut state = self.lock();
            let work = loop {
                if state.closed {
                    return;
                }
                let number = self.number.load(Ordering::Relaxed);
                match state.work {
                    Some(work) if state.wanted > 0 && number != seen => {
                        seen = number;
                        break work;
                    }
                    _ => state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            state.wanted -= 1;
            self.running.fetch_add(1, Ordering::Relaxed);
            drop(state);
            let outcome = catch_unwind(AssertUnwindSafe(work.0));
            let mut state = self.lock();
            if let Err(panic) = outcome {
                state.panic.get_or_insert(panic);
            }
            // Release: a thread that reads this count sees what the work has written
            if self.running.fetch_sub(1, Ordering::Release) == 1 {
                self.left.notify_one();
            }
            drop(state);
            self.idle.until(|| self.number.load(Ordering::Relaxed) != seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Longer than anybody looks for something before sleeping.
    const LONG: Duration = Duration::from_millis(5);

    /// Counts to `count` on up to three threads, and panics at one number.
    fn count(pool: &Pool, count: usize, bad: usize) -> usize {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.run(2, &|| {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    break;
                }
                assert!(i != bad, "told to");
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        done.into_inner()
    }

    #[test]
    fn everything_is_done_once_however_many_help() {
        for helpers in 0..4 {
            let pool = Pool::new(helpers);
            for size in [0, 1, 2, 1000, 3, 100_000] {
                assert_eq!(count(&pool, size, usize::MAX), size);
            }
        }
    }

    #[test]
    fn helpers_do_help() {
        let pool = Pool::new(2);
        let barrier = std::sync::Barrier::new(3);
        for _ in 0..100 {
            // nobody gets on without the others
            pool.run(2, &|| {
                barrier.wait();
            });
        }
    }

    #[test]
    fn work_has_ended_when_the_call_has_however_long_a_helper_takes() {
        let (pool, caller) = (Pool::new(1), std::thread::current().id());
        for delay in [Duration::ZERO, LONG / 50, LONG] {
            let (barrier, done) = (std::sync::Barrier::new(2), AtomicUsize::new(0));
            pool.run(1, &|| {
                barrier.wait();
                if std::thread::current().id() != caller {
                    std::thread::sleep(delay);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert_eq!(done.into_inner(), 1, "{delay:?}");
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_wherever_it_happens() {
        let pool = Pool::new(2);
        for bad in 0..200 {
            assert!(catch_unwind(AssertUnwindSafe(|| count(&pool, 1000, bad))).is_err());
            assert_eq!(count(&pool, 1000, usize::MAX), 1000, "the pool goes on");
        }
    }

    #[test]
    fn calls_beside_and_within_each_other_do_their_own_work() {
        let pool = Pool::new(1);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..200).for_each(|_| assert_eq!(count(&pool, 50, usize::MAX), 50)));
            }
        });
        let inner = AtomicUsize::new(0);
        pool.run(1, &|| {
            inner.fetch_add(count(&pool, 10, usize::MAX), Ordering::Relaxed);
        });
        assert!([10, 20].contains(&inner.into_inner()));
    }

    /// Data loaders fork: the helpers are not there in the child.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn a_forked_process_does_the_work_alone() {
        let pool = Pool::new(2);
        assert_eq!(count(&pool, 1000, usize::MAX), 1000);
        // until the helpers sleep
        std::thread::sleep(LONG);
        // SAFETY: the child computes and ends, and runs nothing else of this process.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let done = count(&pool, 1000, usize::MAX) == 1000;
            // SAFETY: as above.
            unsafe { libc::_exit(if done { 0 } else { 1 }) };
        }
        let (start, mut status) = (Instant::now(), 0);
        // SAFETY: the child is this process's own.
        while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
            if start.elapsed() > Duration::from_secs(60) {
                // SAFETY: as above.
                unsafe { libc::kill(child, libc::SIGKILL) };
                panic!("the forked process hangs");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(status, 0);
    }
}
