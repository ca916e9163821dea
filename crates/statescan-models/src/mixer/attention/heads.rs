//! Norms of queries and keys before they are rotated.

use super::{apart, columns, projected_queries};
use crate::config::{Config, HeadNorms};
use crate::error::Result;
use crate::mixer::run::Run;
use statescan::ops::norm::{Args, Cotangents, Gradients, Outputs, forward, prepare};
use statescan::tensor::Workspace;
use statescan::{Exec, View, ViewMut};

/// Norms of heads by themselves, or of all together.
pub(super) struct Norms<'n> {
    pub(super) exec: &'n Exec,
    pub(super) config: &'n Config,
    pub(super) weights: [View<'n>; 2],
}

impl<'n> Norms<'n> {
    /// Norms of a mixer.
    pub(super) fn of(run: &Run<'n>, weights: [View<'n>; 2]) -> Self {
        Norms { exec: run.device.exec(), config: run.config, weights }
    }

    /// Queries and keys (rows, columns) in the form in which they are normed; heads of queries as they are projected have gates behind them.
    fn split<'p>(&self, [queries, keys]: [View<'p>; 2]) -> [View<'p>; 2] {
        let sizes = self.config.attention;
        match sizes.norms {
            HeadNorms::All => [queries, keys],
            _ => [queries.split(1, sizes.heads).slice(2, 0..sizes.headdim), keys.split(1, sizes.kv_heads)],
        }
    }

    fn split_mut<'p>(&self, [queries, keys]: [ViewMut<'p>; 2]) -> [ViewMut<'p>; 2] {
        let sizes = self.config.attention;
        match sizes.norms {
            HeadNorms::All => [queries, keys],
            _ => [queries.split(1, sizes.heads).slice(2, 0..sizes.headdim), keys.split(1, sizes.kv_heads)],
        }
    }

    /// Queries and keys of rows as they are projected.
    fn args<'a>(&'a self, projected: View<'a>) -> [Args<'a>; 2] {
        let (of_queries, [_, width]) = (projected_queries(self.config), columns(self.config));
        let both = [0..of_queries, of_queries..of_queries + width].map(|columns| projected.slice(1, columns));
        let [queries, keys] = self.split(both);
        [(queries, self.weights[0]), (keys, self.weights[1])]
            .map(|(x, weight)| Args::new(x).weight(weight).eps(f64::from(self.config.eps)))
    }

    /// The queries and keys of rows as they are projected, normed, to rows (rows, queries and keys).
    pub(super) fn forward(&self, projected: View<'_>, to: ViewMut<'_>) -> Result<()> {
        let (queries, keys) = to.split_at(1, columns(self.config)[0]);
        for (args, y) in self.args(projected).iter().zip(self.split_mut([queries, keys])) {
            forward(self.exec, args, &mut Outputs::default().y(y))?;
        }
        Ok(())
    }

    /// From the gradients by normed queries and keys, `dy`, to those by them as they are projected, and by the weights.
    pub(super) fn backward(
        &self,
        [projected, dy]: [View<'_>; 2],
        into: ViewMut<'_>,
        weights: [ViewMut<'_>; 2],
        workspace: &mut Workspace,
    ) -> Result<()> {
        let [wide, width] = columns(self.config);
        let [queries, keys, _] = apart(into, [projected_queries(self.config), width]);
        let dy = self.split([0..wide, wide..wide + width].map(|columns| dy.slice(1, columns)));
        let sides = self.args(projected).into_iter().zip(dy).zip(self.split_mut([queries, keys]).into_iter().zip(weights));
        for ((args, dy), (dx, weight)) in sides {
            let call = prepare(self.exec, &args)?;
            let workspace = workspace.view_mut(self.exec, call.backward_workspace_len(false)?)?;
            let mut grads = Gradients::default().x(dx).weight(weight).workspace(workspace);
            call.backward(None, &Cotangents::default().y(dy), &mut grads)?;
        }
        Ok(())
    }
}
