//! Norms of queries and keys before they are rotated, and gates of what heads attend to.

use super::{columns, projected_queries};
use crate::config::HeadNorms;
use crate::error::Result;
use crate::mixer::numbers;
use crate::mixer::run::Run;
use statescan::ops::norm;
use statescan::{View, ViewMut};

/// The queries and keys of rows as they are projected, normed, to rows (rows, queries and keys).
pub(super) fn norms(run: &Run<'_>, weights: [View<'_>; 2], projected: View<'_>, to: ViewMut<'_>) -> Result<()> {
    let ([wide, width], of_queries, sizes) = (columns(run.config), projected_queries(run.config), run.config.attention);
    let (to_queries, to_keys) = to.split_at(1, wide);
    let keys = projected.slice(1, of_queries..of_queries + width);
    let queries = projected.slice(1, 0..of_queries);
    let sides = [(queries, to_queries, sizes.heads), (keys, to_keys, sizes.kv_heads)];
    for ((x, y, heads), weight) in sides.into_iter().zip(weights) {
        let (x, y) = match sizes.norms {
            HeadNorms::All => (x, y),
            _ => (x.split(1, heads).slice(2, 0..sizes.headdim), y.split(1, heads)),
        };
        let args = norm::Args::new(x).weight(weight).eps(f64::from(run.config.eps));
        norm::forward(run.device.exec(), &args, &mut norm::Outputs::default().y(y))?;
    }
    Ok(())
}

/// Multiplies what heads attend to by the sigmoid of the gates behind their queries, on the host.
pub(super) fn gate(run: &Run<'_>, projected: View<'_>, y: &mut ViewMut<'_>) {
    let headdim = run.config.attention.headdim;
    for head in 0..run.config.attention.heads {
        let gates = projected.slice(1, (2 * head + 1) * headdim..(2 * head + 2) * headdim);
        numbers::sigmoid_gate(&gates, &mut y.reborrow().slice(1, head * headdim..(head + 1) * headdim));
    }
}
