//! Memory of the host that a device writes without a copy in between.

use super::{AsStream, Stream};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::tensor::{Element, Shape, View};
use core::marker::PhantomData;

/// Page-locked memory of the host for results of a device: sending them there is in the order of the stream, can be recorded in a
/// [`Graph`](super::Graph), and takes half the time of a copy to other memory.
///
/// ```no_run
/// use statescan::cuda::Landing;
/// use statescan::{Exec, Tensor};
///
/// let exec = Exec::cuda(0)?;
/// let x = Tensor::from_slice(&exec, &[1f32, 2.0], &[2])?;
/// let mut landing = Landing::<f32>::new(&exec, 2)?;
/// // SAFETY: nothing reads the landing before `wait`.
/// unsafe { landing.send(&exec, &x.view())? };
/// assert_eq!(landing.wait()?, [1.0, 2.0]);
/// # Ok::<(), statescan::Error>(())
/// ```
pub struct Landing<T> {
    stream: Stream,
    memory: usize,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Element> Landing<T> {
    /// Room for so many elements, which are zero.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the executor is not a CUDA one; [`Error::Cuda`].
    pub fn new(exec: &Exec, len: usize) -> Result<Self> {
        let stream = exec.as_stream()?.clone();
        let memory = stream.allocate_on_host(len * size_of::<T>())?;
        // SAFETY: so many bytes were allocated, and every type of elements has zero bytes as a value.
        unsafe { core::ptr::write_bytes(memory as *mut u8, 0, len * size_of::<T>()) };
        Ok(Landing { stream, memory, len, elements: PhantomData })
    }

    /// Sends the elements of a dense view, as many as there is room for, in the order of the executor's stream, which is that of the landing.
    ///
    /// # Errors
    /// A view of another length, type or device, or that is not dense; [`Error::Cuda`].
    ///
    /// # Safety
    /// The slice of an earlier [`Landing::wait`] is not in use until the next `wait`, also when a recorded graph sends again.
    pub unsafe fn send(&mut self, exec: &Exec, view: &View<'_>) -> Result<()> {
        const OP: &str = "landing";
        let argument = "view";
        if view.device() != exec.device() || !exec.as_stream()?.is(&self.stream) {
            return Err(Error::Device { op: OP, argument, expected: exec.device(), got: view.device() });
        }
        if view.dtype() != T::DTYPE {
            let expected = "of the type of the landing";
            return Err(Error::DType { op: OP, argument, expected, got: view.dtype() });
        }
        if view.len() != self.len {
            return Err(Error::Shape {
                op: OP,
                argument,
                expected: Shape::of(&[self.len]),
                got: view.shape(),
                help: String::new(),
            });
        }
        let dense = view.shape().row_major();
        if (0..view.rank()).any(|axis| view.shape()[axis] > 1 && view.strides()[axis] != dense[axis]) {
            return Err(Error::Presence { op: OP, argument, expected: "must be dense" });
        }
        // SAFETY: both have as many bytes; the caller vouches that nobody reads the target meanwhile.
        unsafe { self.stream.send_to_host(self.memory, view.as_ptr() as u64, self.len * size_of::<T>()) }.map_err(Into::into)
    }

    /// Waits for the stream: what was sent last.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn wait(&mut self) -> Result<&[T]> {
        self.stream.synchronize()?;
        // SAFETY: so many elements, written by `new` at least, any bits of which are values; the stream has come to an end, and who sends again
        // vouches that this is not in use.
        Ok(unsafe { core::slice::from_raw_parts(self.memory as *const T, self.len) })
    }
}

impl<T> Drop for Landing<T> {
    fn drop(&mut self) {
        // a copy may still be on its way; an error means that the context is lost
        let _ = self.stream.synchronize();
        // SAFETY: allocated by `new`; nothing is on its way any more, and graphs that send here are the caller's to drop first.
        unsafe { self.stream.free_on_host(self.memory) };
    }
}
