//! An operation from one table: [`operation!`] writes its signature, the structs of its calls, what becomes of them by position, and
//! [prepared calls](super::prepared). A table says of each tensor what it is called, what it means, how it comes to normal form and what its
//! [`Argument`](super::signature::Argument) is:
//!
//! ```text
//! required { /// Input, (B, D, L).
//!            x: timed = activation(&["BDL"]).alias(&["u"]), }
//! ```
//!
//! is the field `x` of `Args`, described so; `Gradients::x`; `problem.timed(view)` in `GradientTargets`; and position 0 of every call by position.
//!
//! **By hand** stays what the operation means. `Problem` has `new(&args, device, states)`, the verbs of normal form that the table names, `op` (what errors
//! call the operation) and `saved_len`; the modules of `kernels` have `forward` and `backward`, that for CUDA also `workspace_len` and
//! `backward_workspace_len`; `reference` has the oracle, whose structs have the table's names.

use super::call::Value;
use super::discretization::Discretization;

/// The type of an option as a field of `Args`.
pub(crate) trait OptionField: Copy {
    /// The field for a value of the option's kind.
    fn of(value: Value) -> Self;
    /// The value.
    fn value(self) -> Value;
}

impl OptionField for bool {
    fn of(value: Value) -> Self {
        matches!(value, Value::Flag(true))
    }
    fn value(self) -> Value {
        Value::Flag(self)
    }
}

impl OptionField for usize {
    fn of(value: Value) -> Self {
        if let Value::Count(count) = value { count } else { 0 }
    }
    fn value(self) -> Value {
        Value::Count(self)
    }
}

impl OptionField for f64 {
    fn of(value: Value) -> Self {
        if let Value::Number(number) = value { number } else { 0.0 }
    }
    fn value(self) -> Value {
        Value::Number(self)
    }
}

impl OptionField for (f64, f64) {
    fn of(value: Value) -> Self {
        if let Value::Interval(low, high) = value { (low, high) } else { (f64::NEG_INFINITY, f64::INFINITY) }
    }
    fn value(self) -> Value {
        Value::Interval(self.0, self.1)
    }
}

impl OptionField for Discretization {
    fn of(value: Value) -> Self {
        if let Value::Word(Some(word)) = value { Self::ALL[word] } else { Self::default() }
    }
    fn value(self) -> Value {
        Value::Word(Self::ALL.iter().position(|rule| *rule == self))
    }
}

/// A tensor that is in normal form as it is: every problem has this verb.
pub(crate) trait Plain {
    fn plain<V>(&self, view: V) -> V {
        view
    }
}

/// The argument of a table's line, with the names that its field gives.
macro_rules! tabled {
    ($field:ident, $argument:expr) => {
        $argument.field(stringify!($field), concat!("grad of ", stringify!($field)))
    };
}
pub(crate) use tabled;

/// A tensor that is written, in normal form.
macro_rules! target {
    () => {
        $crate::tensor::RawViewMut
    };
    ($form:ident) => {
        $form<$crate::tensor::RawViewMut>
    };
}
pub(crate) use target;

/// What has no view of its own among the views by position.
macro_rules! no_view {
    ($($of:tt)*) => {
        None
    };
}
pub(crate) use no_view;

/// `Args` with `new` and setters, the lists of arguments and options, and both ways between them and positions.
macro_rules! arguments {
    (
        $(#[$args_meta:meta])* Args;
        required { $( $(#[$need_meta:meta])* $need:ident = $need_argument:expr, )* }
        optional { $( $(#[$may_meta:meta])* $may:ident = $may_argument:expr, )* }
        $( sequences { $(#[$sequences_meta:meta])* $sequences:ident, } )?
        options { $( $(#[$option_meta:meta])* $option:ident: $option_type:ty = $setting:expr, )* }
    ) => {
        /// The arguments by position.
        const ARGUMENTS: &[$crate::ops::signature::Argument] = &[
            $( $crate::ops::table::tabled!($need, $need_argument).required(), )*
            $( $crate::ops::table::tabled!($may, $may_argument), )*
            $(
                $crate::ops::table::tabled!(cu_seqlens, $crate::ops::signature::$sequences::CU_SEQLENS),
                $crate::ops::table::tabled!(seq_idx, $crate::ops::signature::$sequences::SEQ_IDX),
            )?
        ];
        /// The options by position.
        const SETTINGS: &[$crate::ops::signature::Setting] = &[ $( $setting.field(stringify!($option)), )* ];

        $crate::ops::builder::builder! {
            $(#[$args_meta])*
            #[derive(Debug, Clone, Copy)]
            pub struct Args<'a> {
                $( $(#[$need_meta])* pub $need: $crate::tensor::View<'a>, )*
                $( $(#[$may_meta])* pub $may: Option<$crate::tensor::View<'a>>, )*
                $( $(#[$sequences_meta])* pub $sequences: $crate::ops::Sequences<'a>, )?
                $( $(#[$option_meta])* pub $option: $option_type, )*
            }
        }

        impl<'a> Args<'a> {
            #[doc = concat!("The required arguments, and the default of each option: `Args::new(", stringify!($($need),*), ")`.")]
            pub fn new($( $need: $crate::tensor::View<'a> ),*) -> Self {
                Args {
                    $( $need, )*
                    $( $may: None, )*
                    $( $sequences: $crate::ops::Sequences::Whole, )?
                    $( $option: {
                        const DEFAULT: $crate::ops::call::Value = $crate::ops::call::Value::default_of(&$setting.choice);
                        $crate::ops::table::OptionField::of(DEFAULT)
                    }, )*
                }
            }

            /// The arguments by position; how time divides is looked at apart from them.
            pub(crate) fn views(&self) -> [Option<&$crate::tensor::View<'a>>; ARGUMENTS.len()] {
                [
                    $( Some(&self.$need), )*
                    $( self.$may.as_ref(), )*
                    $( $crate::ops::table::no_view!($sequences), $crate::ops::table::no_view!($sequences), )?
                ]
            }

            /// The options by position.
            pub(crate) fn values(&self) -> [$crate::ops::call::Value; SETTINGS.len()] {
                [ $( $crate::ops::table::OptionField::value(self.$option), )* ]
            }

            /// Those of a call by position that has what is required.
            #[allow(unused_assignments, unused_mut, unused_variables, reason = "some operations have no options, or none behind the last position")]
            pub(crate) fn of_call(call: &$crate::ops::Call<'a>) -> Self {
                let (mut argument, mut option) = (0.., 0..);
                let mut next = || argument.next().expect("there is no end");
                Args {
                    $( $need: call.need(next()), )*
                    $( $may: call.views[next()], )*
                    $( $sequences: call.sequences([next(), next()]), )?
                    $( $option: $crate::ops::table::OptionField::of(call.values[option.next().expect("there is no end")]), )*
                }
            }
        }
    };
}
pub(crate) use arguments;

/// A differentiable operation: what [the module](self) says.
macro_rules! operation {
    (
        $(#[$signature_meta:meta])* $signature_vis:vis $table:ident = $signature:expr;
        facts = $facts:expr;
        $(#[$args_meta:meta])* Args;
        required { $( $(#[$need_meta:meta])* $need:ident: $need_verb:ident $(as $need_form:ident)? = $need_argument:expr, )* }
        optional { $( $(#[$may_meta:meta])* $may:ident: $may_verb:ident $(as $may_form:ident)? = $may_argument:expr, )* }
        $( sequences { $(#[$sequences_meta:meta])* $sequences:ident, } )?
        options { $( $(#[$option_meta:meta])* $option:ident: $option_type:ty = $setting:expr, )* }
        results { $( $(#[$result_meta:meta])* $result:ident: $result_verb:ident = $output:expr, )* }
        $( totals { $( $(#[$total_meta:meta])* $total:ident: $total_verb:ident = $total_output:expr, )* } )?
        $( saved { $(#[$saved_meta:meta])* $saved:ident, } )?
        $( again { $again_of:ident as $again:ident: $again_verb:ident, } )?
        $( workspace { $(#[$workspace_meta:meta])* $workspace:ident, } )?
        backward_workspace { $(#[$scratch_meta:meta])* }
        $( summary { $summary:ident } )?
        $( halves { $halves:ident } )?
        $( kernels { $cpu:ident, $cuda:ident } )?
    ) => {
        $crate::ops::table::arguments! {
            $(#[$args_meta])* Args;
            required { $( $(#[$need_meta])* $need = $need_argument, )* }
            optional { $( $(#[$may_meta])* $may = $may_argument, )* }
            $( sequences { $(#[$sequences_meta])* $sequences, } )?
            options { $( $(#[$option_meta])* $option: $option_type = $setting, )* }
        }

        /// The results by position.
        const RESULTS: &[$crate::ops::signature::Output] = &[
            $( $output.field(stringify!($result), concat!("grad of ", stringify!($result))), )*
            $($( $total_output.field(stringify!($total), concat!("grad of ", stringify!($total))).constant(), )*)?
        ];

        $(#[$signature_meta])*
        $signature_vis static $table: $crate::ops::Signature = $crate::ops::Signature {
            arguments: ARGUMENTS,
            settings: SETTINGS,
            results: RESULTS,
            facts: $facts,
            ..$signature
        }
        .resolved();

        $crate::ops::builder::builder! {
            /// What a forward pass writes; what is `None` is not computed.
            #[derive(Debug, Default)]
            pub struct Outputs<'a> {
                $( $(#[$result_meta])* pub $result: Option<$crate::tensor::ViewMut<'a>>, )*
                $($( $(#[$total_meta])* pub $total: Option<$crate::tensor::ViewMut<'a>>, )*)?
                $( $(#[$saved_meta])* pub $saved: Option<$crate::tensor::ViewMut<'a>>, )?
                $( $(#[$workspace_meta])* pub $workspace: Option<$crate::tensor::ViewMut<'a>>, )?
            }
        }

        $crate::ops::builder::builder! {
            /// Cotangents: the gradients of a loss by the outputs, shaped as these. What is `None` counts as zero.
            #[derive(Debug, Default, Clone, Copy)]
            pub struct Cotangents<'a> {
                $( #[doc = concat!("By `", stringify!($result), "`.")] pub $result: Option<$crate::tensor::View<'a>>, )*
            }
        }

        $crate::ops::builder::builder! {
            /// What a backward pass writes (it overwrites); what is `None` is not computed. Each has the shape of its argument, that by an initial state
            /// also where none was given; complex arguments have complex gradients (conjugate cotangents, as PyTorch's).
            #[derive(Debug, Default)]
            pub struct Gradients<'a> {
                $( #[doc = concat!("By `", stringify!($need), "`.")] pub $need: Option<$crate::tensor::ViewMut<'a>>, )*
                $( #[doc = concat!("By `", stringify!($may), "`.")] pub $may: Option<$crate::tensor::ViewMut<'a>>, )*
                $(#[$scratch_meta])*
                pub workspace: Option<$crate::tensor::ViewMut<'a>>,
            }
        }

        /// Where a forward pass writes, in normal form.
        #[derive(Clone, Copy, Default)]
        pub(crate) struct Targets {
            $( pub $result: Option<$crate::tensor::RawViewMut>, )*
            $($( pub $total: Option<$crate::tensor::RawViewMut>, )*)?
            $( pub $saved: Option<$crate::tensor::RawViewMut>, )?
            $( pub $workspace: Option<$crate::tensor::RawViewMut>, )?
        }

        /// What a backward pass reads besides the arguments, in normal form.
        #[derive(Clone, Copy, Default)]
        pub(crate) struct Sources<'a> {
            $( pub $saved: Option<$crate::tensor::View<'a>>, )?
            $( pub $again: Option<$crate::tensor::View<'a>>, )?
            $( pub $result: Option<$crate::tensor::View<'a>>, )*
        }

        /// Where a backward pass writes, in normal form.
        #[derive(Clone, Copy, Default)]
        pub(crate) struct GradientTargets {
            $( pub $need: Option<$crate::ops::table::target!($($need_form)?)>, )*
            $( pub $may: Option<$crate::ops::table::target!($($may_form)?)>, )*
            pub workspace: Option<$crate::tensor::RawViewMut>,
        }

        impl $crate::ops::table::Plain for Problem<'_> {}

        impl Targets {
            fn new(problem: &Problem<'_>, out: &mut Outputs<'_>) -> Self {
                Targets {
                    $( $result: out.$result.as_mut().map(|view| problem.$result_verb(view.raw())), )*
                    $($( $total: out.$total.as_mut().map(|view| problem.$total_verb(view.raw())), )*)?
                    $( $saved: out.$saved.as_mut().map($crate::tensor::ViewMut::raw), )?
                    $( $workspace: out.$workspace.as_mut().map($crate::tensor::ViewMut::raw), )?
                }
            }
        }

        impl<'a> Sources<'a> {
            fn new(problem: &Problem<'_>, saved: Option<$crate::tensor::View<'a>>, cotangents: &Cotangents<'a>) -> Self {
                let _ = saved;
                Sources {
                    $( $saved: saved, )?
                    $( $again: saved.map(|view| problem.$again_verb(view)), )?
                    $( $result: cotangents.$result.map(|view| problem.$result_verb(view)), )*
                }
            }
        }

        impl GradientTargets {
            fn new(problem: &Problem<'_>, grads: &mut Gradients<'_>) -> Self {
                #[allow(unused_imports, reason = "every tensor of some operations has a verb of its own")]
                use $crate::ops::table::Plain;
                GradientTargets {
                    $( $need: grads.$need.as_mut().map(|view| problem.$need_verb(view.raw())), )*
                    $( $may: grads.$may.as_mut().map(|view| problem.$may_verb(view.raw())), )*
                    workspace: grads.workspace.as_mut().map($crate::tensor::ViewMut::raw),
                }
            }
        }

        impl<'a> Args<'a> {
            /// How time divides.
            fn division(&self) -> $crate::ops::Sequences<'a> {
                $crate::ops::prepared::first!($( self.$sequences, )? $crate::ops::Sequences::Whole)
            }
        }

        $crate::ops::prepared::prepared! {
            $table;
            results { $( $result, )* $($( $total, )*)? }
            cotangents { $( $result, )* }
            gradients { $( $need, )* $( $may, )* }
            saved { $( $saved )? }
            kept { $( $saved )? $( $again_of )? }
            workspace { $( $workspace )? }
            summary { $( $summary )? }
            halves { $( $halves )? }
        }

        $(
            impl Problem<'_> {
                fn workspace_len(&self, exec: &$crate::Exec) -> $crate::Result<usize> {
                    exec.stream().map_or(Ok(0), |stream| $cuda::workspace_len(stream, self))
                }

                fn backward_workspace_len(&self, exec: &$crate::Exec, has_saved: bool) -> $crate::Result<usize> {
                    exec.stream().map_or(Ok(0), |stream| $cuda::backward_workspace_len(stream, self, has_saved))
                }

                fn forward(&self, exec: &$crate::Exec, targets: &Targets, key: Option<$crate::cuda::Key>) -> $crate::Result<()> {
                    let Some(stream) = exec.stream() else {
                        $cpu::forward(exec, self, targets);
                        return Ok(());
                    };
                    $cuda::forward(&$crate::cuda::Queue::new(stream, key), self, targets)
                }

                fn backward(
                    &self,
                    exec: &$crate::Exec,
                    sources: &Sources<'_>,
                    targets: &GradientTargets,
                    key: Option<$crate::cuda::Key>,
                ) -> $crate::Result<()> {
                    let Some(stream) = exec.stream() else {
                        $cpu::backward(exec, self, sources, targets);
                        return Ok(());
                    };
                    $cuda::backward(&$crate::cuda::Queue::new(stream, key), self, sources, targets)
                }
            }
        )?
    };
}
pub(crate) use operation;

/// A step that updates a state in place: `Args` and the signature, as of [`operation!`].
macro_rules! step {
    (
        $(#[$signature_meta:meta])* $signature_vis:vis $table:ident = $signature:expr;
        facts = $facts:expr;
        $(#[$args_meta:meta])* Args;
        required { $($required:tt)* }
        optional { $($optional:tt)* }
        options { $($options:tt)* }
        results { $( $result:ident = $output:expr, )* }
    ) => {
        $crate::ops::table::arguments! {
            $(#[$args_meta])* Args;
            required { $($required)* }
            optional { $($optional)* }
            options { $($options)* }
        }

        $(#[$signature_meta])*
        $signature_vis static $table: $crate::ops::Signature = $crate::ops::Signature {
            arguments: ARGUMENTS,
            settings: SETTINGS,
            results: &[ $( $output.field(stringify!($result), concat!("grad of ", stringify!($result))), )* ],
            differentiable: false,
            facts: $facts,
            ..$signature
        }
        .resolved();

        impl Args<'_> {
            /// The queue of a step that writes what lies like this.
            fn queue<'s>(&self, stream: &'s $crate::cuda::Stream, written: [$crate::View<'_>; 2]) -> $crate::cuda::Queue<'s> {
                let (views, values) = (self.views(), self.values());
                let bound = $crate::ops::checked::Bound { signature: &$table, views: &views, values: &values };
                let mut key = bound.key($crate::ops::checked::Direction::Update);
                written.iter().for_each(|view| key.view(Some(view)));
                $crate::cuda::Queue::new(stream, Some(key))
            }
        }

        /// Calls by position.
        pub(crate) struct Positional;

        impl $crate::ops::passes::Step for Positional {
            fn update(
                &self,
                exec: &$crate::exec::Exec,
                call: &$crate::ops::Call<'_>,
                state: &mut $crate::tensor::ViewMut<'_>,
                y: &mut $crate::tensor::ViewMut<'_>,
            ) -> $crate::Result<()> {
                update(exec, &Args::of_call(call), state, y)
            }

            fn check(
                &self,
                call: &$crate::ops::Call<'_>,
                state: &$crate::tensor::ViewMut<'_>,
                y: &$crate::tensor::ViewMut<'_>,
            ) -> $crate::Result<()> {
                checked(state.shared().device(), &Args::of_call(call), state, y).map(drop)
            }

            fn reference(
                &self,
                call: &$crate::ops::Call<'_>,
                state: &$crate::tensor::View<'_>,
            ) -> $crate::Result<($crate::tensor::Dense, $crate::tensor::Dense)> {
                reference::update(&Args::of_call(call), state)
            }
        }
    };
}
pub(crate) use step;
