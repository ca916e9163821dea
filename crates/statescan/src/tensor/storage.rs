//! Memory of one owner on any device.

use super::memory::{Line, Memory};
use crate::device::Device;
use crate::error::Result;
use crate::exec::Exec;
use statescan_cuda::{DeviceMemory, Stream};

pub(super) enum Storage {
    /// Whole lines, of which the last may have bytes more.
    Host(Memory),
    Cuda(DeviceMemory),
}

impl Storage {
    /// So many bytes on the host, all zero.
    pub(super) fn host(bytes: usize) -> Self {
        Storage::Host(Memory::zeroed(bytes.div_ceil(size_of::<Line>())))
    }

    /// So many bytes on the executor's device, each of which is `byte`; without it they may be anything.
    pub(super) fn filled(exec: &Exec, bytes: usize, byte: Option<u8>) -> Result<Self> {
        let Some(stream) = exec.stream() else {
            let mut storage = Self::host(bytes);
            if let Some(byte @ 1..) = byte {
                storage.bytes_mut().fill(byte);
            }
            return Ok(storage);
        };
        let mut memory = DeviceMemory::new(stream, bytes)?;
        if let Some(byte) = byte {
            memory.fill(byte)?;
        }
        Ok(Storage::Cuda(memory))
    }

    /// A copy of bytes on a CUDA device.
    pub(super) fn upload(stream: &Stream, bytes: &[u8]) -> Result<Self> {
        Ok(Storage::Cuda(DeviceMemory::from_host(stream, bytes)?))
    }

    /// Overwrites bytes from one of them on.
    ///
    /// # Panics
    /// If there are not as many.
    pub(super) fn write(&mut self, first: usize, bytes: &[u8]) -> Result<()> {
        match self {
            Storage::Host(_) => self.bytes_mut()[first..first + bytes.len()].copy_from_slice(bytes),
            Storage::Cuda(memory) => memory.write(first, bytes)?,
        }
        Ok(())
    }

    /// A copy on the executor's device.
    pub(super) fn to(&self, exec: &Exec) -> Result<Self> {
        match (self, exec.stream()) {
            (Storage::Host(_), Some(stream)) => Self::upload(stream, self.bytes()),
            (Storage::Cuda(memory), Some(stream)) if stream.ordinal() == memory.stream().ordinal() => {
                Ok(Storage::Cuda(memory.duplicate(stream)?))
            }
            (Storage::Cuda(_), Some(_)) => self.to_host()?.to(exec),
            (_, None) => self.to_host(),
        }
    }

    /// A copy on the host.
    pub(super) fn to_host(&self) -> Result<Self> {
        match self {
            Storage::Host(memory) => Ok(Storage::Host(memory.clone())),
            Storage::Cuda(memory) => {
                let mut copy = Self::host(memory.len());
                memory.download(&mut copy.bytes_mut()[..memory.len()])?;
                Ok(copy)
            }
        }
    }

    /// A copy on the same device, for the same stream.
    pub(super) fn duplicate(&self) -> Result<Self> {
        match self {
            Storage::Host(memory) => Ok(Storage::Host(memory.clone())),
            Storage::Cuda(memory) => Ok(Storage::Cuda(memory.duplicate(memory.stream())?)),
        }
    }

    /// # Panics
    /// If the memory is not on the host.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Storage::Host(memory) => bytemuck::cast_slice(memory),
            Storage::Cuda(_) => panic!("bytes can be read on the host only"),
        }
    }

    /// # Panics
    /// If the memory is not on the host.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Storage::Host(memory) => bytemuck::cast_slice_mut(memory),
            Storage::Cuda(_) => panic!("bytes can be written on the host only"),
        }
    }

    pub(super) fn device(&self) -> Device {
        match self {
            Storage::Host(_) => Device::Cpu,
            Storage::Cuda(memory) => Device::Cuda(memory.stream().ordinal()),
        }
    }

    /// Returns the start of the memory.
    pub(super) fn as_ptr(&self) -> *const u8 {
        match self {
            Storage::Host(memory) => memory.as_ptr().cast(),
            Storage::Cuda(memory) => core::ptr::without_provenance(memory.address() as usize),
        }
    }

    /// Returns the start of the memory, for writing.
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        match self {
            Storage::Host(memory) => memory.as_mut_ptr().cast(),
            Storage::Cuda(memory) => core::ptr::without_provenance_mut(memory.address() as usize),
        }
    }

    /// Whether what the executor does with the memory comes after what was done with it before.
    pub(super) fn is_ordered_with(&self, exec: &Exec) -> bool {
        match (self, exec.stream()) {
            (Storage::Host(_), None) => true,
            (Storage::Cuda(memory), Some(stream)) => memory.stream().is(stream),
            _ => false,
        }
    }
}
