//! The CUDA driver: how it is loaded and called, devices and their primary contexts.

use super::{Numbers, library, nvrtc};
use crate::{Error, Result};
use core::ffi::{CStr, c_int};
use core::ptr::null_mut;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use std::sync::{Arc, Mutex, OnceLock};

/// The oldest compute capability that kernels are written for.
const OLDEST: (u32, u32) = (8, 0);

/// The oldest driver that has every function that is called here.
const OLDEST_DRIVER: i32 = 12_000;

/// An error from the status of a call.
pub(crate) fn check(call: &'static str, status: CUresult) -> Result<()> {
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
pub(crate) use call;

/// The version of CUDA that the driver is of: 12030 is 12.3.
pub(crate) fn version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: the driver is loaded.
    unsafe { call!(cuDriverGetVersion(&mut version))? };
    Ok(version)
}

/// Loads and initialises the driver, once.
pub(crate) fn driver() -> Result<()> {
    static DRIVER: OnceLock<Result<()>> = OnceLock::new();
    let unavailable = |why| Error::Unavailable { what: "CUDA", why };
    let start = || {
        if !library::is_present(library::DRIVER) {
            return Err(unavailable("no NVIDIA driver was found"));
        }
        // SAFETY: the library is there.
        match unsafe { sys::cuInit(0) } {
            CUresult::CUDA_ERROR_NO_DEVICE => return Err(unavailable("the NVIDIA driver sees no device")),
            status => check("cuInit", status)?,
        }
        let version = version()?;
        // launches and tensor maps of its time are called
        if version < OLDEST_DRIVER {
            return Err(unavailable("the NVIDIA driver is older than CUDA 12"));
        }
        if version / 1000 < nvrtc::version()?.0 {
            return Err(unavailable("the NVIDIA driver is older than NVRTC; a newer driver or an older NVRTC is needed"));
        }
        Ok(())
    };
    DRIVER.get_or_init(start).clone()
}

/// A device with its primary context, retained for the life of the process.
#[derive(Debug)]
pub(crate) struct Context {
    ordinal: usize,
    context: usize,
    numbers: Numbers,
    /// The architecture that kernels are compiled for, such as `sm_90a`.
    architecture: String,
}

impl Context {
    /// The context of a device.
    pub(crate) fn of(ordinal: usize) -> Result<Arc<Context>> {
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
        let capability = (major as u32, minor as u32);
        if capability < OLDEST {
            return Err(unavailable("the device is older than compute capability 8.0"));
        }
        let numbers = Numbers {
            capability,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
            shared_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
            shared_per_multiprocessor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)? as usize,
        };
        // SAFETY: as above; the context is never released, so it stays valid.
        unsafe { call!(cuDevicePrimaryCtxRetain(&mut context, device))? };
        Ok(Context { ordinal, context: context as usize, numbers, architecture: numbers.architecture() })
    }

    pub(crate) fn ordinal(&self) -> usize {
        self.ordinal
    }
    pub(crate) fn numbers(&self) -> Numbers {
        self.numbers
    }
    pub(crate) fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Makes this the thread's context until the guard goes out of scope, when the one before is back.
    pub(crate) fn enter(&self) -> Result<Current> {
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
pub(crate) struct Current {
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
