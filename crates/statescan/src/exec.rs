//! Where and how a call runs: an argument, never a global.

use crate::cpu::{Level, Workspace};
use crate::cuda::Stream;
use crate::error::{Error, Result};
use crate::tensor::Device;
use core::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where a call runs. Cheap to clone; keep one and pass it to every call.
/// On the CPU it keeps up to 64 MiB of scratch memory from call to call, shared with its clones.
///
/// Results are bit-identical for any number of threads: the division of work depends on the problem alone.
#[derive(Clone)]
pub struct Exec {
    threads: usize,
    pool: Option<Arc<rayon::ThreadPool>>,
    level: Level,
    cuda: Option<Stream>,
    workspace: Workspace,
}

impl Exec {
    /// The CPU with this many threads; 0 means one for each core that the process may use.
    ///
    /// With 1 everything runs on the calling thread. If the system refuses the threads, the calling thread does the work.
    pub fn cpu(threads: usize) -> Self {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let pool = (threads > 1)
            .then(|| rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("statescan-{i}")).build())
            .and_then(|pool| pool.ok())
            .map(Arc::new);
        let threads = pool.as_ref().map_or(1, |_| threads);
        Exec { threads, pool, level: Level::best(), cuda: None, workspace: Workspace::default() }
    }

    /// The CUDA device with this number, on a stream of its own.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the crate was built without the feature `cuda`, or there is no driver, no NVRTC or no such device.
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Ok(Exec { cuda: Some(Stream::own(ordinal)?), ..Exec::cpu(1) })
    }

    /// The CUDA device with this number, on a stream of the caller's (null for the default stream).
    ///
    /// # Errors
    /// As [`Exec::cuda`].
    ///
    /// # Safety
    /// The stream belongs to the device's primary context and outlives this executor and its clones.
    pub unsafe fn cuda_stream(ordinal: usize, stream: *mut c_void) -> Result<Self> {
        // SAFETY: the caller's contract.
        Ok(Exec { cuda: Some(unsafe { Stream::borrowed(ordinal, stream)? }), ..Exec::cpu(1) })
    }

    /// Waits until everything that was called on this executor is done. On the CPU that is so already.
    ///
    /// # Errors
    /// [`Error::Cuda`] if a kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        self.cuda.as_ref().map_or(Ok(()), Stream::synchronize)
    }

    /// The same with another instruction set, for tests and comparisons.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if this processor lacks it.
    pub fn with_level(mut self, level: Level) -> Result<Self> {
        self.level = level.check()?;
        Ok(self)
    }

    /// The device that views must be on.
    pub fn device(&self) -> Device {
        self.cuda.as_ref().map_or(Device::Cpu, |stream| Device::Cuda(stream.ordinal()))
    }

    /// The stream of a CUDA executor.
    pub(crate) fn stream(&self) -> Option<&Stream> {
        self.cuda.as_ref()
    }

    /// The stream, or the error that there is none.
    pub(crate) fn cuda_only(&self) -> Result<&Stream> {
        self.stream().ok_or(Error::Unavailable { what: "device memory", why: "the executor is not a CUDA one" })
    }

    /// Refuses CUDA executors for what has no kernel there.
    pub(crate) fn cpu_only(&self, what: &'static str) -> Result<()> {
        match &self.cuda {
            None => Ok(()),
            Some(_) => Err(Error::Unavailable { what, why: "it has no kernel for CUDA" }),
        }
    }

    /// Memory for partial results.
    pub(crate) fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The instruction set that kernels use.
    pub fn level(&self) -> Level {
        self.level
    }

    /// This executor for so much work, in multiply-adds: the calling thread alone where waking others would take longer.
    pub(crate) fn for_work(&self, work: usize) -> Exec {
        const WORTH_WAKING: usize = 1 << 19;
        let pool = if work < WORTH_WAKING { None } else { self.pool.clone() };
        Exec { pool, ..self.clone() }
    }

    /// Runs `job(scratch, i)` for every `i < count`, each exactly once, on the threads of this executor. Scratch is made once for each
    /// thread and must not carry results from job to job.
    pub(crate) fn for_each<S>(&self, count: usize, scratch: impl Fn() -> S + Sync, job: impl Fn(&mut S, usize) + Sync) {
        let next = AtomicUsize::new(0);
        self.on_threads(count, &|| {
            let mut i = next.fetch_add(1, Ordering::Relaxed);
            if i < count {
                let mut scratch = scratch();
                while i < count {
                    job(&mut scratch, i);
                    i = next.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }

    /// Runs `worker` on as many threads as there are, at most `most` of them. It is not generic, so that rayon is compiled once.
    fn on_threads(&self, most: usize, worker: &(dyn Fn() + Sync)) {
        match &self.pool {
            Some(pool) if most > 1 => pool.scope(|scope| {
                for _ in 0..self.threads.min(most) {
                    scope.spawn(|_| worker());
                }
            }),
            _ => worker(),
        }
    }
}

impl core::fmt::Debug for Exec {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.device() {
            Device::Cpu => write!(f, "Exec(cpu, {} threads, {:?})", self.threads, self.level),
            device => write!(f, "Exec({device})"),
        }
    }
}
