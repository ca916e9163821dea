//! A checked call in normal form.

use super::gates::{GateArgs, Gates};
use super::{Args, MOST_WIDTH, OP, SIGNATURE};
use crate::error::{Error, Result};
use crate::ops::check::{Checker, check_groups};
use crate::ops::normal::{Axes, Normal};
use crate::ops::sequences::{Extent, Segments, Sequences};
use crate::ops::states::Pool;
use crate::ops::states::States;
use crate::tensor::{Device, Shape, View};

/// Time runs forwards, states have a sequence axis.
#[derive(Debug, Clone)]
pub struct Problem<'a> {
    pub batch: usize,
    pub seqlen: usize,
    /// Heads of keys, and heads of values that share one.
    pub heads: usize,
    pub group: usize,
    /// Widths of keys and of values.
    pub keys: usize,
    pub values: usize,
    pub double: bool,
    pub q: View<'a>,
    pub k: View<'a>,
    pub v: View<'a>,
    pub g: Option<View<'a>>,
    pub beta: Option<View<'a>>,
    pub a_log: Option<View<'a>>,
    pub dt_bias: Option<View<'a>>,
    pub gates: Gates,
    /// (rows, sequences, J, N, P)
    pub initial_state: Option<View<'a>>,
    /// The pool that it is, where there is one.
    pub pool: Option<Pool<'a>>,
    pub sequences: Sequences<'a>,
    /// How time divides, where the host can read it.
    pub segments: Segments,
    /// The shape of a state as the caller has it.
    pub state_shape: Shape,
    pub normal: Normal,
    /// Whether the caller's time runs backwards.
    pub reverse: bool,
}

/// The time axis of everything that has one.
pub(super) const TIME: usize = 1;

impl<'a> Problem<'a> {
    /// Checks the arguments and brings them to normal form. `states` are the shapes of the other states of the call.
    pub(super) fn new(args: &Args<'a>, device: Device, states: States<'a>) -> Result<Self> {
        let (checker, views) = (Checker::new(OP, device), args.views());
        let sizes = checker.bind(&SIGNATURE, &views)?;
        let [batch, seqlen, heads, all] = ['B', 'L', 'H', 'J'].map(|letter| sizes.get(letter));
        let [keys, values] = check_widths(OP, [sizes.get('N'), sizes.get('P')])?;
        check_groups(OP, "q", heads, all)?;
        let gates = Gates::new(&args.gates(), 3, keys)?;
        // without heads of values there may be any number of those of keys
        let others = &[all.max(heads), keys, values];
        let extent = Extent { batch, seqlen, others, names: SIGNATURE.limit.names, state_rank: 3 };
        let segments = Segments::resolve(OP, device, &args.sequences, extent, states.beside(&args.initial_state))?;
        let reverse = args.reverse.then_some(seqlen);
        let placed = segments.placed((&checker, device), (&SIGNATURE, &views), &[all, keys, values], reverse, states)?;
        let normal = placed.normal;
        let timed = |view: View<'a>| normal.timed(view, TIME);
        Ok(Problem {
            batch,
            seqlen,
            heads,
            group: all / heads,
            keys,
            values,
            double: args.v.dtype().is_double(),
            q: timed(args.q),
            k: timed(args.k),
            v: timed(args.v),
            g: args.g.map(timed),
            beta: args.beta.map(timed),
            a_log: args.a_log,
            dt_bias: args.dt_bias,
            gates,
            initial_state: placed.initial,
            pool: placed.pool,
            sequences: args.sequences,
            segments: placed.segments,
            state_shape: placed.shape,
            normal,
            reverse: args.reverse,
        })
    }

    /// Heads of values.
    pub(super) fn value_heads(&self) -> usize {
        self.heads * self.group
    }

    /// A tensor over time in normal form.
    pub(super) fn timed<V: Axes>(&self, view: V) -> V {
        self.normal.timed(view, TIME)
    }

    /// A state in normal form.
    pub(super) fn state<V: Axes>(&self, view: V) -> V {
        self.normal.state(view)
    }
}

impl<'a> Args<'a> {
    fn gates(&self) -> GateArgs<'_, 'a> {
        GateArgs {
            op: OP,
            g: &self.g,
            beta: &self.beta,
            a_log: &self.a_log,
            dt_bias: &self.dt_bias,
            scale: self.scale,
            qk_l2norm: self.qk_l2norm,
            lower_bound: self.lower_bound,
            beta_sigmoid: self.beta_sigmoid,
            allow_neg_eigval: self.allow_neg_eigval,
        }
    }
}

/// Refuses widths of keys and of values that there are no kernels for.
pub(super) fn check_widths(op: &'static str, widths: [usize; 2]) -> Result<[usize; 2]> {
    for (argument, width) in ["key_width", "value_width"].into_iter().zip(widths) {
        if width > MOST_WIDTH {
            return Err(Error::Value { op, argument, expected: "at most 256", got: width as f64 });
        }
    }
    Ok(widths)
}
