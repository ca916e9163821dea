//! The operations that a layer leaves to PyTorch: products, which heed every setting of PyTorch's that way, and a few operations
//! on small tensors.

use crate::rows::parts_of;
use crate::torch::Maker;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyDict, PyTuple};
use pyo3::{intern, types::PyString};
use statescan::tensor::{MAX_RANK, Shape};
use statescan::{DType, Device};

pub type Object<'py> = Bound<'py, PyAny>;

/// Functions of PyTorch's, looked up once.
struct Functions {
    module: Py<PyAny>,
    linear: Py<PyAny>,
    mm: Py<PyAny>,
    silu: Py<PyAny>,
    /// The function by which the compiler's own code makes views: past the dispatcher, in a quarter of the time.
    reinterpret: Option<Py<PyAny>>,
}

static FUNCTIONS: PyOnceLock<Functions> = PyOnceLock::new();

fn load(py: Python<'_>) -> PyResult<Functions> {
    let module = py.import("torch")?;
    let internals = module.getattr("_C")?;
    let guards = internals.getattr("_dynamo").and_then(|found| found.getattr("guards"));
    Ok(Functions {
        linear: internals.getattr("_nn")?.getattr("linear")?.unbind(),
        silu: internals.getattr("_nn")?.getattr("silu")?.unbind(),
        mm: module.getattr("mm")?.unbind(),
        reinterpret: guards.and_then(|found| found.getattr("_reinterpret_tensor")).ok().map(Bound::unbind),
        module: module.into_any().unbind(),
    })
}

/// PyTorch, for the tensors of a layer.
pub struct PyTorch<'py> {
    py: Python<'py>,
    functions: &'py Functions,
    maker: Maker<'py>,
    /// The tensor beside which others are made, and their type.
    beside: Object<'py>,
    dtype: DType,
}

impl<'py> PyTorch<'py> {
    pub fn new(beside: &Object<'py>, dtype: DType, device: Device) -> PyResult<Self> {
        let py = beside.py();
        let (functions, maker) = (FUNCTIONS.get_or_try_init(py, || load(py))?, Maker::new(py, device)?);
        Ok(PyTorch { py, functions, maker, beside: beside.clone(), dtype })
    }

    /// A dense tensor of arbitrary contents.
    pub fn room(&self, sizes: &[usize]) -> PyResult<Object<'py>> {
        let shape = Shape::new(sizes).map_err(|error| crate::error::to_python(error.into()))?;
        self.maker.empty(&self.beside, &shape, self.dtype)
    }

    /// A tensor of arbitrary contents that lies as another one, or nearly so.
    pub fn room_like(&self, tensor: &Object<'py>) -> PyResult<Object<'py>> {
        let parts = parts_of(tensor, "tensor")?;
        // SAFETY: the view is not read: it says how the tensor lies.
        let view = unsafe { parts.view("tensor") }?;
        self.maker.empty_like(tensor, &view, parts.dtype)
    }

    /// A view of a tensor from an element of it on, which is nobody's but the caller's.
    pub fn view(&self, tensor: &Object<'py>, axes: &[(usize, isize)], offset: isize) -> PyResult<Object<'py>> {
        let sizes = PyTuple::new(self.py, axes.iter().map(|axis| axis.0))?;
        let strides = PyTuple::new(self.py, axes.iter().map(|axis| axis.1))?;
        if let Some(reinterpret) = &self.functions.reinterpret {
            return reinterpret.bind(self.py).call1((tensor, sizes, strides, offset));
        }
        let start: isize = tensor.call_method0(intern!(self.py, "storage_offset"))?.extract()?;
        tensor.call_method1(intern!(self.py, "as_strided"), (sizes, strides, start + offset))
    }

    /// Some channels of a tensor (.., channels).
    pub fn columns(&self, tensor: &Object<'py>, first: usize, count: usize) -> PyResult<Object<'py>> {
        let parts = parts_of(tensor, "tensor")?;
        let (last, mut axes) = (parts.rank - 1, [(0, 0); MAX_RANK]);
        for axis in 0..last {
            axes[axis] = (parts.shape[axis], parts.strides[axis]);
        }
        axes[last] = (count, parts.strides[last]);
        self.view(tensor, &axes[..parts.rank], first as isize * parts.strides[last])
    }

    /// (batch * seqlen, channels) of (batch, seqlen, channels).
    pub fn matrix(&self, tensor: &Object<'py>) -> PyResult<Object<'py>> {
        let parts = parts_of(tensor, "tensor")?;
        let ([batch, seqlen, channels, ..], [row, step, channel, ..]) = (parts.shape, parts.strides);
        if parts.rank == 2 {
            return Ok(tensor.clone());
        }
        let step = if seqlen == 1 { row } else { step };
        if batch * seqlen * channels == 0 || (batch > 1 && row != seqlen as isize * step) {
            return tensor.call_method1(intern!(self.py, "reshape"), (-1, channels));
        }
        self.view(tensor, &[(batch * seqlen, step), (channels, channel)], 0)
    }

    /// The transpose of a matrix.
    pub fn transposed(&self, matrix: &Object<'py>) -> PyResult<Object<'py>> {
        let parts = parts_of(matrix, "matrix")?;
        let axis = |axis: usize| (parts.shape[axis], parts.strides[axis]);
        self.view(matrix, &[axis(1), axis(0)], 0)
    }

    /// `rows weight^T + bias`; without a weight the rows. `bias` may be None.
    pub fn linear(&self, rows: &Object<'py>, weight: &Object<'py>, bias: &Object<'py>) -> PyResult<Object<'py>> {
        if weight.is_none() {
            return Ok(rows.clone());
        }
        self.functions.linear.bind(self.py).call1((rows, weight, bias))
    }

    /// The product of two matrices.
    pub fn product(&self, a: &Object<'py>, b: &Object<'py>) -> PyResult<Object<'py>> {
        self.functions.mm.bind(self.py).call1((a, b))
    }

    /// Computes the product into a matrix.
    pub fn product_to(&self, a: &Object<'py>, b: &Object<'py>, to: &Object<'py>) -> PyResult<()> {
        self.functions.mm.bind(self.py).call((a, b), Some(&self.into(to)?)).map(drop)
    }

    fn into(&self, to: &Object<'py>) -> PyResult<Bound<'py, PyDict>> {
        [(intern!(self.py, "out"), to)].into_py_dict(self.py)
    }

    pub fn silu(&self, tensor: &Object<'py>) -> PyResult<Object<'py>> {
        self.functions.silu.bind(self.py).call1((tensor,))
    }

    /// The gradient by what a `silu` was taken of.
    pub fn silu_back(&self, by_silu: &Object<'py>, of: &Object<'py>) -> PyResult<Object<'py>> {
        let operations = self.functions.module.bind(self.py).getattr("ops")?.getattr("aten")?;
        operations.call_method1("silu_backward", (by_silu, of))
    }

    /// The product of two tensors by elements, to a third one.
    pub fn multiply_to(&self, a: &Object<'py>, b: &Object<'py>, to: &Object<'py>) -> PyResult<()> {
        self.call("mul", (a, b), Some(&self.into(to)?)).map(drop)
    }

    /// A function of the module `torch`.
    pub fn call(
        &self,
        name: &str,
        arguments: impl pyo3::call::PyCallArgs<'py>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Object<'py>> {
        self.functions.module.bind(self.py).getattr(PyString::new(self.py, name))?.call(arguments, options)
    }

    /// Copies a tensor into another one.
    pub fn copy(&self, to: &Object<'py>, from: &Object<'py>) -> PyResult<()> {
        to.call_method1(intern!(self.py, "copy_"), (from,)).map(drop)
    }

    /// A tensor of the type of another one.
    pub fn typed_as(&self, tensor: &Object<'py>, like: &Object<'py>) -> PyResult<Object<'py>> {
        tensor.call_method1(intern!(self.py, "to"), (like.getattr(intern!(self.py, "dtype"))?,))
    }
}
