//! A call by name and position, for front ends that take any operation: the Python module, the program, tests.

use super::CHECKPOINT;
use super::check::Sizes;
use super::signature::{Argument, Choice, Complex, MAX_ARGUMENTS, MAX_OPTIONS, ResultType, Role, Saved, Signature, fits};
use crate::cpu::tile::MAX_LANES;
use crate::cuda::Key;
use crate::error::{Error, Result};
use crate::ops::sequences::Sequences;
use crate::tensor::{DType, Device, Shape, View, ViewMut};

/// The value of an option.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// Yes or no.
    Flag(bool),
    /// A whole number.
    Count(usize),
    /// Any number.
    Number(f64),
    /// Lowest and highest value.
    Interval(f64, f64),
    /// The number of a word of the list, or none.
    Word(Option<usize>),
}

impl Value {
    /// Words that tell it from others of its kind.
    pub(crate) fn words(self) -> [u64; 2] {
        match self {
            Value::Flag(flag) => [flag.into(), 0],
            Value::Count(count) => [count as u64, 0],
            Value::Number(number) => [number.to_bits(), 0],
            Value::Interval(low, high) => [low.to_bits(), high.to_bits()],
            Value::Word(word) => [word.map_or(0, |word| word as u64 + 1), 0],
        }
    }

    /// The value of an option that is not given.
    pub const fn default_of(choice: &Choice) -> Self {
        match *choice {
            Choice::Flag(value) => Value::Flag(value),
            Choice::Count(value) => Value::Count(value),
            Choice::Number(value) => Value::Number(value),
            Choice::Interval => Value::Interval(f64::NEG_INFINITY, f64::INFINITY),
            Choice::Word(_, value) => Value::Word(value),
        }
    }
}

/// An operation with its arguments and options.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The operation.
    pub signature: &'static Signature,
    /// The arguments, by position.
    pub views: [Option<View<'a>>; MAX_ARGUMENTS],
    /// The options, by position.
    pub values: [Value; MAX_OPTIONS],
    /// The state of an operation in place, before the call.
    pub state: Option<View<'a>>,
}

/// The outputs of a pass; an output of `None` is not computed.
#[derive(Debug, Default)]
pub struct Written<'a> {
    /// The results, or the gradients of the arguments, by position.
    pub views: [Option<ViewMut<'a>>; MAX_ARGUMENTS],
    /// The saved states of a forward pass, where it saves states.
    pub saved: Option<ViewMut<'a>>,
    /// Scratch memory.
    pub workspace: Option<ViewMut<'a>>,
    /// The state of an operation in place.
    pub state: Option<ViewMut<'a>>,
}

impl<'a> Written<'a> {
    /// Results or gradients by position, for as long as they are borrowed.
    pub(crate) fn of<const N: usize>(views: [&'a mut Option<ViewMut<'_>>; N]) -> Self {
        let mut written = Written::default();
        written.views.iter_mut().zip(views).for_each(|(to, view)| *to = view.as_mut().map(ViewMut::reborrow));
        written
    }
}

/// The inputs of a backward pass besides the call.
#[derive(Debug, Default, Clone, Copy)]
pub struct Given<'a> {
    /// The saved states of the forward pass, or one of its results.
    pub saved: Option<View<'a>>,
    /// Cotangents of the results, by position.
    pub cotangents: [Option<View<'a>>; 2],
}

/// The pass that a call asks for; keys of passes on a device begin with it.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(crate) enum PassKind {
    Forward,
    Backward,
    Update,
    /// How much scratch memory a forward pass wants, and a backward pass without and with what the forward pass kept.
    ForwardLength,
    BackwardLength,
    BackwardLengthWithSaved,
    /// The two phases of a forward pass, and of a backward pass.
    ForwardEnds,
    ForwardRest,
    BackwardEnds,
    BackwardRest,
}

impl PassKind {
    pub(crate) fn backward_length(has_saved: bool) -> Self {
        if has_saved { PassKind::BackwardLengthWithSaved } else { PassKind::BackwardLength }
    }
}

/// The description of a result before it is computed.
#[derive(Debug, Clone, Copy)]
pub struct Planned {
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
}

/// The type of carried values beside inputs of a type.
pub fn carried(dtype: DType, is_complex: bool) -> DType {
    match (dtype.is_double(), is_complex) {
        (false, false) => DType::F32,
        (true, false) => DType::F64,
        (false, true) => DType::Complex64,
        (true, true) => DType::Complex128,
    }
}

impl<'a> Call<'a> {
    /// A call without arguments, and with the default of each option.
    pub fn new(signature: &'static Signature) -> Self {
        let mut values = [Value::Flag(false); MAX_OPTIONS];
        for (value, option) in values.iter_mut().zip(signature.options) {
            *value = Value::default_of(&option.choice);
        }
        Call { signature, views: [None; MAX_ARGUMENTS], values, state: None }
    }

    /// Refuses a call that lacks an argument, or divides the time axis in two ways.
    pub(crate) fn check_presence(&self) -> Result<()> {
        let Signature { name: op, arguments, in_place, .. } = self.signature;
        let refused = |argument: &Argument, expected| Err(Error::Presence { op, argument: argument.field, expected });
        let mut is_divided = false;
        for (argument, view) in arguments.iter().zip(&self.views) {
            if argument.required && view.is_none() {
                return refused(argument, "must be there");
            }
            if argument.role == Role::Index && in_place.is_none() && view.is_some() {
                if is_divided {
                    return refused(argument, "excludes `cu_seqlens`: both divide the time axis");
                }
                is_divided = true;
            }
        }
        Ok(())
    }

    /// Sets arguments, how time divides behind them, and options, all by position.
    pub(crate) fn set(&mut self, views: &[Option<View<'a>>], sequences: &[Sequences<'a>], values: &[Value]) {
        let all = views.iter().copied().chain(sequences.iter().flat_map(Sequences::views));
        self.views.iter_mut().zip(all).for_each(|(to, view)| *to = view);
        self.values.iter_mut().zip(values).for_each(|(to, value)| *to = *value);
    }

    /// The argument of a name.
    fn named(&self, name: &str) -> Option<&View<'a>> {
        self.views[self.signature.argument(name)?].as_ref()
    }

    /// Whether one of the rules for complex numbers holds.
    pub fn is_complex(&self, rule: Complex) -> bool {
        match rule {
            Complex::Never => false,
            Complex::Always => true,
            Complex::As(names) => names.iter().any(|name| self.named(name).is_some_and(|v| v.dtype().is_complex())),
            Complex::Without(name) => self.named(name).is_none(),
        }
    }

    /// The sizes of the letters that the arguments have. V is what a filter of W taps remembers.
    fn sizes(&self) -> Sizes {
        let (form, mut sizes) = (self.form(), Sizes::default());
        for (argument, view) in self.signature.arguments.iter().zip(&self.views) {
            let Some(view) = view.as_ref().filter(|_| argument.role != Role::State && argument.role != Role::Index) else {
                continue;
            };
            let own = |layout: &&&str| layout.len() == view.rank() && form.is_none_or(|form| fits(layout, form));
            let Some(layout) = argument.layouts.iter().find(own) else { continue };
            sizes.add(layout, &view.shape(), "");
        }
        if let Some(memory) = sizes.known('W').and_then(|taps| taps.checked_sub(1)) {
            sizes.add("V", &[memory], "");
        }
        sizes
    }

    /// The form of the call, which the first argument decides.
    fn form(&self) -> Option<&'static str> {
        let first = self.views[0]?;
        self.signature.form(self.signature.arguments[0].layout(first.rank())?)
    }

    /// The arguments by position, as checks take them.
    pub(crate) fn given(&self) -> [Option<&View<'a>>; MAX_ARGUMENTS] {
        self.views.each_ref().map(Option::as_ref)
    }

    fn dtype(&self, argument: usize) -> DType {
        self.views[argument].map_or(DType::F32, |view| view.dtype())
    }

    /// Whether a result is complex.
    pub(crate) fn is_result_complex(&self, at: usize) -> bool {
        let mut named = self.signature.named[at].complex.iter().flatten();
        match self.signature.results[at].complex {
            Complex::Never => false,
            Complex::Always => true,
            Complex::As(_) => named.any(|&argument| self.dtype(argument).is_complex()),
            Complex::Without(_) => named.all(|&argument| self.views[argument].is_none()),
        }
    }

    /// The type of a result.
    pub fn result_type(&self, at: usize) -> DType {
        let [first, second] = self.signature.named[at].dtype;
        let (a, b, complex) = (self.dtype(first), self.dtype(second), self.is_result_complex(at));
        match self.signature.results[at].dtype {
            ResultType::OfFirst(..) => {
                if self.views[first].is_some() {
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
    pub(crate) fn key(&self, pass: PassKind) -> Key {
        let (arguments, options) = (self.signature.arguments.len(), self.signature.options.len());
        let mut key = Key::new(self.signature, pass as u64);
        self.views[..arguments].iter().for_each(|view| key.view(view.as_ref()));
        self.values[..options].iter().for_each(|value| key.words(&value.words()));
        key
    }

    /// The shape of a result that has an argument's.
    pub(crate) fn like(&self, at: usize) -> Option<Shape> {
        Some(self.views[self.signature.named[at].like?].as_ref()?.shape())
    }

    /// The type of the numbers that states are saved in.
    pub fn saved_type(&self) -> DType {
        carried(self.dtype(self.signature.leaders[0]), false)
    }

    /// Numbers in the largest buffer that the states which a forward pass keeps can need, however time divides into sequences.
    pub fn saved_capacity(&self) -> Option<usize> {
        let Saved::States { layout, padded, each_step, complex, on_cuda } = self.signature.saved else { return None };
        if !on_cuda && self.views[0].is_some_and(|view| view.device() != Device::Cpu) {
            return Some(0);
        }
        let (sizes, parts) = (self.sizes(), if self.is_complex(complex) { 2 } else { 1 });
        let filled = |letter, size: usize| if padded == Some(letter) { size.next_multiple_of(LANES) } else { size };
        let state: Option<usize> = layout.chars().map(|letter| Some(filled(letter, sizes.known(letter)?))).product();
        let step: Option<usize> = each_step.chars().map(|letter| sizes.known(letter)).product();
        let (rows, steps) = (sizes.known('B')?, sizes.known('L')?);
        let each_step = if each_step.is_empty() { 0 } else { steps * step? };
        Some(rows * (steps / CHECKPOINT * state? + each_step) * parts + SPARE)
    }
}

/// The padded size of saved states is a multiple of this number: the lanes of the widest vector.
pub const LANES: usize = MAX_LANES;
/// Numbers that a buffer for saved states has to spare: compilers take the sizes 0 and 1 for special cases.
pub const SPARE: usize = 2;
