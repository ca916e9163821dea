//! The place and the way in which a call runs: an argument, never a global.

use crate::cpu::{Chains, Level, Pool, Workspace};
use crate::cuda::Gpu;
use crate::error::{Error, Result};
use crate::tensor::Device;
use core::ffi::c_void;
use statescan_cuda::{AsStream, Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that somebody else keeps: called with a number and some work, it does the work on that many threads at the same time, and
/// returns when all of them are through with it. Fewer threads only take longer, and what more threads call does nothing.
pub type ForeignThreads = dyn Fn(usize, &(dyn Fn() + Sync)) + Send + Sync;

/// Who helps the calling thread.
#[derive(Clone)]
enum Crew {
    Own(Arc<Pool>),
    Foreign(Arc<ForeignThreads>),
}

/// The place where a call runs. Cheap to clone; keep one and pass it to every call. On the CPU it keeps up to 64 MiB of scratch
/// memory from call to call, shared with its clones.
///
/// Results are bit-identical for any number of threads: the division of work depends on the problem alone.
#[derive(Clone)]
pub struct Exec {
    threads: usize,
    crew: Option<Crew>,
    level: Level,
    exact: bool,
    cuda: Option<Stream>,
    workspace: Workspace,
}

impl Exec {
    /// The CPU with this many threads; 0 means one for each core that the process may use.
    ///
    /// The calling thread is one of them: with 1 everything runs on it. If the system refuses the others, it does their work.
    pub fn cpu(threads: usize) -> Self {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let pool = (threads > 1).then(|| Arc::new(Pool::new(threads - 1)));
        let threads = pool.as_ref().map_or(1, |pool| pool.helpers() + 1);
        Exec {
            threads,
            crew: pool.map(Crew::Own),
            level: Level::best(),
            exact: false,
            cuda: None,
            workspace: Workspace::default(),
        }
    }

    /// The CPU with threads of another library, at most so many of them: threads of two libraries on the same cores wait for each other,
    /// as those that look for new work keep the cores busy.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// let threads = |count: usize, work: &(dyn Fn() + Sync)| std::thread::scope(|scope| {
    ///     (0..count).for_each(|_| drop(scope.spawn(|| work())));
    /// });
    /// assert_eq!(statescan::Exec::cpu_on(4, Arc::new(threads)).threads(), 4);
    /// ```
    pub fn cpu_on(threads: usize, crew: Arc<ForeignThreads>) -> Self {
        Exec { threads: threads.max(1), crew: Some(Crew::Foreign(crew)), ..Exec::cpu(1) }
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
        Ok(self.cuda.as_ref().map_or(Ok(()), Stream::synchronize)?)
    }

    /// Sets another instruction set, for tests and comparisons.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if this processor lacks it.
    pub fn with_level(mut self, level: Level) -> Result<Self> {
        self.level = level.check()?;
        Ok(self)
    }

    /// Lets [products of rows](crate::linear) leave the rows in `f32` whatever the weights are. Without it they are rounded to
    /// bf16 for weights in bf16 where the processor has AMX. Operations and GPUs know no difference.
    pub fn with_exact_products(self, exact: bool) -> Self {
        Exec { exact, ..self }
    }

    /// Allows products of `f32` matrices on tensor cores to round their factors to tf32, the 11 leading bits, which takes a third
    /// of the instructions: an error of about 5e-4 in place of 1e-6. Sums, states and elementwise functions stay `f32`; the CPU
    /// and 16-bit inputs know no difference. It is off unless asked for.
    pub fn with_tf32(self, allowed: bool) -> Self {
        Exec { cuda: self.cuda.map(|stream| stream.with_tf32(allowed)), ..self }
    }

    /// Plans calls as on another GPU, as far as this one allows: with the kernels of an older architecture, or cut into segments
    /// for other multiprocessors. Tests and comparisons force a route so, as [`Exec::with_level`] does on the CPU, which knows no
    /// difference. Calls that are planned for another GPU are slower than those planned for this one.
    pub fn planned_as(self, gpu: Gpu) -> Self {
        Exec { cuda: self.cuda.map(|stream| stream.planned_as(gpu.0)), ..self }
    }

    /// Whether products of `f32` matrices may round their factors to tf32.
    pub fn allows_tf32(&self) -> bool {
        self.cuda.as_ref().is_some_and(Stream::allows_tf32)
    }

    /// The device that views must be on.
    pub fn device(&self) -> Device {
        self.cuda.as_ref().map_or(Device::Cpu, |stream| Device::Cuda(stream.ordinal()))
    }

    /// The stream of a CUDA executor.
    pub(crate) fn stream(&self) -> Option<&Stream> {
        self.cuda.as_ref()
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

    /// Whether products leave rows in `f32`.
    pub(crate) fn exact_products(&self) -> bool {
        self.exact
    }

    /// The instruction set that kernels use.
    pub fn level(&self) -> Level {
        self.level
    }

    /// This executor for so much work, in multiply-adds: the calling thread alone where waking others would take longer.
    pub(crate) fn for_work(&self, work: usize) -> Exec {
        const WORTH_WAKING: usize = 1 << 19;
        let crew = if work < WORTH_WAKING { None } else { self.crew.clone() };
        Exec { crew, ..self.clone() }
    }

    /// Runs `job(scratch, i)` for every `i < count`, each exactly once, on the threads of this executor, which take them in this order.
    /// Scratch is made once for each thread and must not carry results from job to job.
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

    /// Runs `job(scratch, chain, slice)` for every slice of every chain, those of one chain one after the other; otherwise as
    /// [`Exec::for_each`]. The job keeps the values that a chain carries from slice to slice: scratch may not.
    pub(crate) fn for_each_slice<S>(
        &self,
        chains: usize,
        slices: usize,
        scratch: impl Fn() -> S + Sync,
        job: impl Fn(&mut S, usize, usize) + Sync,
    ) {
        let (queue, came) = (Chains::new(chains, slices, self.crew.is_none()), AtomicUsize::new(0));
        self.on_threads(chains, &|| {
            let (thread, mut own, mut last) = (came.fetch_add(1, Ordering::Relaxed), None, None);
            while let Some((chain, slice)) = queue.next(thread, last) {
                job(own.get_or_insert_with(&scratch), chain, slice);
                last = Some(chain);
            }
        });
    }

    /// Runs `worker` on this thread and on as many others as there are, at most `most` in all.
    fn on_threads(&self, most: usize, worker: &(dyn Fn() + Sync)) {
        match &self.crew {
            Some(Crew::Own(pool)) if most > 1 => pool.run(most - 1, worker),
            Some(Crew::Foreign(run)) if most > 1 => {
                let (asked, came) = (most.min(self.threads), AtomicUsize::new(0));
                run(asked, &|| {
                    // shared memory has room for the threads that were asked for, and more may come
                    if came.fetch_add(1, Ordering::Relaxed) < asked {
                        worker();
                    }
                });
                // whatever has become of them, nothing is left undone
                worker();
            }
            _ => worker(),
        }
    }
}

impl AsStream for Exec {
    type Error = Error;

    fn as_stream(&self) -> Result<&Stream> {
        self.stream().ok_or(Error::Unavailable { what: "device memory", why: "the executor is not a CUDA one" })
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

#[cfg(test)]
mod tests {
    use super::{Exec, ForeignThreads};
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    #[test]
    fn foreign_threads_do_every_job_once() {
        let several = |count: usize, work: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| (0..count).for_each(|_| drop(scope.spawn(work))));
        };
        let crews: [Arc<ForeignThreads>; 4] = [
            Arc::new(several),
            Arc::new(move |count, work| several(count + 5, work)),
            Arc::new(|_, work| work()),
            Arc::new(|_, _| {}),
        ];
        for crew in crews {
            let most = Arc::new(AtomicUsize::new(0));
            let asked = most.clone();
            let exec = Exec::cpu_on(
                3,
                Arc::new(move |count, work| {
                    asked.fetch_max(count, Ordering::Relaxed);
                    crew(count, work);
                }),
            );
            for jobs in [0, 1, 2, 50] {
                let done = Mutex::new(Vec::new());
                exec.for_each(jobs, || (), |(), job| done.lock().unwrap().push(job));
                let mut done = done.into_inner().unwrap();
                done.sort_unstable();
                assert!(done.into_iter().eq(0..jobs));
            }
            assert_eq!(most.load(Ordering::Relaxed), 3, "as many as there are, and no more");
            let at_work = Mutex::new(std::collections::HashSet::new());
            let job = |(): &mut (), _| {
                std::thread::sleep(core::time::Duration::from_millis(1));
                at_work.lock().unwrap().insert(std::thread::current().id());
            };
            exec.for_each(20, || (), job);
            at_work.lock().unwrap().remove(&std::thread::current().id());
            assert!(at_work.into_inner().unwrap().len() <= 3, "no more do work than were asked for");
            let done = AtomicUsize::new(0);
            exec.for_each_slice(4, 5, || (), |(), _, _| _ = done.fetch_add(1, Ordering::Relaxed));
            assert_eq!(done.into_inner(), 20);
        }
    }
}
