//! One row on a GPU: two products, the second of which has the gated norm, and a kernel for all that lies between them.

use super::{Mamba2, Weights, columns};
use crate::config::Config;
use crate::error::Result;
use crate::kernels::{Before, Conv, Mamba2Step, RowProduct, mamba2_step, row_product};
use crate::mixer::one_row::{OneRow, Row};
use crate::mixer::weights::listed;
use statescan::View;

impl OneRow for Mamba2 {
    fn rooms(&self, config: &Config) -> [usize; 3] {
        [columns(config)[0], 1, config.inner]
    }

    fn record(&self, mut row: Row<'_>) -> Result<()> {
        let (exec, config) = (row.exec, row.config);
        let weights: Weights<View<'_>> = Weights::bind(config, &mut listed(row.weights.clone()));
        let (around, inner, channels, groups) = (weights.around, config.inner, config.conv_channels(), config.ngroups);
        row.project(around.in_proj.weight, around.in_proj.bias)?;
        let ([projected, _, scanned], [conv_state, state]) = (row.rooms, &mut row.states[..]) else {
            unreachable!("a convolution and a scan have states")
        };
        let columns = |from: usize, count: usize| projected.view().slice(0, from..from + count);
        let conv = Conv { input: columns(inner, channels), weight: around.conv.weight, bias: around.conv.bias };
        let args = Mamba2Step {
            conv,
            conv_state: conv_state.as_view(),
            dt: columns(inner + channels, config.nheads),
            dt_bias: weights.dt_bias,
            dt_limit: config.dt_limit,
            a: weights.a,
            d: weights.d,
            z: columns(0, inner),
            groups,
        };
        mamba2_step(exec, &args, state, &mut scanned.view_mut())?;
        let (out, before) = (around.out_proj, Before::Norm { weight: weights.norm, groups, eps: config.mixer_eps });
        let out = RowProduct { before, bias: out.bias, add: true, ..RowProduct::new(out.weight, scanned.view()) };
        Ok(row_product(exec, &out, Some((conv.input, conv_state)), &mut row.stream)?)
    }
}
