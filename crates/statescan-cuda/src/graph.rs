//! Calls recorded once and repeated, and how long the device takes for them.

use crate::{AsStream, Error, Result, Stream};
use core::marker::PhantomData;
use std::time::Duration;

/// Calls recorded once, to be put into the stream as often as wanted for the price of one launch.
///
/// The memory that the calls use must outlive the graph and stay where it is: a graph keeps addresses, not views.
/// Its errors are those of the library whose stream it was recorded on.
#[derive(Debug)]
pub struct Graph<X = Error> {
    stream: Stream,
    graph: u64,
    error: PhantomData<fn() -> X>,
}

impl<X: From<Error>> Graph<X> {
    /// Records the calls that `calls` makes on this stream; they do not run yet. Kernels that they need are compiled.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no stream; those of the calls.
    pub fn record<E: From<X>>(on: &impl AsStream<Error = X>, calls: impl FnOnce() -> Result<(), E>) -> Result<Self, E> {
        Self::recorded(on, None, calls)
    }

    /// Records calls, of which only the kernel of this name runs, each launch after the one before: how long a part of a call
    /// takes.
    ///
    /// # Errors
    /// As [`Graph::record`]; [`Error::Unavailable`] if nothing recorded has the name, or if the driver is older than CUDA 12.3.
    pub fn record_kernel<E: From<X>>(
        on: &impl AsStream<Error = X>,
        name: &str,
        calls: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self, E> {
        Self::recorded(on, Some(name), calls)
    }

    fn recorded<E: From<X>>(
        on: &impl AsStream<Error = X>,
        only: Option<&str>,
        calls: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self, E> {
        let stream = on.as_stream()?.clone();
        stream.begin_capture().map_err(X::from)?;
        let made = calls();
        // the capture ends whatever came of the calls
        let graph = stream.end_capture(only);
        made?;
        Ok(Graph { graph: graph.map_err(X::from)?, stream, error: PhantomData })
    }

    /// Puts the calls into the stream.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    ///
    /// # Safety
    /// The memory that the recorded calls read and write is still there, and no view of it is in use.
    pub unsafe fn launch(&self) -> Result<(), X> {
        // SAFETY: the graph is ours and whole; the caller vouches for the memory.
        unsafe { self.stream.launch_graph(self.graph) }.map_err(X::from)
    }
}

impl<X> Drop for Graph<X> {
    fn drop(&mut self) {
        // SAFETY: made by `end_capture`, destroyed once; a launch under way is completed all the same.
        unsafe { self.stream.destroy_graph(self.graph) };
    }
}

/// How long the device takes for what `work` puts into the stream. Waits for it.
///
/// # Errors
/// [`Error::Unavailable`] if there is no stream; those of the work.
pub fn elapsed<E: From<S::Error>, S: AsStream>(on: &S, work: impl FnOnce() -> Result<(), E>) -> Result<Duration, E> {
    let stream = on.as_stream()?;
    let begin = Event::recorded(stream).map_err(S::Error::from)?;
    work()?;
    let milliseconds = begin.until_now().map_err(S::Error::from)?;
    Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) * 1e-3))
}

/// A mark in a stream.
struct Event<'s> {
    stream: &'s Stream,
    event: u64,
}

impl<'s> Event<'s> {
    fn recorded(stream: &'s Stream) -> Result<Self> {
        let mark = Event { stream, event: stream.event()? };
        // SAFETY: the event is alive.
        unsafe { stream.record(mark.event)? };
        Ok(mark)
    }

    /// Milliseconds from this mark to what is in the stream now, once that is done.
    fn until_now(&self) -> Result<f32> {
        let end = Event::recorded(self.stream)?;
        self.stream.synchronize()?;
        // SAFETY: both events are alive.
        unsafe { self.stream.milliseconds(self.event, end.event) }
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `event`, destroyed once.
        unsafe { self.stream.destroy_event(self.event) };
    }
}
