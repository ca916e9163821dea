//! Calls recorded once and repeated, and how long the device takes for them.

use super::Stream;
use crate::error::{Error, Result};
use crate::exec::Exec;
use std::time::Duration;

/// Calls recorded once, to be put into the stream as often as wanted for the price of one launch.
///
/// The memory that the calls use must outlive the graph and stay where it is: a graph keeps addresses, not views.
pub struct Graph {
    stream: Stream,
    graph: u64,
}

impl Graph {
    /// Records the calls that `calls` makes on the executor; they do not run yet. Kernels that they need are compiled.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the executor is not a CUDA one; those of the calls.
    pub fn record<E: From<Error>>(exec: &Exec, calls: impl FnOnce() -> Result<(), E>) -> Result<Self, E> {
        Self::recorded(exec, None, calls)
    }

    /// The same, and of all that was recorded only the kernel of this name runs, each launch after the one before: how long a part of a call takes.
    ///
    /// # Errors
    /// As [`Graph::record`]; [`Error::Unavailable`] if nothing recorded has the name, or if the driver is older than CUDA 12.3.
    pub fn record_kernel<E: From<Error>>(exec: &Exec, name: &str, calls: impl FnOnce() -> Result<(), E>) -> Result<Self, E> {
        Self::recorded(exec, Some(name), calls)
    }

    fn recorded<E: From<Error>>(exec: &Exec, only: Option<&str>, calls: impl FnOnce() -> Result<(), E>) -> Result<Self, E> {
        let stream = exec.cuda_only()?.clone();
        stream.begin_capture()?;
        let made = calls();
        // the capture ends whatever came of the calls
        let graph = stream.end_capture(only);
        made?;
        Ok(Graph { graph: graph?, stream })
    }

    /// Puts the calls into the stream.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    ///
    /// # Safety
    /// What the recorded calls read and write is still there, and no view of it is in use.
    pub unsafe fn launch(&self) -> Result<()> {
        // SAFETY: the graph is ours and whole; the caller vouches for the memory.
        unsafe { self.stream.launch_graph(self.graph) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `end_capture`, destroyed once; a launch under way is completed all the same.
        unsafe { self.stream.destroy_graph(self.graph) };
    }
}

/// How long the device takes for what `work` puts into the executor's stream. Waits for it.
///
/// # Errors
/// [`Error::Unavailable`] if the executor is not a CUDA one; those of the work.
pub fn elapsed<E: From<Error>>(exec: &Exec, work: impl FnOnce() -> Result<(), E>) -> Result<Duration, E> {
    let stream = exec.cuda_only()?;
    let (begin, end) = (Event::new(stream)?, Event::new(stream)?);
    // SAFETY: the events are alive.
    unsafe { stream.record(begin.event)? };
    work()?;
    // SAFETY: as above.
    let milliseconds = unsafe {
        stream.record(end.event)?;
        stream.synchronize()?;
        stream.milliseconds(begin.event, end.event)?
    };
    Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) * 1e-3))
}

/// A mark in a stream.
struct Event<'s> {
    stream: &'s Stream,
    event: u64,
}

impl<'s> Event<'s> {
    fn new(stream: &'s Stream) -> Result<Self> {
        Ok(Event { stream, event: stream.event()? })
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `event`, destroyed once.
        unsafe { self.stream.destroy_event(self.event) };
    }
}
