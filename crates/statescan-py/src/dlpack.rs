//! Tensors of any other library, by DLPack: the producer hands over a description of its memory and a function that gives it back.
//!
//! Nothing in a description is trusted that can be checked. What cannot be checked, that the memory is there, is the producer's promise.

use crate::tensor::{Parts, too_many_axes, unknown_dtype};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use pyo3::{ffi, intern};
use statescan::tensor::MAX_RANK;
use statescan::{DType, Device};
use std::ffi::{CStr, c_void};

/// `DLTensor` of dlpack.h.
#[repr(C)]
pub struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensor` of dlpack.h.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned` of dlpack.h, since version 1.0.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

const READ_ONLY: u64 = 1;

/// A tensor that was taken from its capsule: it goes back to its producer when this is dropped.
pub struct Owned(Handle);

enum Handle {
    Plain(*mut Managed),
    Versioned(*mut Versioned),
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: taken from a capsule that has been marked as used, so that nobody else gives it back.
        unsafe {
            match self.0 {
                Handle::Plain(managed) => (*managed).deleter.map(|delete| delete(managed)),
                Handle::Versioned(managed) => (*managed).deleter.map(|delete| delete(managed)),
            };
        }
    }
}

impl Owned {
    /// Asks an object for its memory. `stream` is where a CUDA tensor will be used.
    pub fn take(object: &Bound<'_, PyAny>, argument: &str, stream: Option<usize>) -> PyResult<Owned> {
        let py = object.py();
        let Ok(export) = object.getattr(intern!(py, "__dlpack__")) else {
            let got = object.get_type();
            return Err(PyTypeError::new_err(format!("`{argument}` must be a tensor or an array, got {got}")));
        };
        let options = PyDict::new(py);
        if let Some(stream) = stream {
            // DLPack's word for the default stream is 1
            options.set_item(intern!(py, "stream"), stream.max(1))?;
        }
        options.set_item(intern!(py, "max_version"), (1, 0))?;
        let capsule = match export.call((), Some(&options)) {
            // producers from before version 1.0 know no such option
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {
                options.del_item(intern!(py, "max_version"))?;
                export.call((), Some(&options))
            }
            result => result,
        };
        let refused = |error: PyErr| {
            let named = PyBufferError::new_err(format!("`{argument}` cannot be shared by DLPack: {}", error.value(py)));
            named.set_cause(py, Some(error));
            named
        };
        let capsule = capsule.map_err(refused)?;
        let capsule = capsule.cast::<PyCapsule>().map_err(|_| {
            PyTypeError::new_err(format!("`{argument}`: __dlpack__() must return a capsule, got {}", capsule.get_type()))
        })?;
        Self::from_capsule(capsule, argument)
    }

    fn from_capsule(capsule: &Bound<'_, PyCapsule>, argument: &str) -> PyResult<Owned> {
        let content = |name: &CStr| {
            // SAFETY: a capsule; the call compares its name before it gives the pointer.
            unsafe {
                let valid = ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 1;
                valid.then(|| ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()))
            }
        };
        let (owned, used) = if let Some(pointer) = content(c"dltensor_versioned") {
            let managed = pointer.cast::<Versioned>();
            // SAFETY: the name says what is behind the pointer; the first fields are the same in all versions.
            let (major, minor) = unsafe { ((*managed).major, (*managed).minor) };
            if major != 1 {
                // left in its capsule, which gives it back
                return Err(PyBufferError::new_err(format!(
                    "`{argument}` comes by DLPack {major}.{minor}, and only version 1 is understood"
                )));
            }
            (Owned(Handle::Versioned(managed)), c"used_dltensor_versioned")
        } else if let Some(pointer) = content(c"dltensor") {
            (Owned(Handle::Plain(pointer.cast())), c"used_dltensor")
        } else {
            return Err(PyBufferError::new_err(format!(
                "`{argument}`: its DLPack capsule was used before, or is of another kind; a capsule can be used once"
            )));
        };
        // SAFETY: a capsule and a name that lives as long as the process.
        if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
            std::mem::forget(owned);
            return Err(PyErr::fetch(capsule.py()));
        }
        Ok(owned)
    }

    fn tensor(&self) -> &Tensor {
        // SAFETY: valid until the deleter is called, when `self` is dropped.
        unsafe {
            match self.0 {
                Handle::Plain(managed) => &(*managed).tensor,
                Handle::Versioned(managed) => &(*managed).tensor,
            }
        }
    }

    /// Refuses memory that must not be written.
    pub fn check_writable(&self, argument: &str) -> PyResult<()> {
        match self.0 {
            // SAFETY: as in `tensor`.
            Handle::Versioned(managed) if unsafe { (*managed).flags } & READ_ONLY != 0 => {
                Err(PyValueError::new_err(format!("`{argument}` is written, and it is read-only")))
            }
            _ => Ok(()),
        }
    }

    /// The description, as far as it makes sense.
    pub fn parts(&self, argument: &str) -> PyResult<Parts> {
        // SAFETY: the producer's promise for as long as it has not got its tensor back.
        unsafe { self.tensor().parts(argument) }
    }
}

/// The kinds of elements by their `DLDataTypeCode`; the number of bits follows a name that does not have it yet.
const KINDS: [&str; 18] = [
    "int",
    "uint",
    "float",
    "handle",
    "bfloat",
    "complex",
    "bool",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
];

impl Tensor {
    /// The description, as far as it makes sense.
    ///
    /// # Safety
    /// Shape and strides, where they are not null, have `ndim` elements.
    #[inline(always)]
    pub unsafe fn parts(&self, argument: &str) -> PyResult<Parts> {
        let tensor = self;
        let dtype = tensor.dtype().ok_or_else(|| {
            let Tensor { code, bits, lanes, .. } = tensor;
            match KINDS.get(usize::from(*code)) {
                Some(kind) if *lanes == 1 && kind.contains('_') => unknown_dtype(argument, kind),
                Some(&"bool") if *lanes == 1 => unknown_dtype(argument, "bool"),
                Some(kind) if *lanes == 1 => unknown_dtype(argument, format_args!("{kind}{bits}")),
                _ => unknown_dtype(argument, format_args!("DLPack's type {code} of {bits} bits and {lanes} lanes")),
            }
        })?;
        let fail = |why: String| PyValueError::new_err(format!("`{argument}` {why}"));
        let device = tensor.device().ok_or_else(|| {
            let Tensor { device_type, device_id, .. } = tensor;
            fail(format!("must be on a CPU or CUDA device, got DLPack's device type {device_type} with number {device_id}"))
        })?;
        let rank = match usize::try_from(tensor.ndim) {
            Ok(rank) if rank <= MAX_RANK => rank,
            _ => return Err(too_many_axes(argument, tensor.ndim)),
        };
        if rank > 0 && tensor.shape.is_null() {
            return Err(fail(format!("has {rank} axes and no shape")));
        }
        let (mut shape, mut strides) = ([0; MAX_RANK], [0; MAX_RANK]);
        for axis in 0..rank {
            // SAFETY: the caller's contract.
            let size = unsafe { *tensor.shape.add(axis) };
            shape[axis] = usize::try_from(size).map_err(|_| fail(format!("has the size {size} along axis {axis}")))?;
        }
        let mut dense = 1isize;
        for axis in (0..rank).rev() {
            strides[axis] = match tensor.strides.is_null() {
                true => dense,
                // SAFETY: as for the shape.
                false => unsafe { *tensor.strides.add(axis) as isize },
            };
            dense = dense.saturating_mul(isize::try_from(shape[axis].max(1)).unwrap_or(isize::MAX));
        }
        let offset = usize::try_from(tensor.byte_offset).ok();
        let address = match tensor.data.is_null() {
            true => Some(0),
            false => offset.and_then(|offset| (tensor.data as usize).checked_add(offset)),
        };
        let address = address.ok_or_else(|| fail("reaches beyond all memory".into()))?;
        Ok(Parts { address, dtype, device, rank, shape, strides })
    }

    /// The device, if it is of a kind that kernels run on.
    pub fn device(&self) -> Option<Device> {
        match (self.device_type, usize::try_from(self.device_id)) {
            // 3 is host memory that a CUDA driver has pinned
            (1 | 3, _) => Some(Device::Cpu),
            (2, Ok(ordinal)) => Some(Device::Cuda(ordinal)),
            _ => None,
        }
    }

    /// The element type, by `DLDataTypeCode`.
    fn dtype(&self) -> Option<DType> {
        Some(match (self.code, self.bits, self.lanes) {
            (0, 32, 1) => DType::I32,
            (0, 64, 1) => DType::I64,
            (2, 16, 1) => DType::F16,
            (2, 32, 1) => DType::F32,
            (2, 64, 1) => DType::F64,
            (4, 16, 1) => DType::BF16,
            (5, 64, 1) => DType::Complex64,
            (5, 128, 1) => DType::Complex128,
            _ => return None,
        })
    }
}

/// `DLPackExchangeAPI` of dlpack.h: how a library describes its tensors without a capsule.
#[repr(C)]
struct Exchange {
    major: u32,
    minor: u32,
    previous: *const Exchange,
    allocate: *const c_void,
    take: *const c_void,
    give: *const c_void,
    /// Fills in a description that is valid as long as the object is.
    lend: Option<unsafe extern "C" fn(object: *mut c_void, out: *mut Tensor) -> i32>,
    stream: *const c_void,
}

/// Describes an object of the type that it was found on.
pub type Lend = unsafe extern "C" fn(object: *mut c_void, out: *mut Tensor) -> i32;

/// Returns the function that a type offers under `__dlpack_c_exchange_api__`, if it does.
pub fn lender(kind: &Bound<'_, PyAny>) -> Option<Lend> {
    let capsule = kind.getattr(intern!(kind.py(), "__dlpack_c_exchange_api__")).ok()?;
    let capsule = capsule.cast::<PyCapsule>().ok()?;
    let mut exchange = capsule.pointer_checked(Some(c"dlpack_exchange_api")).ok()?.as_ptr().cast::<Exchange>().cast_const();
    // SAFETY: the capsule's name says what is there, for the life of the process; the fields up to `previous` are the same in all
    // versions, the others in all of version 1.
    unsafe {
        while !exchange.is_null() && (*exchange).major > 1 {
            exchange = (*exchange).previous;
        }
        if exchange.is_null() || (*exchange).major != 1 { None } else { (*exchange).lend }
    }
}
