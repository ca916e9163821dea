//! The parts of a call of XLA's foreign function interface, as C has it: the part of `xla/ffi/api/c_api.h` that a handler needs.
//! Minor versions add fields behind, which the sizes of the structs tell, and leave these as they are.

use std::ffi::{c_char, c_void};
use std::mem::{offset_of, size_of};

/// The major version of the interface that this is.
pub const MAJOR: i32 = 0;
/// The newest minor version whose header was compared with this.
pub const MINOR: i32 = 4;
/// The stage in which a handler does its work.
pub const EXECUTE: i32 = 3;
/// The kind of the extension that asks what a handler is, in the place of a call.
pub const METADATA: i32 = 1;
/// A handler launches the same device operations at every call, so that these may be recorded.
pub const RECORDABLE: u32 = 1;

/// Codes of errors.
pub mod code {
    pub const INVALID_ARGUMENT: i32 = 3;
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    pub const UNIMPLEMENTED: i32 = 12;
    pub const INTERNAL: i32 = 13;
}

/// Types of attributes.
pub mod attribute {
    pub const ARRAY: i32 = 1;
    pub const SCALAR: i32 = 3;
}

/// Element types.
pub mod dtype {
    pub const S32: u32 = 4;
    pub const S64: u32 = 5;
    pub const F16: u32 = 10;
    pub const F32: u32 = 11;
    pub const F64: u32 = 12;
    pub const C64: u32 = 15;
    pub const BF16: u32 = 16;
    pub const C128: u32 = 18;
}

/// `XLA_FFI_Extension_Base`, since 0.4 `XLA_FFI_InternalExtension`.
#[repr(C)]
pub struct Extension {
    pub struct_size: usize,
    pub kind: i32,
    pub next: *mut Extension,
}

/// `XLA_FFI_Api_Version`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Version {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub major: i32,
    pub minor: i32,
}

/// `XLA_FFI_Metadata`, as far as it is written.
#[repr(C)]
pub struct Metadata {
    pub struct_size: usize,
    pub version: Version,
    pub traits: u32,
}

/// `XLA_FFI_Metadata_Extension`.
#[repr(C)]
pub struct MetadataExtension {
    pub base: Extension,
    pub metadata: *mut Metadata,
}

/// `XLA_FFI_Buffer`: dense, the last axis first in memory.
#[repr(C)]
pub struct Buffer {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub dtype: u32,
    pub data: *mut c_void,
    pub rank: i64,
    pub dims: *const i64,
}

/// `XLA_FFI_Args` or `XLA_FFI_Rets`: buffers, the only type that there is, which has the number 1.
#[repr(C)]
pub struct Buffers {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub size: i64,
    pub types: *const i32,
    pub items: *const *const Buffer,
}

/// `XLA_FFI_ByteSpan`.
#[repr(C)]
pub struct Bytes {
    pub data: *const u8,
    pub len: usize,
}

/// `XLA_FFI_Attrs`, by their names in alphabetical order.
#[repr(C)]
pub struct Attributes {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub size: i64,
    pub types: *const i32,
    pub names: *const *const Bytes,
    pub items: *const *const c_void,
}

/// `XLA_FFI_Scalar`.
#[repr(C)]
pub struct Scalar {
    pub dtype: u32,
    pub value: *const c_void,
}

/// `XLA_FFI_Array`.
#[repr(C)]
pub struct Array {
    pub dtype: u32,
    pub size: usize,
    pub data: *const c_void,
}

/// `XLA_FFI_CallFrame`.
#[repr(C)]
pub struct Frame {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub api: *const Api,
    pub context: *mut c_void,
    pub stage: i32,
    pub arguments: Buffers,
    pub results: Buffers,
    pub attributes: Attributes,
}

/// `XLA_FFI_Error_Create_Args`.
#[repr(C)]
pub struct ErrorCreate {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub message: *const c_char,
    pub code: i32,
}

/// `XLA_FFI_Stream_Get_Args`.
#[repr(C)]
pub struct StreamGet {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub context: *mut c_void,
    pub stream: *mut c_void,
}

/// `XLA_FFI_DeviceOrdinal_Get_Args`.
#[repr(C)]
pub struct OrdinalGet {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub context: *mut c_void,
    pub ordinal: i32,
}

/// An error of XLA's, which belongs to who gets it.
pub enum Error {}

/// `XLA_FFI_Api` up to the last function that is called.
#[repr(C)]
pub struct Api {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub version: Version,
    pub internal: *const c_void,
    pub error_create: unsafe extern "C" fn(*mut ErrorCreate) -> *mut Error,
    /// `Error_GetMessage` or `Error_GetDetails`, `Error_Destroy`, `Handler_Register`.
    _errors: [*const c_void; 3],
    pub stream_get: unsafe extern "C" fn(*mut StreamGet) -> *mut Error,
    /// From `Type_Register` to `RunId_Get`.
    _others: [*const c_void; 12],
    pub device_ordinal_get: unsafe extern "C" fn(*mut OrdinalGet) -> *mut Error,
}

/// The size that C gives a struct up to its last field, without what fills it up.
macro_rules! size_to {
    ($of:ty, $field:ident: $kind:ty) => {
        offset_of!($of, $field) + size_of::<$kind>()
    };
}

impl Metadata {
    pub const SIZE: usize = size_to!(Metadata, traits: u32);
}

impl Buffer {
    pub const SIZE: usize = size_to!(Buffer, dims: *const i64);
}

impl Buffers {
    pub const SIZE: usize = size_to!(Buffers, items: *const *const Buffer);
}

impl Attributes {
    pub const SIZE: usize = size_to!(Attributes, items: *const *const c_void);
}

impl Frame {
    pub const SIZE: usize = size_to!(Frame, attributes: Attributes);
}

impl ErrorCreate {
    pub const SIZE: usize = size_to!(ErrorCreate, code: i32);
}

impl StreamGet {
    pub const SIZE: usize = size_to!(StreamGet, stream: *mut c_void);
}

impl OrdinalGet {
    pub const SIZE: usize = size_to!(OrdinalGet, ordinal: i32);
}

impl Api {
    pub const SIZE: usize = size_to!(Api, device_ordinal_get: unsafe extern "C" fn(*mut OrdinalGet) -> *mut Error);
}
