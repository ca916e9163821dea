//! A checked call in normal form.

use super::{Args, Kind, OP, SIGNATURE};
use crate::error::{Error, Result};
use crate::ops::check::{Checker, limit_sizes};
use crate::ops::normal::Axes;
use crate::ops::states::States;
use crate::tensor::{Device, View};

/// Rows have three leading axes.
#[derive(Debug, Clone)]
pub struct Problem<'a> {
    /// Sizes of the axes of rows.
    pub leading: [usize; 3],
    /// Channels of a group, and how many groups there are.
    pub group: usize,
    pub groups: usize,
    pub x: View<'a>,
    pub weight: Option<View<'a>>,
    pub bias: Option<View<'a>>,
    pub z: Option<View<'a>>,
    pub residual: Option<View<'a>>,
    pub residual_scale: Option<View<'a>>,
    /// Whether rows are normed, and whether their mean is subtracted.
    pub normed: bool,
    pub layer: bool,
    pub eps: f64,
    pub norm_before_gate: bool,
    pub double: bool,
}

/// Rows with three leading axes.
fn rows<V: Axes>(mut view: V) -> V {
    while view.rank() < 4 {
        view = view.expand(0, 1);
    }
    view
}

impl<'a> Problem<'a> {
    /// Checks the arguments and brings them to normal form.
    pub(super) fn new(args: &Args<'a>, device: Device, _states: States<'a>) -> Result<Self> {
        for (argument, view) in [("z", &args.z), ("residual", &args.residual), ("residual_scale", &args.residual_scale)] {
            if let Some(view) = view.filter(|view| view.rank() != args.x.rank()) {
                return Err(Error::Rank {
                    op: OP,
                    argument,
                    expected: "as many axes as x".into(),
                    got: view.shape(),
                    help: String::new(),
                });
            }
        }
        let dim = Checker::new(OP, device).bind(&SIGNATURE, &args.views())?.get('D');
        if args.groups == 0 || !dim.is_multiple_of(args.groups) {
            let expected = "a divisor of the number of channels";
            return Err(Error::Value { op: OP, argument: "groups", expected, got: args.groups as f64 });
        }
        if args.residual_scale.is_some() && args.residual.is_none() {
            return Err(Error::Presence { op: OP, argument: "residual", expected: "must be there beside `residual_scale`" });
        }
        if args.residual_scale.is_some() && args.groups != 1 {
            let expected = "1 beside `residual_scale`, which is one for a row";
            return Err(Error::Value { op: OP, argument: "groups", expected, got: args.groups as f64 });
        }
        if args.eps.is_nan() || args.eps < 0.0 {
            return Err(Error::Value { op: OP, argument: "eps", expected: "a number of at least 0", got: args.eps });
        }
        let x = rows(args.x);
        let leading = [0, 1, 2].map(|axis| x.shape()[axis]);
        // an axis without an index makes no row, however many the others claim
        let count = leading.iter().fold(1usize, |n, &size| n.saturating_mul(size.max(1)));
        limit_sizes(OP, SIGNATURE.limit.names, [count, dim])?;
        Ok(Problem {
            leading,
            group: dim / args.groups,
            groups: args.groups,
            x,
            weight: args.weight,
            bias: args.bias,
            z: args.z.map(rows),
            residual: args.residual.map(rows),
            residual_scale: args.residual_scale.map(rows),
            normed: args.kind != Kind::None,
            layer: args.kind == Kind::Layer,
            eps: args.eps,
            norm_before_gate: args.norm_before_gate,
            double: args.x.dtype().is_double(),
        })
    }

    /// Rows in normal form.
    pub(super) fn rows<V: Axes>(&self, view: V) -> V {
        rows(view)
    }

    /// Rows of all leading axes.
    pub(super) fn count(&self) -> usize {
        self.leading.iter().product()
    }

    /// The indices of a row along the leading axes.
    pub(super) fn index(&self, row: usize) -> [usize; 3] {
        let [_, second, third] = self.leading;
        [row / third / second, row / third % second, row % third]
    }

    /// The factor of a row's residual.
    pub(super) fn scale(&self, [i, j, k]: [usize; 3]) -> f64 {
        self.residual_scale.map_or(1.0, |scale| scale.at(&[i, j, k, 0]).re)
    }

    /// Channels of a row.
    pub(super) fn dim(&self) -> usize {
        self.group * self.groups
    }
}
