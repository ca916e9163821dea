//! [`Workspace`]: scratch memory that is used again.

use super::owned::Tensor;
use super::view_mut::ViewMut;
use crate::dtype::DType;
use crate::error::Result;
use crate::exec::Exec;

/// Scratch memory that is kept from call to call and grows to the largest size asked for.
///
/// Calls on one executor may share a workspace: they run one after the other.
///
/// ```
/// use statescan::ops::linear_scan::{self, Args, Outputs};
/// use statescan::tensor::Workspace;
/// use statescan::{DType, Exec, Tensor};
///
/// let exec = Exec::cpu(0); // on a GPU: Exec::cuda(0)?
/// let mut workspace = Workspace::default();
/// for length in [10, 1000, 100] {
///     let a = Tensor::from_slice(&exec, &vec![0.5f32; length], &[length])?;
///     let args = Args::new(a.view(), a.view());
///     let mut h = Tensor::like(&exec, &a.view())?;
///     let scratch = workspace.view_mut(&exec, linear_scan::workspace_len(&exec, &args)?)?;
///     let mut out = Outputs::default().h(h.view_mut()).workspace(scratch);
///     linear_scan::forward(&exec, &args, &mut out)?;
/// }
/// # Ok::<(), statescan::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Workspace {
    memory: Option<Tensor>,
}

impl Workspace {
    /// Room for `len` elements of type f32, shape (len,): what an operation's `workspace_len` or `backward_workspace_len` asks for. It
    /// holds anything.
    ///
    /// Memory is allocated only if there is too little yet, or if it was another executor's; that waits for the kernels which use the memory
    /// so far, and is refused while a [`Graph`](crate::cuda::Graph) is recorded. A recorded call keeps the address, so a workspace must
    /// not grow as long as its graph is launched.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn view_mut(&mut self, exec: &Exec, len: usize) -> Result<ViewMut<'_>> {
        let fits = |memory: &Tensor| memory.is_ordered_with(exec) && memory.shape()[0] >= len;
        if !self.memory.as_ref().is_some_and(fits) {
            // freed first, for a device may not have room for both
            self.memory = None;
        }
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => Tensor::empty(exec, DType::F32, &[len])?,
        };
        Ok(self.memory.insert(memory).view_mut().slice(0, 0..len))
    }
}
