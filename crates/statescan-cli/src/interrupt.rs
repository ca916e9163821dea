//! Signals that end a process, as wishes: they end a text, an answer or a training first, so that what was done can be saved.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Once};

/// Whether one came, and the number of the latest.
static WISH: LazyLock<(Arc<AtomicBool>, Arc<AtomicUsize>)> = LazyLock::new(Default::default);

/// Signals that ask a process to end: of somebody at its terminal, of whoever stops it, and of a terminal that is closed.
#[cfg(unix)]
const ENDING: [c_int; 3] = [SIGINT, SIGTERM, signal_hook::consts::SIGHUP];
#[cfg(not(unix))]
const ENDING: [c_int; 2] = [SIGINT, SIGTERM];

/// From now on the first signal that asks the process to end is a wish that [`interrupted`] tells, and another one before it is granted ends the process.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    listen(&ONCE, &ENDING);
}

/// Watches Ctrl-C alone.
pub(crate) fn watch_ctrl_c() {
    static ONCE: Once = Once::new();
    listen(&ONCE, &[SIGINT]);
}

fn listen(once: &Once, signals: &[c_int]) {
    let (came, latest) = &*WISH;
    once.call_once(|| {
        for &signal in signals.iter().filter(|signal| !is_ignored(**signal)) {
            // a signal does what it does elsewhere where there can be no handler
            let _ = flag::register_conditional_shutdown(signal, 128 + signal, came.clone());
            let _ = flag::register(signal, came.clone());
            let _ = flag::register_usize(signal, latest.clone(), signal as usize);
        }
    });
    came.store(false, Ordering::Relaxed);
}

/// Whether what was begun is to end.
pub(crate) fn interrupted() -> bool {
    WISH.0.load(Ordering::Relaxed)
}

/// The status of a process that a signal ended, as a shell has it; 0 where none came.
pub(crate) fn status() -> u8 {
    match interrupted() {
        true => u8::try_from(128 + WISH.1.load(Ordering::Relaxed)).unwrap_or(u8::MAX),
        false => 0,
    }
}

/// Whether the process was begun with a signal that is ignored, as `nohup` does it: it stays so.
#[cfg(unix)]
fn is_ignored(signal: c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action nothing changes, and there is room for the old one, all of whose fields may be zero.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0 };
    // SAFETY: it was zero before it was written.
    known && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

#[cfg(not(unix))]
fn is_ignored(_: c_int) -> bool {
    false
}
