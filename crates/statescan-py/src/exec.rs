//! Where a call runs, from the two numbers that Python gives.

use crate::error::to_python;
#[cfg(target_os = "linux")]
use crate::openmp;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use statescan::{Device, Exec};
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Mutex;

/// Threads are costly to start, so those of the last call are kept. They do not survive a fork: the process that started them goes along.
struct Threads {
    process: u32,
    /// As many as were asked for; the system may have refused some.
    asked: usize,
    exec: Exec,
}

static THREADS: Mutex<Option<Threads>> = Mutex::new(None);

/// PyTorch's threads, where we know how to use them.
fn on_pytorch(threads: usize) -> Option<Exec> {
    #[cfg(target_os = "linux")]
    return openmp::exec(threads);
    #[cfg(not(target_os = "linux"))]
    None
}

fn cpu(threads: usize) -> Exec {
    if threads == 1 {
        return Exec::cpu(1);
    }
    let process = std::process::id();
    let mut kept = THREADS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    match &*kept {
        Some(last) if last.process == process && last.asked == threads => last.exec.clone(),
        _ => {
            let exec = on_pytorch(threads).unwrap_or_else(|| Exec::cpu(threads));
            let last = kept.replace(Threads { process, asked: threads, exec: exec.clone() });
            // another process's threads cannot be told to stop
            std::mem::forget(last.filter(|last| last.process != process));
            exec
        }
    }
}

/// Where a call runs, as Python says it: a tuple of the number of a CUDA device or -1, the stream or the number of threads, and what
/// allocates scratch memory there, called with a tensor of the call and a number of `f32`, or None where PyTorch does; whether products of `f32`
/// may be rounded to tf32.
#[derive(FromPyObject)]
pub struct Place<'py>(i32, usize, Option<Bound<'py, PyAny>>, bool);

impl<'py> Place<'py> {
    pub fn exec(&self) -> PyResult<Exec> {
        of(self.0, self.1, self.3)
    }

    /// The stream on a CUDA device.
    pub fn stream(&self) -> Option<usize> {
        (self.0 >= 0).then_some(self.1)
    }

    /// The device.
    pub fn device(&self) -> Device {
        usize::try_from(self.0).map_or(Device::Cpu, Device::Cuda)
    }

    /// What allocates scratch memory, on a CUDA device.
    pub fn allocator(&self) -> Option<&Bound<'py, PyAny>> {
        self.2.as_ref().filter(|_| self.0 >= 0)
    }
}

thread_local! {
    /// The executor of this thread's last call on a GPU, with its device and stream, and whether it may use tf32.
    static LAST: RefCell<Option<(usize, usize, bool, Exec)>> = const { RefCell::new(None) };
}

fn cuda(ordinal: usize, stream: usize, tf32: bool) -> statescan::Result<Exec> {
    LAST.with_borrow_mut(|last| match last {
        Some((of, on, with, exec)) if (*of, *on, *with) == (ordinal, stream, tf32) => Ok(exec.clone()),
        _ => {
            // SAFETY: a stream of the framework that owns the tensors; frameworks use the primary context, and one that is gone by the next
            // call does not come with it.
            let exec = unsafe { Exec::cuda_stream(ordinal, stream as *mut c_void) }?.with_tf32(tf32);
            *last = Some((ordinal, stream, tf32, exec.clone()));
            Ok(exec)
        }
    })
}

/// The executor of a call: threads of the CPU for device -1, else a stream of a CUDA device.
fn of(device: i32, queue: usize, tf32: bool) -> PyResult<Exec> {
    match usize::try_from(device) {
        Err(_) if queue == 0 => Err(PyValueError::new_err("the number of threads must be at least 1")),
        Err(_) => Ok(cpu(queue)),
        Ok(ordinal) => cuda(ordinal, queue, tf32).map_err(to_python),
    }
}

/// Cores that this process may use.
#[pyfunction]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The names of the CUDA devices that can be used.
#[pyfunction]
pub fn cuda_devices(py: Python<'_>) -> PyResult<Vec<String>> {
    py.detach(statescan::cuda::devices).map_err(to_python)
}

/// Waits until everything that was put into a stream is done.
#[pyfunction]
pub fn synchronize(py: Python<'_>, device: i32, stream: usize) -> PyResult<()> {
    let exec = of(device, stream, false)?;
    py.detach(|| exec.synchronize()).map_err(to_python)
}
