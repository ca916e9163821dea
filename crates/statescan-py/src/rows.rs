//! Parts of PyTorch's tensors as operations take and write them. A view of PyTorch's takes two to five microseconds, and a layer needs thirty of
//! them.

use crate::tensor::Parts;
use crate::torch;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use statescan::tensor::MAX_RANK;

/// A tensor (batch, seqlen, channels), some of whose channels are taken.
pub struct Rows<'py> {
    pub tensor: Bound<'py, PyAny>,
    pub parts: Parts,
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

    /// (dim, width) of a convolution's weight, which may be that of a module, (dim, 1, width).
    pub fn filters<'py>(weight: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let mut parts = parts_of(weight, name)?;
        torch::check_eager(weight, &parts, name)?;
        if parts.rank == 3 && parts.shape[1] == 1 {
            (parts.shape[1], parts.strides[1]) = (parts.shape[2], parts.strides[2]);
            parts.rank = 2;
        }
        let part = Part { tensor: weight.clone().unbind(), parts };
        Ok(Bound::new(weight.py(), part)?.into_any())
    }
}

/// The parts of what has to be a tensor of PyTorch's.
pub fn parts_of(tensor: &Bound<'_, PyAny>, name: &str) -> PyResult<Parts> {
    torch::parts(tensor, name)?.ok_or_else(|| PyTypeError::new_err(format!("`{name}` must be a tensor of PyTorch")))
}

impl<'py> Rows<'py> {
    /// An argument of a call with its name.
    pub fn new(tensor: Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        let parts = parts_of(&tensor, name)?;
        if parts.rank != 3 {
            let got = &parts.shape[..parts.rank];
            return Err(PyValueError::new_err(format!("`{name}` must have shape (batch, seqlen, channels), got {got:?}")));
        }
        torch::check_eager(&tensor, &parts, name)?;
        Ok(Rows { tensor, parts })
    }

    /// A tensor that was made for a call, or a matrix (batch * seqlen, channels) of so many steps.
    pub fn made(tensor: &Bound<'py, PyAny>, (batch, seqlen): (usize, usize)) -> PyResult<Self> {
        let mut parts = parts_of(tensor, "rows")?;
        if parts.rank == 2 {
            let ([_, channels, ..], [step, channel, ..]) = (parts.shape, parts.strides);
            parts.shape[..3].copy_from_slice(&[batch, seqlen, channels]);
            parts.strides[..3].copy_from_slice(&[step * seqlen as isize, step, channel]);
            parts.rank = 3;
        }
        Ok(Rows { tensor: tensor.clone(), parts })
    }

    /// (batch, seqlen, count) of the channels from `first` on.
    pub fn rows(&self, first: usize, count: usize) -> PyResult<Bound<'py, PyAny>> {
        let [row, step, (_, channel)] = self.axes();
        self.part((first, count), [row, step, (count, channel)])
    }

    /// (batch, count, seqlen).
    pub fn timed(&self, first: usize, count: usize) -> PyResult<Bound<'py, PyAny>> {
        let [row, step, (_, channel)] = self.axes();
        self.part((first, count), [row, (count, channel), step])
    }

    /// (batch, seqlen, groups, width), of so many neighbouring groups of channels.
    pub fn groups(&self, first: usize, groups: usize, width: usize) -> PyResult<Bound<'py, PyAny>> {
        let [row, step, (_, channel)] = self.axes();
        let group = (groups, channel * width as isize);
        self.part((first, groups.saturating_mul(width)), [row, step, group, (width, channel)])
    }

    /// Whether the channels from `first` on of a dense tensor are a matrix whose rows are aligned.
    pub fn are_aligned(&self, first: usize) -> bool {
        let [(_, row), (seqlen, step), (_, channel)] = self.axes();
        let size = self.parts.dtype.size();
        channel == 1
            && row == seqlen as isize * step
            && (step as usize * size).is_multiple_of(16)
            && (first * size).is_multiple_of(16)
    }

    /// Sizes and strides of the rows of a batch, of its steps and of channels.
    fn axes(&self) -> [(usize, isize); 3] {
        std::array::from_fn(|axis| (self.parts.shape[axis], self.parts.strides[axis]))
    }

    /// The part of so many channels with these sizes and strides.
    fn part<const N: usize>(&self, (first, count): (usize, usize), axes: [(usize, isize); N]) -> PyResult<Bound<'py, PyAny>> {
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
        let part = Part { tensor: self.tensor.clone().unbind(), parts: Parts { address, rank: N, shape, strides, ..self.parts } };
        Ok(Bound::new(self.tensor.py(), part)?.into_any())
    }
}
