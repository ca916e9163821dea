//! Parts of PyTorch's tensors as operations take and write them. A view of PyTorch's takes two to five microseconds, and a function of several
//! operations needs twenty of them.

use crate::tensor::Parts;
use crate::torch;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use statescan::tensor::MAX_RANK;

/// A tensor (batch, seqlen, channels), some of whose channels are taken.
#[pyclass(frozen, module = "statescan._native")]
pub struct Rows {
    tensor: Py<PyAny>,
    parts: Parts,
}

/// Some channels of a tensor, in the place of a tensor among the inputs and outputs of a pass.
#[pyclass(frozen, module = "statescan._native")]
pub struct Part {
    tensor: Py<PyAny>,
    pub parts: Parts,
}

impl Part {
    /// The tensor whose part it is.
    pub fn whole<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.tensor.bind(py)
    }
}

#[pymethods]
impl Rows {
    /// An argument of a call with its name.
    #[new]
    fn new(tensor: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let rows = Self::of(tensor, name, None)?;
        torch::check_eager(tensor, &rows.parts, name)?;
        Ok(rows)
    }

    /// A tensor that was made for a call, or a matrix (batch * seqlen, channels) of so many steps.
    #[staticmethod]
    fn made(tensor: &Bound<'_, PyAny>, steps: (usize, usize)) -> PyResult<Self> {
        Self::of(tensor, "rows", Some(steps))
    }

    /// (dim, width) of a convolution's weight, which may be that of a module, (dim, 1, width).
    #[staticmethod]
    fn filters(weight: &Bound<'_, PyAny>, name: &str) -> PyResult<Part> {
        let Some(mut parts) = torch::parts(weight, name)? else {
            return Err(PyTypeError::new_err(format!("`{name}` must be a tensor of PyTorch")));
        };
        torch::check_eager(weight, &parts, name)?;
        if parts.rank == 3 && parts.shape[1] == 1 {
            (parts.shape[1], parts.strides[1]) = (parts.shape[2], parts.strides[2]);
            parts.rank = 2;
        }
        Ok(Part { tensor: weight.clone().unbind(), parts })
    }

    /// The tensor.
    #[getter]
    fn tensor(&self, py: Python<'_>) -> Py<PyAny> {
        self.tensor.clone_ref(py)
    }

    #[getter]
    fn batch(&self) -> usize {
        self.parts.shape[0]
    }

    #[getter]
    fn seqlen(&self) -> usize {
        self.parts.shape[1]
    }

    /// (batch, seqlen, count) of the channels from `first` on.
    fn rows(&self, py: Python<'_>, first: usize, count: usize) -> PyResult<Part> {
        let [row, step, (_, channel)] = self.axes();
        self.part(py, (first, count), [row, step, (count, channel)])
    }

    /// (batch, count, seqlen).
    fn timed(&self, py: Python<'_>, first: usize, count: usize) -> PyResult<Part> {
        let [row, step, (_, channel)] = self.axes();
        self.part(py, (first, count), [row, (count, channel), step])
    }

    /// (batch, seqlen, groups, width), of so many neighbouring groups of channels.
    fn groups(&self, py: Python<'_>, first: usize, groups: usize, width: usize) -> PyResult<Part> {
        let [row, step, (_, channel)] = self.axes();
        let group = (groups, channel * width as isize);
        self.part(py, (first, groups.saturating_mul(width)), [row, step, group, (width, channel)])
    }
}

impl Rows {
    fn of(tensor: &Bound<'_, PyAny>, name: &str, steps: Option<(usize, usize)>) -> PyResult<Self> {
        let Some(mut parts) = torch::parts(tensor, name)? else {
            return Err(PyTypeError::new_err(format!("`{name}` must be a tensor of PyTorch")));
        };
        if let Some((batch, seqlen)) = steps
            && parts.rank == 2
            && batch.checked_mul(seqlen) == Some(parts.shape[0])
        {
            let ([_, channels, ..], [step, channel, ..]) = (parts.shape, parts.strides);
            parts.shape[..3].copy_from_slice(&[batch, seqlen, channels]);
            parts.strides[..3].copy_from_slice(&[step * seqlen as isize, step, channel]);
            parts.rank = 3;
        }
        if parts.rank != 3 {
            let got = &parts.shape[..parts.rank];
            return Err(PyValueError::new_err(format!("`{name}` must have shape (batch, seqlen, channels), got {got:?}")));
        }
        Ok(Rows { tensor: tensor.clone().unbind(), parts })
    }

    /// Sizes and strides of the rows of a batch, of its steps and of channels.
    fn axes(&self) -> [(usize, isize); 3] {
        std::array::from_fn(|axis| (self.parts.shape[axis], self.parts.strides[axis]))
    }

    /// The part of so many channels with these sizes and strides.
    fn part<const N: usize>(&self, py: Python<'_>, (first, count): (usize, usize), axes: [(usize, isize); N]) -> PyResult<Part> {
        let [.., (channels, channel)] = self.axes();
        if first.checked_add(count).is_none_or(|end| end > channels) {
            let words = format!("a tensor of {channels} channels has no {count} from {first} on");
            return Err(PyValueError::new_err(words));
        }
        let (mut shape, mut strides) = ([0; MAX_RANK], [0; MAX_RANK]);
        for (axis, (size, stride)) in axes.into_iter().enumerate() {
            (shape[axis], strides[axis]) = (size, stride);
        }
        // inside the tensor, or behind one without elements, which nobody reads
        let offset = first as isize * channel * self.parts.dtype.size() as isize;
        let address = self.parts.address.wrapping_add_signed(offset);
        Ok(Part { tensor: self.tensor.clone_ref(py), parts: Parts { address, rank: N, shape, strides, ..self.parts } })
    }
}
