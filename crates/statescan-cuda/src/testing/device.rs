//! Helpers of tests on a GPU: a stream, and memory that they fill and read.

use super::Described;
use crate::{DeviceMemory, Error, Scalar, Stream};
use bytemuck::{AnyBitPattern, NoUninit};

/// A stream on the first GPU, if `suits` says so of its compute capability; else the test says why it does nothing.
pub fn gpu(needs: &str, suits: impl Fn((u32, u32)) -> bool) -> Option<Stream> {
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
pub fn upload<T: NoUninit>(stream: &Stream, data: &[T]) -> DeviceMemory {
    DeviceMemory::from_host(stream, bytemuck::cast_slice(data)).unwrap()
}

/// Waits for the stream and reads the numbers.
pub fn download<T: NoUninit + AnyBitPattern>(memory: &DeviceMemory) -> Vec<T> {
    let mut data = vec![T::zeroed(); memory.len() / size_of::<T>()];
    memory.download(bytemuck::cast_slice_mut(&mut data)).unwrap();
    data
}

/// A tensor that begins where the memory does.
pub fn view(memory: &DeviceMemory, scalar: Scalar, shape: &[usize], strides: &[isize]) -> Described {
    Described { address: memory.address(), ..Described::strided(scalar, 0, shape, strides) }
}
