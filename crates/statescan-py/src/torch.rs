//! PyTorch's tensors. No library of PyTorch is linked, so one wheel serves all its versions: those that offer DLPack's exchange of
//! descriptions (a tenth of a microsecond for a tensor) are asked that way, older ones for the tensor's attributes (one microsecond).

use crate::dlpack::{self, Lend, lender};
use crate::error::UnknownArgument;
use crate::tensor::{DTYPES, Parts, too_many_axes, unknown_dtype};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyFloat, PyInt, PyString, PyTuple, PyType};
use pyo3::{ffi, intern};
use statescan::tensor::{MAX_RANK, Shape};
use statescan::{DType, Device, View};
use std::mem::MaybeUninit;

/// The objects of the module `torch` that are needed, looked up once.
struct Torch {
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    get_device: Py<PyAny>,
    is_neg: Py<PyAny>,
    is_conj: Py<PyAny>,
    empty_like: Py<PyAny>,
    empty: Empty,
    lend: Option<Lend>,
    dtypes: Vec<(Py<PyAny>, DType)>,
}

/// The functions by which the compiler's own code allocates: past the dispatcher, in half of the time.
#[derive(Default)]
struct Empty {
    on_cpu: Option<Py<PyAny>>,
    /// On the CUDA device that is the current one, and which that is.
    on_cuda: Option<(Py<PyAny>, Py<PyAny>)>,
}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

/// The module, if somebody else has imported it.
fn torch<'py>(py: Python<'py>) -> PyResult<Option<&'py Torch>> {
    if let Some(torch) = TORCH.get(py) {
        return Ok(Some(torch));
    }
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
    match modules.call_method1(intern!(py, "get"), (intern!(py, "torch"),))? {
        module if module.is_none() || !module.hasattr(intern!(py, "Tensor"))? => Ok(None),
        module => TORCH.get_or_try_init(py, || load(&module)).map(Some),
    }
}

fn load(module: &Bound<'_, PyAny>) -> PyResult<Torch> {
    let dtypes = DTYPES.into_iter().map(|(name, dtype)| Ok((module.getattr(name)?.unbind(), dtype))).collect::<PyResult<_>>()?;
    let tensor = module.getattr("Tensor")?.cast_into::<PyType>()?;
    Ok(Torch {
        lend: lender(&tensor),
        parameter: module.getattr("nn")?.getattr("Parameter")?.cast_into::<PyType>()?.unbind(),
        get_device: tensor.getattr("get_device")?.unbind(),
        is_neg: tensor.getattr("is_neg")?.unbind(),
        is_conj: tensor.getattr("is_conj")?.unbind(),
        empty_like: module.getattr("empty_like")?.unbind(),
        empty: module.getattr("_C").map(|internals| Empty::of(&internals)).unwrap_or_default(),
        tensor: tensor.unbind(),
        dtypes,
    })
}

impl Empty {
    fn of(internals: &Bound<'_, PyAny>) -> Empty {
        let maker =
            |name: &str| internals.getattr("_dynamo").and_then(|m| m.getattr("guards")).and_then(|m| m.getattr(name)).ok();
        let current = internals.getattr("_cuda_getDevice").ok();
        Empty {
            on_cpu: maker("_empty_strided_cpu").map(Bound::unbind),
            on_cuda: maker("_empty_strided_cuda").zip(current).map(|(make, current)| (make.unbind(), current.unbind())),
        }
    }

    /// Returns the function that allocates on a device, if there is one.
    fn on(&self, py: Python<'_>, device: Device) -> PyResult<Option<&Py<PyAny>>> {
        match (device, &self.on_cuda) {
            (Device::Cpu, _) => Ok(self.on_cpu.as_ref()),
            (Device::Cuda(ordinal), Some((make, current))) => {
                let current: usize = current.bind(py).call0()?.extract()?;
                Ok((current == ordinal).then_some(make))
            }
            _ => Ok(None),
        }
    }
}

impl Torch {
    fn dtype<'py>(&self, py: Python<'py>, dtype: DType) -> &Bound<'py, PyAny> {
        let (python, _) = self.dtypes.iter().find(|(_, known)| *known == dtype).expect("every type is in the table");
        python.bind(py)
    }
}

/// Makes the results of a call: tensors of arbitrary contents.
pub struct Maker<'py> {
    torch: &'py Torch,
    /// The function that allocates on the device of the call, if there is one.
    quick: Option<&'py Py<PyAny>>,
}

impl<'py> Maker<'py> {
    pub fn new(py: Python<'py>, device: Device) -> PyResult<Self> {
        let missing = || PyTypeError::new_err("results can be made beside a tensor of PyTorch only");
        let torch = torch(py)?.ok_or_else(missing)?;
        Ok(Maker { torch, quick: torch.empty.on(py, device)? })
    }

    /// A dense tensor on the device of another one, which is that of the call.
    pub fn empty(&self, beside: &Bound<'py, PyAny>, shape: &Shape, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
        let py = beside.py();
        let (sizes, dtype) = (PyTuple::new(py, &shape[..])?, self.torch.dtype(py, dtype));
        match self.quick {
            Some(make) => make.bind(py).call1((sizes, PyTuple::new(py, &shape.row_major()[..])?, dtype)),
            None => beside.call_method(intern!(py, "new_empty"), (sizes,), Some(&[("dtype", dtype)].into_py_dict(py)?)),
        }
    }

    /// Makes a tensor with the shape of the other one, whose view is given, and with its strides or the nearest that are dense.
    pub fn empty_like(&self, tensor: &Bound<'py, PyAny>, view: &View<'_>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
        let py = tensor.py();
        if view.strides() == view.shape().row_major() {
            return self.empty(tensor, &view.shape(), dtype);
        }
        let options = [("dtype", self.torch.dtype(py, dtype))].into_py_dict(py)?;
        self.torch.empty_like.bind(py).call((tensor,), Some(&options))
    }
}

/// Refuses a tensor whose memory has other numbers than the tensor: those that are conjugated or negated when somebody looks.
pub fn check_eager(object: &Bound<'_, PyAny>, parts: &Parts, argument: &str) -> PyResult<()> {
    let Some(torch) = torch(object.py())? else { return Ok(()) };
    let lazily =
        |what: &str, cure: &str| Err(UnknownArgument::new_err(format!("`{argument}` is {what} lazily; call {cure}() first")));
    if parts.dtype.is_complex() && holds(&torch.is_conj, object)? {
        return lazily("conjugated", "resolve_conj");
    }
    if holds(&torch.is_neg, object)? { lazily("negated", "resolve_neg") } else { Ok(()) }
}

/// The parts of a tensor, or nothing if it is none of PyTorch's.
#[inline(always)]
pub fn parts(object: &Bound<'_, PyAny>, argument: &str) -> PyResult<Option<Parts>> {
    let py = object.py();
    let Some(torch) = torch(py)? else { return Ok(None) };
    if !is_a(object, &torch.tensor) {
        return Ok(None);
    }
    let parts = match torch.lend {
        Some(lend) => lent(object, argument, lend)?,
        None => attributes(torch, object, argument)?,
    };
    if parts.address == 0 && !parts.shape[..parts.rank].contains(&0) {
        return Err(UnknownArgument::new_err(format!("`{argument}` has elements and no memory")));
    }
    Ok(Some(parts))
}

/// The error for a tensor that PyTorch cannot describe as memory and strides.
fn unreadable(argument: &str, error: &Bound<'_, PyAny>) -> PyErr {
    UnknownArgument::new_err(format!("`{argument}` cannot be read: {error}"))
}

/// Whether an object is of a type or of a subclass; no code of Python's is asked, as `isinstance` would.
fn is_a(object: &Bound<'_, PyAny>, kind: &Py<PyType>) -> bool {
    // SAFETY: an object and a type.
    unsafe { ffi::PyObject_TypeCheck(object.as_ptr(), kind.as_ptr().cast()) != 0 }
}

/// Returns the result of a function without arguments. This way of calling one makes no tuple.
pub fn call0<'py>(function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: an object and the null that ends the list; the answer is a new reference or null.
    unsafe {
        let answer = ffi::PyObject_CallFunctionObjArgs(function.as_ptr(), std::ptr::null_mut::<ffi::PyObject>());
        Bound::from_owned_ptr_or_err(function.py(), answer)
    }
}

/// Returns the result of a method without arguments for an object.
fn call_method0<'py>(method: &Py<PyAny>, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: as in `call0`.
    unsafe {
        let answer = ffi::PyObject_CallFunctionObjArgs(method.as_ptr(), object.as_ptr(), std::ptr::null_mut::<ffi::PyObject>());
        Bound::from_owned_ptr_or_err(object.py(), answer)
    }
}

/// Whether a method without arguments says yes of an object.
fn holds(method: &Py<PyAny>, object: &Bound<'_, PyAny>) -> PyResult<bool> {
    call_method0(method, object)?.is_truthy()
}

/// The number of the device of a call's first tensor, -1 for the CPU, if that is one of PyTorch's and what the call takes is plain: tensors,
/// parameters and values, nothing of a class that sees calls itself, as subclasses of tensors do, and nothing of another library.
pub fn plain_device(first: &Bound<'_, PyAny>, tuples: [&Bound<'_, PyTuple>; 2]) -> PyResult<Option<i32>> {
    let Some(torch) = torch(first.py())? else { return Ok(None) };
    let tensors = [torch.tensor.as_ptr(), torch.parameter.as_ptr()];
    let is_tensor = |argument: &Bound<'_, PyAny>| tensors.contains(&argument.get_type_ptr().cast());
    let is_plain = |argument: &Bound<'_, PyAny>| {
        is_tensor(argument)
            || argument.is_none()
            || argument.is_instance_of::<PyInt>()
            || argument.is_instance_of::<PyFloat>()
            || argument.is_instance_of::<PyString>()
    };
    if is_tensor(first) && tuples.iter().all(|tuple| tuple.iter_borrowed().all(|argument| is_plain(&argument))) {
        return call_method0(&torch.get_device, first)?.extract().map(Some);
    }
    Ok(None)
}

/// The parts as PyTorch describes them.
#[inline(always)]
fn lent(object: &Bound<'_, PyAny>, argument: &str, lend: Lend) -> PyResult<Parts> {
    let mut tensor = MaybeUninit::<dlpack::Tensor>::uninit();
    // SAFETY: a tensor of PyTorch's, and room for a description, which is filled in where the answer is 0.
    let tensor = unsafe {
        match lend(object.as_ptr().cast(), tensor.as_mut_ptr()) {
            0 => tensor.assume_init(),
            _ => return Err(unreadable(argument, PyErr::fetch(object.py()).value(object.py()))),
        }
    };
    if tensor.device().is_none() {
        return Err(unknown_device(object, argument));
    }
    // SAFETY: PyTorch has filled the description in, shape and strides with it.
    unsafe { tensor.parts(argument) }
}

/// The error for a tensor on a device that has no kernels.
fn unknown_device(object: &Bound<'_, PyAny>, argument: &str) -> PyErr {
    match object.getattr(intern!(object.py(), "device")) {
        Ok(got) => UnknownArgument::new_err(format!("`{argument}` must be on a CPU or CUDA device, got one on {got}")),
        Err(error) => error,
    }
}

/// The parts by the tensor's attributes.
fn attributes(torch: &Torch, object: &Bound<'_, PyAny>, argument: &str) -> PyResult<Parts> {
    let py = object.py();
    let dtype = object.getattr(intern!(py, "dtype"))?;
    let known = torch.dtypes.iter().find(|(python, _)| python.is(&dtype));
    let Some(&(_, dtype)) = known else { return Err(unknown_dtype(argument, dtype)) };
    let device = if object.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
        Device::Cpu
    } else if object.getattr(intern!(py, "is_cuda"))?.is_truthy()? {
        Device::Cuda(object.call_method0(intern!(py, "get_device"))?.extract()?)
    } else {
        return Err(unknown_device(object, argument));
    };
    let unreadable = |error: PyErr| unreadable(argument, error.value(py));
    let (mut shape, mut strides) = ([0; MAX_RANK], [0; MAX_RANK]);
    let rank = read(&object.getattr(intern!(py, "shape")).map_err(unreadable)?, &mut shape, argument)?;
    read(&object.call_method0(intern!(py, "stride")).map_err(unreadable)?, &mut strides, argument)?;
    let address = object.call_method0(intern!(py, "data_ptr")).map_err(unreadable)?.extract()?;
    Ok(Parts { address, dtype, device, rank, shape: shape.map(isize::unsigned_abs), strides })
}

/// Reads a tuple of integers and gives its length.
fn read(tuple: &Bound<'_, PyAny>, into: &mut [isize; MAX_RANK], argument: &str) -> PyResult<usize> {
    let tuple = tuple.cast::<PyTuple>()?;
    if tuple.len() > MAX_RANK {
        return Err(too_many_axes(argument, tuple.len()));
    }
    for (axis, item) in tuple.iter_borrowed().enumerate() {
        // SAFETY: a borrowed object of this tuple; -1 may be an error, which is asked for.
        into[axis] = unsafe { ffi::PyLong_AsSsize_t(item.as_ptr()) };
        if into[axis] == -1 && PyErr::occurred(tuple.py()) {
            return Err(PyErr::fetch(tuple.py()));
        }
    }
    Ok(tuple.len())
}
