//! Memory for arrays.

use bytemuck::{Pod, Zeroable};
#[cfg(all(target_os = "linux", not(miri)))]
use core::mem::MaybeUninit;

/// A line of a cache: memory made of these lets the vectors of a dense tensor lie within one line each.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u64; 8]);

/// From this many bytes on an array should lie on large pages, as NumPy's do. A tile of time touches a small page of every row, each of which
/// has to be translated anew after few tiles.
const LARGE: usize = 4 << 20;

/// Zeroed memory.
pub(crate) fn zeroed(lines: usize) -> Vec<Line> {
    // not asked for as zeros: for memory aligned to lines the allocator writes them itself, on small pages
    let mut memory = Vec::with_capacity(lines);
    #[cfg(all(target_os = "linux", not(miri)))]
    prefer_large_pages(memory.spare_capacity_mut());
    memory.resize(lines, Line::zeroed());
    memory
}

/// Asks the system for large pages, before anybody touches the memory. It is a wish, and whatever comes of it changes no contents.
#[cfg(all(target_os = "linux", not(miri)))]
fn prefer_large_pages(memory: &mut [MaybeUninit<Line>]) {
    // SAFETY: no more than a question.
    let Ok(page) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else { return };
    let (start, bytes) = (memory.as_mut_ptr().cast::<u8>(), size_of_val(memory));
    let before = start.align_offset(page);
    if bytes >= LARGE && before < bytes {
        let whole = (bytes - before) / page * page;
        // SAFETY: these pages lie inside the array; the advice leaves contents alone.
        unsafe { libc::madvise(start.wrapping_add(before).cast(), whole, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::{LARGE, Line, zeroed};

    #[test]
    fn small_and_large_arrays_are_zero_and_aligned() {
        for lines in [0, 1, LARGE / size_of::<Line>() - 1, LARGE / size_of::<Line>(), 3 * LARGE / size_of::<Line>() + 1] {
            let memory = zeroed(lines);
            assert_eq!(memory.len(), lines);
            assert!(memory.as_ptr().cast::<u8>().align_offset(64) == 0);
            assert!(bytemuck::cast_slice::<_, u64>(&memory).iter().all(|&word| word == 0));
        }
    }
}
