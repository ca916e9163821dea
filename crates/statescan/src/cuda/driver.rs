//! The CUDA driver: devices and their primary contexts, streams, memory, launches.

use super::jit;
use super::{Config, Function, Launch, Numbers, Program};
use crate::error::{Error, Result};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use std::sync::{Arc, Mutex, OnceLock};

/// The oldest compute capability that kernels are written for.
const OLDEST: (i32, i32) = (8, 0);

/// An error from the status of a call.
pub(super) fn check(call: &'static str, status: CUresult) -> Result<()> {
    if status == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = core::ptr::null();
    // SAFETY: the driver is loaded, it has answered; the names it gives are constants of the library.
    let known = unsafe { sys::cuGetErrorName(status, &mut name) } == CUresult::CUDA_SUCCESS && !name.is_null();
    // SAFETY: as above, a string that ends in zero and lives as long as the process.
    let name = if known { unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("unknown error") } else { "unknown error" };
    Err(Error::Cuda { call, name, code: status as u32 })
}

macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        check(stringify!($function), sys::$function($($argument),*))
    };
}
pub(super) use call;

/// Loads and initialises the driver, once.
fn driver() -> Result<()> {
    static DRIVER: OnceLock<Result<()>> = OnceLock::new();
    let unavailable = |why| Error::Unavailable { what: "CUDA", why };
    let start = || {
        // SAFETY: asks the loader only.
        if !unsafe { sys::is_culib_present() } {
            return Err(unavailable("no NVIDIA driver was found"));
        }
        // SAFETY: the library is there.
        match unsafe { sys::cuInit(0) } {
            CUresult::CUDA_ERROR_NO_DEVICE => return Err(unavailable("the NVIDIA driver sees no device")),
            status => check("cuInit", status)?,
        }
        let mut version = 0;
        // SAFETY: the driver is initialised.
        unsafe { call!(cuDriverGetVersion(&mut version))? };
        if version / 1000 < super::nvrtc::version()?.0 {
            return Err(unavailable("the NVIDIA driver is older than NVRTC; a newer driver or an older NVRTC is needed"));
        }
        Ok(())
    };
    DRIVER.get_or_init(start).clone()
}

/// A device with its primary context, retained for the life of the process.
#[derive(Debug)]
pub(super) struct Context {
    ordinal: usize,
    context: usize,
    numbers: Numbers,
    /// What kernels are compiled for, such as `sm_90a`.
    architecture: String,
}

impl Context {
    /// The context of a device.
    fn of(ordinal: usize) -> Result<Arc<Context>> {
        static CONTEXTS: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());
        driver()?;
        let mut contexts = CONTEXTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(context) = contexts.iter().find(|context| context.ordinal == ordinal) {
            return Ok(context.clone());
        }
        let context = Arc::new(Self::retain(ordinal)?);
        contexts.push(context.clone());
        Ok(context)
    }

    fn retain(ordinal: usize) -> Result<Self> {
        let unavailable = |why| Error::Unavailable { what: "CUDA", why };
        let (mut count, mut device, mut context) = (0, 0, null_mut());
        // SAFETY: the driver is initialised, every place that it writes is valid.
        unsafe {
            call!(cuDeviceGetCount(&mut count))?;
            if ordinal >= count as usize {
                return Err(unavailable("there is no device with this number"));
            }
            call!(cuDeviceGet(&mut device, ordinal as c_int))?;
        }
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: as above.
            unsafe { call!(cuDeviceGetAttribute(&mut value, attribute, device))? };
            Ok::<i32, Error>(value)
        };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if (major, minor) < OLDEST {
            return Err(unavailable("the device is older than compute capability 8.0"));
        }
        let numbers = Numbers {
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
            shared_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
            shared_per_multiprocessor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)? as usize,
        };
        // SAFETY: as above; the context is never released, so it stays valid.
        unsafe { call!(cuDevicePrimaryCtxRetain(&mut context, device))? };
        // the architecture whose own instructions kernels may use
        let specific = if (major, minor) == (9, 0) { "a" } else { "" };
        Ok(Context { ordinal, context: context as usize, numbers, architecture: format!("sm_{major}{minor}{specific}") })
    }

    pub(super) fn ordinal(&self) -> usize {
        self.ordinal
    }
    pub(super) fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Makes this the thread's context until the guard goes out of scope, when the one before is back.
    pub(super) fn enter(&self) -> Result<Current> {
        let context = self.context as sys::CUcontext;
        let mut current = null_mut();
        // SAFETY: the driver is initialised, and the context retained.
        let pushed = unsafe {
            call!(cuCtxGetCurrent(&mut current))?;
            // a framework has mostly made it current already
            if current != context {
                call!(cuCtxPushCurrent_v2(context))?;
            }
            current != context
        };
        Ok(Current { pushed })
    }
}

/// A context is current.
pub(super) struct Current {
    pushed: bool,
}

impl Drop for Current {
    fn drop(&mut self) {
        if !self.pushed {
            return;
        }
        let mut popped = null_mut();
        // SAFETY: pushed by `enter` on this thread; a failure could not be helped here.
        unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}

/// A stream of ours, destroyed with its last user.
#[derive(Debug)]
struct OwnStream {
    context: Arc<Context>,
    raw: usize,
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: created by us; work that is under way is completed all the same.
            unsafe { sys::cuStreamDestroy_v2(self.raw as sys::CUstream) };
        }
    }
}

/// A device and a stream on it: the caller's or our own.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    raw: usize,
    _own: Option<Arc<OwnStream>>,
}

impl Stream {
    /// The names of all devices.
    pub(crate) fn devices() -> Result<Vec<String>> {
        driver()?;
        let mut count = 0;
        // SAFETY: the driver is initialised.
        unsafe { call!(cuDeviceGetCount(&mut count))? };
        let name_of = |ordinal| {
            let (mut device, mut name) = (0, [0u8; 256]);
            // SAFETY: the driver writes at most the length given, with a zero at the end.
            unsafe {
                call!(cuDeviceGet(&mut device, ordinal))?;
                call!(cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device))?;
            }
            let name = CStr::from_bytes_until_nul(&name).map(|name| name.to_string_lossy().into_owned());
            Ok(name.unwrap_or_default())
        };
        (0..count).map(name_of).collect()
    }

    /// A new stream.
    pub(crate) fn own(ordinal: usize) -> Result<Self> {
        let context = Context::of(ordinal)?;
        let _current = context.enter()?;
        let mut raw = null_mut();
        // SAFETY: a context is current.
        unsafe { call!(cuStreamCreate(&mut raw, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))? };
        let own = OwnStream { context: context.clone(), raw: raw as usize };
        Ok(Stream { context, raw: raw as usize, _own: Some(Arc::new(own)) })
    }

    /// A stream of the caller's.
    ///
    /// # Safety
    /// It belongs to the device's primary context and outlives its use here.
    pub(crate) unsafe fn borrowed(ordinal: usize, raw: *mut c_void) -> Result<Self> {
        Ok(Stream { context: Context::of(ordinal)?, raw: raw as usize, _own: None })
    }

    fn raw(&self) -> sys::CUstream {
        self.raw as sys::CUstream
    }
    pub(crate) fn ordinal(&self) -> usize {
        self.context.ordinal
    }
    /// Whether it is the same stream of the same device.
    pub(crate) fn is(&self, other: &Stream) -> bool {
        self.ordinal() == other.ordinal() && self.raw == other.raw
    }
    pub(crate) fn numbers(&self) -> Numbers {
        self.context.numbers
    }

    /// Device memory of at least one byte.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64> {
        let _current = self.context.enter()?;
        let mut address = 0;
        // SAFETY: a context is current.
        match unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::OutOfMemory { device: self.ordinal(), bytes }),
            status => check("cuMemAlloc", status).map(|()| address),
        }
    }

    /// # Safety
    /// The address comes from [`Stream::allocate`] and is not used afterwards.
    pub(crate) unsafe fn free(&self, address: u64) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: the caller's contract; a failure means that the context is lost, and the memory with it.
            unsafe { sys::cuMemFree_v2(address) };
        }
    }

    /// Copies from the host and waits.
    ///
    /// # Safety
    /// Both ranges are valid.
    pub(crate) unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<()> {
        let _current = self.context.enter()?;
        if bytes > 0 {
            // SAFETY: the caller's contract.
            unsafe { call!(cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.raw()))? };
        }
        self.synchronize()
    }

    /// Copies to the host and waits.
    ///
    /// # Safety
    /// Both ranges are valid.
    pub(crate) unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<()> {
        let _current = self.context.enter()?;
        if bytes > 0 {
            // SAFETY: the caller's contract.
            unsafe { call!(cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.raw()))? };
        }
        self.synchronize()
    }

    /// Sets bytes.
    ///
    /// # Safety
    /// The range is valid.
    pub(crate) unsafe fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<()> {
        let _current = self.context.enter()?;
        match bytes {
            0 => Ok(()),
            // SAFETY: the caller's contract.
            _ => unsafe { call!(cuMemsetD8Async(to, byte, bytes, self.raw())) },
        }
    }

    /// Copies within the device.
    ///
    /// # Safety
    /// Both ranges are valid and apart.
    pub(crate) unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        let _current = self.context.enter()?;
        match bytes {
            0 => Ok(()),
            // SAFETY: the caller's contract.
            _ => unsafe { call!(cuMemcpyDtoDAsync_v2(to, from, bytes, self.raw())) },
        }
    }

    /// Begins to record what is put into the stream instead of running it.
    pub(crate) fn begin_capture(&self) -> Result<()> {
        let _current = self.context.enter()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is valid.
        unsafe { call!(cuStreamBeginCapture_v2(self.raw(), mode)) }
    }

    /// Ends it: what was recorded, ready to be launched.
    pub(crate) fn end_capture(&self) -> Result<u64> {
        let _current = self.context.enter()?;
        let (mut graph, mut ready) = (null_mut(), null_mut());
        // SAFETY: the places written are valid; the recorded graph is destroyed once what is launched was made from it.
        unsafe {
            call!(cuStreamEndCapture(self.raw(), &mut graph))?;
            let made = call!(cuGraphInstantiateWithFlags(&mut ready, graph, 0));
            sys::cuGraphDestroy(graph);
            made?;
        }
        Ok(ready as u64)
    }

    /// # Safety
    /// The graph comes from [`Stream::end_capture`], and what it reads and writes is valid.
    pub(crate) unsafe fn launch_graph(&self, graph: u64) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: the caller's contract.
        unsafe { call!(cuGraphLaunch(graph as sys::CUgraphExec, self.raw())) }
    }

    /// # Safety
    /// The graph comes from [`Stream::end_capture`] and is not used afterwards.
    pub(crate) unsafe fn destroy_graph(&self, graph: u64) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: the caller's contract.
            unsafe { sys::cuGraphExecDestroy(graph as sys::CUgraphExec) };
        }
    }

    /// A new event.
    pub(crate) fn event(&self) -> Result<u64> {
        let _current = self.context.enter()?;
        let mut event = null_mut();
        // SAFETY: a context is current.
        unsafe { call!(cuEventCreate(&mut event, 0))? };
        Ok(event as u64)
    }

    /// Marks this place of the stream.
    ///
    /// # Safety
    /// The event comes from [`Stream::event`].
    pub(crate) unsafe fn record(&self, event: u64) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: the caller's contract.
        unsafe { call!(cuEventRecord(event as sys::CUevent, self.raw())) }
    }

    /// Time between two marks that have passed.
    ///
    /// # Safety
    /// The events come from [`Stream::event`].
    pub(crate) unsafe fn milliseconds(&self, begin: u64, end: u64) -> Result<f32> {
        let _current = self.context.enter()?;
        let mut time = 0.0;
        // SAFETY: the caller's contract.
        unsafe { call!(cuEventElapsedTime_v2(&mut time, begin as sys::CUevent, end as sys::CUevent))? };
        Ok(time)
    }

    /// # Safety
    /// The event comes from [`Stream::event`] and is not used afterwards.
    pub(crate) unsafe fn destroy_event(&self, event: u64) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: the caller's contract.
            unsafe { sys::cuEventDestroy_v2(event as sys::CUevent) };
        }
    }

    /// Waits for everything in the stream.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: the stream is valid.
        unsafe { call!(cuStreamSynchronize(self.raw())) }
    }

    /// A kernel on this stream's device, compiled if this process has not needed it before. It stays loaded.
    pub(crate) fn function(&self, program: &Program, config: &Config, shared: u32) -> Result<Function> {
        let _current = self.context.enter()?;
        Ok(Function(jit::function(&self.context, program, config, shared)?))
    }

    /// Puts a kernel into the stream, compiling it first if this process has not needed it before.
    ///
    /// # Safety
    /// The kernel takes one `P` by value, and what it reads and writes for this configuration and launch is valid.
    pub(crate) unsafe fn launch<P: Copy>(&self, program: &Program, config: &Config, launch: Launch, params: &P) -> Result<()> {
        let function = self.function(program, config, launch.shared)?;
        // SAFETY: the caller's contract.
        unsafe { self.start(function, launch, params) }
    }

    /// Puts a kernel into the stream.
    ///
    /// # Safety
    /// It is of this stream's device, and as for [`Stream::launch`].
    pub(crate) unsafe fn start<P: Copy>(&self, function: Function, launch: Launch, params: &P) -> Result<()> {
        let _current = self.context.enter()?;
        let mut arguments = [core::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        let Launch { blocks, threads, shared } = launch;
        // SAFETY: the caller's contract; the driver copies the parameters before it returns.
        unsafe {
            call!(cuLaunchKernel(
                function.0 as sys::CUfunction,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                shared,
                self.raw(),
                arguments.as_mut_ptr(),
                null_mut()
            ))
        }
    }
}
