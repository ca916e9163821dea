//! Prepared calls: arguments that were checked once, with what has to be known before a pass runs. The typed functions, calls by position and
//! Python go through them.

/// What [`operation!`](super::table::operation) says of passes: `prepare`, its calls, and the same by position.
macro_rules! prepared {
    (
        $table:ident;
        results { $( $result:ident, )* }
        cotangents { $( $cotangent:ident, )* }
        gradients { $( $gradient:ident, )* }
        saved { $( $saved:ident )? }
        kept { $( $kept:ident )? }
        workspace { $( $workspace:ident )? }
        summary { $( $summary:ident )? }
        halves { $( $halves:ident )? }
    ) => {
        /// A call whose arguments were checked: it knows what it will need, and runs, any number of times, without another look at them.
        pub struct Prepared<'e, 'a> {
            exec: &'e $crate::Exec,
            args: Args<'a>,
            problem: Problem<'a>,
            lengths: $crate::ops::checked::Lengths,
        }

        /// Checks the arguments of a call, once for all that is asked about it and for its passes.
        ///
        /// # Errors
        /// Those of [`forward`] that concern the arguments.
        pub fn prepare<'e, 'a>(exec: &'e $crate::Exec, args: &Args<'a>) -> $crate::Result<Prepared<'e, 'a>> {
            Prepared::new(exec, args, $crate::ops::checked::NO_STATES)
        }

        impl<'e, 'a> Prepared<'e, 'a> {
            fn new(exec: &'e $crate::Exec, args: &Args<'a>, states: $crate::ops::checked::States) -> $crate::Result<Self> {
                let problem = Problem::new(args, exec.device(), states)?;
                Ok(Prepared { exec, args: *args, problem, lengths: Default::default() })
            }

            fn checked<T>(&self, work: impl FnOnce(&$crate::ops::checked::Checked<'_>) -> T) -> T {
                let (views, values) = (self.args.views(), self.args.values());
                work(&$crate::ops::checked::Checked {
                    op: self.problem.op(),
                    device: self.exec.device(),
                    bound: $crate::ops::checked::Bound { signature: &$table, views: &views, values: &values },
                    sequences: self.args.division(),
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
                let plan = || self.problem.workspace_len(self.exec);
                self.lengths.forward(|| self.checked(|call| call.length(self.exec, $crate::ops::checked::Direction::ForwardLength, plan)))
            }

            /// The same for a backward pass, with or without what the forward pass kept.
            ///
            /// # Errors
            /// As [`Prepared::workspace_len`].
            pub fn backward_workspace_len(&self, has_saved: bool) -> $crate::Result<usize> {
                let plan = || self.problem.backward_workspace_len(self.exec, has_saved);
                let pass = $crate::ops::checked::Direction::BackwardLength { has_saved };
                self.lengths.backward(has_saved, || self.checked(|call| call.length(self.exec, pass, plan)))
            }

            /// Computes the results that are asked for.
            ///
            /// # Errors
            /// Those of [`forward`] that concern the results.
            pub fn forward(&self, out: &mut Outputs<'_>) -> $crate::Result<()> {
                let states = Self::states(out);
                match $crate::ops::checked::other_form(&states, &self.problem.state_shape) {
                    true => Self::new(self.exec, &self.args, states)?.write(out),
                    false => self.write(out),
                }
            }

            fn states(out: &Outputs<'_>) -> $crate::ops::checked::States {
                $crate::ops::checked::states_of_results(RESULTS, &[ $( &out.$result ),* ])
            }

            fn write(&self, out: &mut Outputs<'_>) -> $crate::Result<()> {
                let key = self.check_outputs(out, None)?;
                self.problem.forward(self.exec, &Targets::new(&self.problem, out), key)
            }

            /// Checks what a forward pass writes, or the second half of one, and what that reads.
            fn check_outputs(
                &self,
                out: &Outputs<'_>,
                ends: Option<$crate::ops::checked::Ends<'_>>,
            ) -> $crate::Result<Option<$crate::cuda::Key>> {
                let room = $crate::ops::checked::Room {
                    results: &[ $( &out.$result ),* ],
                    saved: $crate::ops::prepared::first!($( Some(&out.$saved), )? None),
                    workspace: $crate::ops::prepared::first!($( Some(&out.$workspace), )? None),
                    ends,
                };
                self.checked(|call| call.forward(&room, &|| self.workspace_len()))
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
                match $crate::ops::checked::other_form(&states, &self.problem.state_shape) {
                    true => Self::new(self.exec, &self.args, states)?.differentiate(saved, cotangents, grads),
                    false => self.differentiate(saved, cotangents, grads),
                }
            }

            fn states_beside(
                saved: &Option<$crate::View<'_>>,
                cotangents: &Cotangents<'_>,
                grads: &Gradients<'_>,
            ) -> $crate::ops::checked::States {
                adjoint(saved, cotangents, grads, |adjoint| $crate::ops::checked::states_of_gradients(&$table, adjoint))
            }

            fn differentiate(
                &self,
                saved: Option<$crate::View<'_>>,
                cotangents: &Cotangents<'_>,
                grads: &mut Gradients<'_>,
            ) -> $crate::Result<()> {
                let key = self.check_gradients(&saved, cotangents, grads, None)?;
                let sources = Sources::new(&self.problem, saved, cotangents);
                self.problem.backward(self.exec, &sources, &GradientTargets::new(&self.problem, grads), key)
            }

            /// Checks what a backward pass reads and writes, or the second half of one.
            fn check_gradients(
                &self,
                saved: &Option<$crate::View<'_>>,
                cotangents: &Cotangents<'_>,
                grads: &Gradients<'_>,
                ends: Option<$crate::ops::checked::Ends<'_>>,
            ) -> $crate::Result<Option<$crate::cuda::Key>> {
                let len = || self.backward_workspace_len(saved.is_some());
                adjoint(saved, cotangents, grads, |adjoint| {
                    let adjoint = $crate::ops::checked::Adjoint { ends, ..*adjoint };
                    self.checked(|call| call.backward(&adjoint, &len))
                })
            }
        }

        /// What a backward pass reads and writes, by position.
        fn adjoint<T>(
            saved: &Option<$crate::View<'_>>,
            cotangents: &Cotangents<'_>,
            grads: &Gradients<'_>,
            work: impl FnOnce(&$crate::ops::checked::Adjoint<'_>) -> T,
        ) -> T {
            work(&$crate::ops::checked::Adjoint {
                saved,
                cotangents: &[ $( &cotangents.$cotangent ),* ],
                gradients: &[ $( &grads.$gradient ),* ],
                workspace: &grads.workspace,
                ends: None,
            })
        }

        /// The shape of a state of a call, and the numbers in its saved states, wherever its first argument is.
        fn states(args: &Args<'_>) -> $crate::Result<($crate::tensor::Shape, usize)> {
            let device = args.views()[0].map_or($crate::Device::Cpu, |view| view.device());
            let problem = Problem::new(args, device, $crate::ops::checked::NO_STATES)?;
            Ok((problem.state_shape, problem.saved_len()))
        }

        /// Computes the results that are asked for.
        ///
        /// # Errors
        /// Any argument of a wrong shape, type, value or device, results that overlap with something else of the call. Nothing is written then. On CUDA also
        /// what has no kernel there ([`Error::Unavailable`](crate::Error::Unavailable)), and a workspace that is missing where it is needed.
        pub fn forward(exec: &$crate::Exec, args: &Args<'_>, out: &mut Outputs<'_>) -> $crate::Result<()> {
            // the results may say how packed sequences have states
            Prepared::new(exec, args, Prepared::states(out))?.write(out)
        }

        $crate::ops::prepared::backward! { $( $kept )? }

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
                self.forward(&mut Outputs::of_written(out))
            }

            fn backward(&self, given: &$crate::ops::Given<'_>, grads: &mut $crate::ops::Written<'_>) -> $crate::Result<()> {
                self.backward(given.saved, &Cotangents::of_given(given), &mut Gradients::of_written(grads))
            }

            $( $crate::ops::halves::has_halves! { $halves } )?
        }

        $( $crate::ops::halves::halves! { $halves } )?

        impl<'a> Outputs<'a> {
            fn of_written(out: &mut $crate::ops::Written<'a>) -> Self {
                let [ $( $result ),* ] = out.take();
                Outputs {
                    $( $result, )*
                    $( $saved: out.saved.take(), )?
                    $( $workspace: out.workspace.take(), )?
                }
            }
        }

        impl<'a> Gradients<'a> {
            fn of_written(grads: &mut $crate::ops::Written<'a>) -> Self {
                let [ $( $gradient ),* ] = grads.take();
                Gradients { $( $gradient, )* workspace: grads.workspace.take() }
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

/// `backward`, with what the forward pass kept, if the operation keeps something.
macro_rules! backward {
    () => {
        /// Computes the gradients that are asked for.
        ///
        /// # Errors
        /// As [`forward`]; also a gradient of an argument that was not given.
        pub fn backward(
            exec: &$crate::Exec,
            args: &Args<'_>,
            cotangents: &Cotangents<'_>,
            grads: &mut Gradients<'_>,
        ) -> $crate::Result<()> {
            Prepared::new(exec, args, Prepared::states_beside(&None, cotangents, grads))?.differentiate(None, cotangents, grads)
        }
    };
    ($kept:ident) => {
        #[doc = concat!("Computes the gradients that are asked for. `", stringify!($kept), "` are those of a forward pass with the same arguments;")]
        /// without them the states are computed again.
        ///
        /// # Errors
        /// As [`forward`]; also a gradient of an argument that was not given.
        pub fn backward(
            exec: &$crate::Exec,
            args: &Args<'_>,
            $kept: Option<$crate::View<'_>>,
            cotangents: &Cotangents<'_>,
            grads: &mut Gradients<'_>,
        ) -> $crate::Result<()> {
            let states = Prepared::states_beside(&$kept, cotangents, grads);
            Prepared::new(exec, args, states)?.differentiate($kept, cotangents, grads)
        }
    };
}
pub(crate) use backward;
