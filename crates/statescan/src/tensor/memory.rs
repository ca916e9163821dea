//! Memory for arrays.

use bytemuck::{Pod, Zeroable};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

/// A line of a cache: memory made of these lets the vectors of a dense tensor lie within one line each.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u64; 8]);

/// From this many bytes on an array should lie on large pages, as NumPy's do. A tile of time touches a small page of every row, each of which
/// has to be translated anew after few tiles.
const LARGE: usize = 4 << 20;
/// Bytes of a large page, on most machines, where the system can be asked for some. Only whole ones inside an array can be used, so that it
/// should begin with one.
const LARGE_PAGE: usize = if cfg!(target_os = "linux") { 2 << 20 } else { 1 };

/// Lines of an array, zeroed when it is made.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<Line>,
    count: usize,
}

// SAFETY: an allocation that this value alone refers to, of plain numbers.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Panics
    /// If no memory could have as many.
    pub(crate) fn zeroed(count: usize) -> Self {
        if count == 0 {
            return Self::default();
        }
        let layout = Self::layout(count).expect("sizes are limited");
        // SAFETY: it is not empty.
        let start = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        if layout.size() >= LARGE {
            prefer_large_pages(start, layout.size());
        }
        // not asked for as zeros: the allocator would write them before the system is asked for large pages
        // SAFETY: so many bytes have just been allocated.
        unsafe { start.write_bytes(0, layout.size()) };
        Memory { start: start.cast(), count }
    }

    fn layout(count: usize) -> Option<Layout> {
        let lines = Layout::array::<Line>(count).ok()?;
        lines.align_to(if lines.size() >= LARGE { LARGE_PAGE } else { 1 }).ok()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Memory { start: NonNull::dangling(), count: 0 }
    }
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.count);
        copy.copy_from_slice(self);
        copy
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.count).filter(|layout| layout.size() > 0) {
            // SAFETY: allocated with this layout, and given back once.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl Deref for Memory {
    type Target = [Line];
    fn deref(&self) -> &[Line] {
        // SAFETY: so many lines were allocated and written.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [Line] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

/// Asks the system for large pages, before anybody touches the memory. It is a wish, and whatever comes of it changes no contents.
fn prefer_large_pages(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the pages that are asked for begin where this memory does; contents stay as they are, also those after its end.
    #[cfg(all(target_os = "linux", not(miri)))]
    unsafe {
        libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (start, bytes);
}

#[cfg(test)]
mod tests {
    use super::{LARGE, LARGE_PAGE, Line, Memory};

    #[test]
    fn small_and_large_arrays_are_zero_and_aligned() {
        let large = LARGE / size_of::<Line>();
        for (lines, align) in
            [(0, 64), (1, 64), (large - 1, 64), (large, LARGE_PAGE.max(64)), (3 * large + 1, LARGE_PAGE.max(64))]
        {
            let mut memory = Memory::zeroed(lines);
            assert_eq!(memory.len(), lines);
            assert_eq!(memory.as_ptr().cast::<u8>().align_offset(align), 0);
            let words = bytemuck::cast_slice_mut::<_, u64>(&mut memory);
            assert!(words.iter().all(|&word| word == 0));
            words.iter_mut().zip(1..).for_each(|(word, i)| *word = i);
            let copy = memory.clone();
            drop(memory);
            assert!(bytemuck::cast_slice::<_, u64>(&copy).iter().zip(1..).all(|(&word, i)| word == i));
        }
    }
}
