//! Every family of configurations compiles for every architecture, without a GPU: registers do not spill.

use super::forward::{Plan, STEPS};
use super::*;
use crate::cuda::Numbers;
use crate::cuda::testing::{Suite, target, tensor};
use crate::ops::checked::NO_STATES;
use crate::ops::gated_delta_rule::{Args, Targets};
use crate::ops::sequences::Sequences;
use crate::tensor::Device;

/// (seqlen, heads, heads of values, keys, values)
type Sizes = [usize; 5];

fn args(dtype: DType, [l, h, j, n, p]: Sizes, by_channel: bool) -> Args<'static> {
    let timed = |own: &[usize]| tensor(dtype, &[&[1, l], own].concat());
    let gate = if by_channel { vec![j, n] } else { vec![j] };
    Args::new(timed(&[h, n]), timed(&[h, n]), timed(&[j, p])).g(timed(&gate)).beta(timed(&[j])).qk_l2norm(true)
}

/// The same with everything that a call can have.
fn everything(dtype: DType, sizes: Sizes, by_channel: bool) -> Args<'static> {
    let [_, _, j, n, p] = sizes;
    let bias = if by_channel { vec![j, n] } else { vec![j] };
    args(dtype, sizes, by_channel)
        .a_log(tensor(DType::F32, &[j]))
        .dt_bias(tensor(DType::F32, &bias))
        .lower_bound(if by_channel { -5.0 } else { 0.0 })
        .beta_sigmoid(true)
        .initial_state(tensor(DType::F32, &[1, j, n, p]))
}

fn add(suite: &mut Suite, args: &Args<'_>, numbers: Numbers) {
    let problem = Problem::new(args, Device::Cuda(0), NO_STATES).unwrap();
    let call = Call::new(&problem).unwrap();
    let last = problem.normal.state(target(tensor(DType::F32, &problem.state_shape)));
    let targets = Targets { y: Some(target(problem.v)), final_state: Some(last), ..Targets::default() };
    let plan = Plan::new(&call, numbers);
    assert!(plan.shared() <= numbers.shared_per_block, "{plan:?}");
    let architectures: &[_] = if numbers == Numbers::SMALL { &["sm_80", "sm_120"] } else { &["sm_90a", "sm_100"] };
    suite.add_for(architectures, &STEPS, &call.steps_config(&plan, &targets));
}

#[test]
fn steps_compile() {
    let Some(mut suite) = Suite::new() else { return };
    for numbers in [Numbers::H200, Numbers::SMALL] {
        for by_channel in [false, true] {
            for (dtype, sizes) in [
                (DType::BF16, [300, 16, 32, 128, 128]),
                (DType::F32, [300, 1, 2, 128, 128]),
                (DType::F16, [300, 2, 4, 256, 256]),
                (DType::F32, [70, 2, 4, 5, 3]),
            ] {
                add(&mut suite, &args(dtype, sizes, by_channel), numbers);
                let whole = everything(dtype, sizes, by_channel);
                add(&mut suite, &whole, numbers);
                let bounds = Sequences::CuSeqlens(tensor(DType::I64, &[4]));
                add(&mut suite, &Args { sequences: bounds, initial_state: None, ..whole }, numbers);
                let index = Sequences::SeqIdx(tensor(DType::I32, &[1, sizes[0]]));
                add(&mut suite, &Args { sequences: index, reverse: true, ..whole }, numbers);
            }
        }
    }
    // channels before time, and nothing that is optional
    let first = |heads: usize| tensor(DType::BF16, &[1, heads, 64, 300]).permute(&[0, 3, 1, 2]);
    add(&mut suite, &Args::new(first(2), first(2), first(4)), Numbers::H200);
    suite.compile();
}
