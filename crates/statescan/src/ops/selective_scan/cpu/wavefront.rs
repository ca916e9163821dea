//! Rows that several threads walk together, one tile behind the other.
//!
//! Of the tile that is walked before it (the later one in time) a tile needs the gradient by its last states, and what is gathered over a
//! whole row is added tile after tile. All else needs nothing: loading, the states of the way forwards, sums over channels, storing. So
//! threads claim one tile after the other, and who comes to a vector of states waits until the thread before is past it, most often without having to.
//! Loading waits for nobody: as only the walks follow each other, a row has work for as many threads as a tile has vectors of states.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
    /// What is counted in a tile.
    len: usize,
    /// How much of the tile before is done when the walk of one begins: close behind another thread, every line that both use is waited
    /// for; far behind, the last threads come too late to take a tile each.
    lead: usize,
    /// How much further than it must be the tile before is done when a thread goes on that had to wait: right behind another one it would
    /// soon wait again, for every line that comes late there.
    rest: usize,
    /// Whether a thread has left its tile in a panic.
    abandoned: AtomicBool,
}

/// On lines that no other one shares; processors read them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Progress(AtomicUsize);

impl Wavefront {
    /// Of so many rows and tiles of each; in a tile it is counted up to `len`.
    pub(super) fn new([rows, tiles]: [usize; 2], threads: usize, len: usize) -> Self {
        let slots = threads.max(1);
        let done = (0..rows * slots).map(|_| Progress::default()).collect();
        // each thread has so much of a tile to itself
        let distance = len / slots;
        let (lead, rest, abandoned) = (distance / 2, 3 * distance / 4, AtomicBool::new(false));
        Wavefront { rows, tiles, given: Progress::default(), done, slots, len, lead, rest, abandoned }
    }

    /// Does `work` with tiles as long as there are any: with a tile's row, how many of that row come before it, and its walker.
    pub(super) fn for_each(&self, mut work: impl FnMut(usize, usize, Walker<'_>)) {
        let next = Cell::new(None);
        loop {
            let i = next.take().unwrap_or_else(|| self.claim());
            let (row, tile) = (i % self.rows, i / self.rows);
            if tile >= self.tiles {
                return;
            }
            let mut walker = self.walker(row, tile);
            walker.next = Some(&next);
            work(row, tile, walker);
        }
    }

    /// Claims the next tile: its number among all.
    fn claim(&self) -> usize {
        self.given.0.fetch_add(1, Ordering::Relaxed)
    }

    /// The walker of a row's `tile`-th one. The one before has been given to a thread already.
    fn walker(&self, row: usize, tile: usize) -> Walker<'_> {
        // a thread has one tile that is not done, and a tile is done after all before it: what was in a slot is done when it is used again
        let slot = |tile: usize| &self.done[row * self.slots + tile % self.slots].0;
        let before = tile.checked_sub(1).map_or(slot(tile), slot);
        let seen = if tile == 0 { self.len } else { 0 };
        Walker { front: self, own: slot(tile), before, row: slot(0), first: tile * self.len + 1, seen, next: None }
    }
}

/// What one thread waits for and says while it walks a tile.
pub(super) struct Walker<'w> {
    front: &'w Wavefront,
    own: &'w AtomicUsize,
    before: &'w AtomicUsize,
    /// The first tile's, which never becomes 0 again.
    row: &'w AtomicUsize,
    /// The count when the tile begins. It is 0 only before a row does.
    first: usize,
    /// What is known to be done of the tile before.
    seen: usize,
    /// What its thread has claimed to walk next.
    next: Option<&'w Cell<Option<usize>>>,
}

impl Walker<'_> {
    /// Whether the tile before is done up to `count`, as far as one look tells.
    #[inline(always)]
    pub(super) fn is_done(&mut self, count: usize) -> bool {
        if self.seen < count {
            // its count begins a tile earlier; what a slot had before is less
            self.seen = (self.before.load(Ordering::Acquire) + self.front.len).saturating_sub(self.first);
        }
        self.seen >= count
    }

    /// Waits until what is kept for the whole row is there: until the first tile is [`Walker::done`] up to 0.
    #[inline(always)]
    pub(super) fn wait_for_row(&mut self) {
        let begun = |walker: &mut Self| walker.row.load(Ordering::Acquire) > 0;
        if !begun(self) {
            self.wait_long(begun);
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
            self.wait_long(|walker| walker.is_done(count));
        }
    }

    /// The processor goes to others if it takes long, as the thread that is waited for may be among them.
    #[cold]
    #[inline(never)]
    fn wait_long(&mut self, ready: impl Fn(&mut Self) -> bool) {
        const SPINS: usize = 10_000;
        let mut looked = 0;
        while !ready(self) {
            assert!(!self.front.abandoned.load(Ordering::Relaxed), "the thread that is waited for has panicked");
            looked += 1;
            if looked < SPINS { core::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    /// Claims the thread's next tile before this tile's gradients are stored: claiming is a locked instruction, which waits for all earlier
    /// stores. This tile must be [`Walker::done`], because each thread has a slot for one tile that is not.
    #[inline(always)]
    pub(super) fn claim_next(&self) {
        if let Some(next) = self.next.filter(|next| next.get().is_none()) {
            next.set(Some(self.front.claim()));
        }
    }

    /// Says that this tile is done up to `count`.
    #[inline(always)]
    pub(super) fn done(&self, count: usize) {
        self.own.store(self.first + count, Ordering::Release);
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
    use super::{Ordering, Wavefront};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn tiles_are_given_once_and_in_order() {
        let front = Wavefront::new([3, 2], 2, 4);
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
            let front = Wavefront::new([2, 7], threads, 4);
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
        let front = Wavefront::new([2, 4], 3, 4);
        let begun = |row| [1, 2, 3].map(|tile| front.walker(row, tile).row.load(Ordering::Relaxed) > 0);
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
        let front = &Wavefront::new([1, 2], 2, 12);
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
    fn who_waits_for_a_thread_that_panicked_panics() {
        let front = &Wavefront::new([1, 2], 2, 1);
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
