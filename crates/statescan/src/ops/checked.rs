//! A call by position whose arguments were checked: the types and shapes of its results, checks of what its passes read and write, and the keys of
//! these passes.

use super::call::{Value, carried};
use super::check::{Checker, Kind};
use super::sequences::Sequences;
use super::signature::{Complex, Output, ResultType, Role, Saved, Signature};
use crate::cuda::{Key, Queue};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::tensor::{DType, Device, RawViewMut, Shape, View, ViewMut};
use core::cell::Cell;

/// The shapes of the states of a call that are no arguments: they may say how packed sequences have states.
pub(crate) type States = [Option<Shape>; 2];

/// No other states.
pub(crate) const NO_STATES: States = [None; 2];

/// Arguments and options by position.
#[derive(Clone, Copy)]
pub(crate) struct Bound<'c> {
    pub signature: &'static Signature,
    pub views: &'c [Option<&'c View<'c>>],
    pub values: &'c [Value],
}

impl Bound<'_> {
    fn dtype(&self, argument: usize) -> DType {
        self.views[argument].map_or(DType::F32, View::dtype)
    }

    /// Whether a result is complex.
    fn is_complex(&self, at: usize) -> bool {
        let beside = |argument: &usize| self.dtype(*argument).is_complex();
        match self.signature.results[at].complex {
            Complex::Never => false,
            Complex::Always => true,
            Complex::As(_) => self.signature.named[at].complex.iter().flatten().any(beside),
            Complex::Without(_) => {
                self.signature.named[at].complex.iter().flatten().all(|argument| self.views[*argument].is_none())
            }
        }
    }

    /// The type of a result.
    pub(crate) fn result_type(&self, at: usize) -> DType {
        let [a, b] = self.signature.named[at].dtype.map(|argument| self.dtype(argument));
        let complex = self.is_complex(at);
        match self.signature.results[at].dtype {
            ResultType::OfFirst(..) => {
                if self.views[self.signature.named[at].dtype[0]].is_some() {
                    a
                } else {
                    b
                }
            }
            ResultType::Of(_) if a.is_complex() == complex => a,
            ResultType::Promoted(..) if a == b => a,
            _ => carried(if a.is_double() { a } else { b }, complex),
        }
    }

    /// The key of a pass on a device, to which what the pass reads and writes besides is added.
    pub(crate) fn key(&self, pass: Direction) -> Key {
        let mut key = Key::new(self.signature, pass.word());
        self.views.iter().for_each(|view| key.view(*view));
        self.values.iter().for_each(|value| key.words(&value.words()));
        key
    }

    /// The type of the numbers that states are saved in.
    pub(crate) fn saved_type(&self) -> DType {
        carried(self.dtype(self.signature.leaders[0]), false)
    }
}

/// What a pass does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Direction {
    Forward,
    Backward,
    Update,
    /// The first and the second half of a forward pass, and of a backward pass.
    ForwardEnds,
    ForwardRest,
    BackwardEnds,
    BackwardRest,
    /// It says how much scratch memory a pass wants.
    ForwardLength,
    BackwardLength {
        has_saved: bool,
    },
}

impl Direction {
    fn word(self) -> u64 {
        match self {
            Direction::Forward => 0,
            Direction::Backward => 1,
            Direction::Update => 2,
            Direction::ForwardLength => 3,
            Direction::BackwardLength { has_saved } => 4 + u64::from(has_saved),
            Direction::ForwardEnds => 6,
            Direction::ForwardRest => 7,
            Direction::BackwardEnds => 8,
            Direction::BackwardRest => 9,
        }
    }
}

/// Lengths that were asked for already: of saved states, and of scratch memory forward, and backward without and with what the forward pass kept.
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

/// What a forward pass is given room for.
pub(crate) struct Room<'r> {
    pub results: &'r [&'r Option<ViewMut<'r>>],
    pub saved: Option<&'r Option<ViewMut<'r>>>,
    pub workspace: Option<&'r Option<ViewMut<'r>>>,
    /// What the first half of the pass has kept, if this is the second one.
    pub ends: Option<Ends<'r>>,
}

/// What the first half of a pass keeps, and how many numbers that are.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'r> {
    pub view: &'r View<'r>,
    pub len: usize,
}

impl<'r> Ends<'r> {
    const NAME: &'static str = "ends";

    fn check(&self, checker: &mut Checker<'r>) -> Result<()> {
        checker.read(Self::NAME, self.view, Kind::Exact(DType::F32), &[self.len])?;
        checker.dense(Self::NAME, Some(*self.view))
    }
}

/// What a backward pass reads, and what it is given room for.
pub(crate) struct Adjoint<'r> {
    pub saved: &'r Option<View<'r>>,
    pub cotangents: &'r [&'r Option<View<'r>>],
    pub gradients: &'r [&'r Option<ViewMut<'r>>],
    pub workspace: &'r Option<ViewMut<'r>>,
    pub ends: Option<Ends<'r>>,
}

/// What errors call saved states.
const SAVED: &str = "checkpoints";

/// A call whose arguments were checked, by position.
pub(crate) struct Checked<'c> {
    pub op: &'static str,
    pub device: Device,
    pub bound: Bound<'c>,
    /// How time divides.
    pub sequences: Sequences<'c>,
    /// The shape of its states.
    pub state: Shape,
    /// Numbers in its saved states.
    pub saved_len: &'c dyn Fn() -> usize,
}

impl<'c> Checked<'c> {
    pub(crate) fn result_shape(&self, at: usize) -> Shape {
        let like = self.bound.signature.named[at].like.and_then(|argument| self.bound.views[argument]);
        like.map_or(self.state, |view| view.shape())
    }

    /// The key of a pass, where kernels are launched.
    pub(crate) fn key<'v>(&self, pass: Direction, others: impl Iterator<Item = Option<View<'v>>>) -> Option<Key> {
        if self.device == Device::Cpu {
            return None;
        }
        let mut key = self.bound.key(pass);
        match &self.sequences {
            Sequences::Whole => key.view(None::<&View<'_>>),
            Sequences::CuSeqlens(view) | Sequences::SeqIdx(view) => key.view(Some(view)),
        }
        self.state.iter().for_each(|&size| key.words(&[size as u64]));
        others.for_each(|view| key.view(view.as_ref()));
        Some(key)
    }

    /// A length that a plan says, or said for a call like this.
    pub(crate) fn length(&self, exec: &Exec, pass: Direction, plan: impl FnOnce() -> Result<usize>) -> Result<usize> {
        let Some(stream) = exec.stream() else { return plan() };
        Queue::new(stream, self.key(pass, core::iter::empty())).find(plan)
    }

    fn checker(&self) -> Checker<'_> {
        Checker::of(self.op, self.device, self.bound.signature, self.bound.views)
    }

    /// Checks what a forward pass writes, against each other and the arguments.
    pub(crate) fn forward(&self, out: &Room<'_>, workspace_len: &dyn Fn() -> Result<usize>) -> Result<Option<Key>> {
        let mut checker = self.checker();
        for (at, (output, view)) in self.bound.signature.results.iter().zip(out.results).enumerate() {
            checker.write_if(output.name, view, Kind::exactly(self.bound.is_complex(at)), &self.result_shape(at))?;
        }
        if let Some(Some(saved)) = out.saved {
            checker.write(SAVED, saved, Kind::Exact(self.bound.saved_type()), &[(self.saved_len)()])?;
            checker.dense(SAVED, Some(saved.as_view()))?;
        }
        if let Some(workspace) = out.workspace.filter(|workspace| workspace.is_some()) {
            checker.workspace(workspace, workspace_len()?)?;
        }
        if let Some(ends) = &out.ends {
            ends.check(&mut checker)?;
        }
        checker.finish()?;
        let others = out.results.iter().copied().chain(out.saved).chain(out.workspace);
        let (pass, ends) = match out.ends {
            None => (Direction::Forward, None),
            Some(ends) => (Direction::ForwardRest, Some(*ends.view)),
        };
        Ok(self.key(pass, others.map(|view| view.as_ref().map(ViewMut::as_view)).chain([ends])))
    }

    /// Checks what the first half of a pass writes, beside the cotangents that it reads.
    pub(crate) fn ends(
        &self,
        pass: Direction,
        (ends, len): (&ViewMut<'_>, usize),
        cotangents: &[&Option<View<'_>>],
        written: &[(&'static str, Option<&ViewMut<'_>>, Shape)],
    ) -> Result<Option<Key>> {
        let mut checker = self.checker();
        self.read_cotangents(&mut checker, cotangents)?;
        for (name, view, shape) in written.iter().filter_map(|(name, view, shape)| Some((name, (*view)?, shape))) {
            checker.write(name, view, Kind::Real, shape)?;
        }
        checker.write(Ends::NAME, ends, Kind::Exact(DType::F32), &[len])?;
        checker.dense(Ends::NAME, Some(ends.as_view()))?;
        checker.finish()?;
        let written = written.iter().map(|(_, view, _)| *view).chain([Some(ends)]).map(|view| view.map(ViewMut::as_view));
        Ok(self.key(pass, cotangents.iter().map(|view| **view).chain(written)))
    }

    fn read_cotangents<'r>(&self, checker: &mut Checker<'r>, cotangents: &[&'r Option<View<'r>>]) -> Result<()> {
        for (at, (output, view)) in self.bound.signature.results.iter().zip(cotangents).enumerate() {
            checker.read_if(output.cotangent_name, view, Kind::float(self.bound.is_complex(at)), &self.result_shape(at))?;
        }
        Ok(())
    }

    /// Checks what a backward pass reads and writes.
    pub(crate) fn backward(&self, adjoint: &Adjoint<'_>, workspace_len: &dyn Fn() -> Result<usize>) -> Result<Option<Key>> {
        let (mut checker, signature) = (self.checker(), self.bound.signature);
        match signature.saved {
            Saved::Nothing => {}
            Saved::Result(at) => {
                let (name, kind) = (signature.results[at].name, Kind::exactly(self.bound.is_complex(at)));
                checker.read_if(name, adjoint.saved, kind, &self.result_shape(at))?;
            }
            Saved::States { .. } => {
                if let Some(saved) = adjoint.saved {
                    checker.read(SAVED, saved, Kind::Exact(self.bound.saved_type()), &[(self.saved_len)()])?;
                    checker.dense(SAVED, *adjoint.saved)?;
                }
            }
        }
        self.read_cotangents(&mut checker, adjoint.cotangents)?;
        let state = signature.results.iter().position(|output| output.like.is_none());
        let states_are_complex = state.is_some_and(|at| self.bound.is_complex(at));
        checker.gradients(signature, self.bound.views, (states_are_complex, &self.state), adjoint.gradients)?;
        checker.workspace(adjoint.workspace, workspace_len()?)?;
        if let Some(ends) = &adjoint.ends {
            ends.check(&mut checker)?;
        }
        checker.finish()?;
        let read = adjoint.cotangents.iter().copied().chain([adjoint.saved]).copied();
        let written =
            adjoint.gradients.iter().copied().chain([adjoint.workspace]).map(|view| view.as_ref().map(ViewMut::as_view));
        let (pass, ends) = match adjoint.ends {
            None => (Direction::Backward, None),
            Some(ends) => (Direction::BackwardRest, Some(*ends.view)),
        };
        Ok(self.key(pass, read.chain(written).chain([ends])))
    }
}

/// The shapes of the states among results that are asked for.
pub(crate) fn states_of_results(results: &'static [Output], views: &[&Option<ViewMut<'_>>]) -> States {
    let mut states = results.iter().zip(views).filter(|(output, _)| output.like.is_none());
    [(); 2].map(|()| states.next().and_then(|(_, view)| Some(view.as_ref()?.shape())))
}

/// The shapes of the states among what a backward pass reads and writes.
pub(crate) fn states_of_gradients(signature: &'static Signature, adjoint: &Adjoint<'_>) -> States {
    let by_state = signature.results.iter().zip(adjoint.cotangents).find(|(output, _)| output.like.is_none());
    let mut gradients = signature.arguments.iter().filter(|argument| argument.gradient).zip(adjoint.gradients);
    let of_state = gradients.find(|(argument, _)| argument.role == Role::State);
    [by_state.and_then(|(_, view)| Some(view.as_ref()?.shape())), of_state.and_then(|(_, view)| Some(view.as_ref()?.shape()))]
}

/// Whether states have another number of axes than a call was prepared with: packed sequences may have one state for each, or for each row.
pub(crate) fn other_form(states: &States, prepared: &Shape) -> bool {
    states.iter().flatten().any(|state| state.len() != prepared.len())
}

/// Scratch memory that kernels for CUDA cannot do without.
pub(crate) fn needed<'w>(op: &'static str, workspace: &'w Option<RawViewMut>) -> Result<&'w RawViewMut> {
    workspace.as_ref().ok_or(Error::Presence { op, argument: "workspace", expected: "is needed on CUDA" })
}
