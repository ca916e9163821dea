//! One test body serves every device: inputs go to the executor's device and results come back with their strides, and a GPU may
//! have no kernel for a case.

use statescan::cuda::Gpu;
use statescan::{Device, Error, Exec, Tensor};

/// The first GPU; the reason is printed why there is none.
pub fn gpu() -> Option<Exec> {
    find_gpu().inspect_err(|error| println!("skipped: {error}")).ok()
}

/// The first GPU, or the error that says why there is none.
pub fn find_gpu() -> Result<Exec, Error> {
    match Exec::cuda(0) {
        Err(error) if only_gpu() || !matches!(error, Error::Unavailable { .. }) => panic!("{error}"),
        found => found,
    }
}

/// Whether tests are to run on the GPU alone: `STATESCAN_TEST_DEVICE=cuda`. Then it must be there.
pub fn only_gpu() -> bool {
    std::env::var_os("STATESCAN_TEST_DEVICE").is_some_and(|device| device == "cuda")
}

pub fn is_gpu(exec: &Exec) -> bool {
    exec.device() != Device::Cpu
}

/// A copy of a tensor on the executor's device.
pub fn on(exec: &Exec, tensor: &Tensor) -> Tensor {
    tensor.to(exec).unwrap()
}

/// A copy of a tensor on the host.
pub fn home(tensor: &Tensor) -> Tensor {
    tensor.to_host().unwrap()
}

/// Whether a call ran. A GPU may have no kernel for it: it says so before it writes to its results, which were poisoned.
#[track_caller]
pub fn ran(exec: &Exec, call: Result<(), Error>, poisoned: &[&Tensor]) -> bool {
    match call {
        Err(error @ Error::Unavailable { .. }) if is_gpu(exec) => {
            let untouched = |tensor: &&Tensor| home(tensor).bytes().iter().all(|&byte| byte == 0xff);
            assert!(poisoned.iter().all(untouched), "written in spite of {error}");
            false
        }
        call => {
            call.unwrap();
            true
        }
    }
}

/// Runs a test body on the GPU for each case, if there is one: for cases that only its kernels tell apart.
pub fn on_gpu<C>(cases: impl IntoIterator<Item = C>, check: impl Fn(&C, &[Exec])) {
    let Some(exec) = gpu() else { return };
    cases.into_iter().for_each(|case| check(&case, std::slice::from_ref(&exec)));
}

/// Checks cases by every route: with the kernels of older devices, where rows are scanned in one pass, as this device would cut them, and in as many segments as
/// plans make.
pub fn on_routes<C>(cases: impl IntoIterator<Item = C>, check: impl Fn(&C, &[Exec])) {
    let Some(exec) = gpu() else { return };
    let (own, old) = (Gpu::of(&exec).expect("it has a GPU"), Gpu::named("a100").expect("a name"));
    let forced = [old, old.with_multiprocessors(1), old.with_multiprocessors(2000), own.with_multiprocessors(1)];
    let execs = forced.map(|gpu| exec.clone().planned_as(gpu));
    cases.into_iter().for_each(|case| check(&case, &execs));
}
