//! One row on a GPU: two products, the second of which has the gated norm, and a kernel for all that lies between them.

use super::{Mamba2, Weights, columns};
use crate::config::Config;
use crate::error::Result;
use crate::kernels::{Before, Conv, Mamba2Step, mamba2_step};
use crate::mixer::one_row::{OneRow, Row};
use crate::mixer::weights::listed;
use statescan::{View, ViewMut};

impl OneRow for Mamba2 {
    fn rooms(&self, config: &Config) -> [usize; 3] {
        [columns(config)[0], 1, config.inner]
    }

    fn record(&self, mut row: Row<'_>, [mut projected, _, mut scanned]: [ViewMut<'_>; 3]) -> Result<()> {
        let (exec, config) = (row.exec, row.config);
        let weights: Weights<View<'_>> = Weights::bind(config, &mut listed(row.weights.clone()));
        let (around, inner, channels, groups) = (weights.around, config.inner, config.conv_channels(), config.ngroups);
        row.project(around.into[0], &mut projected)?;
        let mut states = std::mem::take(&mut row.states);
        let [conv_state, state] = &mut states[..] else { unreachable!("a convolution and a scan have states") };
        let columns = |from: usize, count: usize| projected.as_view().slice(0, from..from + count);
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
        mamba2_step(exec, &args, state, &mut scanned)?;
        let before = Before::Norm { weight: weights.norm, groups, eps: config.mixer_eps };
        row.add(around.out_proj, before, scanned.as_view(), Some((conv.input, conv_state)))
    }
}
