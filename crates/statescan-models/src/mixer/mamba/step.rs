//! One row on a GPU: three products and a kernel for all that lies between them.

use super::{Mamba, Weights};
use crate::config::Config;
use crate::error::Result;
use crate::kernels::{Before, Conv, MambaStep, RowProduct, mamba_step, row_product};
use crate::mixer::one_row::{OneRow, Row};
use crate::mixer::weights::listed;
use statescan::{View, ViewMut};

impl OneRow for Mamba {
    fn rooms(&self, config: &Config) -> [usize; 3] {
        [2 * config.inner, config.dt_rank + 2 * config.dstate, config.inner]
    }

    fn record(&self, mut row: Row<'_>, [mut projected, mut maps, mut scanned]: [ViewMut<'_>; 3]) -> Result<()> {
        let (exec, &Config { inner, dt_limit, mixer_eps, .. }) = (row.exec, row.config);
        let weights: Weights<View<'_>> = Weights::bind(row.config, &mut listed(row.weights.clone()));
        let (around, mut states) = (weights.around, std::mem::take(&mut row.states));
        row.project(around.into[0], &mut projected)?;
        let [conv_state, state] = &mut states[..] else { unreachable!("a convolution and a scan have states") };
        let columns = |from: usize| projected.as_view().slice(0, from..from + inner);
        let conv = Conv { input: columns(0), weight: around.conv.weight, bias: around.conv.bias };
        let before = Before::Conv(conv, conv_state.as_view());
        let to_maps = RowProduct { before, ..RowProduct::new(weights.x_proj, conv.input) };
        row_product(exec, &to_maps, None, &mut maps)?;
        let args = MambaStep {
            conv,
            maps: maps.as_view(),
            norms: self.norms.then_some(mixer_eps),
            dt_weight: weights.dt_proj,
            dt_bias: weights.dt_bias,
            dt_limit,
            a: weights.a,
            d: weights.d,
            z: columns(inner),
        };
        mamba_step(exec, &args, conv_state, state, &mut scanned)?;
        row.add(around.out_proj, Before::Nothing, scanned.as_view(), None)
    }
}
