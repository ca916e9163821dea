//! Prepared calls: arguments that were checked once, with what has to be known before a pass runs. The typed functions, calls by position and
//! Python go through them.

use super::call::{Value, carried};
use super::check::{Checker, Kind};
use super::signature::{Complex, Output, ResultType, Role, Saved, Signature};
use crate::error::{Error, Result};
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
            Complex::Unless(flag) => {
                let option = self.signature.setting(flag).and_then(|at| self.values.get(at));
                option != Some(&Value::Flag(true))
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

    /// The type of the numbers that states are saved in.
    pub(crate) fn saved_type(&self) -> DType {
        carried(self.dtype(self.signature.leaders[0]), false)
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
}

/// What a backward pass reads, and what it is given room for.
pub(crate) struct Adjoint<'r> {
    pub saved: &'r Option<View<'r>>,
    pub cotangents: &'r [&'r Option<View<'r>>],
    pub gradients: &'r [&'r Option<ViewMut<'r>>],
    pub workspace: &'r Option<ViewMut<'r>>,
}

/// What errors call saved states.
const SAVED: &str = "checkpoints";

/// A call whose arguments were checked, by position.
pub(crate) struct Checked<'c> {
    pub op: &'static str,
    pub device: Device,
    pub bound: Bound<'c>,
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

    fn checker(&self) -> Checker<'_> {
        Checker::of(self.op, self.device, self.bound.signature, self.bound.views)
    }

    /// Checks what a forward pass writes, against each other and the arguments.
    pub(crate) fn forward(&self, out: &Room<'_>, workspace_len: &dyn Fn() -> Result<usize>) -> Result<()> {
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
        checker.finish()
    }

    /// Checks what a backward pass reads and writes.
    pub(crate) fn backward(&self, adjoint: &Adjoint<'_>, workspace_len: &dyn Fn() -> Result<usize>) -> Result<()> {
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
        for (at, (output, view)) in signature.results.iter().zip(adjoint.cotangents).enumerate() {
            checker.read_if(output.cotangent_name, view, Kind::float(self.bound.is_complex(at)), &self.result_shape(at))?;
        }
        let state = signature.results.iter().position(|output| output.like.is_none());
        let states_are_complex = state.is_some_and(|at| self.bound.is_complex(at));
        checker.gradients(signature, self.bound.views, (states_are_complex, &self.state), adjoint.gradients)?;
        checker.workspace(adjoint.workspace, workspace_len()?)?;
        checker.finish()
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

/// What [`operation!`](super::table::operation) says of passes: `prepare`, its calls, and the same by position.
macro_rules! prepared {
    (
        $table:ident;
        results { $( $result:ident, )* }
        cotangents { $( $cotangent:ident, )* }
        gradients { $( $gradient:ident, )* }
        saved { $( $saved:ident )? }
        workspace { $( $workspace:ident )? }
        summary { $( $summary:ident )? }
    ) => {
        /// A call whose arguments were checked: it knows what it will need, and runs, any number of times, without another look at them.
        pub struct Prepared<'e, 'a> {
            exec: &'e $crate::Exec,
            args: Args<'a>,
            problem: Problem<'a>,
            lengths: $crate::ops::prepared::Lengths,
        }

        /// Checks the arguments of a call, once for all that is asked about it and for its passes.
        ///
        /// # Errors
        /// Those of [`forward`] that concern the arguments.
        pub fn prepare<'e, 'a>(exec: &'e $crate::Exec, args: &Args<'a>) -> $crate::Result<Prepared<'e, 'a>> {
            Prepared::new(exec, args, $crate::ops::prepared::NO_STATES)
        }

        impl<'e, 'a> Prepared<'e, 'a> {
            fn new(exec: &'e $crate::Exec, args: &Args<'a>, states: $crate::ops::prepared::States) -> $crate::Result<Self> {
                let problem = Problem::new(args, exec.device(), states)?;
                Ok(Prepared { exec, args: *args, problem, lengths: Default::default() })
            }

            fn checked<T>(&self, work: impl FnOnce(&$crate::ops::prepared::Checked<'_>) -> T) -> T {
                let (views, values) = (self.args.views(), self.args.values());
                work(&$crate::ops::prepared::Checked {
                    op: self.problem.op(),
                    device: self.exec.device(),
                    bound: $crate::ops::prepared::Bound { signature: &$table, views: &views, values: &values },
                    state: self.problem.state_shape,
                    saved_len: &|| self.saved_len(),
                })
            }

            /// Types and shapes of the results, in their order in [`Outputs`].
            pub fn results(&self) -> [$crate::ops::call::Planned; RESULTS.len()] {
                self.checked(|call| core::array::from_fn(|at| $crate::ops::call::Planned {
                    dtype: call.bound.result_type(at),
                    shape: call.result_shape(at),
                }))
            }

            /// The shape of a state.
            pub fn state_shape(&self) -> $crate::tensor::Shape {
                self.problem.state_shape
            }

            /// Numbers in the states that a forward pass saves for the backward pass: 0 where it saves none.
            pub fn saved_len(&self) -> usize {
                self.lengths.saved(|| self.problem.saved_len())
            }

            /// Number of `f32` elements that a forward pass wants as scratch memory, none on the CPU.
            ///
            /// # Errors
            /// [`Error::Unavailable`](crate::Error::Unavailable) for what a device has no kernels for.
            pub fn workspace_len(&self) -> $crate::Result<usize> {
                self.lengths.forward(|| self.problem.workspace_len(self.exec))
            }

            /// The same for a backward pass, with or without what the forward pass kept.
            ///
            /// # Errors
            /// As [`Prepared::workspace_len`].
            pub fn backward_workspace_len(&self, has_saved: bool) -> $crate::Result<usize> {
                self.lengths.backward(has_saved, || self.problem.backward_workspace_len(self.exec, has_saved))
            }

            /// Computes the results that are asked for.
            ///
            /// # Errors
            /// Those of [`forward`] that concern the results.
            pub fn forward(&self, out: &mut Outputs<'_>) -> $crate::Result<()> {
                let states = Self::states(out);
                match $crate::ops::prepared::other_form(&states, &self.problem.state_shape) {
                    true => Self::new(self.exec, &self.args, states)?.write(out),
                    false => self.write(out),
                }
            }

            fn states(out: &Outputs<'_>) -> $crate::ops::prepared::States {
                $crate::ops::prepared::states_of_results(RESULTS, &[ $( &out.$result ),* ])
            }

            fn write(&self, out: &mut Outputs<'_>) -> $crate::Result<()> {
                let room = $crate::ops::prepared::Room {
                    results: &[ $( &out.$result ),* ],
                    saved: $crate::ops::prepared::first!($( Some(&out.$saved), )? None),
                    workspace: $crate::ops::prepared::first!($( Some(&out.$workspace), )? None),
                };
                self.checked(|call| call.forward(&room, &|| self.workspace_len()))?;
                self.problem.forward(self.exec, &Targets::new(&self.problem, out))
            }

            /// Computes the gradients that are asked for; `saved` is what a forward pass of the same call kept for them, if it keeps something.
            ///
            /// # Errors
            /// Those of [`backward`] that concern what is read and written besides the arguments.
            pub fn backward(
                &self,
                saved: Option<$crate::View<'_>>,
                cotangents: &Cotangents<'_>,
                grads: &mut Gradients<'_>,
            ) -> $crate::Result<()> {
                let states = Self::states_beside(&saved, cotangents, grads);
                match $crate::ops::prepared::other_form(&states, &self.problem.state_shape) {
                    true => Self::new(self.exec, &self.args, states)?.differentiate(saved, cotangents, grads),
                    false => self.differentiate(saved, cotangents, grads),
                }
            }

            fn states_beside(
                saved: &Option<$crate::View<'_>>,
                cotangents: &Cotangents<'_>,
                grads: &Gradients<'_>,
            ) -> $crate::ops::prepared::States {
                adjoint(saved, cotangents, grads, |adjoint| $crate::ops::prepared::states_of_gradients(&$table, adjoint))
            }

            fn differentiate(
                &self,
                saved: Option<$crate::View<'_>>,
                cotangents: &Cotangents<'_>,
                grads: &mut Gradients<'_>,
            ) -> $crate::Result<()> {
                let len = || self.backward_workspace_len(saved.is_some());
                adjoint(&saved, cotangents, grads, |adjoint| self.checked(|call| call.backward(adjoint, &len)))?;
                let sources = Sources::new(&self.problem, saved, cotangents);
                self.problem.backward(self.exec, &sources, &GradientTargets::new(&self.problem, grads))
            }
        }

        /// What a backward pass reads and writes, by position.
        fn adjoint<T>(
            saved: &Option<$crate::View<'_>>,
            cotangents: &Cotangents<'_>,
            grads: &Gradients<'_>,
            work: impl FnOnce(&$crate::ops::prepared::Adjoint<'_>) -> T,
        ) -> T {
            work(&$crate::ops::prepared::Adjoint {
                saved,
                cotangents: &[ $( &cotangents.$cotangent ),* ],
                gradients: &[ $( &grads.$gradient ),* ],
                workspace: &grads.workspace,
            })
        }

        /// The shape of a state of a call, and the numbers in its saved states, wherever its first argument is.
        fn states(args: &Args<'_>) -> $crate::Result<($crate::tensor::Shape, usize)> {
            let device = args.views()[0].map_or($crate::Device::Cpu, |view| view.device());
            let problem = Problem::new(args, device, $crate::ops::prepared::NO_STATES)?;
            Ok((problem.state_shape, problem.saved_len()))
        }

        /// A forward pass, whose results may say how packed sequences have states.
        fn forward_once(exec: &$crate::Exec, args: &Args<'_>, out: &mut Outputs<'_>) -> $crate::Result<()> {
            Prepared::new(exec, args, Prepared::states(out))?.write(out)
        }

        /// A backward pass alike.
        fn backward_once(
            exec: &$crate::Exec,
            args: &Args<'_>,
            saved: Option<$crate::View<'_>>,
            cotangents: &Cotangents<'_>,
            grads: &mut Gradients<'_>,
        ) -> $crate::Result<()> {
            let states = Prepared::states_beside(&saved, cotangents, grads);
            Prepared::new(exec, args, states)?.differentiate(saved, cotangents, grads)
        }

        impl $crate::ops::passes::Pass for Prepared<'_, '_> {
            fn state_shape(&self) -> $crate::tensor::Shape {
                self.state_shape()
            }

            fn saved_len(&self) -> usize {
                self.saved_len()
            }

            fn workspace_len(&self) -> $crate::Result<usize> {
                self.workspace_len()
            }

            fn backward_workspace_len(&self, has_saved: bool) -> $crate::Result<usize> {
                self.backward_workspace_len(has_saved)
            }

            fn forward(&self, out: &mut $crate::ops::Written<'_>) -> $crate::Result<()> {
                let [ $( $result ),* ] = out.take();
                self.forward(&mut Outputs {
                    $( $result, )*
                    $( $saved: out.saved.take(), )?
                    $( $workspace: out.workspace.take(), )?
                })
            }

            fn backward(&self, given: &$crate::ops::Given<'_>, grads: &mut $crate::ops::Written<'_>) -> $crate::Result<()> {
                let [ $( $gradient ),* ] = grads.take();
                let mut grads = Gradients { $( $gradient, )* workspace: grads.workspace.take() };
                self.backward(given.saved, &Cotangents::of_given(given), &mut grads)
            }
        }

        impl<'a> Cotangents<'a> {
            fn of_given(given: &$crate::ops::Given<'a>) -> Self {
                let [ $( $cotangent ),* ] = given.cotangents;
                Cotangents { $( $cotangent ),* }
            }
        }

        /// Calls by position.
        pub(crate) struct Positional;

        impl $crate::ops::passes::Passes for Positional {
            fn prepare<'p>(
                &self,
                exec: &'p $crate::Exec,
                call: &$crate::ops::Call<'p>,
            ) -> $crate::Result<Box<dyn $crate::ops::passes::Pass + Send + 'p>> {
                Ok(Box::new(prepare(exec, &Args::of_call(call))?))
            }

            fn states(&self, call: &$crate::ops::Call<'_>) -> $crate::Result<($crate::tensor::Shape, usize)> {
                states(&Args::of_call(call))
            }

            $(
                fn summary(
                    &self,
                    exec: &$crate::Exec,
                    call: &$crate::ops::Call<'_>,
                    out: &mut $crate::ops::Summary<'_>,
                ) -> $crate::Result<()> {
                    $summary::summary(exec, &Args::of_call(call), out)
                }

                fn summary_workspace_len(&self, exec: &$crate::Exec, call: &$crate::ops::Call<'_>) -> $crate::Result<usize> {
                    $summary::summary_workspace_len(exec, &Args::of_call(call))
                }
            )?

            fn reference(&self, call: &$crate::ops::Call<'_>) -> $crate::Result<$crate::ops::passes::Exact> {
                let exact = reference::forward(&Args::of_call(call))?;
                Ok($crate::ops::passes::named_results(RESULTS, [ $( exact.$result ),* ]))
            }

            fn reference_backward(
                &self,
                call: &$crate::ops::Call<'_>,
                given: &$crate::ops::Given<'_>,
            ) -> $crate::Result<$crate::ops::passes::Exact> {
                let args = Args::of_call(call);
                let exact = reference::backward(&args, &Cotangents::of_given(given))?;
                Ok($crate::ops::passes::named_gradients(ARGUMENTS, &args.views(), [ $( exact.$gradient.into() ),* ]))
            }
        }
    };
}
pub(crate) use prepared;

/// The first of some expressions.
macro_rules! first {
    ($first:expr $(, $others:expr)*) => {
        $first
    };
}
pub(crate) use first;
