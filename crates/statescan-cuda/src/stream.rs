//! Streams: memory, events, graphs and launches on a device.

#[cfg(feature = "driver")]
use crate::Error;
#[cfg(feature = "driver")]
use crate::driver::{Context, Current, call, check, driver};
#[cfg(feature = "driver")]
use crate::jit;
use crate::{Config, Function, Launch, Numbers, Parameter, Program, Result};
use core::ffi::c_void;
#[cfg(feature = "driver")]
use core::ffi::{CStr, c_int};
#[cfg(feature = "driver")]
use core::ptr::null_mut;
#[cfg(feature = "driver")]
use cudarc::driver::sys::{self, CUresult};
#[cfg(feature = "driver")]
use std::sync::Arc;

/// A stream of ours, destroyed with its last user.
#[cfg(feature = "driver")]
#[derive(Debug)]
struct OwnStream {
    context: Arc<Context>,
    raw: usize,
}

#[cfg(feature = "driver")]
impl Drop for OwnStream {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: created by us; work that is under way is completed all the same.
            unsafe { sys::cuStreamDestroy_v2(self.raw as sys::CUstream) };
        }
    }
}

/// A device and a stream on it: the caller's or our own. Work runs in the order in which it is put into the stream; a clone is
/// the same stream.
///
/// Without the feature `driver` there is none, and functions that would make one say so.
#[derive(Clone, Debug)]
pub struct Stream {
    #[cfg(feature = "driver")]
    context: Arc<Context>,
    #[cfg(feature = "driver")]
    raw: usize,
    /// Whether factors of products in f32 may be rounded to tf32.
    #[cfg(feature = "driver")]
    tf32: bool,
    /// The numbers that plans see, where they are not the device's.
    #[cfg(feature = "driver")]
    planned: Option<Numbers>,
    #[cfg(feature = "driver")]
    _own: Option<Arc<OwnStream>>,
    #[cfg(not(feature = "driver"))]
    pub(crate) absent: crate::absent::Absent,
}

/// An owner of a stream, or of a reason why it has none: an executor of a library.
pub trait AsStream {
    /// The library's errors.
    type Error: From<crate::Error>;

    /// The stream.
    ///
    /// # Errors
    /// The reason why there is none.
    fn as_stream(&self) -> Result<&Stream, Self::Error>;
}

impl AsStream for Stream {
    type Error = crate::Error;

    fn as_stream(&self) -> Result<&Stream> {
        Ok(self)
    }
}

#[cfg_attr(not(feature = "driver"), allow(unused_variables))]
impl Stream {
    /// The names of all devices.
    pub fn devices() -> Result<Vec<String>> {
        driven! { ABSENT =>
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
    }

    /// A new stream on the device of this number.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without the feature `driver`, a driver, NVRTC or such a device.
    pub fn own(ordinal: usize) -> Result<Self> {
        driven! { ABSENT =>
            let context = Context::of(ordinal)?;
            let _current = context.enter()?;
            let mut raw = null_mut();
            // SAFETY: a context is current.
            unsafe { call!(cuStreamCreate(&mut raw, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))? };
            let own = OwnStream { context: context.clone(), raw: raw as usize };
            Ok(Stream { context, raw: raw as usize, tf32: false, planned: None, _own: Some(Arc::new(own)) })
        }
    }

    /// A stream of the caller's.
    ///
    /// # Safety
    /// It belongs to the device's primary context and outlives its use here.
    pub unsafe fn borrowed(ordinal: usize, raw: *mut c_void) -> Result<Self> {
        driven! { ABSENT =>
            Ok(Stream { context: Context::of(ordinal)?, raw: raw as usize, tf32: false, planned: None, _own: None })
        }
    }

    /// The stream for calls that may, or may not, round factors to tf32.
    pub fn with_tf32(self, allowed: bool) -> Self {
        driven! { self =>
            Stream { tf32: allowed, ..self }
        }
    }
    /// Whether calls may round factors to tf32.
    pub fn allows_tf32(&self) -> bool {
        driven! { self =>
            self.tf32
        }
    }
    /// The stream for calls that plan as on a device of these numbers, which are at most its own but for multiprocessors: with an
    /// older architecture they take the kernels of that one, with other multiprocessors they cut work into fewer or more pieces.
    /// So tests and benchmarks force a route.
    pub fn planned_as(self, numbers: Numbers) -> Self {
        driven! { self =>
            Stream { planned: Some(numbers.within(&self.context.numbers())), ..self }
        }
    }
    /// Words of the numbers that calls plan with, where they are not the device's.
    pub(crate) fn planned(&self) -> Option<[u64; 5]> {
        driven! { self =>
            self.planned.map(|numbers| numbers.words())
        }
    }
    #[cfg(feature = "driver")]
    pub(crate) fn raw(&self) -> sys::CUstream {
        self.raw as sys::CUstream
    }
    /// The number of the device.
    pub fn ordinal(&self) -> usize {
        driven! { self =>
            self.context.ordinal()
        }
    }
    /// Whether it is the same stream of the same device.
    pub fn is(&self, other: &Stream) -> bool {
        driven! { self =>
            self.ordinal() == other.ordinal() && self.raw == other.raw
        }
    }
    /// Makes the device's context the current one as long as what this gives lives.
    #[cfg(feature = "driver")]
    pub(crate) fn enter(&self) -> Result<Current> {
        self.context.enter()
    }
    /// The numbers that calls plan with: those of the device, or of [`Stream::planned_as`].
    pub fn numbers(&self) -> Numbers {
        driven! { self =>
            self.planned.unwrap_or_else(|| self.context.numbers())
        }
    }

    /// Device memory of at least one byte.
    pub fn allocate(&self, bytes: usize) -> Result<u64> {
        driven! { self =>
            let _current = self.context.enter()?;
            let mut address = 0;
            // SAFETY: a context is current.
            match unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) } {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::OutOfMemory { device: self.ordinal(), bytes }),
                status => check("cuMemAlloc", status).map(|()| address),
            }
        }
    }

    /// Frees memory of the device, once the kernels that use it have ended.
    ///
    /// # Safety
    /// The address comes from [`Stream::allocate`] and is not used afterwards.
    pub unsafe fn free(&self, address: u64) {
        driven! { self =>
            if let Ok(_current) = self.context.enter() {
                // SAFETY: the caller's contract; a failure means that the context is lost, and the memory with it.
                unsafe { sys::cuMemFree_v2(address) };
            }
        }
    }

    /// Copies from the host and waits.
    ///
    /// # Safety
    /// Both ranges are valid.
    pub unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<()> {
        driven! { self =>
            let _current = self.context.enter()?;
            if bytes > 0 {
                // SAFETY: the caller's contract.
                unsafe { call!(cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.raw()))? };
            }
            self.synchronize()
        }
    }

    /// Copies to the host and waits.
    ///
    /// # Safety
    /// Both ranges are valid.
    pub unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<()> {
        driven! { self =>
            let _current = self.context.enter()?;
            if bytes > 0 {
                // SAFETY: the caller's contract.
                unsafe { call!(cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.raw()))? };
            }
            self.synchronize()
        }
    }

    /// Page-locked memory of the host, of at least one byte.
    pub fn allocate_on_host(&self, bytes: usize) -> Result<usize> {
        driven! { self =>
            let _current = self.context.enter()?;
            let mut memory = null_mut();
            // SAFETY: a context is current.
            unsafe { call!(cuMemHostAlloc(&mut memory, bytes.max(1), 0))? };
            Ok(memory as usize)
        }
    }

    /// Frees memory of the host.
    ///
    /// # Safety
    /// The memory comes from [`Stream::allocate_on_host`] and is not used afterwards.
    pub unsafe fn free_on_host(&self, memory: usize) {
        driven! { self =>
            if let Ok(_current) = self.context.enter() {
                // SAFETY: the caller's contract; a failure means that the context is lost.
                unsafe { sys::cuMemFreeHost(memory as *mut c_void) };
            }
        }
    }

    /// Copies to page-locked memory of the host, in the order of the stream.
    ///
    /// # Safety
    /// Both ranges are valid, and nobody reads the target before the stream has come to it.
    pub unsafe fn send_to_host(&self, to: usize, from: u64, bytes: usize) -> Result<()> {
        driven! { self =>
            let _current = self.context.enter()?;
            match bytes {
                0 => Ok(()),
                // SAFETY: the caller's contract.
                _ => unsafe { call!(cuMemcpyDtoHAsync_v2(to as *mut c_void, from, bytes, self.raw())) },
            }
        }
    }

    /// Sets bytes.
    ///
    /// # Safety
    /// The range is valid.
    pub unsafe fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<()> {
        driven! { self =>
            let _current = self.context.enter()?;
            match bytes {
                0 => Ok(()),
                // SAFETY: the caller's contract.
                _ => unsafe { call!(cuMemsetD8Async(to, byte, bytes, self.raw())) },
            }
        }
    }

    /// Sets words of 32 bits.
    ///
    /// # Safety
    /// The range is valid and aligned.
    pub unsafe fn fill_words(&self, to: u64, word: u32, count: usize) -> Result<()> {
        driven! { self =>
            let _current = self.context.enter()?;
            match count {
                0 => Ok(()),
                // SAFETY: the caller's contract.
                _ => unsafe { call!(cuMemsetD32Async(to, word, count, self.raw())) },
            }
        }
    }

    /// Copies within the device.
    ///
    /// # Safety
    /// Both ranges are valid and apart.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        driven! { self =>
            let _current = self.context.enter()?;
            match bytes {
                0 => Ok(()),
                // SAFETY: the caller's contract.
                _ => unsafe { call!(cuMemcpyDtoDAsync_v2(to, from, bytes, self.raw())) },
            }
        }
    }

    /// Begins to record what is put into the stream instead of running it.
    pub fn begin_capture(&self) -> Result<()> {
        driven! { self =>
            let _current = self.context.enter()?;
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            // SAFETY: the stream is valid.
            unsafe { call!(cuStreamBeginCapture_v2(self.raw(), mode)) }
        }
    }

    /// Ends it: what was recorded, or the launches of one kernel of it, ready to be launched.
    pub fn end_capture(&self, only: Option<&str>) -> Result<u64> {
        driven! { self =>
            let _current = self.context.enter()?;
            let (mut graph, mut ready) = (null_mut(), null_mut());
            // SAFETY: the places written are valid; the recorded graph is destroyed once what is launched was made from it.
            unsafe {
                call!(cuStreamEndCapture(self.raw(), &mut graph))?;
                let made = call!(cuGraphInstantiateWithFlags(&mut ready, graph, 0));
                let kept = made.and_then(|()| only.map_or(Ok(()), |name| crate::nodes::keep_kernel(graph, ready, name)));
                sys::cuGraphDestroy(graph);
                if let Err(error) = kept {
                    if !ready.is_null() {
                        sys::cuGraphExecDestroy(ready);
                    }
                    return Err(error);
                }
            }
            Ok(ready as u64)
        }
    }

    /// Puts what was recorded into the stream.
    ///
    /// # Safety
    /// The graph comes from [`Stream::end_capture`], and what it reads and writes is valid.
    pub unsafe fn launch_graph(&self, graph: u64) -> Result<()> {
        driven! { self =>
            let _current = self.context.enter()?;
            // SAFETY: the caller's contract.
            unsafe { call!(cuGraphLaunch(graph as sys::CUgraphExec, self.raw())) }
        }
    }

    /// Destroys what was recorded.
    ///
    /// # Safety
    /// The graph comes from [`Stream::end_capture`] and is not used afterwards.
    pub unsafe fn destroy_graph(&self, graph: u64) {
        driven! { self =>
            if let Ok(_current) = self.context.enter() {
                // SAFETY: the caller's contract.
                unsafe { sys::cuGraphExecDestroy(graph as sys::CUgraphExec) };
            }
        }
    }

    /// A new event.
    pub fn event(&self) -> Result<u64> {
        driven! { self =>
            let _current = self.context.enter()?;
            let mut event = null_mut();
            // SAFETY: a context is current.
            unsafe { call!(cuEventCreate(&mut event, 0))? };
            Ok(event as u64)
        }
    }

    /// Marks this place of the stream.
    ///
    /// # Safety
    /// The event comes from [`Stream::event`].
    pub unsafe fn record(&self, event: u64) -> Result<()> {
        driven! { self =>
            let _current = self.context.enter()?;
            // SAFETY: the caller's contract.
            unsafe { call!(cuEventRecord(event as sys::CUevent, self.raw())) }
        }
    }

    /// Time between two marks that have passed.
    ///
    /// # Safety
    /// The events come from [`Stream::event`].
    pub unsafe fn milliseconds(&self, begin: u64, end: u64) -> Result<f32> {
        driven! { self =>
            let _current = self.context.enter()?;
            let mut time = 0.0;
            // SAFETY: the caller's contract.
            unsafe { call!(cuEventElapsedTime_v2(&mut time, begin as sys::CUevent, end as sys::CUevent))? };
            Ok(time)
        }
    }

    /// Destroys an event.
    ///
    /// # Safety
    /// The event comes from [`Stream::event`] and is not used afterwards.
    pub unsafe fn destroy_event(&self, event: u64) {
        driven! { self =>
            if let Ok(_current) = self.context.enter() {
                // SAFETY: the caller's contract.
                unsafe { sys::cuEventDestroy_v2(event as sys::CUevent) };
            }
        }
    }

    /// Waits for everything in the stream.
    pub fn synchronize(&self) -> Result<()> {
        driven! { self =>
            let _current = self.context.enter()?;
            // SAFETY: the stream is valid.
            unsafe { call!(cuStreamSynchronize(self.raw())) }
        }
    }

    /// A kernel on this stream's device, compiled if this process has not needed it before. It stays loaded.
    pub fn function<P: Parameter>(&self, program: &Program<P>, config: &Config, shared: u32) -> Result<Function> {
        driven! { self =>
            let _current = self.context.enter()?;
            let address = jit::function(&self.context, program, config, shared)?;
            Ok(Function { kernel: program.kernel, address })
        }
    }

    /// Puts a kernel into the stream, compiling it first if this process has not needed it before.
    ///
    /// # Safety
    /// The memory that the kernel reads and writes for this configuration and launch is valid.
    pub unsafe fn launch<P: Parameter>(&self, program: &Program<P>, config: &Config, launch: Launch, params: &P) -> Result<()> {
        driven! { self =>
            let function = self.function(program, config, launch.shared)?;
            // SAFETY: the caller's contract.
            unsafe { self.start(function, launch, params) }
        }
    }

    /// As [`Stream::launch`], and where the device can the kernel begins while the one before it ends: it waits (`griddepcontrol.wait`) before
    /// it reads what that one writes.
    ///
    /// # Safety
    /// As for [`Stream::launch`].
    pub unsafe fn launch_early<P: Parameter>(
        &self,
        program: &Program<P>,
        config: &Config,
        launch: Launch,
        params: &P,
    ) -> Result<()> {
        driven! { self =>
            let function = self.function(program, config, launch.shared)?;
            // SAFETY: the caller's contract.
            unsafe { self.start_early(function, launch, params) }
        }
    }

    /// Puts a kernel into the stream, to begin as [`Stream::launch_early`] says.
    ///
    /// # Safety
    /// As for [`Stream::start`].
    pub unsafe fn start_early<P: Parameter>(&self, function: Function, launch: Launch, params: &P) -> Result<()> {
        driven! { self =>
            let early = self.context.numbers().has_early_starts();
            // SAFETY: the caller's contract.
            unsafe { self.put(function, launch, params, early) }
        }
    }

    /// Puts a kernel into the stream.
    ///
    /// # Safety
    /// It is of this stream's device and takes one `P`, and as for [`Stream::launch`].
    pub unsafe fn start<P: Parameter>(&self, function: Function, launch: Launch, params: &P) -> Result<()> {
        driven! { self =>
            // SAFETY: the caller's contract.
            unsafe { self.put(function, launch, params, false) }
        }
    }

    /// # Safety
    /// As for [`Stream::start`].
    #[cfg(feature = "driver")]
    unsafe fn put<P: Parameter>(&self, function: Function, launch: Launch, params: &P, early: bool) -> Result<()> {
        launch.check(function.kernel, &self.context.numbers())?;
        let _current = self.context.enter()?;
        let mut arguments = [core::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        let Launch { grid, cluster, threads, shared } = launch;
        let (mut attributes, count) = attributes(early, cluster);
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: self.raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count,
        };
        let function = function.address as sys::CUfunction;
        // SAFETY: the caller's contract; the driver copies parameters and attributes before it returns.
        unsafe { call!(cuLaunchKernelEx(&config, function, arguments.as_mut_ptr(), null_mut())) }
    }
}

/// The attributes of a launch, of which so many count: whether it may start before the kernel in front of it ends, and its clusters.
#[cfg(feature = "driver")]
fn attributes(early: bool, cluster: Option<[u32; 3]>) -> ([sys::CUlaunchAttribute; 2], u32) {
    let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
    let early_start = attribute(
        sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    );
    let [x, y, z] = cluster.unwrap_or([1; 3]);
    let clusters = attribute(
        sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        sys::CUlaunchAttributeValue { clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z } },
    );
    let ordered = if early { [early_start, clusters] } else { [clusters, early_start] };
    (ordered, u32::from(early) + u32::from(cluster.is_some()))
}

#[cfg(all(test, feature = "driver"))]
mod tests {
    use super::{attributes, sys};

    #[test]
    fn a_launch_that_starts_early_keeps_its_clusters() {
        use sys::CUlaunchAttributeID::{
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION as CLUSTER, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION as EARLY,
        };
        let ids = |early, cluster| {
            let (all, count) = attributes(early, cluster);
            all[..count as usize].iter().map(|attribute| attribute.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(false, None), []);
        assert_eq!(ids(true, None), [EARLY]);
        assert_eq!(ids(false, Some([2, 1, 1])), [CLUSTER]);
        assert_eq!(ids(true, Some([2, 1, 1])), [EARLY, CLUSTER]);
        // SAFETY: the attribute is that of clusters.
        let dimension = unsafe { attributes(true, Some([2, 1, 1])).0[1].value.clusterDim };
        assert_eq!((dimension.x, dimension.y, dimension.z), (2, 1, 1));
    }
}
