//! A checked call in normal form.

use super::signature::SIGNATURE;
use super::{Args, OP, cuda};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::check::{Checker, limit_sizes};
use crate::ops::normal::Axes;
use crate::tensor::{Shape, View};

/// At least one leading axis, time runs forwards.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
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

impl<'a> Args<'a> {
    /// The arguments by position.
    pub(super) fn views(&self) -> [Option<&View<'a>>; 3] {
        [Some(&self.a), Some(&self.b), self.initial_state.as_ref()]
    }
}

impl<'a> Problem<'a> {
    /// Checks the arguments and brings them to normal form. States have the shape that `b` says, whatever others of the call there are.
    pub(super) fn new<'c>(args: &'c Args<'a>, checker: &mut Checker<'c>, _states: &[Shape]) -> Result<Self> {
        let (views, shape) = (args.views(), args.b.shape());
        if args.a.rank() != args.b.rank() {
            return Err(Error::Rank { op: OP, argument: "a", expected: "the shape of b".into(), got: args.a.shape() });
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

    /// Elements of scratch memory that a forward pass wants.
    pub(super) fn workspace_len(&self, exec: &Exec) -> usize {
        exec.stream().map_or(0, |stream| cuda::workspace_len(stream, self))
    }

    /// Elements of scratch memory that a backward pass wants.
    pub(super) fn backward_workspace_len(&self, exec: &Exec, h_is_given: bool) -> usize {
        exec.stream().map_or(0, |stream| cuda::backward_workspace_len(stream, self, h_is_given))
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
