//! PyTorch's own threads. Between its operations they keep the cores busy, looking for more work, so that threads of ours would have to wait
//! for theirs; and a thread that looks for work need not be woken.
//!
//! PyTorch's wheels for Linux bring GNU's OpenMP, whose `GOMP_parallel` compilers call for every parallel region: its signature is fixed.

use statescan::Exec;
use std::any::Any;
use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Runs a function on so many threads, this one among them, and returns after all of them.
type Parallel = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);
/// Says how many threads the calling one has in PyTorch's own regions.
type MaxThreads = unsafe extern "C" fn() -> c_int;

/// The functions of OpenMP that are used.
#[derive(Clone, Copy)]
struct OpenMp {
    parallel: Parallel,
    threads: MaxThreads,
}

/// The process that has imported this module: the threads do not survive a fork, and GNU's OpenMP does not notice.
static PROCESS: OnceLock<Option<u32>> = OnceLock::new();

/// Remembers the process, unless it is the copy of one whose threads PyTorch may have used already.
pub fn import() {
    PROCESS.get_or_init(|| (!is_copy(&std::fs::read_to_string("/proc/self/stat").ok()?)).then(std::process::id));
}

/// Whether a process was forked and has not begun another program since, as its line in `/proc` tells.
fn is_copy(stat: &str) -> bool {
    const PF_FORKNOEXEC: u64 = 0x40;
    // a program's name, in parentheses, may contain anything; the flags are the seventh number after it
    let flags = stat.rsplit(')').next().and_then(|fields| fields.split_whitespace().nth(6)).and_then(|flags| flags.parse().ok());
    flags.is_none_or(|flags: u64| flags & PF_FORKNOEXEC != 0)
}

/// An executor on PyTorch's threads, if there are any.
pub fn exec(threads: usize) -> Option<Exec> {
    if PROCESS.get() != Some(&Some(std::process::id())) {
        return None;
    }
    let openmp = openmp()?;
    // more threads than cores, of which a container's quota may leave fewer than PyTorch counts, would wait for each other; and OpenMP ends the
    // process if the system refuses a thread
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    Some(Exec::cpu_on(threads.min(most), Arc::new(move |count, work| run(openmp, count, work))))
}

/// The work and the state that all threads of a region share.
struct Region<'w> {
    work: &'w (dyn Fn() + Sync),
    /// The message of the first thread that panicked.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// On as many threads as PyTorch uses if these are enough, for OpenMP ends what a smaller region leaves over; the executor gives work to
/// as many as there should be.
fn run(openmp: OpenMp, count: usize, work: &(dyn Fn() + Sync)) {
    extern "C" fn enter(region: *mut c_void) {
        // SAFETY: `run` gives nothing else, and waits for the end of the region.
        let region = unsafe { &*region.cast::<Region<'_>>() };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(region.work)) {
            region.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }
    let region = Region { work, panic: Mutex::new(None) };
    // SAFETY: the functions are what their names say; nothing unwinds out of `enter`, and the region lives until all have left it.
    unsafe {
        let count = c_uint::try_from(count).unwrap_or(c_uint::MAX).max((openmp.threads)().unsigned_abs());
        (openmp.parallel)(enter, (&raw const region).cast_mut().cast(), count, 0);
    }
    if let Some(panic) = region.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
}

/// The functions of the library that PyTorch has loaded.
fn openmp() -> Option<OpenMp> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = CString::new(library(&maps)?).ok()?;
    // SAFETY: the library is loaded already, by PyTorch, which never unloads it.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    let function = |name: &CStr| {
        // SAFETY: the name ends, and the library is open.
        let function = if library.is_null() { library } else { unsafe { libc::dlsym(library, name.as_ptr()) } };
        (!function.is_null()).then_some(function)
    };
    let (parallel, threads) = (function(c"GOMP_parallel")?, function(c"omp_get_max_threads")?);
    // SAFETY: these are their types.
    let (parallel, threads) = unsafe {
        (core::mem::transmute::<*mut c_void, Parallel>(parallel), core::mem::transmute::<*mut c_void, MaxThreads>(threads))
    };
    Some(OpenMp { parallel, threads })
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
    use super::{is_copy, library};

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

    #[test]
    fn a_copy_of_a_process_is_known() {
        let line = |name: &str, flags: u64| format!("77 ({name}) S 1 77 77 0 -1 {flags} 100 0 0 0 1 1 0 0 20 0 1 0\n");
        for name in ["python3", "a) (b 64 64 64 64 64 64 64", ""] {
            assert!(!is_copy(&line(name, 0x40_0000)));
            assert!(is_copy(&line(name, 0x40_0040)));
        }
        assert!(is_copy("") && is_copy("77 (python3) S 1"), "what cannot be read is not used");
    }
}
