//! Memory of a device that is freed with its owner.

use super::Stream;
use crate::error::Result;

/// Bytes in the memory of a device. Copies to and from it wait for what the stream holds.
///
/// The allocation itself is not ordered on the stream: it can be used at once on any stream of the device, and freeing it waits for every
/// kernel that uses it.
pub(crate) struct DeviceMemory {
    stream: Stream,
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    /// Memory that holds anything.
    pub(crate) fn new(stream: &Stream, bytes: usize) -> Result<Self> {
        Ok(DeviceMemory { stream: stream.clone(), address: stream.allocate(bytes)?, bytes })
    }

    /// A copy of bytes on the host.
    pub(crate) fn from_host(stream: &Stream, bytes: &[u8]) -> Result<Self> {
        let memory = Self::new(stream, bytes.len())?;
        // SAFETY: both ranges have as many bytes, and nobody else knows of the memory yet.
        unsafe { stream.upload(memory.address, bytes.as_ptr(), bytes.len())? };
        Ok(memory)
    }

    /// Sets every byte, in the order of the stream.
    pub(crate) fn fill(&mut self, byte: u8) -> Result<()> {
        // SAFETY: the range is the memory, which is borrowed exclusively.
        unsafe { self.stream.fill(self.address, byte, self.bytes) }
    }

    /// Overwrites bytes from one of them on, in the order of the stream, and waits.
    ///
    /// # Panics
    /// If there are not as many.
    pub(crate) fn write(&mut self, first: usize, bytes: &[u8]) -> Result<()> {
        assert!(first <= self.bytes && bytes.len() <= self.bytes - first, "the bytes lie in the memory");
        // SAFETY: the range lies in the memory, which is borrowed exclusively.
        unsafe { self.stream.upload(self.address + first as u64, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies the bytes to the host.
    ///
    /// # Panics
    /// If the target has not as many.
    pub(crate) fn download(&self, to: &mut [u8]) -> Result<()> {
        assert_eq!(to.len(), self.bytes, "the target is as large");
        // SAFETY: both ranges have as many bytes, and the target is borrowed exclusively.
        unsafe { self.stream.download(to.as_mut_ptr(), self.address, self.bytes) }
    }

    /// A copy on the same device, for use on another stream.
    pub(crate) fn duplicate(&self, stream: &Stream) -> Result<Self> {
        let copy = Self::new(stream, self.bytes)?;
        // SAFETY: both ranges have as many bytes, and they are separate allocations.
        unsafe { self.stream.copy(copy.address, self.address, self.bytes)? };
        self.stream.synchronize()?;
        Ok(copy)
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of the memory.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; no view outlives its owner, and freeing waits for the kernels that use the memory.
        unsafe { self.stream.free(self.address) };
    }
}
