//! Every family of configurations compiles for every architecture, without a GPU: registers do not spill.

use super::super::{Args, Kind};
use super::*;
use crate::cuda::testing::{Suite, target, tensor};
use crate::ops::states::NO_STATES;
use crate::tensor::DType;
use crate::tensor::Device;

/// Compiles both passes with every result and gradient.
fn check(suite: &mut Suite, args: &Args<'_>) {
    let problem = Problem::new(args, Device::Cuda(0), NO_STATES).unwrap();
    let call = Call::new(&problem).unwrap();
    let like = |view: View<'_>| target(tensor(view.dtype(), &view.shape()));
    for sum in [None, Some(like(problem.x))] {
        let kernel = call.forward(&Targets { y: Some(like(problem.x)), sum }, Numbers::H200).unwrap().unwrap();
        suite.add(&FORWARD_PASS, &kernel.config, 0);
    }
    let cotangent = |sum| Sources { y: Some(problem.x), sum };
    let grads = GradientTargets {
        x: Some(like(problem.x)),
        weight: problem.weight.map(like),
        bias: problem.bias.map(like),
        z: problem.z.map(like),
        residual: problem.residual.map(like),
        residual_scale: problem.residual_scale.map(like),
        workspace: Some(target(tensor(DType::F32, &[sums_len(&problem, Numbers::H200)]))),
    };
    for sources in [cotangent(None), cotangent(Some(problem.x))] {
        let (_, kernel) = call.backward(&sources, &grads, Numbers::H200).unwrap().unwrap();
        suite.add(&BACKWARD_PASS, &kernel.config, 0);
    }
}

#[test]
fn norms_compile() {
    let Some(mut suite) = Suite::new() else { return };
    let widths = [(DType::BF16, 5120, 1), (DType::BF16, 5120, 8), (DType::BF16, 8192, 1), (DType::BF16, 65_536, 1)];
    let others = [(DType::F32, 2048, 1), (DType::F32, 8192, 1), (DType::F16, 333, 3), (DType::F16, 7001, 1)];
    for (dtype, dim, groups) in widths.into_iter().chain(others) {
        let (x, row) = (tensor(dtype, &[2, 7, dim]), tensor(DType::F32, &[dim]));
        let plain = Args { groups, ..Args::new(x) };
        check(&mut suite, &plain);
        check(&mut suite, &Args { weight: Some(row), z: Some(x), ..plain });
        check(&mut suite, &Args { weight: Some(row), bias: Some(row), z: Some(x), norm_before_gate: true, ..plain });
        let residual = Some(tensor(DType::F32, &[2, 7, dim]));
        check(&mut suite, &Args { weight: Some(row), bias: Some(row), residual, kind: Kind::Layer, ..plain });
    }
    let (x, scale) = (tensor(DType::BF16, &[2, 7, 3, 64]), Some(tensor(DType::F32, &[2, 7, 3, 1])));
    check(&mut suite, &Args { z: Some(x), residual: Some(x), residual_scale: scale, kind: Kind::None, ..Args::new(x) });
    suite.compile();
}
