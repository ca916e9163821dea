//! Running a call whose tensors are on the host, on whatever device.

use crate::call::Call;
use crate::error::Result;
use crate::on_device::{OnDevice, is_elsewhere};
use crate::tensors::Tensors;
use statescan::Exec;

/// Computes the results that there is room for, on whatever device: the tensors are on the host.
///
/// # Errors
/// Arguments that the operation refuses.
pub fn forward(exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()> {
    if is_elsewhere(exec) {
        let mut on_device = OnDevice::new(exec, call, false)?;
        on_device.forward(exec)?;
        return on_device.fetch_results(out);
    }
    call.op.prepare(call, out).and_then(|()| call.op.forward(exec, call, out)).map_err(|e| call.locate(e))
}

/// The forward pass once more, for timing: what is computed in place goes on from where it is.
///
/// # Errors
/// As [`forward`].
pub fn again(exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()> {
    call.op.forward(exec, call, out).map_err(|e| call.locate(e))
}

/// Computes the gradients that there is room for. On another device than the host it makes a forward pass first, for what that saves there.
///
/// # Errors
/// Arguments that the operation refuses.
pub fn backward(exec: &Exec, call: &Call, saved: &Tensors, cotangents: &Tensors, grads: &mut Tensors) -> Result<()> {
    if is_elsewhere(exec) {
        let mut on_device = OnDevice::new(exec, call, true)?.with_cotangents(exec, cotangents)?;
        on_device.forward(exec)?;
        on_device.backward(exec)?;
        return on_device.fetch_gradients(grads);
    }
    call.op.backward(exec, call, saved, cotangents, grads).map_err(|e| call.locate(e))
}
