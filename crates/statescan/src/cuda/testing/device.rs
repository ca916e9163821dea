//! What tests on a GPU begin with: a stream, and memory that they fill and read.

use crate::cuda::{DeviceMemory, Stream};
use crate::error::Error;
use crate::tensor::{DType, Device, View};
use bytemuck::{AnyBitPattern, NoUninit};

/// A stream on the first GPU, if `suits` says so of its compute capability; else the test says why it does nothing.
pub(crate) fn gpu(needs: &str, suits: impl Fn((u32, u32)) -> bool) -> Option<Stream> {
    match Stream::own(0) {
        Ok(stream) if suits(stream.numbers().capability) => Some(stream),
        Ok(stream) => {
            println!("skipped: the device has compute capability {:?}, the test needs {needs}", stream.numbers().capability);
            None
        }
        Err(error @ Error::Unavailable { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Numbers in a device's memory.
pub(crate) fn upload<T: NoUninit>(stream: &Stream, data: &[T]) -> DeviceMemory {
    DeviceMemory::from_host(stream, bytemuck::cast_slice(data)).unwrap()
}

/// Waits for the stream and reads the numbers.
pub(crate) fn download<T: NoUninit + AnyBitPattern>(memory: &DeviceMemory) -> Vec<T> {
    let mut data = vec![T::zeroed(); memory.len() / size_of::<T>()];
    memory.download(bytemuck::cast_slice_mut(&mut data)).unwrap();
    data
}

/// A tensor that begins where the memory does and lies within it; only a device follows it.
pub(crate) fn view<'m>(memory: &'m DeviceMemory, dtype: DType, shape: &[usize], strides: &[isize]) -> View<'m> {
    let device = Device::Cuda(memory.stream().ordinal());
    // SAFETY: the memory lives as long as the view, and callers give shapes and strides that it was sized for.
    let view =
        unsafe { View::from_raw_parts(core::ptr::without_provenance(memory.address() as usize), dtype, device, shape, strides) };
    view.unwrap()
}
