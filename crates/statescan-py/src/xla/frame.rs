//! A call as XLA hands it over: buffers by position, attributes by name; and what a handler answers.

use super::abi::{self, Api, Attributes, Buffer, Buffers, code};
use crate::error::in_python;
use crate::tensor::Parts;
use statescan::tensor::MAX_RANK;
use statescan::{DType, Device, View, ViewMut};
use std::ffi::CString;
use std::mem::size_of;

/// Why a call failed: a code of XLA's, and words.
pub struct Failure {
    pub code: i32,
    pub words: String,
}

impl Failure {
    pub fn new(code: i32, words: impl Into<String>) -> Self {
        Failure { code, words: words.into() }
    }

    /// A fault of the handler's caller, which is this package.
    pub fn internal(words: &str) -> Self {
        Failure::new(code::INTERNAL, format!("statescan: {words}"))
    }
}

impl From<statescan::Error> for Failure {
    fn from(error: statescan::Error) -> Self {
        let code = match error {
            statescan::Error::OutOfMemory { .. } => code::RESOURCE_EXHAUSTED,
            statescan::Error::Unavailable { .. } => code::UNIMPLEMENTED,
            statescan::Error::Cuda { .. } | statescan::Error::Compile { .. } => code::INTERNAL,
            _ => code::INVALID_ARGUMENT,
        };
        Failure::new(code, in_python(&error))
    }
}

/// The frame of a call whose structs have the sizes that are known here.
#[derive(Clone, Copy)]
pub struct Frame<'f>(&'f abi::Frame);

impl<'f> Frame<'f> {
    /// Nothing if the structs have other sizes: they are those of an interface that is not known here. Where XLA asks what a handler is, those
    /// within the frame may have none.
    ///
    /// # Safety
    /// `frame` points to a frame of XLA's that stays as it is for `'f`, or to one that is larger.
    pub unsafe fn new(frame: *const abi::Frame) -> Option<Self> {
        // SAFETY: the size comes first, in any version.
        if unsafe { *frame.cast::<usize>() } < abi::Frame::SIZE {
            return None;
        }
        // SAFETY: so much of it is there.
        let frame = unsafe { &*frame };
        let own = (Buffers::SIZE, Buffers::SIZE, Attributes::SIZE);
        let given = (frame.arguments.struct_size, frame.results.struct_size, frame.attributes.struct_size);
        (own == given || given == (0, 0, 0)).then_some(Frame(frame))
    }

    pub fn stage(self) -> i32 {
        self.0.stage
    }

    /// The functions that XLA offers, if they are all there.
    pub fn api(self) -> Option<&'f Api> {
        // SAFETY: null, or a table of functions that lives as long as the process, with its size in front.
        unsafe {
            let known = !self.0.api.is_null() && *self.0.api.cast::<usize>() >= Api::SIZE;
            known.then(|| &*self.0.api)
        }
    }

    /// Returns the struct that XLA wants filled with facts about the handler, in the place of a call.
    pub fn metadata(self) -> Option<*mut abi::Metadata> {
        let extension = self.0.extension.cast::<abi::MetadataExtension>();
        // SAFETY: null, or an extension; its kind says what it is.
        unsafe { (!extension.is_null() && (*extension).base.kind == abi::METADATA).then(|| (*extension).metadata) }
    }

    /// The stream and the number of the device of a call on CUDA.
    pub fn queue(self) -> Result<(usize, usize), Failure> {
        let (api, extension) = (self.functions()?, std::ptr::null_mut());
        let context = self.0.context;
        let mut stream = abi::StreamGet { struct_size: abi::StreamGet::SIZE, extension, context, stream: extension.cast() };
        let mut device = abi::OrdinalGet { struct_size: abi::OrdinalGet::SIZE, extension, context, ordinal: -1 };
        // SAFETY: functions of XLA's with their arguments.
        let failed = unsafe { !(api.stream_get)(&mut stream).is_null() || !(api.device_ordinal_get)(&mut device).is_null() };
        match usize::try_from(device.ordinal) {
            Ok(ordinal) if !failed => Ok((ordinal, stream.stream as usize)),
            _ => Err(Failure::internal("XLA has no stream for a call on CUDA")),
        }
    }

    fn functions(self) -> Result<&'f Api, Failure> {
        self.api().ok_or_else(|| Failure::internal("XLA lacks functions that it had when this package was loaded"))
    }

    /// An error as XLA has them.
    pub fn error(self, failure: Failure) -> *mut abi::Error {
        let Some(api) = self.api() else { std::process::abort() };
        let words = CString::new(failure.words.replace('\0', " ")).unwrap_or_default();
        let (struct_size, extension) = (abi::ErrorCreate::SIZE, std::ptr::null_mut());
        let mut arguments = abi::ErrorCreate { struct_size, extension, message: words.as_ptr(), code: failure.code };
        // SAFETY: a function of XLA's with its arguments, which copies the words.
        unsafe { (api.error_create)(&mut arguments) }
    }

    pub fn arguments(self) -> Items<'f> {
        Items(buffers(&self.0.arguments).iter())
    }

    pub fn results(self) -> Items<'f> {
        Items(buffers(&self.0.results).iter())
    }

    fn attribute(self, name: &str, kind: i32) -> Result<*const std::ffi::c_void, Failure> {
        let all = &self.0.attributes;
        for at in 0..usize::try_from(all.size).unwrap_or(0) {
            // SAFETY: three arrays of this length; names are bytes with their length.
            unsafe {
                let own = &**all.names.add(at);
                if std::slice::from_raw_parts(own.data, own.len) == name.as_bytes() && *all.types.add(at) == kind {
                    return Ok(*all.items.add(at));
                }
            }
        }
        Err(Failure::internal(&format!("a call has no attribute `{name}` of the right type")))
    }

    /// A whole number.
    pub fn number(self, name: &str) -> Result<i64, Failure> {
        // SAFETY: the type of the attribute says that this is a scalar, whose type is looked at.
        unsafe {
            let scalar = &*self.attribute(name, abi::attribute::SCALAR)?.cast::<abi::Scalar>();
            let whole = scalar.dtype == abi::dtype::S64;
            whole.then(|| *scalar.value.cast::<i64>())
        }
        .ok_or_else(|| Failure::internal(&format!("`{name}` is no int64")))
    }

    /// A list of numbers.
    pub fn numbers(self, name: &str) -> Result<&'f [f64], Failure> {
        // SAFETY: as above; an array has its length, and lives as long as the frame.
        unsafe {
            let array = &*self.attribute(name, abi::attribute::ARRAY)?.cast::<abi::Array>();
            let whole = array.dtype == abi::dtype::F64;
            whole.then(|| std::slice::from_raw_parts(array.data.cast::<f64>(), array.size))
        }
        .ok_or_else(|| Failure::internal(&format!("`{name}` is no list of float64")))
    }
}

fn buffers(of: &abi::Buffers) -> &[*const Buffer] {
    match usize::try_from(of.size) {
        // SAFETY: an array of this length that lives as long as the frame.
        Ok(size) if size > 0 => unsafe { std::slice::from_raw_parts(of.items, size) },
        _ => &[],
    }
}

/// Buffers that are taken one after the other.
pub struct Items<'f>(std::slice::Iter<'f, *const Buffer>);

/// An address for what has no elements.
const NOWHERE: usize = 64;

impl<'f> Items<'f> {
    /// How many are left.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    fn next(&mut self, device: Device) -> Result<Parts, Failure> {
        let pointer = *self.0.next().ok_or_else(|| Failure::internal("a call has fewer buffers than it says"))?;
        // SAFETY: a buffer that lives as long as the frame, with its size in front.
        let buffer = unsafe { &*pointer };
        let unknown = || Failure::internal("a buffer is none that this package asked for");
        let rank = usize::try_from(buffer.rank).ok().filter(|rank| *rank <= MAX_RANK).ok_or_else(unknown)?;
        if buffer.struct_size < Buffer::SIZE {
            return Err(unknown());
        }
        let (address, dtype) = (buffer.data as usize, dtype(buffer.dtype).ok_or_else(unknown)?);
        let mut parts = Parts { address, dtype, device, rank, shape: [1; MAX_RANK], strides: [1; MAX_RANK] };
        let mut len = 1;
        for axis in (0..rank).rev() {
            // SAFETY: as many sizes as there are axes.
            parts.shape[axis] = usize::try_from(unsafe { *buffer.dims.add(axis) }).map_err(|_| unknown())?;
            parts.strides[axis] = len;
            len *= parts.shape[axis].max(1) as isize;
        }
        if parts.shape[..rank].contains(&0) {
            parts.address = NOWHERE;
        }
        Ok(parts)
    }

    /// The next one, to be read.
    pub fn read(&mut self, device: Device) -> Result<View<'f>, Failure> {
        let parts = self.next(device)?;
        let (shape, strides) = (&parts.shape[..parts.rank], &parts.strides[..parts.rank]);
        // SAFETY: XLA's promise: memory of a dense array on the device of the handler, which nobody writes until the handler returns,
        // or, on CUDA, until what it launched is through.
        Ok(unsafe { View::from_raw_parts(parts.address as *const u8, parts.dtype, parts.device, shape, strides) }?)
    }

    /// The next one, to be written.
    pub fn write(&mut self, device: Device) -> Result<ViewMut<'f>, Failure> {
        let parts = self.next(device)?;
        let (shape, strides) = (&parts.shape[..parts.rank], &parts.strides[..parts.rank]);
        // SAFETY: as above, and nobody else uses the memory of a result; one that shares it with an argument is read in its place only.
        Ok(unsafe { ViewMut::from_raw_parts(parts.address as *mut u8, parts.dtype, parts.device, shape, strides) }?)
    }
}

fn dtype(number: u32) -> Option<DType> {
    Some(match number {
        abi::dtype::S32 => DType::I32,
        abi::dtype::S64 => DType::I64,
        abi::dtype::F16 => DType::F16,
        abi::dtype::BF16 => DType::BF16,
        abi::dtype::F32 => DType::F32,
        abi::dtype::F64 => DType::F64,
        abi::dtype::C64 => DType::Complex64,
        abi::dtype::C128 => DType::Complex128,
        _ => return None,
    })
}

const _: () = assert!(size_of::<abi::Version>() == 24 && abi::Frame::SIZE == size_of::<abi::Frame>());
