//! Memory of one owner on any device.

use super::memory::{Line, Memory};
use super::view::Device;
use crate::cuda::{DeviceMemory, Stream};
use crate::error::Result;
use crate::exec::Exec;

/// Whole lines of memory.
pub(super) enum Storage {
    Host(Memory),
    Cuda(DeviceMemory),
}

impl Storage {
    /// Lines of zeros on the host.
    pub(super) fn host(lines: usize) -> Self {
        Storage::Host(Memory::zeroed(lines))
    }

    /// Lines on the executor's device, every byte of which is `byte`; without it they hold anything.
    pub(super) fn filled(exec: &Exec, lines: usize, byte: Option<u8>) -> Result<Self> {
        let Some(stream) = exec.stream() else {
            let mut storage = Self::host(lines);
            if let Some(byte @ 1..) = byte {
                storage.bytes_mut().fill(byte);
            }
            return Ok(storage);
        };
        let mut memory = DeviceMemory::new(stream, lines * size_of::<Line>())?;
        if let Some(byte) = byte {
            memory.fill(byte)?;
        }
        Ok(Storage::Cuda(memory))
    }

    /// Lines on a CUDA device that begin with these bytes.
    pub(super) fn upload(stream: &Stream, lines: usize, bytes: &[u8]) -> Result<Self> {
        Ok(Storage::Cuda(DeviceMemory::from_host(stream, lines * size_of::<Line>(), bytes)?))
    }

    /// A copy on the executor's device.
    pub(super) fn to(&self, exec: &Exec) -> Result<Self> {
        match (self, exec.stream()) {
            (Storage::Host(memory), Some(stream)) => Self::upload(stream, memory.len(), self.bytes()),
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
                let mut copy = Self::host(memory.len() / size_of::<Line>());
                memory.download(copy.bytes_mut())?;
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

    /// Where the memory begins.
    pub(super) fn as_ptr(&self) -> *const u8 {
        match self {
            Storage::Host(memory) => memory.as_ptr().cast(),
            Storage::Cuda(memory) => core::ptr::without_provenance(memory.address() as usize),
        }
    }

    /// Where the memory begins, to write there.
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
