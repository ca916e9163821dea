//! Every family of configurations compiles for every architecture, without a GPU: registers do not spill.

use super::super::Args;
use super::*;
use crate::cuda::Numbers;
use crate::cuda::testing::{Suite, tensor};
use crate::ops::states::{self, NO_STATES};
use crate::tensor::Device;

/// Compiles a scan between slots.
fn check_in_pool(suite: &mut Suite, args: &Args<'_>) {
    let own = &args.b.shape()[1..args.b.rank() - 1];
    let states = states::testing::pool(if args.b.dtype().is_complex() { DType::Complex64 } else { DType::BF16 }, (2, None), own);
    let problem = Problem::new(&Args { initial_state: None, ..*args }, Device::Cuda(0), states).unwrap();
    let call = Call::new(&problem).unwrap();
    let plan = Plan::new(&call.shape(), Numbers::H200, true).unwrap();
    let b = Some(call.in_memory(problem.b));
    let operands = call.in_pool(Operands { b, h: b, ..Default::default() });
    for &pass in Pass::all(plan.segments > 1) {
        let kernel = call.kernel(&operands, None, false, &plan, Some(Workspace(1 << 20)), pass).unwrap();
        suite.add(&SCAN, &(kernel.config)(), 0);
    }
}

/// Compiles the passes of a scan, also by one step after another, and of its gradient.
fn check(suite: &mut Suite, args: &Args<'_>) {
    let problem = Problem::new(args, Device::Cuda(0), NO_STATES).unwrap();
    let call = Call::new(&problem).unwrap();
    let plan = Plan::new(&call.shape(), Numbers::H200, true).unwrap();
    let (b, state) = (call.in_memory(problem.b), problem.initial_state);
    let forward = Operands { b: Some(b), h: Some(b), initial: state, last: state, decay: state, ..Default::default() };
    let [da, db] = [Some(call.in_memory(problem.a)), Some(b)];
    let backward = Operands { b: Some(b), h: Some(b), da, db, initial: state, last: state, before: state, ..Default::default() };
    for &pass in Pass::all(plan.segments > 1) {
        for (operands, gradient) in [(&forward, false), (&backward, true)] {
            let kernel = call.kernel(operands, None, gradient, &plan, Some(Workspace(1 << 20)), pass).unwrap();
            suite.add(&SCAN, &(kernel.config)(), 0);
        }
    }
    let call = Call { exact: true, ..call };
    let plan = Plan::new(&call.shape(), Numbers::H200, true).unwrap();
    assert_eq!(plan.segments, 1, "whole rows");
    let kernel = call.kernel(&forward, None, false, &plan, None, Pass::Whole).unwrap();
    suite.add(&SCAN, &(kernel.config)(), 0);
}

#[test]
fn linear_scans_compile() {
    let Some(mut suite) = Suite::new() else { return };
    for (a, b) in [
        (DType::F32, DType::F32),
        (DType::BF16, DType::F16),
        (DType::Complex64, DType::Complex64),
        (DType::F32, DType::Complex64),
    ] {
        for (rows, seqlen) in [(4096, 2048), (3, 100_000), (40, 9), (39, 2047)] {
            let timed = |dtype| tensor(dtype, &[2, rows, seqlen]);
            let state = tensor(if b.is_complex() { b } else { DType::F32 }, &[2, rows]);
            let args = Args { initial_state: Some(state), reverse: rows == 40, ..Args::new(timed(a), timed(b)) };
            check(&mut suite, &args);
            check_in_pool(&mut suite, &args);
            let channels_last = |dtype| tensor(dtype, &[2, seqlen, rows]).permute(&[0, 2, 1]);
            check(&mut suite, &Args { a: channels_last(a), b: channels_last(b), ..args });
        }
    }
    suite.compile();
}
