//! Progress of what takes long, on standard error where that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar as wide as the terminal, with something said behind it.
pub(crate) fn bar(says: &str, len: usize, position: usize) -> ProgressBar {
    let bar = ProgressBar::new(len as u64).with_position(position as u64);
    let style = ProgressStyle::with_template(&format!("{{wide_bar}} {says}"));
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
