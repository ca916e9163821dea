//! What tests on a GPU begin with: a stream, and memory that they fill and read.

use crate::cuda::Stream;
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
pub(crate) struct OnDevice {
    stream: Stream,
    pub address: u64,
    bytes: usize,
}

impl OnDevice {
    pub(crate) fn new<T: NoUninit>(stream: &Stream, data: &[T]) -> Self {
        let bytes = size_of_val(data);
        let address = stream.allocate(bytes).unwrap();
        // SAFETY: the data and the memory have so many bytes.
        unsafe { stream.upload(address, data.as_ptr().cast(), bytes).unwrap() };
        OnDevice { stream: stream.clone(), address, bytes }
    }

    /// Waits for the stream and reads the numbers.
    pub(crate) fn read<T: NoUninit + AnyBitPattern>(&self) -> Vec<T> {
        let mut data = vec![T::zeroed(); self.bytes / size_of::<T>()];
        // SAFETY: as many bytes as were allocated, or fewer.
        unsafe { self.stream.download(data.as_mut_ptr().cast(), self.address, size_of_val(data.as_slice())).unwrap() };
        data
    }

    /// A tensor that begins there; only a device may follow it.
    pub(crate) fn view(&self, dtype: DType, shape: &[usize], strides: &[isize]) -> View<'_> {
        // SAFETY: the memory lives as long as `self`, and callers give shapes and strides that it was sized for.
        let view = unsafe { View::from_raw_parts(self.address as *const u8, dtype, Device::Cuda(0), shape, strides) };
        view.unwrap()
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; no view outlives `self`.
        unsafe { self.stream.free(self.address) };
    }
}
