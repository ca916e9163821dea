//! Tensors in the memory of a device, for callers that have no GPU library of their own.

use super::Stream;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::tensor::{DType, Device, Shape, Strides, View, ViewMut};

/// A tensor in the memory of a CUDA device: a copy of one on the host, with the same strides.
pub struct DeviceTensor {
    stream: Stream,
    base: u64,
    /// From the first byte that the tensor reaches to its element (0, .., 0).
    origin: usize,
    bytes: usize,
    dtype: DType,
    shape: Shape,
    strides: Strides,
}

impl DeviceTensor {
    /// Copies a tensor to the executor's device and waits for the copy. Memory between its elements comes along.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the executor is not a CUDA one, [`Error::Device`] if the view is not on the host, and
    /// [`Error::OutOfMemory`].
    pub fn from_host(exec: &Exec, view: &View<'_>) -> Result<Self> {
        let stream = exec.cuda_only()?.clone();
        on_host(view)?;
        let (low, high) = view.byte_range();
        let bytes = high - low;
        let base = stream.allocate(bytes)?;
        let tensor = DeviceTensor {
            stream,
            base,
            origin: view.as_ptr() as usize - low,
            bytes,
            dtype: view.dtype(),
            shape: view.shape(),
            strides: view.strides(),
        };
        // SAFETY: the range is what the view reaches, and the memory is as large.
        unsafe { tensor.stream.upload(base, low as *const u8, bytes)? };
        Ok(tensor)
    }

    /// Waits for the executor's stream and copies the tensor back.
    ///
    /// # Errors
    /// [`Error::Device`], or [`Error::Shape`] if the target is not laid out as the tensor is; [`Error::Cuda`] if a kernel before failed.
    pub fn to_host(&self, target: &mut ViewMut<'_>) -> Result<()> {
        let view = target.as_view();
        on_host(&view)?;
        if (view.shape(), view.strides(), view.dtype()) != (self.shape, self.strides, self.dtype) {
            return Err(Error::Shape { op: "to_host", argument: "target", expected: self.shape, got: view.shape() });
        }
        let (low, _) = view.byte_range();
        // SAFETY: the target reaches as many bytes from `low` as the tensor has, and is borrowed exclusively.
        unsafe { self.stream.download(low as *mut u8, self.base, self.bytes) }
    }

    fn address(&self) -> *mut u8 {
        (self.base as usize + self.origin) as *mut u8
    }

    /// The tensor.
    pub fn view(&self) -> View<'_> {
        let device = Device::Cuda(self.stream.ordinal());
        // SAFETY: the memory lives as long as `self`, and shape and strides are those that it was sized for.
        let view = unsafe { View::from_raw_parts(self.address(), self.dtype, device, &self.shape, &self.strides) };
        view.expect("made from a view")
    }

    /// The tensor, writable.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let device = Device::Cuda(self.stream.ordinal());
        // SAFETY: as in `view`, and the borrow is exclusive.
        let view = unsafe { ViewMut::from_raw_parts(self.address(), self.dtype, device, &self.shape, &self.strides) };
        view.expect("made from a view")
    }
}

impl Drop for DeviceTensor {
    fn drop(&mut self) {
        // SAFETY: allocated by `from_host`; no view outlives `self`. Freeing waits for the kernels that use the memory.
        unsafe { self.stream.free(self.base) };
    }
}

fn on_host(view: &View<'_>) -> Result<()> {
    match view.device() {
        Device::Cpu => Ok(()),
        got => Err(Error::Device { op: "copy", argument: "host tensor", expected: Device::Cpu, got }),
    }
}
