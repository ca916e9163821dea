//! An operation apart from its [table](super::table): the meaning of its calls, and the passes that run them. Everything around
//! it, from checks to passes in two phases, is ordinary code over arguments, results and gradients
//! [by position](super::prepared).

use super::call::{Call, Given, Written};
use super::slots::Slots;
use super::states::States;
use super::summary::Summary;
use crate::cuda::{Queue, Stream};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::tensor::{Dense, Device, RawViewMut, Shape, View, ViewMut};

/// A differentiable operation.
pub(crate) trait Op: Sync {
    /// Checks the arguments of a call and brings them to normal form. `states` are those that its passes read and write besides: their shapes may say how
    /// packed sequences have states.
    fn problem<'a>(&self, call: &Call<'a>, device: Device, states: States<'a>) -> Result<Box<dyn Problem + Send + 'a>>;

    /// The results in `f64`, by position.
    fn reference(&self, call: &Call<'_>) -> Result<Vec<Dense>>;

    /// The gradients in `f64`, by the position of what can have one.
    fn reference_backward(&self, call: &Call<'_>, given: &Given<'_>) -> Result<Vec<Option<Dense>>>;

    /// Computes the summary of a slice of a sequence.
    fn summary(&self, _exec: &Exec, call: &Call<'_>, _out: &mut Summary<'_>) -> Result<()> {
        Err(Error::Unavailable { what: call.signature.name, why: "it has no summary: it is no scan" })
    }

    /// Elements of `f32` that a summary needs as scratch memory.
    fn summary_workspace_len(&self, _exec: &Exec, _call: &Call<'_>) -> Result<usize> {
        Ok(0)
    }
}

/// A checked call in normal form, and its kernels.
pub(crate) trait Problem {
    /// The name under which errors are reported.
    fn op(&self) -> &'static str;

    /// The shape of a state as the caller has it, or of another result that no argument has the shape of; none where there is no such result.
    fn state_shape(&self) -> Option<Shape>;

    /// Numbers in the states that a forward pass saves for the backward pass.
    fn saved_len(&self) -> usize {
        0
    }

    /// Numbers (`f32`) that a forward pass wants as scratch memory on a GPU.
    fn workspace_len(&self, _stream: &Stream) -> Result<usize> {
        Ok(0)
    }

    /// Numbers (`f32`) that a backward pass, with or without saved states, wants as scratch memory on a GPU.
    fn backward_workspace_len(&self, stream: &Stream, has_saved: bool) -> Result<usize>;

    /// Computes the results that are asked for, which were checked.
    fn forward(&self, place: Place<'_>, out: &mut Written<'_>) -> Result<()>;

    /// Computes the gradients that are asked for, which were checked.
    fn backward(&self, place: Place<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()>;

    /// The two phases of its passes on a GPU, where it has such passes.
    fn phases(&self) -> Option<&dyn TwoPhase> {
        None
    }
}

/// Passes in two phases, for a slice of a sequence whose entering state comes from somewhere else: what does not depend on it is computed while it is on
/// its way (CUDA, long rows that are scanned in segments).
///
/// A pass over such rows scans segments side by side twice: on their own, and from what enters them. The first phase is the first of these scans, and tells
/// what the slice does as a whole; the second phase is the other one.
pub(crate) trait TwoPhase {
    /// Numbers (`f32`) that the first phases of a forward and of a backward pass keep: 0 where a pass has one phase.
    fn ends_len(&self, stream: &Stream) -> [usize; 2];

    /// The first phase of a forward pass: `ends`, the state after the slice and its decay, as the caller has them.
    fn forward_ends(&self, queue: &Queue<'_>, ends: RawViewMut, out: Summary<'_>) -> Result<()>;

    /// The second phase, from the initial state of this call.
    fn forward_rest(&self, queue: &Queue<'_>, ends: &View<'_>, out: &mut Written<'_>) -> Result<()>;

    /// The first phase of a backward pass: `ends`, and the gradient by the state that enters the slice.
    fn backward_ends(&self, queue: &Queue<'_>, given: &Given<'_>, ends: RawViewMut, entering: RawViewMut) -> Result<()>;

    /// The second phase, from the cotangents of this call.
    fn backward_rest(&self, queue: &Queue<'_>, ends: &View<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()>;
}

/// The place where a pass runs.
pub(crate) enum Place<'q> {
    /// On the threads of an executor.
    Host(&'q Exec),
    /// In the order of a stream, with what earlier calls of the same form have found out.
    Device(Queue<'q>),
}

impl Place<'_> {
    /// Runs the kernels of the place; those of the host cannot fail.
    pub(crate) fn run(self, host: impl FnOnce(&Exec), device: impl FnOnce(&Queue<'_>) -> Result<()>) -> Result<()> {
        match self {
            Place::Host(exec) => {
                host(exec);
                Ok(())
            }
            Place::Device(queue) => device(&queue),
        }
    }
}

/// Numbers (`f32`) that the forward pass of a call wants as scratch memory where it runs.
pub(crate) fn wanted(exec: &Exec, problem: &dyn Problem) -> Result<usize> {
    exec.stream().map_or(Ok(0), |stream| problem.workspace_len(stream))
}

/// An operation whose passes are asked for in two phases, and have one.
pub(crate) fn whole(what: &'static str) -> Error {
    Error::Unavailable { what, why: "such a pass is not in two phases" }
}

/// A step that changes a state in place.
pub(crate) trait Step: Sync {
    fn update(
        &self,
        exec: &Exec,
        call: &Call<'_>,
        state: &mut ViewMut<'_>,
        y: &mut ViewMut<'_>,
        workspace: Option<ViewMut<'_>>,
    ) -> Result<()>;
    /// Elements of `f32` that it wants as scratch memory.
    fn workspace_len(&self, _exec: &Exec, _call: &Call<'_>, _state: &View<'_>) -> Result<usize> {
        Ok(0)
    }
    /// The errors of a step between slots, but for those of the slots themselves.
    fn check_between(&self, (call, _): (&Call<'_>, &Slots<'_>), _state: &ViewMut<'_>, _y: &ViewMut<'_>) -> Result<()> {
        Err(Error::Unavailable { what: call.signature.name, why: "it has one slot for each row" })
    }
    /// Puts the kernel of a step between slots into a stream, once it was checked.
    fn launch_between(
        &self,
        _stream: &Stream,
        (call, _): (&Call<'_>, &Slots<'_>),
        _state: &mut ViewMut<'_>,
        _y: &mut ViewMut<'_>,
    ) -> Result<()> {
        Err(Error::Unavailable { what: call.signature.name, why: "its kernel for CUDA reads and writes one slot for each row" })
    }
    /// The errors of such a step, before it. On CUDA no tensor is read.
    fn check(&self, call: &Call<'_>, state: &ViewMut<'_>, y: &ViewMut<'_>) -> Result<()>;
    /// `y` and the state after the step, in `f64`.
    fn reference(&self, call: &Call<'_>, state: &View<'_>) -> Result<[Dense; 2]>;
}
