//! A checked call in normal form.

use super::{Args, OP, SIGNATURE};
use crate::error::{Error, Result};
use crate::ops::check::{Checker, limit_sizes};
use crate::ops::normal::Axes;
use crate::ops::states::{Pool, States};
use crate::tensor::{Device, Shape, View};

/// At least one leading axis, time runs forwards.
#[derive(Debug)]
pub struct Problem<'a> {
    pub a: View<'a>,
    pub b: View<'a>,
    /// Without the time axis; all states of a pool.
    pub initial_state: Option<View<'a>>,
    /// The pool that it is, where there is one.
    pub pool: Option<Pool<'a>>,
    /// The slots that rows of the first axis read and write, where the host can read them.
    pub slots: Option<[Vec<Option<usize>>; 2]>,
    /// The shape of a state as the caller has it.
    pub state_shape: Shape,
    pub seqlen: usize,
    pub complex: bool,
    pub double: bool,
    pub reverse: bool,
    pub exact: bool,
    /// Whether a leading axis was added.
    bare: bool,
}

impl<'a> Problem<'a> {
    /// Checks the arguments and brings them to normal form. States have the shape that `b` says, unless they lie in a pool.
    pub(super) fn new(args: &Args<'a>, device: Device, states: States<'a>) -> Result<Self> {
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
        let mut state_shape = Shape::of(leading);
        let mut slots = None;
        match (&states.pool, leading) {
            (None, _) => checker.bind_state(&SIGNATURE, &views, &state_shape)?,
            (Some(_), []) => {
                let (expected, got) = ("shape (rows, .., seqlen) beside `state_pool`".into(), shape);
                return Err(Error::Rank { op: OP, argument: "b", expected, got, help: String::new() });
            }
            (Some(pool), &[rows, ref own @ ..]) => {
                pool.check(OP, device, own, rows)?;
                state_shape = pool.states.shape();
                if device == Device::Cpu {
                    slots = Some(pool.slots_of(OP, rows)?);
                }
            }
        }
        let mut problem = Problem {
            a: args.a,
            b: args.b,
            initial_state: None,
            pool: states.pool,
            slots,
            state_shape,
            seqlen,
            complex: args.a.dtype().is_complex() || args.b.dtype().is_complex(),
            double: args.a.dtype().is_double() || args.b.dtype().is_double(),
            reverse: args.reverse,
            exact: args.exact,
            bare: leading.is_empty(),
        };
        (problem.a, problem.b) = (problem.timed(args.a), problem.timed(args.b));
        let initial = states.pool.map_or(args.initial_state, |pool| Some(pool.states));
        problem.initial_state = initial.map(|view| problem.state(view));
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
