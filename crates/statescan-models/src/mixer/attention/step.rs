//! One row on a GPU: four products, and a kernel for all that lies between them but for norms and gates.

use super::heads::Norms;
use super::{Attention, Weights, apart, columns, projected_queries};
use crate::config::Config;
use crate::error::Result;
use crate::kernels::Before;
use crate::kernels::hybrid::{AttentionStep, attention_step, output_gate};
use crate::mixer::one_row::{OneRow, Row};
use crate::mixer::weights::listed;
use statescan::{View, ViewMut};

impl OneRow for Attention {
    fn rooms(&self, config: &Config) -> [usize; 3] {
        let [wide, width] = columns(config);
        [projected_queries(config) + 2 * width, wide + 2 * width, wide]
    }

    fn record(&self, mut row: Row<'_>, [mut projected, mut normed, mut attended]: [ViewMut<'_>; 3]) -> Result<()> {
        let (config, weights) = (row.config, Weights::<View<'_>>::bind(row.config, &mut listed(row.weights.clone())));
        let ([wide, width], of_queries, sizes) = (columns(config), projected_queries(config), config.attention);
        let [mut queries, mut keys, values] = apart(projected.reborrow(), [of_queries, width]);
        // normed projections go to other rows, and values lie behind keys there
        let [_, _, beside] = apart(normed.reborrow(), [wide, width]);
        let mut values = if weights.norms.is_some() { beside } else { values };
        for (product, to) in weights.into.into_iter().zip([&mut queries, &mut keys, &mut values]) {
            row.project(product, to)?;
        }
        if let Some(weights) = weights.norms {
            let norms = Norms { exec: row.exec, config, weights };
            norms.forward(projected.as_view().split(0, 1), normed.reborrow().slice(0, 0..wide + width).split(0, 1))?;
        }
        let args = AttentionStep {
            projected: if weights.norms.is_some() { normed.as_view() } else { projected.as_view() },
            angles: row.derived.first().copied(),
            position: row.position,
            headdim: sizes.headdim,
            scale: sizes.scale,
        };
        let [keys, values] = &mut row.states[..] else { unreachable!("attention has keys and values") };
        attention_step(row.exec, &args, [keys, values], &mut attended)?;
        if sizes.gate {
            let queries = projected.as_view().slice(0, 0..of_queries).expand(0, 1);
            output_gate(row.exec, queries, sizes.headdim, &mut attended.reborrow().unsqueeze(0))?;
        }
        row.add(weights.o_proj, Before::Nothing, attended.as_view(), None)
    }
}
