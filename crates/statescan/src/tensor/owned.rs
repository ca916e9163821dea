//! [`Tensor`]: owned memory for the views of a call, on the device where it runs.

use super::dense::Dense;
use super::storage::Storage;
use super::view::{View, check_bounds};
use super::view_mut::ViewMut;
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::shape::{Shape, Strides};
use core::fmt;
use num_complex::Complex64;

/// A tensor that owns its memory, on the host or on a GPU. Its storage type is a value.
///
/// Calls take it as [`view`](Tensor::view) and [`view_mut`](Tensor::view_mut). The executor given to a constructor says where the memory
/// is, so the same code runs on every device:
///
/// ```
/// use statescan::ops::linear_scan::{self, Args, Outputs};
/// use statescan::{DType, Exec, Tensor};
///
/// let exec = Exec::cpu(0); // on a GPU: Exec::cuda(0)?
/// let a = Tensor::from_slice(&exec, &[0.5f32; 6], &[2, 3])?;
/// let b = Tensor::from_slice(&exec, &[1f32; 6], &[2, 3])?;
/// let mut h = Tensor::empty(&exec, DType::F32, &[2, 3])?;
/// linear_scan::forward(&exec, &Args::new(a.view(), b.view()), &mut Outputs::default().h(h.view_mut()))?;
/// assert_eq!(h.to_vec::<f32>()?, [1.0, 1.5, 1.75, 1.0, 1.5, 1.75]);
/// # Ok::<(), statescan::Error>(())
/// ```
///
/// # On a GPU
/// Zeros are written in the order of the executor's stream. Copies wait for what that stream holds, and results are copied back by
/// [`to_vec`](Tensor::to_vec) or [`to_host`](Tensor::to_host). Another executor must wait ([`Exec::synchronize`]) before it uses the
/// tensor. Dropping a tensor waits for kernels that use its memory. Memory is allocated when a tensor is made and at no other time, so
/// calls on tensors can be recorded in a [`Graph`](crate::cuda::Graph).
///
/// # Elements
/// [`fill_with`](Tensor::fill_with), [`copy_from`](Tensor::copy_from), [`to_dense`](Tensor::to_dense), [`bytes`](Tensor::bytes) and the
/// like reach into the memory and panic where that is a GPU's: make and read tensors on the host, and copy them with [`to`](Tensor::to).
pub struct Tensor {
    storage: Storage,
    dtype: DType,
    shape: Shape,
    strides: Strides,
    /// From the beginning of the memory to element (0, .., 0), in elements.
    offset: usize,
}

impl Tensor {
    /// A dense row-major tensor of zeros on the executor's device; nothing is copied from the host.
    ///
    /// # Errors
    /// [`Error::TooManyAxes`]; [`Error::Bounds`] if the size in bytes overflows; [`Error::OutOfMemory`] and [`Error::Cuda`] on a GPU.
    /// Without memory on the host the process ends, as for a `Vec`.
    pub fn zeros(exec: &Exec, dtype: DType, shape: &[usize]) -> Result<Self> {
        Self::filled(exec, dtype, shape, Some(0))
    }

    /// A dense row-major tensor on the executor's device that holds anything: zeros on the host, on a GPU whatever is in its
    /// memory. With debug assertions every byte is `0xff` (NaN for floating-point types), which shows elements that were not
    /// written.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn empty(exec: &Exec, dtype: DType, shape: &[usize]) -> Result<Self> {
        Self::filled(exec, dtype, shape, cfg!(debug_assertions).then_some(0xff))
    }

    /// As [`Tensor::empty`], of the type and shape of a view: room for a result that looks like it.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn like(exec: &Exec, view: &View<'_>) -> Result<Self> {
        Self::empty(exec, view.dtype(), &view.shape())
    }

    /// A dense row-major tensor of zeros in host memory.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn host(dtype: DType, shape: &[usize]) -> Result<Self> {
        let shape = Shape::new(shape)?;
        Ok(Self::dense(Storage::host(size(dtype, &shape)?), dtype, shape))
    }

    /// Zeros in host memory with chosen strides (in elements), in memory of `elements` elements; element (0, .., 0) is at `offset`.
    ///
    /// # Errors
    /// As [`Tensor::zeros`]; [`Error::Bounds`] if any element would lie outside.
    pub fn strided(dtype: DType, shape: &[usize], strides: &[isize], offset: usize, elements: usize) -> Result<Self> {
        let whole = Self::host(dtype, &[elements])?;
        let shape = Shape::new(shape)?;
        check_bounds(&shape, strides, offset, elements)?;
        Ok(Tensor { shape, strides: Strides::of(strides), offset, ..whole })
    }

    /// A dense row-major copy, on the executor's device, of a slice in row-major order.
    ///
    /// # Errors
    /// [`Error::Bounds`] if the slice has not exactly the shape's number of elements; else as [`Tensor::zeros`].
    pub fn from_slice<T: Element>(exec: &Exec, data: &[T], shape: &[usize]) -> Result<Self> {
        Self::from_host(exec, &View::new(data, shape)?)
    }

    /// A dense row-major copy, on the executor's device, of a view on the host. ([`Tensor::to`] copies a tensor with its strides.)
    ///
    /// # Errors
    /// [`Error::Device`] if the view is not on the host; else as [`Tensor::zeros`].
    pub fn from_host(exec: &Exec, view: &View<'_>) -> Result<Self> {
        let (dtype, shape) = (view.dtype(), view.shape());
        if view.device() != Device::Cpu {
            return Err(Error::Device { op: "from_host", argument: "view", expected: Device::Cpu, got: view.device() });
        }
        if let Some((stream, elements)) = exec.stream().zip(contiguous(view)) {
            return Ok(Self::dense(Storage::upload(stream, elements)?, dtype, shape));
        }
        let mut host = Self::host(dtype, &shape)?;
        gather(view, &mut host.bytes_mut()[..view.len() * dtype.size()]);
        if exec.device() == Device::Cpu { Ok(host) } else { host.to(exec) }
    }

    /// A dense row-major tensor on the host with the elements of `dense`, rounded to a storage type.
    ///
    /// # Panics
    /// If it is too large for memory.
    pub fn from_dense(dense: &Dense, dtype: DType) -> Self {
        let mut tensor = Self::host(dtype, &dense.shape()).expect("as large as an existing tensor");
        tensor.copy_from(dense);
        tensor
    }

    /// A copy on the executor's device with the same strides; the memory between elements comes along. Waits for it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], and [`Error::Cuda`], which may be about a kernel before.
    pub fn to(&self, exec: &Exec) -> Result<Self> {
        Ok(Tensor { storage: self.storage.to(exec)?, ..*self })
    }

    /// A copy on the host with the same strides; the memory between elements comes along. Waits for the tensor's stream.
    ///
    /// # Errors
    /// [`Error::Cuda`], which may be about a kernel before.
    pub fn to_host(&self) -> Result<Self> {
        Ok(Tensor { storage: self.storage.to_host()?, ..*self })
    }

    /// The elements in row-major order, from any device. Waits for the tensor's stream.
    ///
    /// # Errors
    /// [`Error::DType`] if `T` is not the storage type; else as [`Tensor::to_host`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            let expected = "of the type of the elements that are asked for";
            return Err(Error::DType { op: "to_vec", argument: "tensor", expected, got: self.dtype });
        }
        if self.device() != Device::Cpu {
            return self.to_host()?.to_vec();
        }
        let view = self.view();
        let first = view.as_ptr().cast::<T>();
        let mut elements = Vec::with_capacity(view.len());
        // SAFETY: the offsets are the view's own, the memory is aligned to whole lines, and `T` is the type of its elements.
        view.for_each_offset(|offset| elements.push(unsafe { *first.offset(offset) }));
        Ok(elements)
    }

    /// Overwrites the first elements, in row-major order, on any device; memory is not allocated. On a GPU that is in the order of the tensor's stream,
    /// and waits for it.
    ///
    /// # Errors
    /// [`Error::DType`] if `T` is not the storage type, [`Error::Bounds`] if there are not as many elements, [`Error::Presence`] if they are not dense;
    /// [`Error::Cuda`].
    pub fn write<T: Element>(&mut self, elements: &[T]) -> Result<()> {
        const OP: &str = "write";
        if T::DTYPE != self.dtype {
            let expected = "of the type of the elements that are written";
            return Err(Error::DType { op: OP, argument: "tensor", expected, got: self.dtype });
        }
        if self.strides != self.shape.row_major() {
            return Err(Error::Presence { op: OP, argument: "tensor", expected: "must be dense" });
        }
        let len = self.shape.iter().product();
        check_bounds(&Shape::of(&[elements.len()]), &[1], 0, len)?;
        // SAFETY: elements are plain data, of which these are all bytes.
        let bytes = unsafe { core::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_of_val(elements)) };
        self.storage.write(self.offset * self.dtype.size(), bytes)
    }

    /// Overwrites every element with that of `dense`, rounded to the storage type.
    ///
    /// # Panics
    /// If the shapes differ, or the tensor is not on the host.
    pub fn copy_from(&mut self, dense: &Dense) {
        assert_eq!(self.shape, dense.shape(), "shapes agree");
        let mut values = dense.data().iter();
        self.fill_with(|| *values.next().expect("as many elements"));
    }

    /// Overwrites every element, in row-major order, rounding to the storage type.
    ///
    /// # Panics
    /// If the tensor is not on the host.
    pub fn fill_with(&mut self, mut value: impl FnMut() -> Complex64) {
        assert_eq!(self.device(), Device::Cpu, "elements can be written on the host only");
        let target = self.view_mut().raw();
        target.as_read().for_each_offset(|offset| target.write(offset, value()));
    }

    /// Sets every byte of the memory behind the tensor, also where no element lies.
    ///
    /// # Panics
    /// If the tensor is not on the host.
    pub fn fill_bytes(&mut self, byte: u8) {
        self.bytes_mut().fill(byte);
    }

    /// The memory behind the tensor: its elements, what lies between them, and up to 63 bytes after them.
    ///
    /// # Panics
    /// If the tensor is not on the host.
    pub fn bytes(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// The tensor's memory, writable.
    ///
    /// # Panics
    /// If the tensor is not on the host.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.storage.bytes_mut()
    }

    /// The elements in complex `f64`.
    ///
    /// # Panics
    /// If the tensor is not on the host.
    pub fn to_dense(&self) -> Dense {
        Dense::from_view(&self.view())
    }

    /// The storage type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The device that has the memory.
    pub fn device(&self) -> Device {
        self.storage.device()
    }

    /// The tensor, read only.
    pub fn view(&self) -> View<'_> {
        let origin = self.storage.as_ptr().wrapping_add(self.origin());
        // SAFETY: shape, strides and offset were checked against the memory when it was made; every bit pattern is a value.
        let view = unsafe { View::from_raw_parts(origin, self.dtype, self.device(), &self.shape, &self.strides) };
        view.expect("checked when the tensor was made")
    }

    /// The tensor, writable.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let origin = self.origin();
        let origin = self.storage.as_mut_ptr().wrapping_add(origin);
        // SAFETY: as in `view`, and the borrow is exclusive.
        let view = unsafe { ViewMut::from_raw_parts(origin, self.dtype, self.device(), &self.shape, &self.strides) };
        view.expect("checked when the tensor was made")
    }

    /// From the beginning of the memory to element (0, .., 0), in bytes.
    fn origin(&self) -> usize {
        self.offset * self.dtype.size()
    }

    /// Whether what the executor does with the tensor comes after what was done with it before.
    pub(super) fn is_ordered_with(&self, exec: &Exec) -> bool {
        self.storage.is_ordered_with(exec)
    }

    /// A dense tensor of one byte, or of whatever there is.
    fn filled(exec: &Exec, dtype: DType, shape: &[usize], byte: Option<u8>) -> Result<Self> {
        let shape = Shape::new(shape)?;
        Ok(Self::dense(Storage::filled(exec, size(dtype, &shape)?, byte)?, dtype, shape))
    }

    /// A tensor without gaps, in memory that is as large.
    fn dense(storage: Storage, dtype: DType, shape: Shape) -> Self {
        Tensor { storage, dtype, shape, strides: shape.row_major(), offset: 0 }
    }
}

impl Clone for Tensor {
    /// A copy on the same device with the same strides.
    ///
    /// # Panics
    /// If the device has no memory left.
    fn clone(&self) -> Self {
        Tensor { storage: self.storage.duplicate().expect("the device has memory left"), ..*self }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {} on {}, strides {:?})", self.dtype, self.shape, self.device(), self.strides)
    }
}

/// Bytes of a dense tensor.
fn size(dtype: DType, shape: &Shape) -> Result<usize> {
    let bytes = shape.checked_len().and_then(|len| len.checked_mul(dtype.size())).filter(|&bytes| bytes <= MOST_BYTES);
    let overflow = || Error::Bounds { shape: *shape, strides: shape.row_major().to_vec(), offset: 0, available: 0 };
    bytes.ok_or_else(overflow)
}

/// The most bytes that an allocation can have after rounding up to whole lines and large pages.
const MOST_BYTES: usize = isize::MAX as usize - (4 << 20);

/// The elements of a dense row-major view on the host, as they lie in memory.
fn contiguous<'v>(view: &'v View<'_>) -> Option<&'v [u8]> {
    let (shape, strides, dense) = (view.shape(), view.strides(), view.shape().row_major());
    if view.is_empty() {
        return Some(&[]);
    }
    let is_dense = (0..view.rank()).all(|axis| shape[axis] < 2 || strides[axis] == dense[axis]);
    // SAFETY: the view's elements are these bytes, one after the other: plain numbers, borrowed as long as the view is.
    is_dense.then(|| unsafe { core::slice::from_raw_parts(view.as_ptr(), view.len() * view.dtype().size()) })
}

/// Copies the elements of a view on the host in row-major order.
fn gather(view: &View<'_>, to: &mut [u8]) {
    if let Some(elements) = contiguous(view) {
        return to.copy_from_slice(elements);
    }
    let mut elements = to.chunks_exact_mut(view.dtype().size());
    view.for_each_offset(|offset| {
        let element = elements.next().expect("as many elements");
        // SAFETY: the offset is the view's own, and an element has so many bytes, which are plain numbers.
        element.copy_from_slice(unsafe { core::slice::from_raw_parts(view.offset_bytes(offset), element.len()) });
    });
}

impl<'a> From<&'a Tensor> for View<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        tensor.view()
    }
}

impl<'a> From<&'a mut Tensor> for ViewMut<'a> {
    fn from(tensor: &'a mut Tensor) -> Self {
        tensor.view_mut()
    }
}
