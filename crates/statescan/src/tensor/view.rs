//! [`View`]: what every operation takes.

use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::shape::{MAX_RANK, Shape, Strides};
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use half::{bf16, f16};
use num_complex::{Complex, Complex64};

/// A strided tensor of known element type, read only.
#[derive(Clone, Copy)]
pub struct View<'a> {
    ptr: *const u8,
    dtype: DType,
    device: Device,
    shape: Shape,
    strides: Strides,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: a view is a shared borrow of plain data.
unsafe impl Send for View<'_> {}
// SAFETY: as above; nothing is mutable through it.
unsafe impl Sync for View<'_> {}

/// First and one-past-last element that a strided shape reaches, relative to its origin; `None` if it overflows.
#[inline]
fn reach(shape: &[usize], strides: &[isize]) -> Option<(isize, isize)> {
    if shape.contains(&0) {
        return Some((0, 0));
    }
    let (mut low, mut high) = (0isize, 0isize);
    for (&size, &stride) in shape.iter().zip(strides) {
        let span = isize::try_from(size - 1).ok()?.checked_mul(stride)?;
        if span < 0 {
            low = low.checked_add(span)?;
        } else {
            high = high.checked_add(span)?;
        }
    }
    Some((low, high.checked_add(1)?))
}

pub(super) fn check_bounds(shape: &Shape, strides: &[isize], offset: usize, available: usize) -> Result<()> {
    let fail = || Error::Bounds { shape: *shape, strides: strides.to_vec(), offset, available };
    if shape.len() != strides.len() || shape.checked_len().is_none() {
        return Err(fail());
    }
    let (low, high) = reach(shape, strides).ok_or_else(fail)?;
    let origin = isize::try_from(offset).map_err(|_| fail())?;
    let first = origin.checked_add(low).ok_or_else(fail)?;
    let end = origin.checked_add(high).ok_or_else(fail)?;
    if first < 0 || end.unsigned_abs() > available || offset > available {
        return Err(fail());
    }
    Ok(())
}

impl<'a> View<'a> {
    /// A dense row-major view of a slice.
    ///
    /// # Errors
    /// [`Error::Bounds`] if the slice has not exactly the shape's number of elements, [`Error::TooManyAxes`].
    pub fn new<T: Element>(data: &'a [T], shape: &[usize]) -> Result<Self> {
        let shape = Shape::new(shape)?;
        let strides = shape.row_major();
        if shape.checked_len() != Some(data.len()) {
            return Err(Error::Bounds { shape, strides: strides.to_vec(), offset: 0, available: data.len() });
        }
        Self::strided(data, 0, &shape, &strides)
    }

    /// A view of a slice with any strides (in elements), whose element (0, .., 0) is `data[offset]`.
    ///
    /// # Errors
    /// [`Error::Bounds`] if any element would lie outside the slice, [`Error::TooManyAxes`].
    pub fn strided<T: Element>(data: &'a [T], offset: usize, shape: &[usize], strides: &[isize]) -> Result<Self> {
        let shape = Shape::new(shape)?;
        check_bounds(&shape, strides, offset, data.len())?;
        Ok(View {
            ptr: data.as_ptr().wrapping_add(offset).cast(),
            dtype: T::DTYPE,
            device: Device::Cpu,
            shape,
            strides: Strides::of(strides),
            lifetime: PhantomData,
        })
    }

    /// A view from its parts.
    ///
    /// # Errors
    /// [`Error::TooManyAxes`]; [`Error::Bounds`] if shape and strides differ in length or the extent overflows.
    ///
    /// # Safety
    /// Every element that shape and strides reach from `ptr` must be initialised memory of `device`, aligned for `dtype`, and stay valid
    /// and unwritten for `'a`.
    #[inline]
    pub unsafe fn from_raw_parts(
        ptr: *const u8,
        dtype: DType,
        device: Device,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Self> {
        let shape = Shape::new(shape)?;
        let fail = || Error::Bounds { shape, strides: strides.to_vec(), offset: 0, available: 0 };
        if shape.len() != strides.len() || shape.checked_len().is_none() {
            return Err(fail());
        }
        let (low, high) = reach(&shape, strides).ok_or_else(fail)?;
        let extent = high.checked_sub(low).and_then(|n| n.checked_mul(dtype.size() as isize));
        extent.ok_or_else(fail)?;
        Ok(View { ptr, dtype, device, shape, strides: Strides::of(strides), lifetime: PhantomData })
    }

    /// The storage type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device that has the memory.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Strides of the axes in elements.
    pub fn strides(&self) -> Strides {
        self.strides
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Address of element (0, .., 0).
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Elements that the view reaches before element (0, .., 0), and from it on, for debug builds to check accesses by.
    #[inline]
    pub(crate) fn around(&self) -> [isize; 2] {
        let reached = if cfg!(debug_assertions) { reach(&self.shape(), &self.strides()) } else { None };
        reached.map_or([0; 2], |(low, high)| [-low, high])
    }

    /// The axes in another order.
    ///
    /// # Panics
    /// If `order` is not a permutation of the axes.
    pub fn permute(self, order: &[usize]) -> Self {
        assert!(
            order.len() == self.rank() && (0..self.rank()).all(|axis| order.contains(&axis)),
            "order must be a permutation of the axes"
        );
        let mut shape = [0; MAX_RANK];
        let mut strides = [0; MAX_RANK];
        for (to, &from) in order.iter().enumerate() {
            shape[to] = self.shape[from];
            strides[to] = self.strides[from];
        }
        self.with_layout(&shape[..order.len()], &strides[..order.len()])
    }

    /// A range of one axis.
    ///
    /// # Panics
    /// If the range does not lie within the axis.
    pub fn slice(self, axis: usize, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.shape[axis], "range outside the axis");
        let step = self.strides[axis].wrapping_mul(range.start as isize);
        let mut view = self.at_address(self.offset_bytes(step));
        view.shape.as_mut()[axis] = range.end - range.start;
        view
    }

    /// One index of an axis; the axis disappears.
    ///
    /// # Panics
    /// If the index is outside the axis.
    pub fn index(self, axis: usize, at: usize) -> Self {
        let mut view = self.slice(axis, at..at + 1);
        view.shape.remove(axis);
        view.strides.remove(axis);
        view
    }

    /// One axis as two, the first of so many elements.
    ///
    /// ```
    /// let x = [0f32, 1.0, 2.0, 3.0, 4.0, 5.0];
    /// let heads = statescan::View::new(&x, &[1, 6])?.split(1, 3);
    /// assert_eq!((&heads.shape()[..], heads.at(&[0, 2, 1]).re), (&[1, 3, 2][..], 5.0));
    /// # Ok::<(), statescan::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the axis is not a multiple of it, or the view already has [`MAX_RANK`] axes.
    pub fn split(self, axis: usize, outer: usize) -> Self {
        assert!(self.rank() < MAX_RANK, "too many axes");
        assert!(
            outer > 0 && self.shape[axis].is_multiple_of(outer),
            "an axis of {} is not {outer} times something",
            self.shape[axis]
        );
        let mut view = self;
        let inner = view.shape[axis] / outer;
        view.shape.as_mut()[axis] = inner;
        view.shape.insert(axis, outer);
        view.strides.insert(axis, view.strides[axis].wrapping_mul(inner as isize));
        view
    }

    /// A new axis of this size at a position; every index of it is the same memory (stride 0).
    ///
    /// # Panics
    /// If the view already has [`MAX_RANK`] axes or the position is past the end.
    pub fn expand(self, axis: usize, size: usize) -> Self {
        assert!(self.rank() < MAX_RANK, "too many axes");
        let mut view = self;
        view.shape.insert(axis, size);
        view.strides.insert(axis, 0);
        view
    }

    /// The elements with one axis walked backwards.
    pub fn flip(self, axis: usize) -> Self {
        if self.shape[axis] == 0 {
            return self;
        }
        let last = self.strides[axis].wrapping_mul(self.shape[axis] as isize - 1);
        let mut view = self.at_address(self.offset_bytes(last));
        view.strides.as_mut()[axis] = self.strides[axis].wrapping_neg();
        view
    }

    fn with_layout(mut self, shape: &[usize], strides: &[isize]) -> Self {
        self.shape = Shape::of(shape);
        self.strides = Strides::of(strides);
        self
    }

    /// Returns the view through another pointer to its memory.
    pub(super) fn at_address(mut self, ptr: *const u8) -> Self {
        self.ptr = ptr;
        self
    }

    pub(super) fn offset_bytes(&self, elements: isize) -> *const u8 {
        self.ptr.wrapping_offset(elements.wrapping_mul(self.dtype.size() as isize))
    }

    /// First and one-past-last byte address that the view reaches.
    pub(crate) fn byte_range(&self) -> (usize, usize) {
        let (low, high) = reach(&self.shape, &self.strides).expect("checked when the view was made");
        let size = self.dtype.size() as isize;
        let start = self.ptr as isize;
        ((start + low * size) as usize, (start + high * size) as usize)
    }

    /// Element at an offset (in elements) from the origin, as a complex `f64`.
    ///
    /// # Safety
    /// The offset must be one that shape and strides reach, and the view must be on the CPU.
    pub(crate) unsafe fn read(&self, offset: isize) -> Complex64 {
        let at = self.offset_bytes(offset);
        // SAFETY: by the contract above `at` is an element of this view.
        unsafe {
            match self.dtype {
                DType::F32 => Complex::new(f64::from(*at.cast::<f32>()), 0.0),
                DType::F64 => Complex::new(*at.cast::<f64>(), 0.0),
                DType::BF16 => Complex::new((*at.cast::<bf16>()).to_f64(), 0.0),
                DType::F16 => Complex::new((*at.cast::<f16>()).to_f64(), 0.0),
                DType::Complex64 => {
                    let z = *at.cast::<Complex<f32>>();
                    Complex::new(f64::from(z.re), f64::from(z.im))
                }
                DType::Complex128 => *at.cast::<Complex64>(),
                DType::I32 => Complex::new(f64::from(*at.cast::<i32>()), 0.0),
                DType::I64 => Complex::new(*at.cast::<i64>() as f64, 0.0),
            }
        }
    }

    /// One element, as a complex `f64`.
    ///
    /// # Panics
    /// If the index is outside the shape, or the view is not on the CPU.
    pub fn at(&self, index: &[usize]) -> Complex64 {
        assert_eq!(self.device, Device::Cpu, "elements can be read on the CPU only");
        assert_eq!(index.len(), self.rank(), "one index for each axis");
        let mut offset = 0;
        for axis in 0..index.len() {
            assert!(index[axis] < self.shape[axis], "index outside the shape");
            offset += index[axis] as isize * self.strides[axis];
        }
        // SAFETY: every index is inside the shape.
        unsafe { self.read(offset) }
    }

    /// The integer elements in row-major order.
    ///
    /// # Panics
    /// If the type is not an integer type or the view is not on the CPU.
    pub(crate) fn to_indices(self) -> Vec<i64> {
        assert!(self.dtype.is_index() && self.device == Device::Cpu, "integers on the CPU");
        let mut out = Vec::with_capacity(self.len());
        self.for_each_offset(|offset| {
            let at = self.offset_bytes(offset);
            // SAFETY: the offset comes from this view's own shape and strides, and the type was matched.
            out.push(unsafe {
                match self.dtype {
                    DType::I32 => i64::from(*at.cast::<i32>()),
                    _ => *at.cast::<i64>(),
                }
            });
        });
        out
    }

    /// Calls `f` with the offset of every element, in row-major order.
    pub(crate) fn for_each_offset(&self, mut f: impl FnMut(isize)) {
        if self.is_empty() {
            return;
        }
        let rank = self.rank();
        let mut index = [0usize; MAX_RANK];
        let mut offset = 0isize;
        loop {
            f(offset);
            let mut axis = rank;
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                index[axis] += 1;
                offset += self.strides[axis];
                if index[axis] < self.shape[axis] {
                    break;
                }
                offset -= self.strides[axis] * self.shape[axis] as isize;
                index[axis] = 0;
            }
        }
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} {} on {}, strides {:?})", self.dtype, self.shape, self.device, self.strides)
    }
}
