//! Causal depthwise convolution over time, the short filter in front of a scan.
//!
//! ```text
//! pre[t] = bias + sum_k weight[k] x[t - (W - 1) + k]        y[t] = pre[t] or silu(pre[t])
//! ```
//!
//! for each channel; B batch, D dim (channels), L seqlen, W width (2 to 8). Before the first step of a sequence the inputs are those of
//! `initial_states`, or zero; no tap reaches into another sequence.
//!
//! | argument | shape | type |
//! |---|---|---|
//! | x | (B, D, L) | real |
//! | weight | (D, W) | real |
//! | bias | (D,) | real |
//! | initial_states | (B, D, W-1), see [`Sequences`] for packed rows | real; the inputs before the first step, the latest last |
//! | -> y | (B, D, L) | real |
//! | -> final_states | as initial_states | real; the last W-1 inputs, counting the initial states |
//!
//! Each argument may have its own storage type and any strides; sums are `f32`, or `f64` where `x` is. A reversed convolution looks ahead
//! instead of back: its states are in the order in which it walks.
//!
//! **Padding.** Steps whose `seq_idx` is negative belong to no sequence: their `y` is zero (without bias), their inputs reach nothing, and the
//! states of the row belong to its first and last real sequence. Where states are numbered, (batch, sequences, ..), there is no padding.
//!
//! **Backward.** With `p[t] = dy[t] act'(pre[t])` (`pre` is computed again) and `u` the initial states followed by `x`,
//!
//! ```text
//! du[t] = sum_k weight[k] p[t + (W - 1) - k] (+ the final states' cotangent)   dweight[k] = sum_bt p[t] u[t - (W - 1) + k]   dbias = sum_bt p[t]
//! ```
//!
//! Sums over batch and time are made in two stages whose order depends on the shapes alone. Gradients overwrite. One step at a time:
//! [`update`].
//!
//! **CUDA.** Everything runs there but an `x` in `f64`. Sums are `f32`; arguments in wider types are rounded. Bounds and indices of packed
//! sequences are read by the device only: wrong values cannot be reported, they give wrong results and touch no memory outside of the tensors.
//! The order of the filters' sums depends on the device and on whether there is a workspace too.

mod cpu;
mod cuda;
pub mod reference;
pub mod update;

use super::check::{Checker, Kind};
use super::sequences::{Extent, Segment, Segments, Sequences};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::tensor::{DType, Device, RawViewMut, Shape, View, ViewMut};

const OP: &str = "causal_conv1d";

/// The largest filter width.
pub const MAX_WIDTH: usize = 8;

/// What follows the convolution.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `v * sigmoid(v)`, also called swish.
    Silu,
}

/// The arguments of a causal convolution; see the [module](self) for shapes and types.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    /// Input, (B, D, L).
    pub x: View<'a>,
    /// Filters, (D, W); the last tap is the present.
    pub weight: View<'a>,
    /// Added to the sum, (D,).
    pub bias: Option<View<'a>>,
    /// What follows the sum.
    pub activation: Activation,
    /// Inputs before the first step, (B, D, W-1).
    pub initial_states: Option<View<'a>>,
    /// How the time axis divides into sequences.
    pub sequences: Sequences<'a>,
    /// Whether to convolve from the last step to the first.
    pub reverse: bool,
}

impl<'a> Args<'a> {
    /// The two required arguments, and no option: `Args { bias: Some(bias), ..Args::new(x, weight) }`.
    pub fn new(x: View<'a>, weight: View<'a>) -> Self {
        Args {
            x,
            weight,
            bias: None,
            activation: Activation::None,
            initial_states: None,
            sequences: Sequences::Whole,
            reverse: false,
        }
    }
}

/// What a forward pass writes; what is `None` is not computed.
#[derive(Debug, Default)]
pub struct Outputs<'a> {
    /// Output, (B, D, L).
    pub y: Option<ViewMut<'a>>,
    /// The last inputs, shaped as the initial states.
    pub final_states: Option<ViewMut<'a>>,
}

/// Cotangents: the gradients of a loss by the outputs. What is `None` counts as zero.
#[derive(Debug, Default, Clone, Copy)]
pub struct Cotangents<'a> {
    /// By `y`, (B, D, L).
    pub y: Option<View<'a>>,
    /// By `final_states`.
    pub final_states: Option<View<'a>>,
}

/// What a backward pass writes (it overwrites); what is `None` is not computed. Each has the shape of its argument.
#[derive(Debug, Default)]
pub struct Gradients<'a> {
    /// By `x`.
    pub x: Option<ViewMut<'a>>,
    /// By `weight`.
    pub weight: Option<ViewMut<'a>>,
    /// By `bias`.
    pub bias: Option<ViewMut<'a>>,
    /// By `initial_states`.
    pub initial_states: Option<ViewMut<'a>>,
    /// Scratch memory: dense, f32, of [`backward_workspace_len`] elements. Without it the gradients of few filters are slower on CUDA.
    pub workspace: Option<ViewMut<'a>>,
}

/// The shape of `final_states`: that of the initial states where there are some.
///
/// # Errors
/// Those of [`forward`] that concern the arguments.
pub fn final_states_shape(args: &Args<'_>) -> Result<Shape> {
    Ok(Problem::new(args, &mut Checker::new(OP, args.x.device()), &[])?.state_shape())
}

/// Number of `f32` elements that `Gradients::workspace` must have if it is given; none on the CPU.
///
/// # Errors
/// Those of [`backward`] that concern the arguments.
pub fn backward_workspace_len(exec: &Exec, args: &Args<'_>) -> Result<usize> {
    Ok(Problem::new(args, &mut Checker::new(OP, exec.device()), &[])?.backward_workspace_len(exec))
}

/// Computes `y` and the final states: whichever are asked for.
///
/// # Errors
/// Any argument of a wrong shape, type or device, bad sequence bounds, outputs that overlap. Nothing is written then.
pub fn forward(exec: &Exec, args: &Args<'_>, out: &mut Outputs<'_>) -> Result<()> {
    let mut checker = Checker::new(OP, exec.device());
    let state = out.final_states.as_ref().map(|s| s.shape());
    let problem = Problem::new(args, &mut checker, state.as_slice())?;
    checker.write_if("y", &out.y, Kind::Real, &problem.bdl())?;
    checker.write_if("final_states", &out.final_states, Kind::Real, &problem.state_shape())?;
    checker.finish()?;
    let targets = Targets {
        y: out.y.as_mut().map(|v| problem.mirror(v.raw())),
        final_states: out.final_states.as_mut().map(|v| problem.state_target(v.raw())),
    };
    match exec.stream() {
        Some(stream) => cuda::forward(stream, &problem, &targets),
        None => {
            cpu::forward(exec, &problem, &targets);
            Ok(())
        }
    }
}

/// Computes the gradients that are asked for.
///
/// # Errors
/// As [`forward`]; also a gradient of an argument that was not given.
pub fn backward(exec: &Exec, args: &Args<'_>, cotangents: &Cotangents<'_>, grads: &mut Gradients<'_>) -> Result<()> {
    let states: Vec<_> =
        cotangents.final_states.iter().map(|s| s.shape()).chain(grads.initial_states.iter().map(|s| s.shape())).collect();
    let mut checker = Checker::new(OP, exec.device());
    let problem = Problem::new(args, &mut checker, &states)?;
    let state = problem.state_shape();
    checker.read_if("grad of y", &cotangents.y, Kind::Real, &problem.bdl())?;
    checker.read_if("grad of final_states", &cotangents.final_states, Kind::Real, &state)?;
    checker.write_if("grad of x", &grads.x, Kind::Real, &problem.bdl())?;
    checker.write_if("grad of weight", &grads.weight, Kind::Real, &[problem.dim, problem.width])?;
    checker.gradient_of("bias", args.bias.is_some(), grads.bias.is_some())?;
    checker.write_if("grad of bias", &grads.bias, Kind::Real, &[problem.dim])?;
    // the gradient by the inputs before the first step exists even where they were left at zero
    checker.write_if("grad of initial_states", &grads.initial_states, Kind::Real, &state)?;
    checker.write_if("workspace", &grads.workspace, Kind::Exact(DType::F32), &[problem.backward_workspace_len(exec)])?;
    checker.dense("workspace", grads.workspace.as_ref().map(|v| v.as_view()))?;
    checker.finish()?;
    let sources = Sources {
        y: cotangents.y.map(|v| problem.mirror_view(v)),
        final_states: cotangents.final_states.map(|v| problem.state_source(v)),
    };
    let targets = GradientTargets {
        x: grads.x.as_mut().map(|v| problem.mirror(v.raw())),
        weight: grads.weight.as_mut().map(|v| v.raw()),
        bias: grads.bias.as_mut().map(|v| v.raw()),
        initial_states: grads.initial_states.as_mut().map(|v| problem.state_target(v.raw())),
        workspace: grads.workspace.as_mut().map(|v| v.raw()),
    };
    match exec.stream() {
        Some(stream) => cuda::backward(stream, &problem, &sources, &targets),
        None => {
            cpu::backward(exec, &problem, &sources, &targets);
            Ok(())
        }
    }
}

/// Where a forward pass writes, in normal form.
pub(crate) struct Targets {
    pub y: Option<RawViewMut>,
    pub final_states: Option<RawViewMut>,
}

/// The cotangents that a backward pass reads, in normal form.
pub(crate) struct Sources<'a> {
    pub y: Option<View<'a>>,
    pub final_states: Option<View<'a>>,
}

/// Where a backward pass writes, in normal form.
pub(crate) struct GradientTargets {
    pub x: Option<RawViewMut>,
    pub weight: Option<RawViewMut>,
    pub bias: Option<RawViewMut>,
    pub initial_states: Option<RawViewMut>,
    pub workspace: Option<RawViewMut>,
}

/// Steps of one row that belong to no sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Padding {
    pub batch: usize,
    pub start: usize,
    pub end: usize,
}

/// A checked call in normal form: time runs forwards, states have a sequence axis, padding is set apart.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
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
    pub sequences: Sequences<'a>,
    /// The same, with the values that the host can read.
    pub segments: Segments,
    pub padding: Vec<Padding>,
    pub reverse: bool,
}

impl<'a> Problem<'a> {
    /// Reads the sizes, checks the arguments, and brings them to normal form. The checker remembers them for the overlap test.
    fn new<'c>(args: &'c Args<'a>, checker: &mut Checker<'c>, states: &[Shape]) -> Result<Self> {
        let [batch, dim, seqlen] = args.x.shape()[..] else {
            return Err(Error::Rank { op: OP, argument: "x", expected: "shape (batch, dim, seqlen)", got: args.x.shape() });
        };
        let width = width_of(OP, &args.weight)?;
        let names = "batch x dim x max(seqlen, sequences)";
        let extent = Extent { batch, seqlen, others: &[dim], names, state_rank: 2 };
        let states = args.initial_states.iter().map(|s| s.shape()).chain(states.iter().copied());
        let mut segments = Segments::resolve(OP, checker.device(), &args.sequences, extent, states)?;
        let mut padding = match &args.sequences {
            // what lies on another device is read by its kernels only
            Sequences::SeqIdx(index) if checker.device() == Device::Cpu => set_padding_apart(&mut segments, batch, index),
            _ => Vec::new(),
        };
        if args.reverse {
            segments = segments.reversed(seqlen);
            padding.iter_mut().for_each(|p| (p.start, p.end) = (seqlen - p.end, seqlen - p.start));
        }
        let mut problem = Problem {
            batch,
            dim,
            seqlen,
            width,
            double: args.x.dtype().is_double(),
            x: args.x,
            weight: args.weight,
            bias: args.bias,
            silu: args.activation == Activation::Silu,
            initial_states: args.initial_states,
            sequences: args.sequences,
            segments,
            padding,
            reverse: args.reverse,
        };
        problem.check(args, checker)?;
        problem.x = problem.mirror_view(args.x);
        problem.initial_states = args.initial_states.map(|s| problem.state_source(s));
        Ok(problem)
    }

    /// Checks the arguments that are read.
    fn check<'c>(&self, args: &'c Args<'_>, checker: &mut Checker<'c>) -> Result<()> {
        checker.read("x", &args.x, Kind::Real, &self.bdl())?;
        checker.read("weight", &args.weight, Kind::Real, &[self.dim, self.width])?;
        checker.read_if("bias", &args.bias, Kind::Real, &[self.dim])?;
        checker.read_if("initial_states", &args.initial_states, Kind::Real, &self.state_shape())
    }

    fn bdl(&self) -> [usize; 3] {
        [self.batch, self.dim, self.seqlen]
    }

    fn state_shape(&self) -> Shape {
        self.segments.state_shape(&[self.dim, self.width - 1])
    }

    /// Elements of scratch memory that a backward pass wants.
    fn backward_workspace_len(&self, exec: &Exec) -> usize {
        exec.stream().map_or(0, |stream| cuda::backward_workspace_len(stream, self))
    }

    fn mirror_view<'v>(&self, view: View<'v>) -> View<'v> {
        if self.reverse { view.flip(2) } else { view }
    }

    fn mirror(&self, view: RawViewMut) -> RawViewMut {
        if self.reverse { view.flip(2) } else { view }
    }

    fn state_source<'v>(&self, view: View<'v>) -> View<'v> {
        if self.segments.states_have_sequences() { view } else { view.expand(1, 1) }
    }

    fn state_target(&self, view: RawViewMut) -> RawViewMut {
        if self.segments.states_have_sequences() { view } else { view.expand(1, 1) }
    }
}

/// The width of a filter tensor.
fn width_of(op: &'static str, weight: &View<'_>) -> Result<usize> {
    match weight.shape()[..] {
        [_, width @ 2..=MAX_WIDTH] => Ok(width),
        [_, width] => {
            Err(Error::Value { op, argument: "weight", expected: "of a width between 2 and 8, the width", got: width as f64 })
        }
        _ => Err(Error::Rank { op, argument: "weight", expected: "shape (dim, width)", got: weight.shape() }),
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
