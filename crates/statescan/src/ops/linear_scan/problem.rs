//! A checked call in normal form.

use super::{Args, OP, SIGNATURE};
use crate::error::{Error, Result};
use crate::ops::check::{Checker, limit_sizes};
use crate::ops::normal::Axes;
use crate::ops::states::States;
use crate::tensor::{Device, Shape, View};

/// At least one leading axis, time runs forwards.
#[derive(Debug)]
pub struct Problem<'a> {
    pub a: View<'a>,
    pub b: View<'a>,
    /// Without the time axis.
    pub initial_state: Option<View<'a>>,
    /// The shape of a state as the caller has it.
    pub state_shape: Shape,
    pub seqlen: usize,
    pub complex: bool,
    pub double: bool,
    pub reverse: bool,
    /// Whether a leading axis was added.
    bare: bool,
}

impl<'a> Problem<'a> {
    /// Checks the arguments and brings them to normal form. States have the shape that `b` says, whatever others of the call there are.
    pub(super) fn new(args: &Args<'a>, device: Device, _states: States<'a>) -> Result<Self> {
        let (checker, views, shape) = (Checker::new(OP, device), args.views(), args.b.shape());
        if args.a.rank() != args.b.rank() {
            return Err(Error::Rank {
                op: OP,
                argument: "a",
                expected: "the shape of b".into(),
                got: args.a.shape(),
                help: String::new(),
            });
        }
        checker.bind(&SIGNATURE, &views)?;
        let (&seqlen, leading) = shape.split_last().expect("a layout with time");
        // an axis without an index makes no row, however many the others claim
        let rows = leading.iter().fold(1usize, |n, &size| n.saturating_mul(size.max(1)));
        limit_sizes(OP, SIGNATURE.limit.names, [rows, seqlen])?;
        let state_shape = Shape::of(leading);
        checker.bind_state(&SIGNATURE, &views, &state_shape)?;
        let mut problem = Problem {
            a: args.a,
            b: args.b,
            initial_state: None,
            state_shape,
            seqlen,
            complex: args.a.dtype().is_complex() || args.b.dtype().is_complex(),
            double: args.a.dtype().is_double() || args.b.dtype().is_double(),
            reverse: args.reverse,
            bare: leading.is_empty(),
        };
        (problem.a, problem.b) = (problem.timed(args.a), problem.timed(args.b));
        problem.initial_state = args.initial_state.map(|view| problem.state(view));
        Ok(problem)
    }

    /// Sizes of the leading axes.
    pub(crate) fn leading(&self) -> Shape {
        let shape = self.b.shape();
        Shape::of(&shape[..shape.len() - 1])
    }

    /// A state in normal form.
    pub(super) fn state<V: Axes>(&self, view: V) -> V {
        if self.bare { view.expand(0, 1) } else { view }
    }

    /// A tensor over time in normal form.
    pub(super) fn timed<V: Axes>(&self, view: V) -> V {
        let (view, time) = (self.state(view), self.b.rank().max(2) - 1);
        if self.reverse { view.flip(time) } else { view }
    }
}
