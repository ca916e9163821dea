//! One call: arguments are taken from Python in order, then the operation runs without the interpreter.

use crate::described::Described;
use crate::dlpack::Owned;
use crate::error::{UnknownArgument, to_python};
use crate::exec::Place;
use crate::rows::Part;
use crate::torch::{self, Maker};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple, PyTupleMethods};
use statescan::tensor::Shape;
use statescan::{DType, Exec, View, ViewMut};
use std::cell::{OnceCell, RefCell};
use std::ops::Range;

/// The memory that lives until the call ends: tensors that go back to their producers then, and scratch memory. It only grows
/// while views of them are in use.
#[derive(Default)]
pub struct Keep {
    owned: RefCell<Vec<Owned>>,
    scratch: RefCell<Vec<Py<PyAny>>>,
    /// Results that the call makes itself.
    made: RefCell<Vec<Py<PyAny>>>,
}

/// The results that a call has made, in their order.
pub type Made<'py> = Bound<'py, PyTuple>;

/// The arguments of a call. Each method takes the next one; `name` is what errors call it. Inputs that are left over belong to Python.
pub struct Arguments<'a, 'py> {
    op: &'static str,
    inputs: &'a Bound<'py, PyTuple>,
    outputs: &'a Bound<'py, PyTuple>,
    next_input: usize,
    next_output: usize,
    place: &'a Place<'py>,
    exec: &'a Exec,
    /// The maker of results, once one has been made.
    maker: OnceCell<Maker<'py>>,
    /// Elements of the largest input so far.
    largest: usize,
    keep: &'a Keep,
}

/// The elements of the largest input below which the CPU takes some ten microseconds.
const TINY: usize = 256;

impl<'a, 'py> Arguments<'a, 'py> {
    pub fn new(
        op: &'static str,
        inputs: &'a Bound<'py, PyTuple>,
        outputs: &'a Bound<'py, PyTuple>,
        place: &'a Place<'py>,
        exec: &'a Exec,
        keep: &'a Keep,
    ) -> Self {
        Arguments { op, inputs, outputs, next_input: 0, next_output: 0, place, exec, maker: OnceCell::new(), largest: 0, keep }
    }

    fn input(&mut self) -> PyResult<Borrowed<'a, 'py, PyAny>> {
        self.next_input += 1;
        self.inputs.get_borrowed_item(self.next_input - 1)
    }

    /// Puts the operation before an error that names the argument only.
    fn named(&self, error: PyErr) -> PyErr {
        let py = self.inputs.py();
        let words = error.value(py).to_string();
        if words.starts_with(self.op) {
            return error;
        }
        let words = format!("{}: {words}", self.op);
        let named = PyErr::from_type(error.get_type(py), words);
        named.set_cause(py, error.cause(py));
        named
    }

    #[inline(always)]
    fn view(&self, object: &Bound<'py, PyAny>, name: &str) -> PyResult<View<'a>> {
        if let Some(parts) = torch::parts(object, name)? {
            torch::check_eager(object, &parts, name)?;
            // SAFETY: the tuple that holds the tensor is borrowed for 'a; that nobody resizes it meanwhile is PyTorch's rule, too.
            return unsafe { parts.view(name) };
        }
        if let Ok(part) = object.cast_exact::<Part>() {
            // SAFETY: as above, for the tensor that it is a part of, which it holds.
            return unsafe { part.get().parts.view(name) };
        }
        if let Ok(described) = object.cast_exact::<Described>() {
            let parts = described.get().parts(name, self.next_input, self.place.device())?;
            // SAFETY: nobody reads what is described: such calls are checked, and do not run.
            return unsafe { parts.view(name) };
        }
        let stream = self.place.stream();
        let owned = Owned::take(object, name, stream)?;
        let parts = owned.parts(name)?;
        self.keep.owned.borrow_mut().push(owned);
        // SAFETY: the producer's promise, and the tensor is kept for 'a.
        unsafe { parts.view(name) }
    }

    /// `made` says that the tensor was made here, and is not the user's.
    #[inline]
    fn view_mut(&self, object: &Bound<'py, PyAny>, name: &str, made: bool) -> PyResult<ViewMut<'a>> {
        if let Some(parts) = torch::parts(object, name)? {
            if !made {
                // nobody else could write it either: the dispatcher has no way for such a tensor
                torch::check_eager(object, &parts, name)
                    .map_err(|error| PyValueError::new_err(error.value(object.py()).to_string()))?;
            }
            // SAFETY: as in `view`; the operation checks that outputs are apart from everything else in the call.
            return unsafe { parts.view_mut(name) };
        }
        if let Ok(part) = object.cast_exact::<Part>() {
            // SAFETY: as above.
            return unsafe { part.get().parts.view_mut(name) };
        }
        let stream = self.place.stream();
        let owned = Owned::take(object, name, stream)?;
        owned.check_writable(name)?;
        let parts = owned.parts(name)?;
        self.keep.owned.borrow_mut().push(owned);
        // SAFETY: as above.
        unsafe { parts.view_mut(name) }
    }

    /// A tensor.
    #[inline(always)]
    pub fn tensor(&mut self, name: &str) -> PyResult<View<'a>> {
        let object = self.input()?;
        self.read(&object, name)
    }

    /// A tensor or None.
    #[inline(always)]
    pub fn option(&mut self, name: &str) -> PyResult<Option<View<'a>>> {
        let object = self.input()?;
        if object.is_none() {
            return Ok(None);
        }
        self.read(&object, name).map(Some)
    }

    #[inline(always)]
    fn read(&mut self, object: &Bound<'py, PyAny>, name: &str) -> PyResult<View<'a>> {
        let view = self.view(object, name).map_err(|error| self.named(error))?;
        self.largest = self.largest.max(view.len());
        Ok(view)
    }

    /// A tensor of the user's that is written.
    pub fn state(&mut self, name: &str) -> PyResult<ViewMut<'a>> {
        let view = self.written(name, |_| Err(PyTypeError::new_err(format!("`{name}` must be a tensor"))))?;
        view.ok_or_else(|| PyTypeError::new_err(format!("{}: `{name}` is written and must be there", self.op)))
    }

    /// Room in which Python wants a result, or None.
    pub fn slice_result(&mut self, name: &str) -> PyResult<Option<ViewMut<'a>>> {
        self.written(name, |_| Err(PyTypeError::new_err(format!("`{name}` must be a tensor or None"))))
    }

    /// Returns the maker of results.
    fn maker(&self) -> PyResult<&Maker<'py>> {
        if let Some(maker) = self.maker.get() {
            return Ok(maker);
        }
        let maker = Maker::new(self.inputs.py(), self.place.device())?;
        Ok(self.maker.get_or_init(|| maker))
    }

    /// A dense tensor beside the call's first input.
    fn empty(&self, shape: &Shape, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
        self.maker()?.empty(whole(&*self.inputs.get_borrowed_item(0)?), shape, dtype)
    }

    /// A tensor of some type that lies as the input with this number, whose view is given; a dense one beside a part of a tensor.
    fn empty_like(&self, input: usize, view: &View<'_>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
        let object = self.inputs.get_borrowed_item(input)?;
        match object.cast_exact::<Part>() {
            Ok(part) => self.maker()?.empty(part.get().whole(self.inputs.py()), &view.shape(), dtype),
            Err(_) => self.maker()?.empty_like(&object, view, dtype),
        }
    }

    /// A result of some type that lies as the input with this number, whose view is given.
    pub fn result_like(&mut self, name: &str, (input, view): (usize, &View<'_>), dtype: DType) -> PyResult<Option<ViewMut<'a>>> {
        self.written(name, |call| call.empty_like(input, view, dtype))
    }

    /// The result of a step, which is always wanted, like its first input.
    pub fn step_result(&mut self, like: (usize, &View<'_>), dtype: DType) -> PyResult<ViewMut<'a>> {
        let view = self.result_like("y", like, dtype)?;
        view.ok_or_else(|| PyTypeError::new_err(format!("{}: `y` is written and must be there", self.op)))
    }

    /// A dense result.
    pub fn result(&mut self, name: &str, dtype: DType, shape: Shape) -> PyResult<Option<ViewMut<'a>>> {
        self.written(name, |call| call.empty(&shape, dtype))
    }

    /// The gradient by the input with the number of this output.
    pub fn gradient(&mut self, argument: &str) -> PyResult<Option<ViewMut<'a>>> {
        let input = self.next_output;
        let wanted = input < self.outputs.len();
        let name = if wanted { &format!("grad of {argument}") } else { argument };
        self.written(name, |call| {
            let object = call.inputs.get_borrowed_item(input)?;
            let parts = match object.cast_exact::<Part>() {
                Ok(part) => Some(part.get().parts),
                Err(_) => torch::parts(&object, name)?,
            };
            let Some(parts) = parts else {
                return Err(PyTypeError::new_err(format!("`{name}` can be made beside a tensor of PyTorch only")));
            };
            // SAFETY: the view is not read: it says how the tensor lies.
            let view = unsafe { parts.view(name) }?;
            call.empty_like(input, &view, parts.dtype)
        })
    }

    /// The next output: a tensor, or True where `make` shall make it. None, False, or the end of the outputs, if it is not wanted.
    fn written(&mut self, name: &str, make: impl FnOnce(&Self) -> PyResult<Bound<'py, PyAny>>) -> PyResult<Option<ViewMut<'a>>> {
        self.next_output += 1;
        if self.next_output > self.outputs.len() {
            return Ok(None);
        }
        let object = self.outputs.get_borrowed_item(self.next_output - 1)?;
        if object.is_none() {
            return Ok(None);
        }
        let tensor = match object.cast::<PyBool>() {
            Ok(wanted) if !wanted.is_true() => return Ok(None),
            Ok(_) => make(self),
            Err(_) => return self.view_mut(&object, name, false).map(Some).map_err(|error| self.named(error)),
        };
        let view = tensor.and_then(|tensor| {
            let view = self.view_mut(&tensor, name, true)?;
            self.keep.made.borrow_mut().push(tensor.unbind());
            Ok(view)
        });
        view.map(Some).map_err(|error| self.named(error))
    }

    /// Anything that is not a tensor, which `expected` describes. A value of another type is an unknown argument: PyTorch's dispatcher converts
    /// some.
    pub fn value<T: for<'x> FromPyObject<'x, 'py, Error = PyErr>>(&mut self, name: &str, expected: &str) -> PyResult<T> {
        let object = self.input()?;
        object.extract().map_err(|error: PyErr| match error.is_instance_of::<PyTypeError>(self.inputs.py()) {
            true => UnknownArgument::new_err(format!("{}: `{name}` must be {expected}, got {object:?}", self.op)),
            // a number that is out of range
            false => PyValueError::new_err(format!("{}: `{name}` must be 0 or more and below 2^64, got {object:?}", self.op)),
        })
    }

    /// Two limits, each of them a number or None.
    pub fn interval(&mut self, name: &str) -> PyResult<(f64, f64)> {
        let (low, high): (Option<f64>, Option<f64>) = (self.value(name, "two numbers")?, self.value(name, "two numbers")?);
        Ok((low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY)))
    }

    /// The number of a word of a list. None stands for no word where there may be none.
    pub fn word(&mut self, name: &str, words: &[&str], optional: bool) -> PyResult<Option<usize>> {
        let object = self.input()?;
        if optional && object.is_none() {
            return Ok(None);
        }
        let word = object.extract::<&str>();
        let number = word.as_ref().ok().and_then(|word| words.iter().position(|known| known == word));
        number.map(Some).ok_or_else(|| {
            let none = optional.then_some("None".to_string());
            let expected: Vec<_> = none.into_iter().chain(words.iter().map(|word| format!("'{word}'"))).collect();
            let (last, others) = expected.split_last().expect("a list of words");
            let expected = format!("{} or {last}", others.join(", "));
            let words = format!("{}: `{name}` must be {expected}, got {object:?}", self.op);
            if word.is_ok() { PyValueError::new_err(words) } else { PyTypeError::new_err(words) }
        })
    }

    /// Saved states that are read: the part that the call uses of a buffer of theirs.
    pub fn saved(&mut self, needed: impl Fn() -> usize) -> PyResult<Option<View<'a>>> {
        let Some(buffer) = self.option("checkpoints")? else { return Ok(None) };
        let used = used(buffer.shape(), needed())?;
        Ok(Some(buffer.slice(0, used)))
    }

    /// Saved states that are written, as [`Arguments::saved`]. Where they are made here, there is room for so many numbers of a type. What the
    /// pass leaves of a buffer on the host is zero: lanes, unless all are filled, and what is behind the last state.
    pub fn saved_output(
        &mut self,
        dtype: DType,
        capacity: impl FnOnce() -> Option<usize>,
        needed: impl Fn() -> usize,
        filled: bool,
    ) -> PyResult<Option<ViewMut<'a>>> {
        let make = |call: &Self| {
            let shape = Shape::new(&[capacity().unwrap_or_else(&needed)]).map_err(|error| to_python(error.into()))?;
            call.empty(&shape, dtype)
        };
        let Some(mut buffer) = self.written("checkpoints", make)? else { return Ok(None) };
        let (used, room) = (used(buffer.shape(), needed())?, buffer.shape()[0]);
        if self.place.stream().is_none() {
            clear(buffer.reborrow().slice(0, if filled { used.end..room } else { 0..room }));
        }
        Ok(Some(buffer.slice(0, used)))
    }

    /// Scratch memory on a CUDA device, of as many `f32` as the operation wants there, from the caller's allocator or PyTorch's.
    pub fn scratch(&self, wanted: impl FnOnce() -> statescan::Result<usize>) -> PyResult<Option<ViewMut<'a>>> {
        if self.place.stream().is_none() {
            return Ok(None);
        }
        match wanted().map_err(to_python)? {
            0 => Ok(None),
            len => {
                let memory = match self.place.allocator() {
                    Some(allocate) => allocate.call1((whole(&*self.inputs.get_borrowed_item(0)?), len))?,
                    None => self.empty(&Shape::new(&[len]).map_err(|error| to_python(error.into()))?, DType::F32)?,
                };
                let view = self.view_mut(&memory, "workspace", true).map_err(|error| self.named(error))?;
                self.keep.scratch.borrow_mut().push(memory.unbind());
                Ok(Some(view))
            }
        }
    }

    /// Runs the operation: without the interpreter, unless it is over before another thread could have made use of it. Gives back the
    /// results that were made here.
    pub fn run(&self, work: impl FnOnce(&Exec) -> statescan::Result<()> + Send) -> PyResult<Made<'py>> {
        let exec = self.exec;
        let done = match self.place.stream() {
            None if self.largest < TINY => work(exec),
            _ => self.inputs.py().detach(|| work(exec)),
        };
        done.map_err(to_python)?;
        PyTuple::new(self.inputs.py(), self.keep.made.take())
    }
}

/// The tensor that an input is, or that it is a part of.
fn whole<'a, 'py>(object: &'a Bound<'py, PyAny>) -> &'a Bound<'py, PyAny> {
    object.cast_exact::<Part>().map_or(object, |part| part.get().whole(object.py()))
}

/// Writes zeros into memory of the host: whoever compares the results of two calls looks at what nothing is saved in, too.
fn clear(rest: ViewMut<'_>) {
    let view = rest.as_view();
    if view.strides()[..] == [1] {
        // SAFETY: the view is the only one of this memory, which has so many elements, one behind the other, and all types have a zero of
        // zero bytes.
        unsafe { std::ptr::write_bytes(view.as_ptr().cast_mut(), 0, view.len() * view.dtype().size()) };
    }
}

/// The part of a buffer for saved states that a call uses: Python allocates what the longest division into sequences needs.
fn used(buffer: Shape, needed: usize) -> PyResult<Range<usize>> {
    match buffer[..] {
        [available] if needed <= available => Ok(0..needed),
        _ => Err(PyValueError::new_err(format!("saved states need {needed} elements, got a buffer of shape {buffer}"))),
    }
}
