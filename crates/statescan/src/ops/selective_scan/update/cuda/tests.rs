//! Every family of configurations compiles for every architecture, without a GPU.

use super::super::Args;
use super::super::problem::Sizes;
use super::*;
use crate::cuda::testing::{Suite, tensor};
use crate::tensor::Device;

fn check(suite: &mut Suite, args: &Args<'_>, state: &View<'static>) {
    check_rows(suite, args, &Rows { indices: args.state_batch_indices, slots: None }, state);
}

fn check_rows(suite: &mut Suite, args: &Args<'_>, rows: &Rows<'_>, state: &View<'static>) {
    let sizes = Sizes::new(args, Device::Cuda(0), rows.slots.is_some(), state.shape()).unwrap();
    let problem = sizes.problem(args, state, &args.x);
    let shape = shape(&problem, rows);
    let plan = Plan::new(&shape).unwrap();
    suite.add(&UPDATE, &(kernel(&problem, rows, &shape, &plan).config)(), 0);
}

#[test]
fn steps_compile() {
    let Some(mut suite) = Suite::new() else { return };
    for (dtype, channels, dstate) in
        [(DType::F32, vec![5120], 16), (DType::BF16, vec![80, 64], 128), (DType::F16, vec![33], 5), (DType::F32, vec![7], 1)]
    {
        for batch in [1, 512] {
            let batched = [&[batch], &channels[..]].concat();
            let (x, map) = (tensor(dtype, &batched), tensor(dtype, &[batch, dstate]));
            let own = tensor(DType::F32, &channels);
            let a = tensor(DType::F32, &[&channels[..], &[dstate]].concat());
            let state = tensor(DType::F32, &[&batched[..], &[dstate]].concat());
            let plain = Args::new(x, x, a, map, map);
            check(&mut suite, &plain, &state);
            let indices = Some(tensor(DType::I64, &[batch]));
            check(
                &mut suite,
                &Args { d: Some(own), z: Some(x), dt_bias: Some(own), dt_softplus: true, state_batch_indices: indices, ..plain },
                &state,
            );
        }
    }
    // rows enough for threads of several channels
    let (x, map, a) = (tensor(DType::BF16, &[64, 80, 64]), tensor(DType::BF16, &[64, 128]), tensor(DType::F32, &[80]));
    let args = Args::new(x, x, a.expand(1, 64).expand(2, 128), map, map);
    let state = tensor(DType::BF16, &[64, 80, 64, 128]);
    check(&mut suite, &args, &state);
    check(&mut suite, &Args { state_batch_indices: Some(tensor(DType::I64, &[64])), z: Some(x), ..args }, &state);
    suite.compile();
}

#[test]
fn complex_steps_and_discretizations_compile() {
    let Some(mut suite) = Suite::new() else { return };
    for discretization in Discretization::ALL {
        for dtype in [DType::F32, DType::Complex64] {
            let (x, map) = (tensor(DType::F32, &[2, 40]), tensor(dtype, &[2, 10]));
            let args = Args {
                discretization,
                dt_a: Some(x),
                dt_limit: (0.0, 1.0),
                ..Args::new(x, x, tensor(dtype, &[40, 10]), map, map)
            };
            check(&mut suite, &args, &tensor(dtype, &[2, 40, 10]));
            // states far apart, channels side by side
            check(&mut suite, &args, &tensor(dtype, &[2, 10, 40]).permute(&[0, 2, 1]));
        }
    }
    suite.compile();
}

#[test]
fn tokens_between_slots_compile() {
    let Some(mut suite) = Suite::new() else { return };
    for (dtype, channels, dstate) in [(DType::F32, vec![5120], 16), (DType::BF16, vec![80, 64], 128), (DType::F16, vec![33], 5)] {
        for (each, bounds) in [(false, false), (true, false), (true, true)] {
            let batched = [&[8], &channels[..]].concat();
            let (x, map) = (tensor(dtype, &batched), tensor(dtype, &[8, dstate]));
            let own = Some(tensor(DType::F32, &channels));
            let mut a = tensor(DType::F32, &[&channels[..], &[dstate]].concat());
            if channels.len() == 2 {
                a = tensor(DType::F32, &channels).expand(2, dstate);
            }
            let args = Args { d: own, z: each.then_some(x), dt_bias: own, dt_softplus: true, ..Args::new(x, x, a, map, map) };
            let slots = Slots::testing(2, each.then_some(4), bounds);
            let state = tensor(dtype, &[&[9], &channels[..], &[dstate]].concat());
            check_rows(&mut suite, &args, &Rows { indices: None, slots: Some(&slots) }, &state);
        }
    }
    suite.compile();
}
