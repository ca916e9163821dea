//! How long passes take, and how long they must.

pub mod ceilings;
pub mod device;
pub mod floors;
pub mod measured;
pub mod median;
pub mod turns;

/// Three significant figures.
pub fn significant(value: f64) -> String {
    match value.abs() {
        v if v >= 99.5 => format!("{value:.0}"),
        v if v >= 9.95 => format!("{value:.1}"),
        v if v >= 0.995 => format!("{value:.2}"),
        v if v >= 0.0995 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}
