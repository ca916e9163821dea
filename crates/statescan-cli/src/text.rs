//! Tables and figures as they are printed.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use statescan_cases::check::Comparison;
use std::time::Duration;

/// A line under the header and nothing else.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('-').junction('-'));

/// A table whose columns from `numbers` on are aligned to the right.
pub(crate) fn table(header: &[&str], numbers: usize, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(STYLE).set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// The table of comparisons, and under it what is wrong with those that fail.
pub(crate) fn comparisons(all: &[Comparison]) -> String {
    let row = |c: &Comparison| {
        vec![
            c.name.clone(),
            format!("{:.1e}", c.max_abs),
            format!("{:.1e}", c.relative),
            bound(c),
            if c.ok { "ok" } else { "FAIL" }.to_string(),
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
pub(crate) fn bound(c: &Comparison) -> String {
    format!("{:.1e} max + {:.1e} |b|", c.bound.absolute, c.bound.relative)
}

/// Text whose control characters are written as Rust writes them, so that names from files change nothing at a terminal.
pub fn escaped(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
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
