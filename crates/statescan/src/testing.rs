//! The inside of a call as the tests in `tests/` see it, on which nobody else should rely: how often it checks its arguments, and
//! whether it needs its scratch memory. Unit tests would see it without this module, but they leave the kernels of operations
//! out, which take minutes to build.

use core::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// How often this thread has checked the arguments of a call.
    static CHECKS: Cell<usize> = const { Cell::new(0) };
    /// How many arrays this thread has laid out in scratch memory, and which of them is to be too short.
    static SHORT: Cell<(usize, Option<usize>)> = const { Cell::new((0, None)) };
}

pub(crate) fn checked() {
    CHECKS.set(CHECKS.get() + 1);
}

/// How often some work checks the arguments of a call, on this thread.
pub fn checks(work: impl FnOnce()) -> usize {
    let before = CHECKS.get();
    work();
    CHECKS.get() - before
}

/// The length of the next array: one element less for the one that is to be too short.
pub(crate) fn shortened(len: usize, counting: bool) -> usize {
    let (number, short) = SHORT.get();
    if counting || len == 0 {
        return len;
    }
    SHORT.set((number + 1, short));
    len - usize::from(short == Some(number))
}

/// Runs a call, on this thread alone, once for each array that it lays out, with that array one element short: each time, debug builds find it out. Gives
/// how many arrays there are.
///
/// # Panics
/// If some array could be shorter.
pub fn every_array_is_needed_to_its_end(name: &str, call: impl Fn()) -> usize {
    static QUIET: Once = Once::new();
    // panics are expected here, and are not worth words
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if SHORT.get().1.is_none() {
                usual(info);
            }
        }));
    });
    SHORT.set((0, None));
    call();
    let count = SHORT.get().0;
    let is_unnoticed = |&number: &usize| {
        SHORT.set((0, Some(number)));
        catch_unwind(AssertUnwindSafe(&call)).is_ok()
    };
    let unnoticed: Vec<_> = (0..count).filter(is_unnoticed).collect();
    SHORT.set((0, None));
    assert!(unnoticed.is_empty(), "{name}: of {count} arrays, these could be an element shorter: {unnoticed:?}");
    count
}
