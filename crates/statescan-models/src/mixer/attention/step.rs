//! One row on a GPU: four products, and a kernel for all that lies between them.

use super::{Attention, Weights, apart, columns};
use crate::config::Config;
use crate::error::Result;
use crate::kernels::Before;
use crate::kernels::hybrid::{AttentionStep, attention_step};
use crate::mixer::one_row::{OneRow, Row};
use crate::mixer::weights::listed;
use statescan::{View, ViewMut};

impl OneRow for Attention {
    fn rooms(&self, config: &Config) -> [usize; 3] {
        let [wide, width] = columns(config);
        [wide + 2 * width, 0, wide]
    }

    fn record(&self, mut row: Row<'_>, [mut projected, _, mut attended]: [ViewMut<'_>; 3]) -> Result<()> {
        let weights: Weights<View<'_>> = Weights::bind(row.config, &mut listed(row.weights.clone()));
        for (product, mut to) in weights.into.into_iter().zip(apart(row.config, projected.reborrow())) {
            row.project(product, &mut to)?;
        }
        let args = AttentionStep {
            projected: projected.as_view(),
            angles: row.derived.first().copied(),
            position: row.position,
            headdim: row.config.attention.headdim,
            scale: row.config.attention.scale,
        };
        let [keys, values] = &mut row.states[..] else { unreachable!("attention has keys and values") };
        attention_step(row.exec, &args, [keys, values], &mut attended)?;
        row.add(weights.o_proj, Before::Nothing, attended.as_view(), None)
    }
}
