//! PyTorch's tensors. No library of PyTorch is linked, so one wheel serves all its versions: those that offer DLPack's exchange of
//! descriptions (a tenth of a microsecond for a tensor) are asked that way, older ones for the tensor's attributes (one microsecond).

use crate::dlpack::{self, Lend, lender};
use crate::tensor::{Parts, too_many_axes, unknown_dtype};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyFloat, PyInt, PyString, PyTuple, PyType};
use pyo3::{ffi, intern};
use statescan::tensor::MAX_RANK;
use statescan::{DType, Device};
use std::mem::MaybeUninit;

/// What is needed of the module `torch`, looked up once.
struct Torch {
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    is_neg: Py<PyAny>,
    is_conj: Py<PyAny>,
    lend: Option<Lend>,
    dtypes: Vec<(Py<PyAny>, DType)>,
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
    let dtypes = [
        ("float32", DType::F32),
        ("float64", DType::F64),
        ("bfloat16", DType::BF16),
        ("float16", DType::F16),
        ("complex64", DType::Complex64),
        ("complex128", DType::Complex128),
        ("int32", DType::I32),
        ("int64", DType::I64),
    ];
    let dtypes = dtypes.into_iter().map(|(name, dtype)| Ok((module.getattr(name)?.unbind(), dtype))).collect::<PyResult<_>>()?;
    let tensor = module.getattr("Tensor")?.cast_into::<PyType>()?;
    Ok(Torch {
        lend: lender(&tensor),
        parameter: module.getattr("nn")?.getattr("Parameter")?.cast_into::<PyType>()?.unbind(),
        is_neg: tensor.getattr("is_neg")?.unbind(),
        is_conj: tensor.getattr("is_conj")?.unbind(),
        tensor: tensor.unbind(),
        dtypes,
    })
}

/// Refuses a tensor whose memory has other numbers than the tensor: those that are conjugated or negated when somebody looks.
pub fn check_eager(object: &Bound<'_, PyAny>, parts: &Parts, argument: &str) -> PyResult<()> {
    let Some(torch) = torch(object.py())? else { return Ok(()) };
    let lazily =
        |what: &str, cure: &str| Err(PyValueError::new_err(format!("`{argument}` is {what} lazily; call {cure}() first")));
    if parts.dtype.is_complex() && holds(&torch.is_conj, object)? {
        return lazily("conjugated", "resolve_conj");
    }
    if holds(&torch.is_neg, object)? { lazily("negated", "resolve_neg") } else { Ok(()) }
}

/// The parts of a tensor, or nothing if it is none of PyTorch's.
pub fn parts(object: &Bound<'_, PyAny>, argument: &str) -> PyResult<Option<Parts>> {
    let py = object.py();
    let Some(torch) = torch(py)? else { return Ok(None) };
    if !is_a(object, &torch.tensor) {
        return Ok(None);
    }
    match torch.lend {
        Some(lend) => lent(object, argument, lend),
        None => attributes(torch, object, argument),
    }
    .map(Some)
}

/// Whether an object is of a type or of a subclass; no code of Python's is asked, as `isinstance` would.
fn is_a(object: &Bound<'_, PyAny>, kind: &Py<PyType>) -> bool {
    // SAFETY: an object and a type.
    unsafe { ffi::PyObject_TypeCheck(object.as_ptr(), kind.as_ptr().cast()) != 0 }
}

/// What a method without arguments answers. This way of calling one makes no tuple.
fn holds(method: &Py<PyAny>, object: &Bound<'_, PyAny>) -> PyResult<bool> {
    // SAFETY: two objects and the null that ends the list; the answer is a new reference or null.
    unsafe {
        let answer = ffi::PyObject_CallFunctionObjArgs(method.as_ptr(), object.as_ptr(), std::ptr::null_mut::<ffi::PyObject>());
        Bound::from_owned_ptr_or_err(object.py(), answer)?.is_truthy()
    }
}

/// Whether the arguments of a call, the first one and the others, are tensors, parameters and plain values: nothing of a class that sees
/// calls itself, as subclasses of tensors do, and nothing of another library.
#[pyfunction]
pub fn all_plain(first: &Bound<'_, PyAny>, others: &Bound<'_, PyTuple>) -> PyResult<bool> {
    let Some(torch) = torch(first.py())? else { return Ok(false) };
    let tensors = [torch.tensor.as_ptr(), torch.parameter.as_ptr()];
    let is_plain = |argument: &Bound<'_, PyAny>| {
        tensors.contains(&argument.get_type_ptr().cast())
            || argument.is_none()
            || argument.is_instance_of::<PyInt>()
            || argument.is_instance_of::<PyFloat>()
            || argument.is_instance_of::<PyString>()
            || argument.is_instance_of::<PyTuple>()
    };
    Ok(is_plain(first) && others.iter_borrowed().all(|argument| is_plain(&argument)))
}

/// The parts as PyTorch describes them.
fn lent(object: &Bound<'_, PyAny>, argument: &str, lend: Lend) -> PyResult<Parts> {
    let mut tensor = MaybeUninit::<dlpack::Tensor>::uninit();
    // SAFETY: a tensor of PyTorch's, and room for a description, which is filled in where the answer is 0.
    unsafe {
        match lend(object.as_ptr().cast(), tensor.as_mut_ptr()) {
            0 => tensor.assume_init().parts(argument),
            _ => Err(PyErr::fetch(object.py())),
        }
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
        let got = object.getattr(intern!(py, "device"))?;
        return Err(PyValueError::new_err(format!("`{argument}` must be on a CPU or CUDA device, got one on {got}")));
    };
    let (mut shape, mut strides) = ([0; MAX_RANK], [0; MAX_RANK]);
    let rank = read(&object.getattr(intern!(py, "shape"))?, &mut shape, argument)?;
    read(&object.call_method0(intern!(py, "stride"))?, &mut strides, argument)?;
    let address = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
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
