//! A call by position whose arguments were checked: the shapes of its results, checks of what its passes read and write, and the keys of these passes.

use super::call::{Call, Given, PassKind, Written};
use super::check::{Checker, Kind};
use super::op::Problem;
use super::signature::{Output, Saved, Signature};
use super::states::{Pool, States};
use crate::cuda::{Key, Queue, Stream};
use crate::error::{Error, Result};
use crate::tensor::{DType, Device, RawViewMut, Shape, View, ViewMut};
use core::cell::Cell;

/// Cached lengths: of saved states, and of scratch memory forward, and backward without and with what the forward pass kept.
#[derive(Default)]
pub(crate) struct Lengths([Cell<Option<usize>>; 4]);

impl Lengths {
    pub(crate) fn saved(&self, plan: impl FnOnce() -> usize) -> usize {
        let len = self.0[0].get().unwrap_or_else(plan);
        self.0[0].set(Some(len));
        len
    }

    pub(crate) fn forward(&self, plan: impl FnOnce() -> Result<usize>) -> Result<usize> {
        Self::once(&self.0[1], plan)
    }

    pub(crate) fn backward(&self, has_saved: bool, plan: impl FnOnce() -> Result<usize>) -> Result<usize> {
        Self::once(&self.0[2 + usize::from(has_saved)], plan)
    }

    fn once(known: &Cell<Option<usize>>, plan: impl FnOnce() -> Result<usize>) -> Result<usize> {
        match known.get() {
            Some(len) => Ok(len),
            None => plan().inspect(|len| known.set(Some(*len))),
        }
    }
}

/// The names of saved states, and of what the first of two phases keeps, in errors.
const SAVED: &str = "checkpoints";
const ENDS: &str = "ends";

/// The workspace that the first of two phases has filled, and its length in numbers.
pub(crate) type Ends<'r> = (&'r View<'r>, usize);

/// A call whose arguments were checked, by position.
pub(crate) struct Checked<'c> {
    pub device: Device,
    pub call: &'c Call<'c>,
    pub problem: &'c dyn Problem,
    pub pool: Option<&'c Pool<'c>>,
}

impl<'c> Checked<'c> {
    pub(crate) fn result_shape(&self, at: usize) -> Shape {
        self.call
            .like(at)
            .or_else(|| self.problem.state_shape())
            .expect("a result has the shape of an argument that is there, or that which the problem says")
    }

    /// The shape of a state of a scan.
    pub(crate) fn state_shape(&self) -> Shape {
        self.problem.state_shape().expect("a scan has a state")
    }

    /// The shape of the decay of a slice: that of a state, without the axes along which it is the same.
    pub(crate) fn decay_shape(&self) -> Shape {
        let signature = self.call.signature;
        let state = signature.results.iter().find(|output| output.like.is_none());
        let fewer = |output: &Output, decay: &Output| output.layouts[0].len() - decay.layouts[0].len();
        let fewer = state.zip(signature.decay).map_or(0, |(state, decay)| fewer(state, decay));
        let state = self.state_shape();
        Shape::of(&state[..state.len() - fewer])
    }

    /// The key of a pass, where kernels are launched.
    pub(crate) fn key<'v>(&self, pass: PassKind, others: impl Iterator<Item = Option<View<'v>>>) -> Option<Key> {
        if self.device == Device::Cpu {
            return None;
        }
        let mut key = self.call.key(pass);
        self.problem.state_shape().iter().flat_map(|state| state.iter()).for_each(|&size| key.words(&[size as u64]));
        self.pool.into_iter().flat_map(Pool::views).for_each(|view| key.view(Some(view)));
        others.for_each(|view| key.view(view.as_ref()));
        Some(key)
    }

    /// A length that a plan says, or said for a call like this.
    pub(crate) fn length(&self, stream: &Stream, pass: PassKind, plan: impl FnOnce() -> Result<usize>) -> Result<usize> {
        Queue::new(stream, self.key(pass, core::iter::empty())).find(plan)
    }

    fn checker(&self) -> Checker<'c> {
        let mut checker = Checker::of(self.problem.op(), self.device, self.call.signature, &self.call.given());
        self.pool.into_iter().for_each(|pool| pool.slots_are_read(&mut checker));
        checker
    }

    /// Checks what a forward pass writes, against each other and the arguments, or the second phase of one.
    pub(crate) fn forward(
        &self,
        out: &Written<'_>,
        ends: Option<Ends<'_>>,
        workspace_len: &dyn Fn() -> Result<usize>,
    ) -> Result<Option<Key>> {
        let (mut checker, results) = (self.checker(), self.call.signature.results);
        for (at, (output, view)) in results.iter().zip(&out.views).enumerate().filter(|(_, (_, view))| view.is_some()) {
            checker.write_if(output.name, view, Kind::exactly(self.call.is_result_complex(at)), &self.result_shape(at))?;
        }
        if let Some(saved) = &out.saved {
            checker.write(SAVED, saved, Kind::Exact(self.call.saved_type()), &[self.problem.saved_len()])?;
            checker.dense(SAVED, Some(saved.as_view()))?;
        }
        if out.workspace.is_some() {
            checker.workspace(&out.workspace, workspace_len()?)?;
        }
        let pass = if ends.is_some() { PassKind::ForwardRest } else { PassKind::Forward };
        let ends = self.read_ends(&mut checker, ends)?;
        checker.finish()?;
        let written = out.views[..results.len()].iter().chain([&out.saved, &out.workspace]);
        Ok(self.key(pass, written.map(|view| view.as_ref().map(ViewMut::as_view)).chain([ends])))
    }

    fn read_ends<'r>(&self, checker: &mut Checker<'r>, ends: Option<Ends<'r>>) -> Result<Option<View<'r>>> {
        let Some((view, len)) = ends else { return Ok(None) };
        checker.read(ENDS, view, Kind::Exact(DType::F32), &[len])?;
        checker.dense(ENDS, Some(*view))?;
        Ok(Some(*view))
    }

    /// Checks what the first phase of a pass writes, beside the cotangents that it reads.
    pub(crate) fn ends(
        &self,
        pass: PassKind,
        (ends, len): (&ViewMut<'_>, usize),
        cotangents: &[Option<View<'_>>],
        written: &[(&'static str, Option<&ViewMut<'_>>, Shape)],
    ) -> Result<Option<Key>> {
        let mut checker = self.checker();
        self.read_cotangents(&mut checker, cotangents)?;
        for (name, view, shape) in written.iter().filter_map(|(name, view, shape)| Some((name, (*view)?, shape))) {
            checker.write(name, view, Kind::Real, shape)?;
        }
        checker.write(ENDS, ends, Kind::Exact(DType::F32), &[len])?;
        checker.dense(ENDS, Some(ends.as_view()))?;
        checker.finish()?;
        let written = written.iter().map(|(_, view, _)| *view).chain([Some(ends)]).map(|view| view.map(ViewMut::as_view));
        Ok(self.key(pass, cotangents.iter().copied().chain(written)))
    }

    fn read_cotangents<'r>(&self, checker: &mut Checker<'r>, cotangents: &'r [Option<View<'r>>]) -> Result<()> {
        let given = self.call.signature.results.iter().zip(cotangents).enumerate().filter(|(_, (_, view))| view.is_some());
        for (at, (output, view)) in given {
            checker.read_if(output.cotangent_name, view, Kind::float(self.call.is_result_complex(at)), &self.result_shape(at))?;
        }
        Ok(())
    }

    /// Checks what a backward pass reads and writes, or the second phase of one.
    pub(crate) fn backward(
        &self,
        given: &Given<'_>,
        grads: &Written<'_>,
        ends: Option<Ends<'_>>,
        workspace_len: &dyn Fn() -> Result<usize>,
    ) -> Result<Option<Key>> {
        let (mut checker, signature) = (self.checker(), self.call.signature);
        match (signature.saved, &given.saved) {
            (Saved::Nothing, _) | (_, None) => {}
            (Saved::Result(at), Some(saved)) => {
                let (name, kind) = (signature.results[at].name, Kind::exactly(self.call.is_result_complex(at)));
                checker.read(name, saved, kind, &self.result_shape(at))?;
            }
            (Saved::States { .. }, Some(saved)) => {
                checker.read(SAVED, saved, Kind::Exact(self.call.saved_type()), &[self.problem.saved_len()])?;
                checker.dense(SAVED, Some(*saved))?;
            }
        }
        self.read_cotangents(&mut checker, &given.cotangents)?;
        let state = signature.results.iter().position(|output| output.like.is_none());
        let states_are_complex = state.is_some_and(|at| self.call.is_result_complex(at));
        let state = self.problem.state_shape();
        let states = (states_are_complex, state.as_ref().map_or(&[][..], |shape| &shape[..]));
        checker.gradients(signature, &self.call.given(), states, &grads.views)?;
        checker.workspace(&grads.workspace, workspace_len()?)?;
        let pass = if ends.is_some() { PassKind::BackwardRest } else { PassKind::Backward };
        let ends = self.read_ends(&mut checker, ends)?;
        checker.finish()?;
        let written = grads.views.iter().chain([&grads.workspace]).map(|view| view.as_ref().map(ViewMut::as_view));
        Ok(self.key(pass, given.cotangents.iter().copied().chain([given.saved]).chain(written).chain([ends])))
    }
}

/// The shapes of the states among results that are asked for.
pub(crate) fn states_of_results(signature: &'static Signature, out: &Written<'_>) -> States<'static> {
    let mut states = signature.results.iter().zip(&out.views).filter(|(output, _)| output.like.is_none());
    States::of_shapes([(); 2].map(|()| states.next().and_then(|(_, view)| Some(view.as_ref()?.shape()))))
}

/// The shapes of the states among what a backward pass reads and writes.
pub(crate) fn states_of_gradients(signature: &'static Signature, given: &Given<'_>, grads: &Written<'_>) -> States<'static> {
    let by_state = signature.results.iter().zip(&given.cotangents).find(|(output, _)| output.like.is_none());
    let of_state = signature.arguments.iter().zip(&grads.views).find(|(argument, _)| argument.is_state());
    let shape = |view: &Option<View<'_>>| view.as_ref().map(View::shape);
    let written = |view: &Option<ViewMut<'_>>| view.as_ref().map(ViewMut::shape);
    States::of_shapes([by_state.and_then(|(_, view)| shape(view)), of_state.and_then(|(_, view)| written(view))])
}

/// Whether states have another number of axes than a call was prepared with: packed sequences may have one state for each, or for each row.
pub(crate) fn other_form(states: &States<'_>, prepared: &Shape) -> bool {
    states.shapes.iter().flatten().any(|state| state.len() != prepared.len())
}

/// Scratch memory that kernels for CUDA cannot do without.
pub(crate) fn needed<'w>(op: &'static str, workspace: &'w Option<RawViewMut>) -> Result<&'w RawViewMut> {
    workspace.as_ref().ok_or(Error::Presence { op, argument: "workspace", expected: "is needed on CUDA" })
}
