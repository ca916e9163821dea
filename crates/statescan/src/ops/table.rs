//! An operation from one table: [`operation!`] writes its signature and the structs of its calls, with what becomes of them by position. A table says of
//! each tensor what it is called, what it means, how it comes to normal form and what its [`Argument`](super::signature::Argument) is:
//!
//! ```text
//! required { /// Input, (B, D, L).
//!            x: timed = activation(&["BDL"]).alias(&["u"]), }
//! ```
//!
//! is the field `x` of `Args`, described so; `Gradients::x`; `problem.timed(view)` in `GradientTargets`; and position 0 of every call by position.
//!
//! **By hand** stays what the operation means: [`Op`](super::op::Op) for its `Table`, and [`Problem`](super::op::Problem) for its checked calls, which
//! have the verbs of normal form that the table names; for a table of [`step!`], [`Step`](super::op::Step). A table that contradicts itself, or whose sections
//! are not those of the macro, does not compile, and the error says what is wrong.

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

/// `Args` with `new` and setters, the lists of arguments and options, and both ways between them and positions.
macro_rules! arguments {
    (
        $table:ident;
        $(#[$args_meta:meta])* Args;
        required { $( $(#[$need_meta:meta])* $need:ident = $need_argument:expr, )* }
        optional { $( $(#[$may_meta:meta])* $may:ident = $may_argument:expr, )* }
        $( sequences { $(#[$sequences_meta:meta])* $sequences:ident, } )?
        options { $( $(#[$option_meta:meta])* $option:ident: $option_type:ty = $spec:expr, )* }
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
        const OPTIONS: &[$crate::ops::signature::OptionSpec] = &[ $( $spec.field(stringify!($option)), )* ];

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
            pub fn new($( $need: impl Into<$crate::tensor::View<'a>> ),*) -> Self {
                Args {
                    $( $need: $need.into(), )*
                    $( $may: None, )*
                    $( $sequences: $crate::ops::Sequences::Whole, )?
                    $( $option: {
                        const DEFAULT: $crate::ops::call::Value = $crate::ops::call::Value::default_of(&$spec.choice);
                        $crate::ops::table::OptionField::of(DEFAULT)
                    }, )*
                }
            }

            /// The arguments by position, without how time divides.
            pub(crate) fn views(&self) -> [Option<&$crate::tensor::View<'a>>; ARGUMENTS.len()] {
                let mut views = [None; ARGUMENTS.len()];
                let given = [ $( Some(&self.$need), )* $( self.$may.as_ref(), )* ];
                views[..given.len()].copy_from_slice(&given);
                views
            }

            /// Returns the arguments as a call by position.
            pub(crate) fn call(&self) -> $crate::ops::Call<'a> {
                let mut call = $crate::ops::Call::new(&$table);
                let sequences: &[$crate::ops::Sequences<'a>] = &[ $( self.$sequences )? ];
                let views = [ $( Some(self.$need), )* $( self.$may, )* ];
                let values: [_; OPTIONS.len()] = [ $( $crate::ops::table::OptionField::value(self.$option), )* ];
                call.set(&views, sequences, &values);
                call
            }

            /// Returns the arguments of a call by position that has all required ones.
            #[allow(unused_mut, unused_variables, reason = "some operations have no options")]
            pub(crate) fn of_call(call: &$crate::ops::Call<'a>) -> Self {
                let (mut views, mut values) = (call.views.into_iter(), call.values.into_iter());
                let mut next = || views.next().flatten();
                Args {
                    $( $need: next().expect("the presence of arguments is checked before"), )*
                    $( $may: next(), )*
                    $( $sequences: $crate::ops::Sequences::of_views([next(), next()]), )?
                    $( $option: values.next().map($crate::ops::table::OptionField::of).expect("a value for each option"), )*
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
        options { $( $(#[$option_meta:meta])* $option:ident: $option_type:ty = $spec:expr, )* }
        results { $( $(#[$result_meta:meta])* $result:ident: $result_verb:ident = $output:expr, )* }
        $( totals { $( $(#[$total_meta:meta])* $total:ident: $total_verb:ident = $total_output:expr, )* } )?
        $( saved { $(#[$saved_meta:meta])* $saved:ident, } )?
        $( again { $again_of:ident as $again:ident: $again_verb:ident, } )?
        $( workspace { $(#[$workspace_meta:meta])* $workspace:ident, } )?
        backward_workspace { $(#[$scratch_meta:meta])* }
    ) => {
        $crate::ops::table::arguments! {
            $table;
            $(#[$args_meta])* Args;
            required { $( $(#[$need_meta])* $need = $need_argument, )* }
            optional { $( $(#[$may_meta])* $may = $may_argument, )* }
            $( sequences { $(#[$sequences_meta])* $sequences, } )?
            options { $( $(#[$option_meta])* $option: $option_type = $spec, )* }
        }

        /// The results by position.
        const RESULTS: &[$crate::ops::signature::Output] = &[
            $( $output.field(stringify!($result), concat!("grad of ", stringify!($result))), )*
            $($( $total_output.field(stringify!($total), concat!("grad of ", stringify!($total))).constant(), )*)?
        ];

        $(#[$signature_meta])*
        $signature_vis static $table: $crate::ops::Signature = $crate::ops::Signature {
            arguments: ARGUMENTS,
            options: OPTIONS,
            results: RESULTS,
            facts: $facts,
            ..$signature
        }
        .resolved();

        $crate::ops::builder::builder! {
            /// The results of a forward pass; a result of `None` is not computed.
            #[derive(Debug, Default)]
            pub struct Outputs<'a> {
                $( $(#[$result_meta])* pub $result: Option<$crate::tensor::ViewMut<'a>>, )*
                $($( $(#[$total_meta])* pub $total: Option<$crate::tensor::ViewMut<'a>>, )*)?
                $( $(#[$saved_meta])* pub $saved: Option<$crate::tensor::ViewMut<'a>>, )?
                $( $(#[$workspace_meta])* pub $workspace: Option<$crate::tensor::ViewMut<'a>>, )?
            }
        }

        $crate::ops::builder::builder! {
            /// Cotangents: the gradients of a loss by the outputs, shaped as these. A cotangent of `None` counts as zero.
            #[derive(Debug, Default, Clone, Copy)]
            pub struct Cotangents<'a> {
                $( #[doc = concat!("By `", stringify!($result), "`.")] pub $result: Option<$crate::tensor::View<'a>>, )*
            }
        }

        $crate::ops::builder::builder! {
            /// The gradients of a backward pass, which overwrites them; a gradient of `None` is not computed. Each has the shape
            /// of its argument, that by an initial state also where none was given; complex arguments have complex gradients
            /// (conjugate cotangents, as PyTorch's).
            #[derive(Debug, Default)]
            pub struct Gradients<'a> {
                $( #[doc = concat!("By `", stringify!($need), "`.")] pub $need: Option<$crate::tensor::ViewMut<'a>>, )*
                $( #[doc = concat!("By `", stringify!($may), "`.")] pub $may: Option<$crate::tensor::ViewMut<'a>>, )*
                $(#[$scratch_meta])*
                pub workspace: Option<$crate::tensor::ViewMut<'a>>,
            }
        }

        /// The targets of a forward pass, in normal form.
        #[derive(Clone, Copy, Default)]
        pub(crate) struct Targets {
            $( pub $result: Option<$crate::tensor::RawViewMut>, )*
            $($( pub $total: Option<$crate::tensor::RawViewMut>, )*)?
            $( pub $saved: Option<$crate::tensor::RawViewMut>, )?
            $( pub $workspace: Option<$crate::tensor::RawViewMut>, )?
        }

        /// The inputs of a backward pass besides the arguments, in normal form.
        #[derive(Clone, Copy, Default)]
        pub(crate) struct Sources<'a> {
            $( pub $saved: Option<$crate::tensor::View<'a>>, )?
            $( pub $again: Option<$crate::tensor::View<'a>>, )?
            $( pub $result: Option<$crate::tensor::View<'a>>, )*
        }

        /// The targets of a backward pass, in normal form.
        #[derive(Clone, Copy, Default)]
        #[allow(dead_code, reason = "operations that run on the CPU alone have no use for scratch memory")]
        pub(crate) struct GradientTargets {
            $( pub $need: Option<$crate::ops::table::target!($($need_form)?)>, )*
            $( pub $may: Option<$crate::ops::table::target!($($may_form)?)>, )*
            pub workspace: Option<$crate::tensor::RawViewMut>,
        }

        impl $crate::ops::table::Plain for Problem<'_> {}

        impl Targets {
            fn new(problem: &Problem<'_>, out: &mut $crate::ops::Written<'_>) -> Self {
                let mut views = out.views.iter_mut();
                let mut next = || views.next()?.as_mut().map($crate::tensor::ViewMut::raw);
                Targets {
                    $( $result: next().map(|view| problem.$result_verb(view)), )*
                    $($( $total: next().map(|view| problem.$total_verb(view)), )*)?
                    $( $saved: out.saved.as_mut().map($crate::tensor::ViewMut::raw), )?
                    $( $workspace: out.workspace.as_mut().map($crate::tensor::ViewMut::raw), )?
                }
            }
        }

        impl<'a> Sources<'a> {
            fn new(problem: &Problem<'_>, given: &$crate::ops::Given<'a>) -> Self {
                let [ $( $result ),* ] = given.cotangents;
                Sources {
                    $( $saved: given.saved, )?
                    $( $again: given.saved.map(|view| problem.$again_verb(view)), )?
                    $( $result: $result.map(|view| problem.$result_verb(view)), )*
                }
            }
        }

        impl GradientTargets {
            fn new(problem: &Problem<'_>, grads: &mut $crate::ops::Written<'_>) -> Self {
                #[allow(unused_imports, reason = "every tensor of some operations has a verb of its own")]
                use $crate::ops::table::Plain;
                let mut views = grads.views.iter_mut();
                let mut next = || views.next()?.as_mut().map($crate::tensor::ViewMut::raw);
                GradientTargets {
                    $( $need: next().map(|view| problem.$need_verb(view)), )*
                    $( $may: next().map(|view| problem.$may_verb(view)), )*
                    workspace: grads.workspace.as_mut().map($crate::tensor::ViewMut::raw),
                }
            }
        }

        impl $crate::ops::prepared::ByPosition for Outputs<'_> {
            #[allow(unused_mut, reason = "some operations keep nothing and have no scratch memory")]
            fn written(&mut self) -> $crate::ops::Written<'_> {
                let mut out = $crate::ops::Written::of([ $( &mut self.$result, )* $($( &mut self.$total, )*)? ]);
                $( out.saved = self.$saved.as_mut().map($crate::tensor::ViewMut::reborrow); )?
                $( out.workspace = self.$workspace.as_mut().map($crate::tensor::ViewMut::reborrow); )?
                out
            }
        }

        impl $crate::ops::prepared::ByPosition for Gradients<'_> {
            fn written(&mut self) -> $crate::ops::Written<'_> {
                let mut grads = $crate::ops::Written::of([ $( &mut self.$need, )* $( &mut self.$may, )* ]);
                grads.workspace = self.workspace.as_mut().map($crate::tensor::ViewMut::reborrow);
                grads
            }
        }

        impl<'a> Cotangents<'a> {
            /// Returns the cotangents of a pass by position.
            pub(crate) fn of_given(given: &$crate::ops::Given<'a>) -> Self {
                let [ $( $result ),* ] = given.cotangents;
                Cotangents { $( $result ),* }
            }
        }

        /// The table of this operation, as a type.
        #[derive(Debug)]
        pub struct Table;

        impl $crate::ops::prepared::Structs for Table {
            type Outputs<'a> = Outputs<'a>;
            type Cotangents<'a> = Cotangents<'a>;
            type Gradients<'a> = Gradients<'a>;

            fn given<'a>(saved: Option<$crate::View<'a>>, cotangents: &Cotangents<'a>) -> $crate::ops::Given<'a> {
                $crate::ops::Given { saved, cotangents: [ $( cotangents.$result ),* ] }
            }
        }

        /// A prepared call, whose arguments were checked.
        pub type Prepared<'p> = $crate::ops::prepared::Typed<'p, Table>;

        /// Checks the arguments of a call, once for all that is asked about it and for its passes.
        ///
        /// # Errors
        /// Those of [`forward`] that concern the arguments.
        pub fn prepare<'p>(exec: &'p $crate::Exec, args: &Args<'p>) -> $crate::Result<Prepared<'p>> {
            $crate::ops::prepared::Typed::new(&Table, exec, args.call())
        }

        /// Computes the results that are asked for.
        ///
        /// # Errors
        /// Any argument of a wrong shape, type, value or device, results that overlap with something else of the call. Nothing is written then. On CUDA also
        /// what has no kernel there ([`Error::Unavailable`](crate::Error::Unavailable)), and a workspace that is missing where it is needed.
        pub fn forward(exec: &$crate::Exec, args: &Args<'_>, out: &mut Outputs<'_>) -> $crate::Result<()> {
            $crate::ops::prepared::forward(&Table, exec, args.call(), out)
        }

        /// The results of a call, in tensors of their own.
        #[derive(Debug)]
        #[non_exhaustive]
        pub struct Results {
            $( $(#[$result_meta])* pub $result: $crate::Tensor, )*
        }

        /// Computes every result, in tensors that it makes on the device of the executor.
        ///
        /// # Errors
        /// As [`forward`]; also memory that a device has not.
        pub fn run(exec: &$crate::Exec, args: &Args<'_>) -> $crate::Result<Results> {
            let [ $( $result ),* ] = $crate::ops::prepared::run(&Table, exec, args.call())?;
            Ok(Results { $( $result ),* })
        }

        /// The gradients of a call, in tensors of their own: those by arguments that were given.
        #[derive(Debug)]
        #[non_exhaustive]
        pub struct Differentiated {
            $( #[doc = concat!("By `", stringify!($need), "`.")] pub $need: $crate::Tensor, )*
            $( #[doc = concat!("By `", stringify!($may), "`.")] pub $may: Option<$crate::Tensor>, )*
        }

        /// Computes every gradient, in tensors that it makes on the device of the executor; what a forward pass could keep is computed again.
        ///
        /// # Errors
        /// As [`run`].
        pub fn gradients(exec: &$crate::Exec, args: &Args<'_>, cotangents: &Cotangents<'_>) -> $crate::Result<Differentiated> {
            let mut all = $crate::ops::prepared::gradients::<Table>(&Table, exec, args.call(), cotangents)?.into_iter();
            let mut next = || all.next().flatten();
            Ok(Differentiated {
                $( $need: next().expect("a required argument is given"), )*
                $( $may: next(), )*
            })
        }

        /// Computes the gradients that are asked for.
        $( #[doc = concat!("`", stringify!($saved), "` are those of a forward pass with the same arguments; without them the states are computed again.")] )?
        $( #[doc = concat!("`", stringify!($again_of), "` is that of a forward pass with the same arguments; without it the states are computed again.")] )?
        ///
        /// # Errors
        /// As [`forward`]; also a gradient of an argument that was not given.
        pub fn backward(
            exec: &$crate::Exec,
            args: &Args<'_>,
            $( $saved: Option<$crate::View<'_>>, )?
            $( $again_of: Option<$crate::View<'_>>, )?
            cotangents: &Cotangents<'_>,
            grads: &mut Gradients<'_>,
        ) -> $crate::Result<()> {
            let kept = None $( .or($saved) )? $( .or($again_of) )?;
            $crate::ops::prepared::backward::<Table>(&Table, exec, args.call(), (kept, cotangents), grads)
        }
    };
    ($($other:tt)*) => {
        compile_error!(
            "operation!: the sections are, in this order: the signature, `facts`, `Args`, `required`, `optional`, `sequences`, `options`, `results`, \
             `totals`, `saved`, `again`, `workspace` and `backward_workspace`; of these `sequences`, `totals`, `saved`, `again` and `workspace` may be missing"
        );
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
            $table;
            $(#[$args_meta])* Args;
            required { $($required)* }
            optional { $($optional)* }
            options { $($options)* }
        }

        $(#[$signature_meta])*
        $signature_vis static $table: $crate::ops::Signature = $crate::ops::Signature {
            arguments: ARGUMENTS,
            options: OPTIONS,
            results: &[ $( $output.field(stringify!($result), concat!("grad of ", stringify!($result))), )* ],
            differentiable: false,
            facts: $facts,
            ..$signature
        }
        .resolved();

        impl Args<'_> {
            /// The queue of a step that writes what lies like this, maybe between slots.
            #[allow(dead_code, reason = "some steps run on the CPU alone")]
            fn queue<'s>(
                &self,
                stream: &'s $crate::cuda::Stream,
                slots: Option<&$crate::ops::slots::Slots<'_>>,
                written: [$crate::View<'_>; 2],
            ) -> $crate::cuda::Queue<'s> {
                let mut key = self.call().key($crate::ops::call::PassKind::Update);
                written.iter().for_each(|view| key.view(Some(view)));
                slots.iter().flat_map(|slots| slots.views()).for_each(|view| key.view(view));
                $crate::cuda::Queue::new(stream, Some(key))
            }
        }

        /// The table of this operation, as a type.
        pub(crate) struct Table;
    };
    ($($other:tt)*) => {
        compile_error!("step!: the sections are, in this order: the signature, `facts`, `Args`, `required`, `optional`, `options` and `results`");
    };
}
pub(crate) use step;
