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
        for (argument, view) in [("z", &args.z), ("residual", &args.residual)] {
            if let Some(view) = view.filter(|view| view.rank() != args.x.rank()) {
                return Err(Error::Rank {
                    op: OP,
                    argument,
                    expected: "the shape of x".into(),
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

    /// Channels of a row.
    pub(super) fn dim(&self) -> usize {
        self.group * self.groups
    }
}
