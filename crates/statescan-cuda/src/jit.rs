//! From a program and a configuration to a loaded kernel: looked up in memory, then on disk, else compiled.

use super::cache::Cache;
use super::driver::{Context, call, check};
use super::nvrtc;
use super::{Config, Parameter, Program, Source};
use crate::Result;
use core::ptr::null_mut;
use cudarc::driver::sys;
use rustc_hash::FxHashMap;
use std::ffi::CString;
use std::sync::{Mutex, OnceLock};

/// The functions of a device and a kernel's name, by configuration.
type Loaded = FxHashMap<(usize, &'static str), FxHashMap<Config, usize>>;

/// The function for a configuration. Modules stay loaded for the life of the process. The device's context must be current.
pub(crate) fn function<P: Parameter>(context: &Context, program: &Program<P>, config: &Config, shared: u32) -> Result<usize> {
    static LOADED: OnceLock<Mutex<Loaded>> = OnceLock::new();
    let loaded = || LOADED.get_or_init(Mutex::default).lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let kernel = (context.ordinal(), program.kernel);
    if let Some(&function) = loaded().get(&kernel).and_then(|functions| functions.get(config)) {
        return Ok(function);
    }
    // not under the lock, so that other kernels go on; of two threads that load the same kernel the first one counts
    let function = load(context, program.kernel, &program.source(config), shared)?;
    Ok(*loaded().entry(kernel).or_default().entry(config.clone()).or_insert(function))
}

fn load(context: &Context, kernel: &'static str, source: &Source, shared: u32) -> Result<usize> {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    let cache = CACHE.get_or_init(Cache::from_environment);
    let (major, minor) = nvrtc::version()?;
    let key = format!("{}\n{}\nnvrtc {major}.{minor}\n{}", context.architecture(), nvrtc::OPTIONS.join(" "), source.key());
    // an entry that the driver refuses is as good as absent
    if let Some(function) = cache.get(&key).and_then(|cubin| load_module(&cubin, kernel, shared).ok()) {
        return Ok(function);
    }
    let (cubin, _) = nvrtc::compile(kernel, source, context.architecture(), &[])?;
    let function = load_module(&cubin, kernel, shared)?;
    cache.put(&key, &cubin);
    Ok(function)
}

/// Loads machine code. Allowed while a stream is being captured: loading is no work of a stream.
fn load_module(cubin: &[u8], kernel: &'static str, shared: u32) -> Result<usize> {
    let name = CString::new(kernel).expect("names have no zero byte");
    let (mut module, mut function) = (null_mut(), null_mut());
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: a context is current; the image is whole machine code, which the driver checks; the places written are valid.
    unsafe {
        call!(cuThreadExchangeStreamCaptureMode(&mut mode))?;
        let loaded = call!(cuModuleLoadData(&mut module, cubin.as_ptr().cast())).and_then(|()| {
            call!(cuModuleGetFunction(&mut function, module, name.as_ptr()))?;
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            call!(cuFuncSetAttribute(function, attribute, shared as i32))
        });
        call!(cuThreadExchangeStreamCaptureMode(&mut mode))?;
        loaded?;
    }
    Ok(function as usize)
}
