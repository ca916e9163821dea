//! Every family of configurations compiles for every architecture, without a GPU.

use super::super::Args;
use super::super::problem::Sizes;
use super::*;
use crate::cuda::testing::{Suite, tensor};
use crate::tensor::Device;

fn check(suite: &mut Suite, args: &Args<'_>, state: View<'static>) {
    check_slots(suite, args, None, state);
}

fn check_slots(suite: &mut Suite, args: &Args<'_>, slots: Option<&Slots<'_>>, state: View<'static>) {
    let sizes = Sizes::new(args, Device::Cuda(0), slots.is_some(), state.shape()).unwrap();
    let problem = sizes.problem(args, state.dtype());
    let places = Places { state, before: None, y: args.v, indices: args.state_batch_indices, slots, bounds: None };
    add(suite, &problem, &places);
    if slots.is_none() && places.indices.is_none() && state.dtype() == DType::F32 {
        // as calls of one token have it
        for bounds in [None, Some(tensor(DType::I32, &[3]))] {
            add(suite, &problem, &Places { before: Some(state), bounds, ..places });
        }
    }
}

fn add(suite: &mut Suite, problem: &Problem<'_>, places: &Places<'_>) {
    let plan = Plan::new(&shape(problem, places)).unwrap();
    suite.add(&UPDATE, &(kernel(problem, places, &plan).config)(), 0);
}

#[test]
fn steps_compile() {
    let Some(mut suite) = Suite::new() else { return };
    for (dtype, states, keys, columns) in [
        (DType::BF16, DType::F32, 128, 128),
        (DType::F16, DType::BF16, 64, 256),
        (DType::F32, DType::F32, 256, 64),
        (DType::F32, DType::F16, 5, 3),
    ] {
        let of = |dtype, shape: &[usize]| tensor(dtype, &[&[2], shape].concat());
        let (q, v) = (of(dtype, &[2, keys]), of(dtype, &[4, columns]));
        let own = |shape: &[usize]| Some(tensor(DType::F32, shape));
        let plain = Args::new(q, q, v);
        let indices = Some(tensor(DType::I64, &[2]));
        let raw = Args { a_log: own(&[4]), qk_l2norm: true, beta: Some(of(dtype, &[4])), beta_sigmoid: true, ..plain };
        for state in [of(states, &[4, keys, columns]), of(states, &[4, columns, keys]).permute(&[0, 1, 3, 2])] {
            check(&mut suite, &plain, state);
            check(&mut suite, &Args { g: Some(of(dtype, &[4])), dt_bias: own(&[4]), ..raw }, state);
            let g = Some(of(dtype, &[4, keys]));
            check(&mut suite, &Args { g, state_batch_indices: indices, lower_bound: -5.0, ..raw }, state);
            check(&mut suite, &Args { g, dt_bias: own(&[4, keys]), ..raw }, state);
            let slots = [Slots::testing(1, None, false), Slots::testing(1, Some(2), false), Slots::testing(1, Some(2), true)];
            slots.iter().for_each(|slots| check_slots(&mut suite, &Args { g, ..raw }, Some(slots), state));
        }
    }
    suite.compile();
}
