//! Work in chains: slices that must follow each other. Where chains are few, threads that took a whole one each would end far apart.

use std::sync::{Mutex, PoisonError};

/// The remaining work of some chains, each of as many slices.
pub(crate) struct Chains {
    slices: usize,
    alone: bool,
    chains: Mutex<Vec<Chain>>,
}

/// Slices that a thread's chain may be ahead of another one before the thread goes over to that one: fewer lose what the thread has in its
/// cache more often, more let threads end further apart.
const AHEAD: usize = 2;

#[derive(Clone, Copy)]
struct Chain {
    done: usize,
    busy: bool,
    /// Who has done the last slice, and has what it left in its cache.
    by: Option<usize>,
}

impl Chains {
    /// `alone` says that one thread does everything: it has no reason to leave a chain.
    pub(crate) fn new(count: usize, slices: usize, alone: bool) -> Self {
        Chains { slices, alone, chains: Mutex::new(vec![Chain { done: 0, busy: false, by: None }; count]) }
    }

    /// A chain and its next slice, for a thread of this number that has just done a slice of chain `last`: of those that are not ahead,
    /// this one, or else its own, or else one that nobody has begun. Nothing if all that is left is in the hands of other threads, which
    /// go on with it.
    pub(crate) fn next(&self, thread: usize, last: Option<usize>) -> Option<(usize, usize)> {
        // nothing panics while it is locked
        let mut chains = self.chains.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last {
            debug_assert!(chains[last].busy && chains[last].done < self.slices, "the chain was given to this thread");
            (chains[last].done, chains[last].busy) = (chains[last].done + 1, false);
        }
        let free = |i: &usize| !chains[*i].busy && chains[*i].done < self.slices;
        let least = (0..chains.len()).filter(free).map(|i| chains[i].done).min()?;
        let ahead = if self.alone { self.slices } else { AHEAD };
        let kept = |i: usize| match chains[i].by {
            _ if last == Some(i) => 0,
            Some(by) if by == thread => 1,
            None => 2,
            Some(_) => 3,
        };
        let open = (0..chains.len()).filter(free).filter(|&i| chains[i].done <= least + ahead);
        let chosen = open.min_by_key(|&i| (kept(i), chains[i].done))?;
        (chains[chosen].busy, chains[chosen].by) = (true, Some(thread));
        Some((chosen, chains[chosen].done))
    }
}

#[cfg(test)]
mod tests {
    use super::{AHEAD, Chains};

    #[test]
    fn one_thread_finishes_chain_after_chain() {
        let (chains, mut last, mut order) = (Chains::new(3, 2, true), None, Vec::new());
        while let Some((chain, slice)) = chains.next(0, last) {
            order.push((chain, slice));
            last = Some(chain);
        }
        assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
        assert_eq!(Chains::new(0, 3, true).next(0, None), None);
        assert_eq!(Chains::new(3, 0, true).next(0, None), None);
    }

    #[test]
    fn chains_end_together_and_slices_are_in_order() {
        // the second of two threads is three times as fast
        let (chains, mut last, mut done) = (Chains::new(5, 8, false), [None; 2], [0; 5]);
        let mut order = [0, 1, 1, 1].into_iter().cycle();
        let mut waiting = 0;
        while waiting < 8 {
            let thread = order.next().unwrap_or_default();
            let Some((chain, slice)) = chains.next(thread, last[thread]) else {
                (last[thread], waiting) = (None, waiting + 1);
                assert!(
                    done.iter().sum::<usize>() >= 39,
                    "nothing is left for one thread, and more than a slice for the other: {done:?}"
                );
                continue;
            };
            assert_eq!(slice, done[chain]);
            let other = last[1 - thread];
            assert_ne!(other, Some(chain), "one thread for a chain");
            let least = (0..5).filter(|&i| Some(i) != other).map(|i| done[i]).min();
            assert!(least.is_some_and(|least| slice <= least + AHEAD), "chain {chain} is ahead: {done:?}");
            (done[chain], last[thread], waiting) = (slice + 1, Some(chain), 0);
        }
        assert_eq!(done, [8; 5]);
    }

    #[test]
    fn threads_that_are_equally_fast_keep_their_chains() {
        let (chains, mut last, mut by) = (Chains::new(6, 8, false), [None; 2], [None; 6]);
        for i in 0..48 {
            let thread = i % 2;
            let (chain, _) = chains.next(thread, last[thread]).unwrap();
            assert_eq!(*by[chain].get_or_insert(thread), thread, "chain {chain} in round {i}");
            last[thread] = Some(chain);
        }
        assert_eq!(chains.next(0, last[0]), None);
    }
}
