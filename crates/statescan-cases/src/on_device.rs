//! A call in the memory of another device: its arguments and tensors are copied there, and results come back.

use crate::call::Call;
use crate::error::Result;
use crate::memory::{self, Limits};
use crate::pass;
use crate::tensors::{Tensors, WORKSPACE};
use statescan::tensor::Tensor;
use statescan::{DType, Device, Exec};

/// Whether tensors of the host must be copied before this executor can use them.
pub fn is_elsewhere(exec: &Exec) -> bool {
    exec.device() != Device::Cpu
}

/// A call on the device, with room for its results and, once there are cotangents, for its gradients.
pub struct OnDevice {
    call: Call,
    results: Tensors,
    cotangents: Tensors,
    gradients: Tensors,
}

impl OnDevice {
    /// Copies the arguments and makes room for the results; with `save` also for what the backward pass wants kept.
    ///
    /// # Errors
    /// Arguments that the operation refuses; memory that is not there.
    pub fn new(exec: &Exec, call: &Call, save: bool) -> Result<Self> {
        let mut on_device = call.clone();
        on_device.place(exec)?;
        let mut results = memory::results(&on_device, save, Limits::default())?;
        pass::prepare(call, &mut results)?;
        let scratch = pass::workspace(exec, &on_device)?;
        push_workspace(&mut results, scratch)?;
        results.place(exec)?;
        Ok(OnDevice { call: on_device, results, cotangents: Tensors::default(), gradients: Tensors::default() })
    }

    /// Copies cotangents and makes room for the gradients of every argument.
    ///
    /// # Errors
    /// As [`OnDevice::new`].
    pub fn with_cotangents(mut self, exec: &Exec, cotangents: &Tensors) -> Result<Self> {
        (self.cotangents, self.gradients) = (cotangents.clone(), memory::gradients(&self.call, Limits::default())?);
        let call = &self.call;
        let scratch = pass::workspace_backward(exec, call, &self.results)?;
        push_workspace(&mut self.gradients, scratch)?;
        self.cotangents.place(exec)?;
        self.gradients.place(exec)?;
        Ok(self)
    }

    /// The forward pass; what is computed in place goes on from where it is.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn forward(&mut self, exec: &Exec) -> Result<()> {
        pass::forward(exec, &self.call, &mut self.results)
    }

    /// The backward pass, from what the last forward pass saved.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn backward(&mut self, exec: &Exec) -> Result<()> {
        let OnDevice { call, results, cotangents, gradients } = self;
        pass::backward(exec, call, results, cotangents, gradients)
    }

    /// Waits, and copies the results that `out` has room for.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn fetch_results(&self, out: &mut Tensors) -> Result<()> {
        self.results.fetch_into(out)
    }

    /// Waits, and copies the gradients that `out` has room for.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn fetch_gradients(&self, out: &mut Tensors) -> Result<()> {
        self.gradients.fetch_into(out)
    }

    /// Bytes of arguments and results.
    pub fn forward_bytes(&self) -> usize {
        self.call.bytes() + self.results.bytes()
    }

    /// Bytes of arguments, cotangents and gradients.
    pub fn backward_bytes(&self) -> usize {
        self.call.bytes() + self.cotangents.bytes() + self.gradients.bytes()
    }
}

fn push_workspace(tensors: &mut Tensors, len: usize) -> Result<()> {
    if len > 0 {
        tensors.push(WORKSPACE, Tensor::host(DType::F32, &[len])?);
    }
    Ok(())
}
