//! Every family of configurations compiles for every architecture, without a GPU: registers do not spill, shared memory suffices.

use super::super::{Activation, Args};
use super::*;
use crate::cuda::testing::{Suite, target, tensor};
use crate::ops::states::States;
use crate::ops::states::testing::pool;
use crate::tensor::Device;

/// Tensors of (batch, channel, step) whose steps or channels lie side by side.
fn timed(dtype: DType, [batch, dim, seqlen]: [usize; 3], channels_last: bool) -> View<'static> {
    match channels_last {
        false => tensor(dtype, &[batch, dim, seqlen]),
        true => tensor(dtype, &[batch, seqlen, dim]).permute(&[0, 2, 1]),
    }
}

/// Compiles every kernel of the forward and the backward pass.
fn check(suite: &mut Suite, args: &Args<'_>, state: &[usize]) {
    let x = args.x;
    let state = tensor(x.dtype(), state);
    let problem = Problem::new(args, Device::Cuda(0), States::of_shapes([Some(state.shape()), None])).unwrap();
    let call = Call::new(&problem).unwrap();
    let states = || problem.normal.state(target(state));
    for last in [None, Some(states()).filter(|_| call.sequences.is_none())] {
        let plan = call.forward_plan(Numbers::H200).unwrap();
        suite.add(&FORWARD, &(call.forward(&plan, &target(x), &last).config)(), 0);
    }
    suite.add(&STATES, &(call.final_states(&states()).unwrap().config)(), 0);
    let sources = Sources { y: Some(x), final_states: Some(problem.normal.state(state)) };
    let grads = GradientTargets {
        x: Some(target(x)),
        weight: Some(target(tensor(DType::F32, &args.weight.shape()))),
        bias: args.bias.map(|v| target(tensor(DType::F32, &v.shape()))),
        initial_states: Some(states()),
        workspace: Some(target(tensor(DType::F32, &[1]))),
    };
    for plan in [false, true].map(|apart| Plan::backward(&call.shape(), Numbers::H200, true, apart).unwrap()) {
        suite.add(&BACKWARD, &(call.backward(&plan, &sources, &grads).config)(), 0);
        suite.add(&SUMS, &(call.sums(&plan, &grads).unwrap().config)(), 0);
    }
    suite.add(&STATES, &(call.initial_states(&sources, &states()).unwrap().config)(), 0);
}

#[test]
fn convolutions_compile() {
    let Some(mut suite) = Suite::new() else { return };
    for (dtype, width) in [(DType::BF16, 4), (DType::F32, 3), (DType::F16, 8)] {
        let (weight, bias) = (tensor(DType::F32, &[64, width]), tensor(DType::F32, &[64]));
        for channels_last in [false, true] {
            let args = |seqlen| Args::new(timed(dtype, [2, 64, seqlen], channels_last), weight);
            check(&mut suite, &args(77), &[2, 64, width - 1]);
            let initial_states = Some(tensor(dtype, &[2, 64, width - 1]));
            let all = Args { bias: Some(bias), activation: Activation::Silu, initial_states, ..args(2048) };
            check(&mut suite, &all, &[2, 64, width - 1]);
        }
    }
    suite.compile();
}

#[test]
fn packed_convolutions_compile() {
    let Some(mut suite) = Suite::new() else { return };
    let weight = tensor(DType::F32, &[64, 4]);
    for (channels_last, reverse) in [(false, true), (true, false)] {
        let plain = Args::new(timed(DType::BF16, [1, 64, 512], channels_last), weight);
        let args = Args { activation: Activation::Silu, reverse, ..plain };
        let bounds = Sequences::CuSeqlens(tensor(DType::I32, &[6]));
        check(&mut suite, &Args { sequences: bounds, ..args }, &[5, 64, 3]);
        let index = Sequences::SeqIdx(tensor(DType::I64, &[1, 512]));
        check(&mut suite, &Args { sequences: index, initial_states: Some(tensor(DType::F32, &[1, 64, 3])), ..args }, &[1, 64, 3]);
        check(
            &mut suite,
            &Args { sequences: index, initial_states: Some(tensor(DType::F32, &[1, 4, 64, 3])), ..args },
            &[1, 4, 64, 3],
        );
    }
    suite.compile();
}

#[test]
fn pooled_convolutions_compile() {
    let Some(mut suite) = Suite::new() else { return };
    for (batch, bounds, pieces) in [(3, None, None), (1, Some(6), None), (1, Some(6), Some(5))] {
        for channels_last in [false, true] {
            let x = timed(DType::BF16, [batch, 64, 77], channels_last);
            let sequences = bounds.map_or(Sequences::Whole, |n| Sequences::CuSeqlens(tensor(DType::I32, &[n])));
            let args = Args::new(x, tensor(DType::F32, &[64, 4])).sequences(sequences);
            let states = pool(DType::BF16, (bounds.map_or(3, |n| n - 1), pieces), &[64, 3]);
            let problem = Problem::new(&args, Device::Cuda(0), states).unwrap();
            let call = Call::new(&problem).unwrap();
            let plan = call.forward_plan(Numbers::H200).unwrap();
            suite.add(&FORWARD, &(call.forward(&plan, &target(x), &None).config)(), 0);
            suite.add(&STATES, &(call.final_states(&target(problem.initial_states.unwrap())).unwrap().config)(), 0);
        }
    }
    suite.compile();
}
