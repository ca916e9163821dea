//! Every family of configurations compiles for every architecture, without a GPU: registers do not spill, shared memory suffices.

use super::super::Args;
use super::*;
use crate::cuda::{Numbers, nvrtc};
use crate::tensor::Device;

const H200: Numbers = Numbers { multiprocessors: 132, shared_per_block: 227 << 10, shared_per_multiprocessor: 228 << 10 };
const ARCHITECTURES: [&str; 4] = ["sm_80", "sm_90a", "sm_100", "sm_120"];

/// A dense tensor in a device's memory that nobody reads.
fn tensor(dtype: DType, shape: &[usize]) -> View<'static> {
    let strides = crate::tensor::Shape::of(shape).row_major();
    // SAFETY: nothing reads through the view.
    unsafe { View::from_raw_parts(core::ptr::without_provenance(1 << 20), dtype, Device::Cuda(0), shape, &strides).unwrap() }
}

fn target(view: View<'static>) -> RawViewMut {
    // SAFETY: nothing writes through the view.
    let mut view = unsafe {
        crate::ViewMut::from_raw_parts(view.as_ptr().cast_mut(), view.dtype(), view.device(), &view.shape(), &view.strides())
    };
    view.as_mut().unwrap().raw()
}

/// Sizes and types of a case; options are set on its arguments.
struct Case {
    batch: usize,
    dim: usize,
    seqlen: usize,
    dstate: usize,
    dtype: DType,
    complex: bool,
}

impl Case {
    fn args(&self) -> Args<'static> {
        let Case { batch, dim, seqlen, dstate, dtype, complex } = *self;
        let wide = if complex { DType::Complex64 } else { DType::F32 };
        let map = tensor(if complex { wide } else { dtype }, &[batch, dstate, seqlen]);
        let x = tensor(dtype, &[batch, dim, seqlen]);
        Args::new(x, x, tensor(wide, &[dim, dstate]), map, map)
    }

    /// Compiles a forward pass for every architecture.
    fn compiles(&self, args: &Args<'_>, state: &[usize]) {
        let field = if self.complex { DType::Complex64 } else { DType::F32 };
        let state = tensor(field, state);
        let problem = Problem::new(args, Device::Cuda(0), &[state.shape()]).unwrap();
        let targets = Targets {
            y: Some(problem.mirror(target(tensor(self.dtype, &args.x.shape())), 2)),
            final_state: Some(problem.state_target(target(state))),
            checkpoints: Some(target(tensor(DType::F32, &[checkpoints_len(&problem)]))),
            workspace: None,
        };
        let call = Call::new(&problem, &targets);
        let plan = |cut| Plan::new(&call.shape(), cut, H200, |geometry| call.shared(geometry)).unwrap();
        Self::pass_compiles(&call, &plan(None), Pass::Whole);
        if let Some(cut) = Cut::new(&call.shape(), H200) {
            let plan = plan(Some(cut));
            for pass in [Pass::Ends, Pass::Rest] {
                Self::pass_compiles(&call, &plan, pass);
            }
        }
    }

    fn pass_compiles(call: &Call<'_, '_>, plan: &Plan, pass: Pass) {
        assert!(plan.launch.shared as usize <= 99 << 10, "{plan:?}");
        let source = FORWARD.source(&call.config(plan, pass));
        for architecture in ARCHITECTURES {
            let (cubin, log) = nvrtc::compile(FORWARD.kernel, &source, architecture, &["--ptxas-options=-v"]).unwrap();
            assert!(!cubin.is_empty());
            assert!(
                log.contains("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"),
                "{architecture} {plan:?}\n{log}"
            );
            assert!(!log.contains("warning"), "{log}");
        }
    }
}

/// Whether NVRTC is there; without it the test says so, unless it must not be skipped.
fn ready() -> bool {
    match nvrtc::version() {
        Ok(_) => true,
        Err(error) if std::env::var_os("STATESCAN_REQUIRE_NVRTC").is_none() => {
            println!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

fn case(dim: usize, seqlen: usize, dstate: usize, dtype: DType, complex: bool) -> Case {
    Case { batch: 2, dim, seqlen, dstate, dtype, complex }
}

#[test]
fn types_and_sizes_compile() {
    if !ready() {
        return;
    }
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (dim, seqlen, dstate) in
            [(16384, 2048, 16), (2048, 4096, 16), (192, 100, 16), (64, 2048, 128), (100, 333, 70), (7, 5, 0), (40, 9, 256)]
        {
            let case = case(dim, seqlen, dstate, dtype, false);
            case.compiles(&case.args(), &[2, dim, dstate]);
        }
    }
}

#[test]
fn options_compile() {
    if !ready() {
        return;
    }
    for (dtype, dim) in [(DType::F32, 8192), (DType::F16, 20480), (DType::BF16, 96)] {
        for complex in [false, true] {
            let case = case(dim, 1024, 16, dtype, complex);
            let plain = case.args();
            let channel = tensor(DType::F32, &[dim]);
            let own = tensor(if complex { DType::Complex64 } else { DType::F32 }, &[2, dim, 16]);
            let gated = Args { d: Some(channel), z: Some(plain.x), dt_bias: Some(channel), dt_softplus: true, ..plain };
            let state = [2, dim, 16];
            case.compiles(&gated, &state);
            case.compiles(&Args { dt_limit: (0.0, 1.0), initial_state: Some(own), reverse: true, ..gated }, &state);
            case.compiles(&Args { b: plain.a, c: plain.a, ..plain }, &state);
            for discretization in Discretization::ALL {
                case.compiles(&Args { discretization, dt_a: Some(plain.dt), ..plain }, &state);
            }
        }
    }
}

#[test]
fn packed_sequences_compile() {
    if !ready() {
        return;
    }
    for (complex, dim) in [(false, 2048), (true, 64)] {
        let case = Case { batch: 1, ..case(dim, 1024, 16, DType::BF16, complex) };
        let args = case.args();
        let bounds = Sequences::CuSeqlens(tensor(DType::I32, &[6]));
        case.compiles(&Args { sequences: bounds, ..args }, &[5, dim, 16]);
        let index = Sequences::SeqIdx(tensor(DType::I64, &[1, 1024]));
        case.compiles(&Args { sequences: index, ..args }, &[1, dim, 16]);
        case.compiles(&Args { sequences: index, reverse: true, ..args }, &[1, 4, dim, 16]);
    }
}
