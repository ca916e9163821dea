//! The place where a call runs: as Python says it, or as PyTorch's tensors do, if nobody else has a say.

use crate::error::to_python;
#[cfg(target_os = "linux")]
use crate::openmp;
use crate::torch;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::{Device, Exec};
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

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
    {
        _ = threads;
        None
    }
}

fn cpu(threads: usize) -> Exec {
    if threads == 1 {
        return Exec::cpu(1);
    }
    kept(&THREADS, threads, || on_pytorch(threads).unwrap_or_else(|| Exec::cpu(threads)))
}

/// The threads that calls of XLA's share. They are none of PyTorch's: those are the thread's that calls, and XLA calls from many.
static OF_XLA: Mutex<Option<Threads>> = Mutex::new(None);

/// Returns the executor of XLA's calls on the CPU: on as many threads as were chosen, or on all cores.
pub fn for_xla() -> Exec {
    let threads = match chosen_threads() {
        0 => cores(),
        chosen => chosen,
    };
    match threads {
        1 => Exec::cpu(1),
        threads => kept(&OF_XLA, threads, || Exec::cpu(threads)),
    }
}

/// The threads of the last call, if it asked for as many in this process; else new ones.
fn kept(last: &Mutex<Option<Threads>>, threads: usize, make: impl FnOnce() -> Exec) -> Exec {
    let process = std::process::id();
    let mut kept = last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    match &*kept {
        Some(last) if last.process == process && last.asked == threads => last.exec.clone(),
        _ => {
            let exec = make();
            let last = kept.replace(Threads { process, asked: threads, exec: exec.clone() });
            // another process's threads cannot be told to stop
            std::mem::forget(last.filter(|last| last.process != process));
            exec
        }
    }
}

/// The place where a call runs, as Python says it: a tuple of the number of a CUDA device or -1, the stream or the number of
/// threads, and the allocator of scratch memory there, called with a tensor of the call and a number of `f32`, or None where
/// PyTorch allocates; whether products of `f32` may be rounded to tf32.
#[derive(FromPyObject, IntoPyObject)]
pub struct Place<'py>(i32, usize, Option<Bound<'py, PyAny>>, bool);

/// Stands for the place of a call on PyTorch's tensors, which is that of its first tensor, as long as nobody else has a say in the call.
#[pyclass(frozen, module = "statescan._native")]
pub struct Unobserved {
    /// Functions whose answers are nothing, or zero, unless something takes part in calls.
    observers: Vec<Py<PyAny>>,
    /// PyTorch's number of threads.
    threads: Py<PyAny>,
    /// The place of a tensor that is not on the CPU.
    elsewhere: Py<PyAny>,
}

#[pymethods]
impl Unobserved {
    #[new]
    fn new(observers: Vec<Py<PyAny>>, threads: Py<PyAny>, elsewhere: Py<PyAny>) -> Self {
        Unobserved { observers, threads, elsewhere }
    }

    /// The place of several passes that take some of these arguments, the first of which is a tensor; none if somebody has a say in them,
    /// or one of the tensors has no memory that a pass could read. Such a tensor has to be found before the first of the passes has run.
    pub fn of<'py>(&self, arguments: &Bound<'py, PyTuple>) -> PyResult<Option<Place<'py>>> {
        let place = self.place(&arguments.get_item(0)?, [arguments, &PyTuple::empty(arguments.py())])?;
        let are_readable = || arguments.iter_borrowed().all(|argument| torch::parts(&argument, "").is_ok());
        Ok(place.filter(|_| are_readable()))
    }
}

impl Unobserved {
    /// The place of a call whose first tensor is given, if all that it takes is plain and nothing takes part.
    fn place<'py>(&self, first: &Bound<'py, PyAny>, tuples: [&Bound<'py, PyTuple>; 2]) -> PyResult<Option<Place<'py>>> {
        let py = first.py();
        let Some(device) = torch::plain_device(first, tuples)? else { return Ok(None) };
        for observer in &self.observers {
            if torch::call0(observer.bind(py))?.is_truthy()? {
                return Ok(None);
            }
        }
        if device >= 0 {
            return self.elsewhere.bind(py).call1((first,))?.extract().map(Some);
        }
        let threads = match chosen_threads() {
            0 => torch::call0(self.threads.bind(py))?.extract()?,
            chosen => chosen,
        };
        Ok(Some(Place(-1, threads, None, false)))
    }
}

impl<'py> Place<'py> {
    /// The default stream of a CUDA device.
    pub fn of_device(ordinal: i32) -> Self {
        Place(ordinal, 0, None, false)
    }

    /// The place that Python gives to a call with these inputs and outputs; none if it is [`Unobserved`] and somebody has a say, or the call's
    /// `first` tensor is none of PyTorch's.
    pub fn of(
        object: &Bound<'py, PyAny>,
        first: Borrowed<'_, 'py, PyAny>,
        tuples: [&Bound<'py, PyTuple>; 2],
    ) -> PyResult<Option<Self>> {
        match object.cast_exact::<Unobserved>() {
            Ok(unobserved) => unobserved.get().place(&first, tuples),
            Err(_) => object.extract().map(Some),
        }
    }

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

    /// Returns the allocator of scratch memory, on a CUDA device.
    pub fn allocator(&self) -> Option<&Bound<'py, PyAny>> {
        self.2.as_ref().filter(|_| self.0 >= 0)
    }
}

thread_local! {
    /// The executor of this thread's last call on a GPU, with its device and stream, and whether it may use tf32.
    static LAST: RefCell<Option<(usize, usize, bool, Exec)>> = const { RefCell::new(None) };
}

pub fn cuda(ordinal: usize, stream: usize, tf32: bool) -> statescan::Result<Exec> {
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

/// The number of threads that calls on the CPU use, if one was chosen.
static CHOSEN_THREADS: AtomicUsize = AtomicUsize::new(0);

/// Chooses the number of threads of later calls on the CPU; 0 leaves it to PyTorch, or to the number of cores.
#[pyfunction]
pub fn choose_threads(threads: usize) {
    CHOSEN_THREADS.store(threads, Ordering::Relaxed);
}

/// The number of threads that was chosen, or 0.
#[pyfunction]
pub fn chosen_threads() -> usize {
    CHOSEN_THREADS.load(Ordering::Relaxed)
}

/// Cores that this process may use, as it was when this was asked first: the system's answer takes longer than a small call.
#[pyfunction]
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The names of the CUDA devices that can be used.
#[pyfunction]
pub fn cuda_devices(py: Python<'_>) -> PyResult<Vec<String>> {
    py.detach(statescan::cuda::devices).map_err(to_python)
}
