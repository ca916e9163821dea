//! Rows that several threads walk together, one tile behind the other.
//!
//! A tile needs, of the tile that is walked before it (the later one in time), the gradient by its last states, and what is gathered over a
//! whole row is added tile after tile. All else needs nothing: loading, the states of the way forwards, sums over channels, storing. So
//! threads claim one tile after the other, and who comes to a vector of states waits until the thread before is past it, most often without having to.
//! Loading waits for nobody: as only the walks follow each other, a row has work for as many threads as a tile has vectors of states.
//!
//! With more threads than free cores, a thread that holds a tile may have no core, and all that follow it wait. So a thread that
//! was waited for in vain takes no tile for a while, as long as another one is at work: the others are faster without it.

use crate::cpu::wait::{Patience, Paused};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Condvar, Mutex, PoisonError};

/// How far all rows are.
pub(super) struct Wavefront {
    rows: usize,
    /// Tiles of each row.
    tiles: usize,
    /// Tiles that were given to threads, those of all rows in walker.
    given: Progress,
    /// For each row, and for as many of its tiles as there are threads: what is done, counted from the first tile on.
    done: Vec<Progress>,
    slots: usize,
    /// The count of a whole tile.
    len: usize,
    /// How much of the tile before is done when the walk of one begins: close behind another thread, every line that both use is waited
    /// for; far behind, the last threads come too late to take a tile each.
    lead: usize,
    /// How much further than it must be the tile before is done when a thread goes on that had to wait: right behind another one it would
    /// soon wait again, for every line that comes late there.
    rest: usize,
    /// Whether a thread has left its tile in a panic.
    abandoned: AtomicBool,
    /// How long a thread that has a core takes at most from one count to the next.
    patience: Duration,
    /// Threads that take tiles.
    at_work: AtomicUsize,
    /// Whether there are no tiles left, for threads that rest.
    over: Mutex<bool>,
    ended: Condvar,
    #[cfg(test)]
    rests: AtomicUsize,
}

/// On lines that no other one shares; processors read them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Progress {
    count: AtomicUsize,
    /// Whether the thread that counts was waited for in vain.
    late: AtomicBool,
}

/// How long a thread rests that was waited for in vain: longer each time, and longer than it was waited for, so that what it costs to find out stays
/// small.
const FIRST_REST: Duration = Duration::from_millis(2);
const LONGEST_REST: Duration = Duration::from_millis(32);
const REST_TO_PATIENCE: u32 = 10;
/// Longer than a tile's loading takes, most of which is for its states.
const PATIENCE: Duration = Duration::from_micros(200);
const PATIENCE_A_STATE: Duration = Duration::from_micros(2);

impl Wavefront {
    /// A wavefront over so many rows and tiles of each; each of so many blocks counts up to `counted` in a tile.
    pub(super) fn new([rows, tiles]: [usize; 2], threads: usize, [blocks, counted]: [usize; 2]) -> Self {
        let len = blocks * counted;
        let slots = threads.max(1);
        let done = (0..rows * slots).map(|_| Progress::default()).collect();
        // each thread has so much of a tile to itself
        let distance = len / slots;
        Wavefront {
            rows,
            tiles,
            given: Progress::default(),
            done,
            slots,
            len,
            lead: distance / 2,
            rest: 3 * distance / 4,
            abandoned: AtomicBool::new(false),
            patience: PATIENCE + PATIENCE_A_STATE * u32::try_from(counted).unwrap_or(u32::MAX),
            at_work: AtomicUsize::new(0),
            over: Mutex::new(false),
            ended: Condvar::new(),
            #[cfg(test)]
            rests: AtomicUsize::new(0),
        }
    }

    /// Does `work` with tiles as long as there are any: with a tile's row, how many of that row come before it, and its walker.
    pub(super) fn for_each(&self, mut work: impl FnMut(usize, usize, Walker<'_>)) {
        self.at_work.fetch_add(1, Ordering::Relaxed);
        let shortest = REST_TO_PATIENCE * self.patience;
        let (next, mut rest) = (Cell::new(None), FIRST_REST.max(shortest));
        loop {
            let i = next.take().unwrap_or_else(|| self.claim());
            let (row, tile) = (i % self.rows, i / self.rows);
            if tile >= self.tiles {
                break;
            }
            let late = &self.slot(row, tile).late;
            late.store(false, Ordering::Relaxed);
            let mut walker = self.walker(row, tile);
            walker.next = Some(&next);
            work(row, tile, walker);
            if next.get().is_none() && late.load(Ordering::Relaxed) {
                self.rest(rest);
                rest = (4 * rest).min(LONGEST_REST.max(shortest));
            }
        }
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ended.notify_all();
    }

    /// Leaves the tiles to the other threads for so long, unless there is none.
    #[cold]
    fn rest(&self, duration: Duration) {
        let leave = |at_work: usize| (at_work > 1).then(|| at_work - 1);
        if self.at_work.fetch_update(Ordering::Relaxed, Ordering::Relaxed, leave).is_err() {
            return;
        }
        #[cfg(test)]
        self.rests.fetch_add(1, Ordering::Relaxed);
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.ended.wait_timeout_while(over, duration, |over| !*over));
        self.at_work.fetch_add(1, Ordering::Relaxed);
    }

    /// Claims the next tile: its number among all.
    fn claim(&self) -> usize {
        self.given.count.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the counter of a tile's progress. A thread has one tile that is not done, and a tile is done after all before it:
    /// the tile of a slot is done when the slot is used again.
    fn slot(&self, row: usize, tile: usize) -> &Progress {
        &self.done[row * self.slots + tile % self.slots]
    }

    /// The walker of a row's `tile`-th one. The one before has been given to a thread already.
    fn walker(&self, row: usize, tile: usize) -> Walker<'_> {
        let own = self.slot(row, tile);
        let before = tile.checked_sub(1).map_or(own, |before| self.slot(row, before));
        let seen = if tile == 0 { self.len } else { 0 };
        Walker { front: self, own, before, row: self.slot(row, 0), first: tile * self.len + 1, seen, next: None }
    }
}

/// The progress that one thread waits for and reports while it walks a tile.
pub(super) struct Walker<'w> {
    front: &'w Wavefront,
    own: &'w Progress,
    before: &'w Progress,
    /// The first tile's, whose count never becomes 0 again.
    row: &'w Progress,
    /// The count when the tile begins. It is 0 only before a row does.
    first: usize,
    /// The progress of the tile before, as far as it is known.
    seen: usize,
    /// The tile that its thread has claimed to walk next.
    next: Option<&'w Cell<Option<usize>>>,
}

impl Walker<'_> {
    /// Whether the tile before is done up to `count`, as far as one look tells.
    #[inline(always)]
    pub(super) fn is_done(&mut self, count: usize) -> bool {
        if self.seen < count {
            // its count begins a tile earlier; what a slot had before is less
            self.seen = (self.before.count.load(Ordering::Acquire) + self.front.len).saturating_sub(self.first);
        }
        self.seen >= count
    }

    /// Waits until what is kept for the whole row is there: until the first tile is [`Walker::done`] up to 0.
    #[inline(always)]
    pub(super) fn wait_for_row(&mut self) {
        let begun = |walker: &mut Self| walker.row.count.load(Ordering::Acquire) > 0;
        if !begun(self) {
            self.wait_long(self.row, begun);
        }
    }

    /// Waits until the tile before is done up to `count`, and so far that the threads do not get into each other's way.
    #[inline(always)]
    pub(super) fn wait(&mut self, count: usize) {
        let front = self.front;
        let count = count.max(front.lead);
        if !self.is_done(count) {
            // the last count is of sums, which nobody is close behind for
            let count = count.max((count + front.rest).min(front.len - 1));
            self.wait_long(self.before, |walker| walker.is_done(count));
        }
    }

    /// Waits for the thread that counts there.
    #[cold]
    #[inline(never)]
    fn wait_long(&mut self, other: &Progress, ready: impl Fn(&mut Self) -> bool) {
        let mut patience = Patience::new(self.front.patience);
        while !ready(self) {
            assert!(!self.front.abandoned.load(Ordering::Relaxed), "the thread that is waited for has panicked");
            if patience.pause(other.count.load(Ordering::Relaxed)) == Paused::Slept {
                other.late.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Claims the thread's next tile before this tile's gradients are stored: claiming is a locked instruction, which waits for all earlier
    /// stores. This tile must be [`Walker::done`], because each thread has a slot for one tile that is not. A thread that was late claims none.
    #[inline(always)]
    pub(super) fn claim_next(&self) {
        if let Some(next) = self.next.filter(|next| next.get().is_none() && !self.own.late.load(Ordering::Relaxed)) {
            next.set(Some(self.front.claim()));
        }
    }

    /// Says that this tile is done up to `count`.
    #[inline(always)]
    pub(super) fn done(&self, count: usize) {
        self.own.count.store(self.first + count, Ordering::Release);
    }
}

impl Drop for Walker<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.front.abandoned.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AtomicUsize, Ordering, Wavefront};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn tiles_are_given_once_and_in_order() {
        let front = Wavefront::new([3, 2], 2, [1, 4]);
        let mut given = Vec::new();
        front.for_each(|row, tile, walker| {
            given.push((row, tile));
            walker.done(4);
            for _ in 0..tile * (row + 1) {
                walker.claim_next();
            }
        });
        assert_eq!(
            given,
            [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)],
            "whenever the next one is claimed, and however often"
        );
        front.for_each(|_, _, _| panic!("there is none"));
    }

    #[test]
    fn a_tile_follows_the_one_before() {
        for threads in [1, 2, 3] {
            let front = Wavefront::new([2, 7], threads, [1, 4]);
            for tile in 0..7 {
                let mut walker = front.walker(1, tile);
                (1..=4).for_each(|count| walker.wait(count));
                if threads > 1 {
                    let mut next = front.walker(1, tile + 1);
                    assert!(!next.is_done(1), "nothing of the tile before is done, whatever was in its slot");
                    walker.done(3);
                    assert!(next.is_done(1) && next.is_done(3) && !next.is_done(4));
                }
                walker.done(4);
                assert!(front.walker(1, tile + 1).is_done(4));
                assert!(!front.walker(0, tile + 1).is_done(1), "rows have nothing to do with each other");
            }
        }
    }

    #[test]
    fn a_row_begins_with_its_first_tile() {
        let front = Wavefront::new([2, 4], 3, [1, 4]);
        let begun = |row| [1, 2, 3].map(|tile| front.walker(row, tile).row.count.load(Ordering::Relaxed) > 0);
        assert_eq!(begun(1), [false; 3]);
        front.walker(1, 0).done(0);
        assert_eq!(begun(1), [true; 3]);
        assert!(!front.walker(1, 1).is_done(1), "and nothing is walked");
        front.walker(1, 3).done(1);
        assert_eq!(begun(1), [true; 3], "whatever came into the slot");
        (0..4).for_each(|tile| front.walker(1, tile).wait_for_row());
        assert_eq!(begun(0), [false; 3]);
    }

    #[test]
    fn a_walk_begins_at_a_distance() {
        let front = &Wavefront::new([1, 2], 2, [1, 12]);
        let first = front.walker(0, 0);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || {
                let mut second = front.walker(0, 1);
                second.wait(1);
                second.seen
            });
            for done in [2, 6] {
                first.done(done);
                std::thread::sleep(core::time::Duration::from_millis(20));
                assert!(!waiting.is_finished());
            }
            first.done(7);
            assert_eq!(waiting.join().unwrap(), 7, "a quarter of what two threads count, and a third for the next vectors");
            let mut third = front.walker(0, 1);
            third.wait(7);
            assert_eq!(third.seen, 7, "who need not wait goes on");
        });
    }

    #[test]
    fn a_thread_that_was_waited_for_in_vain_rests() {
        for threads in [2, 3] {
            let (front, done) = (&Wavefront::new([1, 60], threads, [1, 4]), &AtomicUsize::new(0));
            let walk = move || {
                front.for_each(|_, tile, mut walker| {
                    // as if it had no core until the others have given up looking
                    while tile == 0 && !walker.own.late.load(Ordering::Relaxed) {
                        std::thread::sleep(front.patience);
                    }
                    for count in 1..=4 {
                        walker.wait(count);
                        assert!(count < 4 || done.fetch_add(1, Ordering::Relaxed) == tile, "tiles are done in their order");
                        walker.done(count);
                    }
                    walker.claim_next();
                });
            };
            std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(walk))));
            assert_eq!(done.load(Ordering::Relaxed), 60);
            assert!(front.rests.load(Ordering::Relaxed) >= 1, "one of {threads} threads was late");
        }
    }

    #[test]
    fn the_last_thread_at_work_does_not_rest() {
        let front = Wavefront::new([1, 3], 2, [1, 4]);
        front.for_each(|_, _, walker| {
            walker.own.late.store(true, Ordering::Relaxed);
            (1..=4).for_each(|count| walker.done(count));
        });
        assert_eq!(front.rests.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_waits_for_a_thread_that_panicked_panics() {
        let front = &Wavefront::new([1, 2], 2, [1, 1]);
        std::thread::scope(|scope| {
            let first = front.walker(0, 0);
            let waiting = scope.spawn(move || catch_unwind(|| front.walker(0, 1).wait(1)).is_err());
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _first = first;
                panic!("on purpose");
            }));
            assert!(panicked.is_err());
            assert!(waiting.join().is_ok_and(|panicked| panicked));
        });
    }
}
