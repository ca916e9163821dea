//! Memory of a device that is freed with its owner.

use crate::{Result, Stream};

/// Bytes in the memory of a device. Copies to and from it wait for what the stream holds.
///
/// The allocation itself is not ordered on the stream: it can be used at once on any stream of the device, and freeing it waits for every
/// kernel that uses it.
#[derive(Debug)]
pub struct DeviceMemory {
    stream: Stream,
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    /// Memory that holds anything.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::Cuda`](crate::Error::Cuda).
    pub fn new(stream: &Stream, bytes: usize) -> Result<Self> {
        Ok(DeviceMemory { stream: stream.clone(), address: stream.allocate(bytes)?, bytes })
    }

    /// A copy of bytes on the host.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::Cuda`](crate::Error::Cuda).
    pub fn from_host(stream: &Stream, bytes: &[u8]) -> Result<Self> {
        let memory = Self::new(stream, bytes.len())?;
        // SAFETY: both ranges have as many bytes, and nobody else knows of the memory yet.
        unsafe { stream.upload(memory.address, bytes.as_ptr(), bytes.len())? };
        Ok(memory)
    }

    /// Sets every byte, in the order of the stream.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::Cuda`](crate::Error::Cuda).
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        // SAFETY: the range is the memory, which is borrowed exclusively.
        unsafe { self.stream.fill(self.address, byte, self.bytes) }
    }

    /// Overwrites bytes from one of them on, in the order of the stream, and waits.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    ///
    /// # Panics
    /// If there are not as many.
    pub fn write(&mut self, first: usize, bytes: &[u8]) -> Result<()> {
        assert!(first <= self.bytes && bytes.len() <= self.bytes - first, "the bytes lie in the memory");
        // SAFETY: the range lies in the memory, which is borrowed exclusively.
        unsafe { self.stream.upload(self.address + first as u64, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies the bytes to the host.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    ///
    /// # Panics
    /// If the target has not as many.
    pub fn download(&self, to: &mut [u8]) -> Result<()> {
        assert_eq!(to.len(), self.bytes, "the target is as large");
        // SAFETY: both ranges have as many bytes, and the target is borrowed exclusively.
        unsafe { self.stream.download(to.as_mut_ptr(), self.address, self.bytes) }
    }

    /// A copy on the same device, for use on another stream.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::Cuda`](crate::Error::Cuda).
    pub fn duplicate(&self, stream: &Stream) -> Result<Self> {
        let copy = Self::new(stream, self.bytes)?;
        // SAFETY: both ranges have as many bytes, and they are separate allocations.
        unsafe { self.stream.copy(copy.address, self.address, self.bytes)? };
        self.stream.synchronize()?;
        Ok(copy)
    }

    /// The stream that copies are ordered on.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The start of the memory.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of the memory.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; no view outlives its owner, and freeing waits for the kernels that use the memory.
        unsafe { self.stream.free(self.address) };
    }
}
