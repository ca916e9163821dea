//! A little memory that each thread keeps from call to call: for short calls the allocator, and zeroing what it gives, would take longer
//! than the work.

use std::cell::Cell;

/// Elements that are kept; what is larger goes back to the allocator, whose share of a call is small then.
const MOST: usize = 1 << 15;

thread_local! {
    static KEPT: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// The thread's memory, of arbitrary length and contents; nobody else has it until it is given back.
pub(crate) fn take() -> Vec<u64> {
    let mut memory = KEPT.try_with(Cell::take).unwrap_or_default();
    if cfg!(debug_assertions) {
        // NaN, so that tests find what is read before it is written
        memory.fill(u64::MAX);
    }
    memory
}

/// Keeps memory for the next call on this thread, unless more is kept already.
pub(crate) fn give_back(memory: Vec<u64>) {
    if memory.len() <= MOST {
        // a thread that ends keeps nothing
        let _ = KEPT.try_with(|kept| {
            let other = kept.take();
            kept.set(if other.len() < memory.len() { memory } else { other });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_memory_is_kept_and_taken_once() {
        std::thread::spawn(|| {
            give_back(vec![0; 100]);
            give_back(vec![0; 10]);
            give_back(vec![0; MOST + 1]);
            assert_eq!(take().len(), 100);
            assert_eq!(take().len(), 0);
        })
        .join()
        .unwrap();
    }
}
