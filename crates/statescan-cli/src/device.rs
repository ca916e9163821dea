//! A call in the memory of another device: its arguments and tensors are copied there, and results come back.

use crate::call::{Call, Tensors};
use crate::cli::CotangentName;
use crate::compute::{self, Limits};
use crate::error::Result;
use statescan::cuda::{Graph, elapsed};
use statescan::tensor::Buffer;
use statescan::{DType, Device, Exec};
use std::time::Duration;

/// The name under which passes find scratch memory.
pub const WORKSPACE: &str = "workspace";

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
        let mut results = compute::results(&on_device, save, Limits::default())?;
        call.op.prepare(call, &mut results)?;
        let scratch = call.op.workspace(exec, &on_device).map_err(|e| call.locate(e))?;
        push_workspace(&mut results, scratch)?;
        results.place(exec)?;
        Ok(OnDevice { call: on_device, results, cotangents: Tensors::default(), gradients: Tensors::default() })
    }

    /// Copies cotangents and makes room for the gradients of every argument.
    ///
    /// # Errors
    /// As [`OnDevice::new`].
    pub fn with_cotangents(mut self, exec: &Exec, cotangents: &Tensors) -> Result<Self> {
        (self.cotangents, self.gradients) = (cotangents.clone(), compute::gradients(&self.call, Limits::default())?);
        let call = &self.call;
        let scratch = call.op.workspace_backward(exec, call, &self.results).map_err(|e| call.locate(e))?;
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
        self.call.op.forward(exec, &self.call, &mut self.results).map_err(|e| self.call.locate(e))
    }

    /// The backward pass, from what the last forward pass saved.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn backward(&mut self, exec: &Exec) -> Result<()> {
        let OnDevice { call, results, cotangents, gradients } = self;
        call.op.backward(exec, call, results, cotangents, gradients).map_err(|e| call.locate(e))
    }

    /// Waits, and copies the results that `out` has room for.
    ///
    /// # Errors
    /// What the device says.
    pub fn fetch_results(&self, out: &mut Tensors) -> Result<()> {
        self.results.fetch_into(out)
    }

    /// Waits, and copies the gradients that `out` has room for.
    ///
    /// # Errors
    /// What the device says.
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
        tensors.push(WORKSPACE, Buffer::zeros(DType::F32, &[len])?);
    }
    Ok(())
}

/// Computes results of tensors on the host.
///
/// # Errors
/// Those of the operation, and of copying.
pub fn forward(exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()> {
    let mut on_device = OnDevice::new(exec, call, false)?;
    on_device.forward(exec)?;
    on_device.fetch_results(out)
}

/// Computes gradients of tensors on the host; what the forward pass saves is saved on the device.
///
/// # Errors
/// As [`forward`].
pub fn backward(exec: &Exec, call: &Call, cotangents: &Tensors, grads: &mut Tensors) -> Result<()> {
    let mut on_device = OnDevice::new(exec, call, true)?.with_cotangents(exec, cotangents)?;
    on_device.forward(exec)?;
    on_device.backward(exec)?;
    on_device.fetch_gradients(grads)
}

/// The time that the device takes for a pass: the median of some launches of a graph that repeats it, over copies of the call that take
/// turns, so that no cache holds what comes next.
///
/// # Errors
/// Those of the operation.
pub fn median(exec: &Exec, copies: &mut [OnDevice], backward: bool) -> Result<Duration> {
    let mut pass = |i: usize| {
        let at = i % copies.len();
        if backward { copies[at].backward(exec) } else { copies[at].forward(exec) }
    };
    // compiled first, then warm
    pass(0)?;
    let once = elapsed(exec, || pass(0))?;
    let count = (LAUNCH.as_nanos() / once.as_nanos().max(1000)).clamp(4, 200) as usize;
    let graph = Graph::record(exec, || (0..count).try_for_each(&mut pass))?;
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        // SAFETY: the copies are alive, and whoever looks at them waits for the stream first.
        times.push(elapsed(exec, || unsafe { graph.launch() })?);
    }
    times.sort();
    Ok(times[REPEATS / 2] / count as u32)
}

/// About how long a launch of a graph is.
const LAUNCH: Duration = Duration::from_millis(4);
const REPEATS: usize = 9;

/// Copies of a call to be timed, with cotangents if the operation has gradients: as many as no cache holds at once.
///
/// # Errors
/// As [`OnDevice::new`].
pub fn copies(exec: &Exec, call: &Call, backward: bool) -> Result<Vec<OnDevice>> {
    let cotangents = match backward {
        true => Some(compute::cotangents(call, CotangentName::Ones, Limits::default())?),
        false => None,
    };
    let mut all: Vec<OnDevice> = Vec::new();
    while all.len() < 2 || all.len() * all[0].forward_bytes() < CACHED && all.len() < 32 {
        let mut copy = OnDevice::new(exec, call, backward)?;
        if let Some(cotangents) = &cotangents {
            copy = copy.with_cotangents(exec, cotangents)?;
            copy.forward(exec)?;
        }
        all.push(copy);
    }
    Ok(all)
}

/// More bytes than any cache holds.
const CACHED: usize = 256 << 20;
