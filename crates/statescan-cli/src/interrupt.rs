//! Ctrl-C, which ends a text and not the process, so that what was read can be saved.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// The status of a process that Ctrl-C ended.
pub(crate) const STATUS: u8 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on the first Ctrl-C is a wish that [`interrupted`] tells, and another one before it is granted ends the process.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // where there can be no handler, Ctrl-C does what it does elsewhere
        let _ = ctrlc::set_handler(|| {
            if INTERRUPTED.swap(true, Ordering::Relaxed) {
                std::process::exit(STATUS.into());
            }
        });
    });
    INTERRUPTED.store(false, Ordering::Relaxed);
}

/// Whether the text is to end.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
