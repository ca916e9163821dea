//! Tensors by name, on the host and, once they are placed, on a device.

use crate::error::Result;
use statescan::tensor::Tensor;
use statescan::{DType, Exec, View, ViewMut};
use std::fmt;

/// The name under which passes find the states that a forward pass keeps.
pub const SAVED: &str = "checkpoints";

/// The name under which passes find scratch memory.
pub const WORKSPACE: &str = "workspace";

/// Tensors by canonical name.
#[derive(Default)]
pub struct Tensors(Vec<Named>);

struct Named {
    name: &'static str,
    buffer: Tensor,
    /// A copy on a device, which passes read and write instead.
    placed: Option<Tensor>,
}

impl Named {
    fn writer(&mut self) -> (&'static str, ViewMut<'_>) {
        match &mut self.placed {
            Some(placed) => (self.name, placed.view_mut()),
            None => (self.name, self.buffer.view_mut()),
        }
    }
}

/// A copy is on the host.
impl Clone for Tensors {
    fn clone(&self) -> Self {
        Tensors(self.0.iter().map(|t| Named { name: t.name, buffer: t.buffer.clone(), placed: None }).collect())
    }
}

impl fmt::Debug for Tensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Tensors {
    /// Adds one.
    pub fn push(&mut self, name: &'static str, buffer: Tensor) {
        self.0.push(Named { name, buffer, placed: None });
    }
    /// One of them, as it is on the host.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|t| t.name == name).map(|t| &t.buffer)
    }
    /// One of them, as a view for a pass.
    pub fn view(&self, name: &str) -> Option<View<'_>> {
        let tensor = self.0.iter().find(|t| t.name == name)?;
        Some(tensor.placed.as_ref().map_or_else(|| tensor.buffer.view(), Tensor::view))
    }
    /// All of them, as they are on the host.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        self.0.iter().map(|t| (t.name, &t.buffer))
    }
    /// Copies all of them to the executor's device.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn place(&mut self, exec: &Exec) -> Result<()> {
        for tensor in &mut self.0 {
            tensor.placed = Some(tensor.buffer.to(exec)?);
        }
        Ok(())
    }
    /// Copies from the device what another collection has on the host.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn fetch_into(&self, out: &mut Tensors) -> Result<()> {
        for target in &mut out.0 {
            let source = self.0.iter().find(|t| t.name == target.name && t.buffer.shape() == target.buffer.shape());
            if let Some(placed) = source.and_then(|t| t.placed.as_ref()) {
                target.buffer = placed.to_host()?;
            }
        }
        Ok(())
    }
    /// Overwrites one of them with the elements of a buffer of the same shape.
    pub fn copy_from(&mut self, name: &str, source: &Tensor) {
        let target = self.0.iter_mut().find(|t| t.name == name).map(|t| &mut t.buffer);
        if let Some(target) = target.filter(|target| target.shape() == source.shape()) {
            target.copy_from(&source.to_dense());
        }
    }
    /// Writable views of all of them, to be taken by name.
    pub fn writers(&mut self) -> Writers<'_> {
        Writers(self.0.iter_mut().map(Named::writer).collect())
    }
    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.iter().map(|(_, b)| b.shape().iter().product::<usize>() * b.dtype().size()).sum()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Writable views by name.
pub struct Writers<'a>(Vec<(&'static str, ViewMut<'a>)>);

impl<'a> Writers<'a> {
    /// The view of a name, if there is one.
    pub fn take(&mut self, name: &str) -> Option<ViewMut<'a>> {
        let at = self.0.iter().position(|(n, _)| *n == name)?;
        Some(self.0.swap_remove(at).1)
    }
}

/// A tensor of a type from real numbers.
///
/// # Errors
/// As [`Tensor::zeros`].
pub fn real(dtype: DType, shape: &[usize], mut value: impl FnMut() -> f64) -> Result<Tensor> {
    let mut buffer = Tensor::host(dtype, shape)?;
    buffer.fill_with(|| value().into());
    Ok(buffer)
}
