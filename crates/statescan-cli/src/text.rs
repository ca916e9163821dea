//! Tables and figures as they are printed.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use statescan_cases::check::Comparison;
use std::time::Duration;

/// A line under the header and nothing else.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('-').junction('-'));

/// Columns of the terminal, or those of a usual one where output goes elsewhere.
fn columns() -> usize {
    textwrap::termwidth().clamp(40, 200)
}

/// A text that begins with a label, wrapped; what follows stands below the text.
pub(crate) fn labelled(label: &str, text: &str) -> String {
    let indent = " ".repeat(label.len());
    let options = textwrap::Options::new(columns()).initial_indent(label).subsequent_indent(&indent).break_words(false);
    textwrap::fill(text, options)
}

/// A text, wrapped.
pub(crate) fn wrapped(text: &str) -> String {
    labelled("", text)
}

/// A table whose columns from `numbers` on are aligned to the right.
pub(crate) fn table(header: &[&str], numbers: usize, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(STYLE).set_header(header.iter().copied());
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(u16::try_from(columns()).unwrap_or(u16::MAX));
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// The table of comparisons, and under it what is wrong with those that fail.
pub(crate) fn comparisons(all: &[Comparison]) -> String {
    let row = |c: &Comparison| {
        vec![
            c.name.clone(),
            format!("{:.1e}", c.max_abs),
            format!("{:.1e}", c.relative),
            bound(c),
            match (c.ok, c.skipped) {
                (false, _) => "FAIL".to_string(),
                (true, 0) => "ok".to_string(),
                (true, n) => format!("ok, but {n} elements that are not finite are not compared"),
            },
        ]
    };
    let table = table(&["tensor", "max error", "of largest", "bound", ""], 1, all.iter().map(row));
    [table].into_iter().chain(all.iter().filter_map(why)).collect::<Vec<_>>().join("\n")
}

/// Why a comparison fails, if it does.
pub(crate) fn why(c: &Comparison) -> Option<String> {
    c.mismatch.as_ref().map(|mismatch| format!("{}: {mismatch}", c.name))
}

/// A bound in words.
fn bound(c: &Comparison) -> String {
    format!("{:.1e} max + {:.1e} |b|", c.bound.absolute, c.bound.relative)
}

/// Text whose control characters are written as Rust writes them, so that names from files change nothing at a terminal.
pub(crate) fn escaped(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// A number of bytes in its unit.
pub(crate) fn bytes(count: usize) -> String {
    match count as f64 {
        n if n < 1e3 => format!("{n:.0} bytes"),
        n if n < 1e6 => format!("{:.0} kB", n / 1e3),
        n if n < 1e9 => format!("{:.1} MB", n / 1e6),
        n => format!("{:.1} GB", n / 1e9),
    }
}

/// A duration in its unit.
pub(crate) fn time(duration: Duration) -> String {
    let ns = duration.as_nanos() as f64;
    match ns {
        _ if ns < 1e3 => format!("{ns:.0} ns"),
        _ if ns < 1e6 => format!("{:.2} us", ns / 1e3),
        _ if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// Three significant figures.
pub(crate) fn figure(value: f64) -> String {
    statescan_cases::measure::significant(value)
}

/// A number for JSON, which has no infinity.
pub(crate) fn json_number(value: f64) -> serde_json::Value {
    if value.is_finite() { value.into() } else { value.to_string().into() }
}
