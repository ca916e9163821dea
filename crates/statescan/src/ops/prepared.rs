//! Prepared calls: arguments that were checked once, with what has to be known before a pass runs. The typed functions of the operations, calls by
//! position and Python go through them.

use super::call::{Call, Given, PassKind, Planned, Written, carried};
use super::checked::{Checked, Lengths, other_form, states_of_gradients, states_of_results};
use super::op::{Op, Place, Problem, TwoPhase, whole};
use super::signature::Argument;
use super::states::{NO_STATES, Pool, States};
use super::summary::Summary;
use crate::cuda::{Key, Queue};
use crate::error::Result;
use crate::exec::Exec;
use crate::tensor::{Device, Shape, Tensor, View, ViewMut, Workspace};
use core::marker::PhantomData;
use core::ops::Deref;

/// A call whose arguments were checked: it knows the shapes of its results and the sizes of its scratch memory, and can run any number of times without
/// checking its arguments again.
pub struct Prepared<'p> {
    op: &'static dyn Op,
    exec: &'p Exec,
    call: Call<'p>,
    problem: Box<dyn Problem + Send + 'p>,
    pool: Option<Pool<'p>>,
    lengths: Lengths,
}

impl core::fmt::Debug for Prepared<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Prepared({})", self.call.signature.name)
    }
}

impl<'p> Prepared<'p> {
    pub(crate) fn new(op: &'static dyn Op, exec: &'p Exec, call: Call<'p>, states: States<'p>) -> Result<Self> {
        let problem = op.problem(&call, exec.device(), states)?;
        Ok(Prepared { op, exec, call, problem, pool: states.pool, lengths: Lengths::default() })
    }

    /// Returns the call prepared anew for states of these shapes, if those decide how packed sequences have states.
    fn again(&self, states: States<'p>) -> Result<Option<Self>> {
        match self.problem.state_shape().is_some_and(|prepared| other_form(&states, &prepared)) {
            true => Self::new(self.op, self.exec, self.call, states).map(Some),
            false => Ok(None),
        }
    }

    fn checked(&self) -> Checked<'_> {
        Checked { device: self.exec.device(), call: &self.call, problem: &*self.problem, pool: self.pool.as_ref() }
    }

    fn place(&self, key: Option<Key>) -> Place<'_> {
        match self.exec.stream() {
            Some(stream) => Place::Device(Queue::new(stream, key)),
            None => Place::Host(self.exec),
        }
    }

    /// Type and shape of the result with this number.
    pub fn result(&self, at: usize) -> Planned {
        Planned { dtype: self.call.result_type(at), shape: self.checked().result_shape(at) }
    }

    /// The shape of a state; none where no result is a state.
    pub fn state_shape(&self) -> Option<Shape> {
        self.problem.state_shape()
    }

    /// Numbers in the states that a forward pass saves for the backward pass: 0 where it saves none.
    pub fn saved_len(&self) -> usize {
        self.lengths.saved(|| self.problem.saved_len())
    }

    /// Number of `f32` elements that a forward pass wants as scratch memory, none on the CPU.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) for what a device has no kernels for.
    pub fn workspace_len(&self) -> Result<usize> {
        let Some(stream) = self.exec.stream() else { return Ok(0) };
        let plan = || self.problem.workspace_len(stream);
        self.lengths.forward(|| self.checked().length(stream, PassKind::ForwardLength, plan))
    }

    /// Returns the workspace length of a backward pass, with or without the states that the forward pass saved.
    ///
    /// # Errors
    /// As [`Prepared::workspace_len`].
    pub fn backward_workspace_len(&self, has_saved: bool) -> Result<usize> {
        let Some(stream) = self.exec.stream() else { return Ok(0) };
        let plan = || self.problem.backward_workspace_len(stream, has_saved);
        self.lengths.backward(has_saved, || self.checked().length(stream, PassKind::backward_length(has_saved), plan))
    }

    /// Computes the results that are asked for.
    ///
    /// # Errors
    /// Those of the operation that concern the results.
    pub fn forward(&self, out: &mut Written<'_>) -> Result<()> {
        match self.again(states_of_results(self.call.signature, out))? {
            Some(other) => other.write(out),
            None => self.write(out),
        }
    }

    /// Computes results beside states that the call was prepared with.
    pub(crate) fn write(&self, out: &mut Written<'_>) -> Result<()> {
        let key = self.checked().forward(out, None, &|| self.workspace_len())?;
        self.problem.forward(self.place(key), out)
    }

    /// Computes the gradients that are asked for. `given` has the cotangents, and what a forward pass of the same call kept for them, if it keeps
    /// something.
    ///
    /// # Errors
    /// Those of the operation that concern what is read and written besides the arguments.
    pub fn backward(&self, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        match self.again(states_of_gradients(self.call.signature, given, grads))? {
            Some(other) => other.differentiate(given, grads),
            None => self.differentiate(given, grads),
        }
    }

    fn differentiate(&self, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        let key = self.checked().backward(given, grads, None, &|| self.backward_workspace_len(given.saved.is_some()))?;
        self.problem.backward(self.place(key), given, grads)
    }

    /// Numbers (`f32`) that the first phases of a forward and of a backward pass keep for the second ones, 0 where a pass has one
    /// phase: long rows of `selective_scan` and `ssd` on CUDA have two. The first phase computes everything that does not depend
    /// on the state that enters a slice of a sequence.
    pub fn ends_len(&self) -> [usize; 2] {
        let phases = self.problem.phases().zip(self.exec.stream());
        phases.map_or([0; 2], |(phases, stream)| phases.ends_len(stream))
    }

    /// The phases of a forward or backward pass, and the numbers that lie between them.
    fn phases(&self, backward: bool) -> Result<(&dyn TwoPhase, usize)> {
        let len = self.ends_len()[usize::from(backward)];
        self.problem.phases().filter(|_| len > 0).map(|phases| (phases, len)).ok_or_else(|| whole(self.problem.op()))
    }

    fn queue(&self, key: Option<Key>) -> Result<Queue<'_>> {
        Ok(Queue::new(self.exec.stream().ok_or_else(|| whole(self.problem.op()))?, key))
    }

    /// The first phase of a forward pass: what segments do on their own, to `ends`; the state after the slice, from the initial state or from zero, and its
    /// decay, as far as they are asked for.
    ///
    /// # Errors
    /// Those of [`Prepared::forward`] that concern what is written; [`Error::Unavailable`](crate::Error::Unavailable) where the pass has one phase.
    pub fn forward_ends(&self, mut ends: ViewMut<'_>, out: Summary<'_>) -> Result<()> {
        let (phases, len) = self.phases(false)?;
        let checked = self.checked();
        let state = ("state", out.state.as_ref(), checked.state_shape());
        let written = [state, ("decay", out.decay.as_ref(), checked.decay_shape())];
        let key = checked.ends(PassKind::ForwardEnds, (&ends, len), &[], &written)?;
        phases.forward_ends(&self.queue(key)?, ends.raw(), out)
    }

    /// The second phase of a forward pass, from the initial state of this call and from what the first phase of a call with the same arguments, the initial
    /// state apart, has kept.
    ///
    /// # Errors
    /// As [`Prepared::forward_ends`].
    pub fn forward_rest(&self, ends: View<'_>, out: &mut Written<'_>) -> Result<()> {
        let (phases, len) = self.phases(false)?;
        let key = self.checked().forward(out, Some((&ends, len)), &|| self.workspace_len())?;
        phases.forward_rest(&self.queue(key)?, &ends, out)
    }

    /// The first phase of a backward pass: what segments do on their own, to `ends`; the gradient by the state before the slice, to `entering`.
    ///
    /// # Errors
    /// As [`Prepared::forward_ends`].
    pub fn backward_ends(&self, mut ends: ViewMut<'_>, given: &Given<'_>, mut entering: ViewMut<'_>) -> Result<()> {
        let (phases, len) = self.phases(true)?;
        let checked = self.checked();
        let written = [("grad of initial_state", Some(&entering), checked.state_shape())];
        let key = checked.ends(PassKind::BackwardEnds, (&ends, len), &given.cotangents, &written)?;
        phases.backward_ends(&self.queue(key)?, given, ends.raw(), entering.raw())
    }

    /// The second phase of a backward pass, from the cotangents of this call and from what the first phase of a call with the same ones, that by the final
    /// state apart, has kept.
    ///
    /// # Errors
    /// As [`Prepared::forward_ends`].
    pub fn backward_rest(&self, ends: View<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        let (phases, len) = self.phases(true)?;
        let lens = || self.backward_workspace_len(given.saved.is_some());
        let key = self.checked().backward(given, grads, Some((&ends, len)), &lens)?;
        phases.backward_rest(&self.queue(key)?, &ends, given, grads)
    }
}

/// The structs of an operation's calls: the table of the operation writes them.
pub trait Structs {
    /// The results.
    type Outputs<'a>: ByPosition;
    /// The cotangents of the results.
    type Cotangents<'a>: Copy;
    /// The gradients of the arguments.
    type Gradients<'a>: ByPosition;

    /// The cotangents by position, beside what a forward pass kept.
    fn given<'a>(saved: Option<View<'a>>, cotangents: &Self::Cotangents<'a>) -> Given<'a>;
}

/// A struct of what a pass writes.
pub trait ByPosition {
    /// Returns the outputs by position.
    fn written(&mut self) -> Written<'_>;
}

/// A prepared call of one operation, whose results and gradients have names. It dereferences to the same call
/// [by position](Prepared), which answers all questions about it.
pub struct Typed<'p, T>(Prepared<'p>, PhantomData<T>);

impl<'p, T> Deref for Typed<'p, T> {
    type Target = Prepared<'p>;

    fn deref(&self) -> &Prepared<'p> {
        &self.0
    }
}

impl<'p, T: Structs> Typed<'p, T> {
    pub(crate) fn new(op: &'static dyn Op, exec: &'p Exec, call: Call<'p>) -> Result<Self> {
        Ok(Typed(Prepared::new(op, exec, call, NO_STATES)?, PhantomData))
    }

    /// Computes the results that are asked for.
    ///
    /// # Errors
    /// Those of the operation that concern the results.
    pub fn forward(&self, out: &mut T::Outputs<'_>) -> Result<()> {
        self.0.forward(&mut out.written())
    }

    /// Computes the gradients that are asked for; `saved` is what a forward pass of the same call kept for them, if it keeps something.
    ///
    /// # Errors
    /// Those of the operation that concern what is read and written besides the arguments.
    pub fn backward<'g>(
        &self,
        saved: Option<View<'g>>,
        cotangents: &T::Cotangents<'g>,
        grads: &mut T::Gradients<'_>,
    ) -> Result<()> {
        self.0.backward(&T::given(saved, cotangents), &mut grads.written())
    }

    /// As [`Prepared::forward_rest`].
    ///
    /// # Errors
    /// As [`Prepared::forward_ends`].
    pub fn forward_rest(&self, ends: View<'_>, out: &mut T::Outputs<'_>) -> Result<()> {
        self.0.forward_rest(ends, &mut out.written())
    }

    /// As [`Prepared::backward_ends`].
    ///
    /// # Errors
    /// As [`Prepared::forward_ends`].
    pub fn backward_ends(&self, ends: ViewMut<'_>, cotangents: &T::Cotangents<'_>, entering: ViewMut<'_>) -> Result<()> {
        self.0.backward_ends(ends, &T::given(None, cotangents), entering)
    }

    /// As [`Prepared::backward_rest`].
    ///
    /// # Errors
    /// As [`Prepared::forward_ends`].
    pub fn backward_rest<'g>(
        &self,
        ends: View<'_>,
        saved: Option<View<'g>>,
        cotangents: &T::Cotangents<'g>,
        grads: &mut T::Gradients<'_>,
    ) -> Result<()> {
        self.0.backward_rest(ends, &T::given(saved, cotangents), &mut grads.written())
    }
}

/// Runs a forward pass once: the results may say how packed sequences have states.
pub(crate) fn forward(op: &'static dyn Op, exec: &Exec, call: Call<'_>, out: &mut impl ByPosition) -> Result<()> {
    let mut out = out.written();
    let states = states_of_results(call.signature, &out);
    Prepared::new(op, exec, call, states)?.write(&mut out)
}

/// Runs a backward pass once, from what a forward pass kept and cotangents.
pub(crate) fn backward<'g, T: Structs>(
    op: &'static dyn Op,
    exec: &Exec,
    call: Call<'_>,
    (saved, cotangents): (Option<View<'g>>, &T::Cotangents<'g>),
    grads: &mut T::Gradients<'_>,
) -> Result<()> {
    let (given, mut grads) = (T::given(saved, cotangents), grads.written());
    let states = states_of_gradients(call.signature, &given, &grads);
    Prepared::new(op, exec, call, states)?.differentiate(&given, &mut grads)
}

/// Computes the first results of a call, in tensors of their own.
pub(crate) fn run<const N: usize>(op: &'static dyn Op, exec: &Exec, call: Call<'_>) -> Result<[Tensor; N]> {
    let prepared = Prepared::new(op, exec, call, NO_STATES)?;
    let made = (0..N).map(|at| Tensor::empty(exec, prepared.result(at).dtype, &prepared.result(at).shape));
    let mut results = made.collect::<Result<Vec<_>>>()?;
    let mut workspace = Workspace::default();
    let mut out = Written { workspace: scratch(exec, &mut workspace, prepared.workspace_len()?)?, ..Written::default() };
    out.views.iter_mut().zip(&mut results).for_each(|(view, result)| *view = Some(result.view_mut()));
    prepared.write(&mut out)?;
    Ok(results.try_into().expect("as many as were asked for"))
}

/// Computes the gradients of a call by what has some, in tensors of their own: none by what was not given.
pub(crate) fn gradients<T: Structs>(
    op: &'static dyn Op,
    exec: &Exec,
    call: Call<'_>,
    cotangents: &T::Cotangents<'_>,
) -> Result<Vec<Option<Tensor>>> {
    let given = T::given(None, cotangents);
    let prepared = Prepared::new(op, exec, call, states_of_gradients(call.signature, &given, &Written::default()))?;
    let states_are_complex =
        (0..call.signature.results.len()).any(|at| call.signature.results[at].like.is_none() && call.is_result_complex(at));
    let like = |(argument, view): (&Argument, &Option<View<'_>>)| {
        let dtype = |view: &View<'_>| match argument.carried_gradient && states_are_complex {
            true => carried(view.dtype(), true),
            false => view.dtype(),
        };
        view.as_ref().map(|view| Tensor::empty(exec, dtype(view), &view.shape())).transpose()
    };
    let differentiable = call.signature.arguments.iter().zip(&call.views).filter(|(argument, _)| argument.gradient);
    let mut gradients = differentiable.map(like).collect::<Result<Vec<_>>>()?;
    let mut workspace = Workspace::default();
    let mut grads =
        Written { workspace: scratch(exec, &mut workspace, prepared.backward_workspace_len(false)?)?, ..Written::default() };
    grads.views.iter_mut().zip(&mut gradients).for_each(|(view, gradient)| *view = gradient.as_mut().map(Tensor::view_mut));
    prepared.differentiate(&given, &mut grads)?;
    Ok(gradients)
}

/// Scratch memory, if some is wanted.
fn scratch<'w>(exec: &Exec, workspace: &'w mut Workspace, len: usize) -> Result<Option<ViewMut<'w>>> {
    if len == 0 { Ok(None) } else { workspace.view_mut(exec, len).map(Some) }
}

fn problem<'a>(op: &'static dyn Op, call: &Call<'a>) -> Result<Box<dyn Problem + Send + 'a>> {
    op.problem(call, call.views[0].map_or(Device::Cpu, |view| view.device()), NO_STATES)
}

/// The shape of a state of a call, wherever its first argument is.
pub(crate) fn state_shape(op: &'static dyn Op, call: &Call<'_>) -> Result<Shape> {
    Ok(problem(op, call)?.state_shape().expect("a scan has a state"))
}

/// Numbers in the saved states of a call, wherever its first argument is.
pub(crate) fn saved_len(op: &'static dyn Op, call: &Call<'_>) -> Result<usize> {
    Ok(problem(op, call)?.saved_len())
}
