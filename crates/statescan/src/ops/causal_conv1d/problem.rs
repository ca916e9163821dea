//! A checked call in normal form.

use super::{Activation, Args, OP, SIGNATURE, check_width};
use crate::error::Result;
use crate::ops::check::Checker;
use crate::ops::normal::{Axes, Normal};
use crate::ops::sequences::{Extent, Segment, Segments, Sequences};
use crate::ops::states::Pool;
use crate::ops::states::States;
use crate::tensor::{Device, Shape, View};

/// Steps of one row that belong to no sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Padding {
    pub batch: usize,
    pub start: usize,
    pub end: usize,
}

/// A checked call in normal form: time runs forwards, states have a sequence axis, padding is set apart.
#[derive(Debug)]
pub struct Problem<'a> {
    pub batch: usize,
    pub dim: usize,
    pub seqlen: usize,
    pub width: usize,
    pub double: bool,
    pub x: View<'a>,
    pub weight: View<'a>,
    pub bias: Option<View<'a>>,
    pub silu: bool,
    /// (rows, sequences, D, W-1)
    pub initial_states: Option<View<'a>>,
    /// The pool that it is, where there is one.
    pub pool: Option<Pool<'a>>,
    pub sequences: Sequences<'a>,
    /// The sequences as segments, with the values that the host can read.
    pub segments: Segments,
    pub padding: Vec<Padding>,
    /// The shape of a state as the caller has it.
    pub state_shape: Shape,
    pub normal: Normal,
    pub reverse: bool,
}

impl<'a> Problem<'a> {
    /// Checks the arguments and brings them to normal form. `states` are the shapes of the other states of the call.
    pub(super) fn new(args: &Args<'a>, device: Device, states: States<'a>) -> Result<Self> {
        let (checker, views) = (Checker::new(OP, device), args.views());
        let sizes = checker.bind(&SIGNATURE, &views)?;
        let [batch, dim, seqlen, width] = ['B', 'D', 'L', 'W'].map(|letter| sizes.get(letter));
        check_width(OP, width)?;
        let extent = Extent { batch, seqlen, others: &[dim], names: SIGNATURE.limit.names, state_rank: 2 };
        let mut segments = Segments::resolve(OP, device, &args.sequences, extent, states.beside(&args.initial_states))?;
        let mut padding = match &args.sequences {
            // numbers on another device can be read by its kernels only
            Sequences::SeqIdx(index) if device == Device::Cpu => set_padding_apart(&mut segments, batch, index),
            _ => Vec::new(),
        };
        if args.reverse {
            padding.iter_mut().for_each(|p| (p.start, p.end) = (seqlen - p.end, seqlen - p.start));
        }
        let reverse = args.reverse.then_some(seqlen);
        let placed = segments.placed((&checker, device), (&SIGNATURE, &views), &[dim, width - 1], reverse, states)?;
        let normal = placed.normal;
        Ok(Problem {
            batch,
            dim,
            seqlen,
            width,
            double: args.x.dtype().is_double(),
            x: normal.timed(args.x, 2),
            weight: args.weight,
            bias: args.bias,
            silu: args.activation == Activation::Silu,
            initial_states: placed.initial,
            pool: placed.pool,
            sequences: args.sequences,
            segments: placed.segments,
            padding,
            state_shape: placed.shape,
            normal,
            reverse: args.reverse,
        })
    }

    /// A tensor over time in normal form.
    pub(super) fn timed<V: Axes>(&self, view: V) -> V {
        self.normal.timed(view, 2)
    }

    /// A state in normal form.
    pub(super) fn state<V: Axes>(&self, view: V) -> V {
        self.normal.state(view)
    }
}

/// Takes the runs of negative `seq_idx` out of the segments; the states of a row go to its first and last remaining segment.
fn set_padding_apart(segments: &mut Segments, batch: usize, index: &View<'_>) -> Vec<Padding> {
    let is_padding = |s: &Segment| s.end > s.start && index.at(&[s.batch, s.start]).re < 0.0;
    // numbered sequences were refused if negative, so that rows with padding have one state each
    let mut padding = Vec::new();
    segments.list.retain(|s| {
        let apart = is_padding(s);
        if apart {
            padding.push(Padding { batch: s.batch, start: s.start, end: s.end });
        }
        !apart
    });
    if padding.is_empty() {
        return padding;
    }
    let mut list = Vec::with_capacity(segments.list.len());
    let mut next = 0;
    for b in 0..batch {
        let first = list.len();
        while let Some(segment) = segments.list.get(next).filter(|s| s.batch == b) {
            list.push(*segment);
            next += 1;
        }
        if list.len() == first {
            list.push(Segment { batch: b, start: 0, end: 0, initial: None, last: None });
        }
        list[first].initial = Some((b, 0));
        list.last_mut().expect("every row has a segment now").last = Some((b, 0));
    }
    segments.list = list;
    padding
}
