//! One row on a GPU: its products, and between them steps of the convolution and of the rule and the gated norm, which are operations of the library.

use super::rule::Inner;
use super::{Columns, Delta, Weights};
use crate::config::Config;
use crate::error::Result;
use crate::kernels::Before;
use crate::mixer::convolution::apart;
use crate::mixer::one_row::{OneRow, Row};
use crate::mixer::run::Steps;
use crate::mixer::weights::listed;
use statescan::ops::causal_conv1d::{Activation, update};
use statescan::{View, ViewMut};

impl OneRow for Delta {
    fn rooms(&self, config: &Config) -> [usize; 3] {
        Columns::new(config).of_rooms()
    }

    fn record(&self, mut row: Row<'_>, [mut projected, mut conv, mut y]: [ViewMut<'_>; 3]) -> Result<()> {
        let columns = Columns::new(row.config);
        let weights = Weights::<View<'_>>::bind(row.config, &mut listed(row.weights.clone()));
        for (product, columns) in apart(&weights.around.into) {
            row.project(product, &mut projected.reborrow().slice(0, columns))?;
        }
        let mut states = std::mem::take(&mut row.states).into_iter().map(|state| state.unsqueeze(0));
        let mut state = || states.next().expect("a convolution and a rule have states");
        let (projected, of_conv) = (projected.as_view().expand(0, 1), weights.around.conv);
        let args = update::Args::new(projected.slice(1, columns.conv.clone()), of_conv.weight).activation(Activation::Silu);
        update::update(row.exec, &args, &mut state(), &mut conv.reborrow().unsqueeze(0))?;
        let steps = Steps { sequences: 1, steps: 1 };
        let inner = Inner { exec: row.exec, config: row.config, steps, columns: &columns, weights: &weights };
        inner.step(projected, conv.as_view().expand(0, 1), state(), y.reborrow().unsqueeze(0))?;
        // the results of the convolution have no use any more
        let mut normed = conv.slice(0, 0..row.config.inner);
        inner.gated_norm(y.as_view().expand(0, 1), projected, normed.reborrow().unsqueeze(0))?;
        row.add(weights.around.out_proj, Before::Nothing, normed.as_view(), None)
    }
}
