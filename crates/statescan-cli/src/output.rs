//! Standard output, which may be full or closed, and standard error, which nobody has to read.

use crate::error::{Error, Result};
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Writes a line of standard output: `say!("{n} tokens")?`.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

/// Writes a line of standard error; where that cannot be written there is nobody to tell.
macro_rules! note {
    ($($text:tt)*) => { $crate::output::remark(format_args!($($text)*)) };
}

pub(crate) use {note, say};

/// Prints a line for [`say!`].
pub(crate) fn line(text: Arguments<'_>) -> Result<()> {
    bytes(format!("{text}\n").as_bytes())
}

/// Writes bytes at once.
pub(crate) fn bytes(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Error::Output)
}

/// Prints a line for [`note!`].
pub(crate) fn remark(text: Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Ends the process as others end whose reader has left, where that is what an error says.
pub fn end_if_closed(error: &Error) {
    if matches!(error, Error::Output(source) if source.kind() == ErrorKind::BrokenPipe) {
        sigpipe::reset();
        let _ = bytes(b"\n");
        // systems without that signal
        std::process::exit(0);
    }
}
