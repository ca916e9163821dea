//! PyTorch's own threads. Between its operations they keep the cores busy, looking for more work, so that threads of ours would have to wait
//! for theirs; and a thread that looks for work need not be woken.
//!
//! PyTorch's wheels for Linux bring GNU's OpenMP, whose `GOMP_parallel` compilers call for every parallel region: its signature is fixed.

use statescan::Exec;
use std::any::Any;
use std::ffi::{CString, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Runs a function on so many threads, this one among them, and returns after all of them.
type Parallel = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);

/// The process that has imported this module: the threads do not survive a fork, and GNU's OpenMP does not notice.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// Remembers the process.
pub fn import() {
    PROCESS.get_or_init(std::process::id);
}

/// An executor on PyTorch's threads, if there are any.
pub fn exec(threads: usize) -> Option<Exec> {
    if PROCESS.get() != Some(&std::process::id()) {
        return None;
    }
    let parallel = parallel()?;
    Some(Exec::cpu_on(threads, Arc::new(move |count, work| run(parallel, count, work))))
}

/// What all threads of a region share.
struct Region<'w> {
    work: &'w (dyn Fn() + Sync),
    /// What the first thread that panicked has said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

fn run(parallel: Parallel, count: usize, work: &(dyn Fn() + Sync)) {
    extern "C" fn enter(region: *mut c_void) {
        // SAFETY: `run` gives nothing else, and waits for the end of the region.
        let region = unsafe { &*region.cast::<Region<'_>>() };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(region.work)) {
            region.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }
    let region = Region { work, panic: Mutex::new(None) };
    let count = c_uint::try_from(count).unwrap_or(c_uint::MAX);
    // SAFETY: the function is what its name says; nothing unwinds out of `enter`, and the region lives until all have left it.
    unsafe { parallel(enter, (&raw const region).cast_mut().cast(), count, 0) };
    if let Some(panic) = region.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
}

/// `GOMP_parallel` of the library that PyTorch has loaded.
fn parallel() -> Option<Parallel> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = CString::new(library(&maps)?).ok()?;
    // SAFETY: the library is loaded already, by PyTorch, which never unloads it; its function has this type.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if library.is_null() {
            return None;
        }
        let function = libc::dlsym(library, c"GOMP_parallel".as_ptr());
        (!function.is_null()).then(|| core::mem::transmute::<*mut c_void, Parallel>(function))
    }
}

/// The path of PyTorch's `libgomp` among the mapped files: the one beside its own libraries, or the only one where PyTorch is mapped.
fn library(maps: &str) -> Option<&str> {
    let files = || maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let name = |path: &'static str| move |file: &&str| file.rsplit('/').next().is_some_and(|name| name.starts_with(path));
    let torch = files().find(name("libtorch_cpu.so"))?;
    let folder = &torch[..torch.rfind('/')?];
    let mut found: Vec<_> = files().filter(name("libgomp")).collect();
    found.dedup();
    let beside = found.iter().find(|file| file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')));
    beside.or(found.first().filter(|_| found.len() == 1)).copied()
}

#[cfg(test)]
mod tests {
    use super::library;

    #[test]
    fn the_library_beside_pytorch_is_found() {
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 fe:00 42                 {path}\n");
        let torch = line("/env/lib/torch/lib/libtorch_cpu.so");
        let own = line("/env/lib/torch/lib/libgomp-a34b.so.1");
        let other = line("/usr/lib/libgomp.so.1");
        let path = |text: &str| library(text).map(str::to_string);
        assert_eq!(
            path(&format!("{}{torch}{other}{own}{own}", line("[heap]"))).as_deref(),
            Some("/env/lib/torch/lib/libgomp-a34b.so.1")
        );
        assert_eq!(path(&format!("{torch}{other}{other}")).as_deref(), Some("/usr/lib/libgomp.so.1"));
        assert_eq!(path(&format!("{torch}{other}{}", line("/opt/libgomp.so.1"))), None, "either could be");
        assert_eq!(path(&torch), None);
        assert_eq!(path(&other), None, "without PyTorch nobody else runs there");
    }
}
