//! What the tests of kernels without a GPU are made of: tensors that nobody reads, and compilation for every architecture.

use super::cache::fnv1a;
use super::{Config, Parameter, Program, nvrtc};
use crate::ViewMut;
use crate::tensor::{DType, Device, RawViewMut, Shape, View};
use std::collections::BTreeSet;
use std::sync::Mutex;

const ARCHITECTURES: [&str; 4] = ["sm_80", "sm_90a", "sm_100", "sm_120"];
/// The most shared memory of a block on the smallest of them.
const SHARED: usize = 99 << 10;
/// The most bytes of code: compiling takes about a second for each 100 KB, and the first use of a kernel waits for it.
const LONGEST: usize = 144 << 10;

/// A dense tensor in a device's memory that nobody reads.
pub(crate) fn tensor(dtype: DType, shape: &[usize]) -> View<'static> {
    let strides = Shape::of(shape).row_major();
    // SAFETY: nothing reads through the view.
    unsafe { View::from_raw_parts(core::ptr::without_provenance(1 << 20), dtype, Device::Cuda(0), shape, &strides).unwrap() }
}

/// The same to be written.
pub(crate) fn target(view: View<'_>) -> RawViewMut {
    // SAFETY: nothing writes through the view.
    let mut view =
        unsafe { ViewMut::from_raw_parts(view.as_ptr().cast_mut(), view.dtype(), view.device(), &view.shape(), &view.strides()) };
    view.as_mut().unwrap().raw()
}

/// Whether NVRTC is there; without it the test says so, unless it must not be skipped.
pub(crate) fn ready() -> bool {
    match nvrtc::version() {
        Ok(_) => true,
        Err(error) if std::env::var_os("STATESCAN_REQUIRE_NVRTC").is_none() => {
            println!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// Compiles a program for every architecture: no warning, no spill, and no more shared memory than each of them has.
pub(crate) fn compiles<P: Parameter>(program: &Program<P>, config: &Config, shared: usize) {
    assert!(shared <= SHARED, "{shared} bytes of shared memory for\n{config}");
    compiles_for(&ARCHITECTURES, program, config);
}

/// Compiles a program for some architectures: no warning, no spill, not too long. What was compiled before is not compiled again.
pub(crate) fn compiles_for<P: Parameter>(architectures: &[&'static str], program: &Program<P>, config: &Config) {
    static COMPILED: Mutex<BTreeSet<(u64, &str)>> = Mutex::new(BTreeSet::new());
    let source = program.source(config);
    for &architecture in architectures {
        if !COMPILED.lock().unwrap().insert((fnv1a(source.as_bytes()), architecture)) {
            continue;
        }
        let (cubin, log) = nvrtc::compile(program.kernel, &source, architecture, &["--ptxas-options=-v"]).unwrap();
        assert!(!cubin.is_empty());
        assert!(cubin.len() <= LONGEST, "{} {architecture}: {} bytes\n{config}", program.kernel, cubin.len());
        let spills = log.contains("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads");
        assert!(spills && !log.contains("warning"), "{} {architecture}\n{config}\n{log}", program.kernel);
        if std::env::var_os("STATESCAN_SHOW_REGISTERS").is_some() && architecture == "sm_90a" {
            println!("{} {}", program.kernel, log.lines().find(|l| l.contains("registers")).unwrap_or(""));
        }
    }
}
