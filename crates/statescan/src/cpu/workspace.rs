//! Large arrays for partial results, kept from call to call: fresh memory costs a page fault for every few kilobytes, and in the kernel
//! threads wait for each other.

use crate::tensor::{Line, Memory};
use bytemuck::Pod;
use std::sync::{Arc, Mutex, PoisonError};

/// The scratch memory of an executor. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Workspace {
    kept: Arc<Mutex<Memory>>,
}

/// More is given back to the system after the call.
const MOST_KEPT: usize = 64 << 20;

impl Workspace {
    /// Memory for `len` elements, of arbitrary contents, from a cache line on. A call beside another one gets memory of its own.
    pub(crate) fn lend<T: Pod>(&self, len: usize) -> Lent<'_, T> {
        let bytes = len.checked_mul(size_of::<T>()).expect("sizes are limited");
        let lines = bytes.div_ceil(size_of::<Line>());
        let mut kept = self.lock();
        let mut memory = if kept.len() < lines { Memory::zeroed(lines) } else { core::mem::take(&mut *kept) };
        drop(kept);
        if cfg!(debug_assertions) {
            // NaN, so that tests find what is read before it is written
            bytemuck::cast_slice_mut(&mut memory).fill(u64::MAX);
        }
        Lent { workspace: self, memory, len, marker: core::marker::PhantomData }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Memory> {
        // the memory has no contents that a panic could leave half done
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory that goes back to its workspace at the end.
pub(crate) struct Lent<'w, T> {
    workspace: &'w Workspace,
    memory: Memory,
    len: usize,
    marker: core::marker::PhantomData<T>,
}

impl<T: Pod> Lent<'_, T> {
    pub(crate) fn as_slice(&self) -> &[T] {
        &bytemuck::cast_slice(&self.memory)[..self.len]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.memory)[..self.len]
    }
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        let mut kept = self.workspace.lock();
        if kept.len() < self.memory.len() && self.memory.len() * size_of::<Line>() <= MOST_KEPT {
            *kept = core::mem::take(&mut self.memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_is_never_shared() {
        let workspace = Workspace::default();
        let first = workspace.lend::<f32>(1001).as_slice().as_ptr();
        let mut again = workspace.clone().lend::<f64>(3).memory.len();
        assert_eq!(again, 63, "the memory of the first call");
        let mut one = workspace.lend::<f32>(1000);
        let two = workspace.lend::<f32>(1000);
        assert_eq!(one.as_slice().as_ptr(), first);
        assert_ne!(two.as_slice().as_ptr(), first);
        one.as_mut_slice().fill(1.0);
        drop((one, two));
        drop(workspace.lend::<u8>(MOST_KEPT + 1));
        again = workspace.lend::<u8>(0).memory.len();
        assert_eq!(again, 63, "what is too large is not kept");
    }
}
