//! Panics of libraries that read what somebody wrote, as sentences.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is caught, and nothing is printed of it.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Returns the result of a library's call, or its message if it panics.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                print(panic)
            }
        }));
    });
    let before = GUARDED.replace(true);
    // values that the library had at hand are only dropped, or used by calls that are guarded, too
    let result = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(before);
    result.map_err(|panic| format!("the library that reads it has failed: {}", said(&*panic)))
}

/// The first line of what a panic says.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.and_then(|text| text.lines().next()).unwrap_or("it does not say why").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_sentence() {
        assert_eq!(guarded(|| 3), Ok(3));
        let failed = guarded(|| panic!("{} is not even\nbut odd", 3)).map(|()| 0);
        assert_eq!(failed, Err("the library that reads it has failed: 3 is not even".to_owned()));
        assert!(!GUARDED.get());
    }
}
