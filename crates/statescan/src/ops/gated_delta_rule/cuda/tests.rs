//! Every family of configurations compiles for every architecture, without a GPU: registers do not spill.

use super::backward::{GRADIENTS, PREPARE, WALK};
use super::backward_pass::Backward;
use super::backward_plan::{self, Setting};
use super::forward::{Plan, STEPS};
use super::hopper::backward::Walks;
use super::*;
use crate::cuda::Numbers;
use crate::cuda::testing::{Suite, target, tensor};
use crate::ops::gated_delta_rule::{Args, GradientTargets, Sources, Targets};
use crate::ops::sequences::Sequences;
use crate::ops::states::NO_STATES;
use crate::ops::states::testing::pool;
use crate::tensor::{Device, RawViewMut};

/// (seqlen, heads, heads of values, keys, values)
type Sizes = [usize; 5];

fn args(dtype: DType, [l, h, j, n, p]: Sizes, by_channel: bool) -> Args<'static> {
    let timed = |own: &[usize]| tensor(dtype, &[&[1, l], own].concat());
    let gate = if by_channel { vec![j, n] } else { vec![j] };
    Args::new(timed(&[h, n]), timed(&[h, n]), timed(&[j, p])).g(timed(&gate)).beta(timed(&[j])).qk_l2norm(true)
}

/// Arguments of such a call with everything that it can have.
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

/// Every gradient of a call and every cotangent, or what little there can be.
fn add_backward(suite: &mut Suite, args: &Args<'_>, numbers: Numbers, whole: bool) {
    let problem = Problem::new(args, Device::Cuda(0), NO_STATES).unwrap();
    let call = Call::new(&problem).unwrap();
    let plan = backward_plan::Plan::new(&call, Setting { numbers, tf32: false }).unwrap();
    let state = || problem.normal.state(tensor(DType::F32, &problem.state_shape));
    let given = |view: View<'static>| whole.then_some(view);
    let like = |view: &View<'_>| tensor(view.dtype(), &view.shape());
    let wanted = |view: &Option<View<'_>>| view.as_ref().filter(|_| whole).map(|view| target(like(view)));
    let all = |view: &View<'_>| -> Option<RawViewMut> { whole.then(|| target(like(view))) };
    let sources = Sources { y: given(like(&problem.v)), final_state: given(state()), ..Sources::default() };
    let targets = GradientTargets {
        q: all(&problem.q),
        k: all(&problem.k),
        v: Some(target(like(&problem.v))),
        g: wanted(&problem.g),
        beta: wanted(&problem.beta),
        a_log: wanted(&problem.a_log),
        dt_bias: wanted(&problem.dt_bias),
        initial_state: whole.then(|| target(state())),
        ..GradientTargets::default()
    };
    let pass = Backward { call, sources: &sources, targets: &targets, plan };
    if let Some(walks) = Walks::new(&pass, hopper::Route::backward(&call, &plan, numbers)) {
        suite.add_for(&["sm_90a"], &hopper::backward::UNITS, &walks.units_config());
        suite.add_for(&["sm_90a"], &hopper::backward::CHAIN, &walks.chain_config());
        suite.add_for(&["sm_90a"], &hopper::backward::GRADIENTS, &walks.gradients_config());
    }
    let architectures: &[_] = if numbers == Numbers::SMALL { &["sm_80", "sm_120"] } else { &["sm_90a", "sm_100"] };
    suite.add_for(architectures, &PREPARE, &pass.prepare_config());
    suite.add_for(architectures, &WALK, &pass.walk_config());
    suite.add_for(architectures, &GRADIENTS, &pass.gradients_config());
}

#[test]
fn backward_passes_compile() {
    let Some(mut suite) = Suite::new() else { return };
    for numbers in [Numbers::H200, Numbers::SMALL] {
        for by_channel in [false, true] {
            for (dtype, sizes) in [
                (DType::BF16, [300, 16, 32, 128, 128]),
                (DType::F32, [300, 1, 2, 128, 128]),
                (DType::F16, [300, 2, 2, 64, 256]),
                (DType::F32, [70, 2, 4, 5, 3]),
            ] {
                let whole = everything(dtype, sizes, by_channel);
                add_backward(&mut suite, &whole, numbers, true);
                add_backward(&mut suite, &args(dtype, sizes, by_channel), numbers, false);
                let bounds = Sequences::CuSeqlens(tensor(DType::I64, &[4]));
                add_backward(&mut suite, &Args { sequences: bounds, initial_state: None, ..whole }, numbers, true);
                let index = Sequences::SeqIdx(tensor(DType::I32, &[1, sizes[0]]));
                add_backward(&mut suite, &Args { sequences: index, reverse: true, ..whole }, numbers, true);
            }
        }
    }
    // channels before time, and nothing that is optional
    let first = |heads: usize| tensor(DType::BF16, &[1, heads, 64, 300]).permute(&[0, 3, 1, 2]);
    add_backward(&mut suite, &Args::new(first(2), first(2), first(4)), Numbers::H200, true);
    suite.compile();
}

#[test]
fn hopper_compiles() {
    let Some(mut suite) = Suite::new() else { return };
    let mut add = |args: &Args<'_>, beside: bool| {
        let problem = Problem::new(args, Device::Cuda(0), NO_STATES).unwrap();
        let (call, last) = (Call::new(&problem).unwrap(), target(tensor(DType::F32, &problem.state_shape)));
        let targets = Targets { y: Some(target(problem.v)), final_state: Some(problem.normal.state(last)), ..Targets::default() };
        let route = hopper::Route::new(&call, Some(problem.v), Numbers::H200).unwrap();
        assert_eq!(route.beside, beside, "{args:?}");
        // more blocks of columns than multiprocessors
        let is_wide = problem.value_heads() > 66 && problem.values == 128 && !problem.gates.by_channel;
        assert_eq!(route.by_head, is_wide, "{args:?}");
        suite.add_for(&["sm_90a"], hopper::units_of(&call), &route.units_config(&call));
        suite.add_for(&["sm_90a"], route.chain(), &route.chain_config(&call, &targets));
        if route.segments > 1 {
            suite.add_for(&["sm_90a"], &hopper::segments::ENDS, &route.ends_config(&call));
            suite.add_for(&["sm_90a"], &hopper::segments::HAND_ON, &route.hand_on_config(&call));
        }
    };
    for (sizes, beside) in [
        ([300, 16, 32, 128, 128], true),
        ([300, 64, 64, 128, 128], false),
        ([300, 64, 128, 128, 128], false),
        ([300, 2, 16, 64, 64], true),
        ([300, 64, 64, 64, 128], false),
    ] {
        let plain = args(DType::BF16, sizes, false);
        add(&plain, beside);
        add(&everything(DType::BF16, sizes, false), beside);
        add(&Args { sequences: Sequences::CuSeqlens(tensor(DType::I64, &[2])), qk_l2norm: false, ..plain }, beside);
    }
    for (sizes, beside) in [([300, 4, 8, 128, 128], true), ([300, 64, 64, 64, 128], false)] {
        add(&args(DType::BF16, sizes, true), beside);
        add(&everything(DType::BF16, sizes, true), beside);
        let bounds = Sequences::CuSeqlens(tensor(DType::I64, &[2]));
        add(&Args { sequences: bounds, qk_l2norm: false, ..args(DType::BF16, sizes, true) }, beside);
    }
    // few heads and long sequences
    for sizes in [[9000, 2, 8, 128, 128], [9000, 1, 2, 64, 64], [9000, 2, 4, 128, 64], [9000, 1, 2, 64, 256]] {
        for by_channel in [false, true] {
            add(&args(DType::BF16, sizes, by_channel), false);
            add(&everything(DType::BF16, sizes, by_channel), false);
            let bounds = Sequences::CuSeqlens(tensor(DType::I64, &[2]));
            add(&Args { sequences: bounds, ..args(DType::BF16, sizes, by_channel) }, false);
        }
    }
    // channels before time
    let first = |heads: usize| tensor(DType::BF16, &[1, heads, 64, 300]).permute(&[0, 3, 1, 2]);
    add(&Args::new(first(2), first(2), first(4)), true);
    for view in [first(2), tensor(DType::BF16, &[1, 300, 2, 64])] {
        suite.add_for(&["sm_90a"], &hopper::GATHER, &hopper::gather_config(&view));
    }
    suite.compile();
}

/// Rows of one token, and packed ones that are no more than their sequences, go by the step's kernel where their states are `f32` and lie alike.
#[test]
fn one_token_is_a_step() {
    let sizes = |l| [l, 2, 4, 128, 128];
    let state = |rows: usize| tensor(DType::F32, &[rows, 4, 128, 128]);
    let packed = |l, sequences: usize| {
        let bounds = Sequences::CuSeqlens(tensor(DType::I64, &[sequences + 1]));
        args(DType::BF16, sizes(l), false).sequences(bounds).initial_state(state(sequences))
    };
    let one = args(DType::BF16, sizes(1), true);
    let of_keys = state(1).permute(&[0, 1, 3, 2]);
    for (args, is_step) in [
        (one.initial_state(state(1)), true),
        (packed(3, 3), true),
        (packed(2, 3), true),
        (one, false),
        (one.initial_state(of_keys), false),
        (one.initial_state(tensor(DType::BF16, &[1, 4, 128, 128])), false),
        (one.initial_state(state(1)).reverse(true), false),
        (args(DType::BF16, sizes(2), true).initial_state(state(1)), false),
        (packed(4, 3), false),
    ] {
        let problem = Problem::new(&args, Device::Cuda(0), NO_STATES).unwrap();
        let launches = plan(&problem, Numbers::H200).unwrap();
        assert_eq!(launches[0].kernel == "gated_delta_rule_update", is_step, "{args:?}");
    }
}

#[test]
fn pooled_kernels_compile() {
    let Some(mut suite) = Suite::new() else { return };
    let plain = args(DType::BF16, [300, 16, 32, 128, 128], false);
    let packed = plain.sequences(Sequences::CuSeqlens(tensor(DType::I64, &[5])));
    let long = args(DType::BF16, [9000, 2, 8, 128, 128], false);
    let cases = [(plain, (1, None), 32), (packed, (4, None), 32), (packed, (4, Some(2)), 32), (long, (1, None), 8)];
    for (args, rows, heads) in cases {
        let problem = Problem::new(&args, Device::Cuda(0), pool(DType::BF16, rows, &[heads, 128, 128])).unwrap();
        let call = Call::new(&problem).unwrap();
        let state = problem.initial_state.map(target);
        let targets = Targets { y: Some(target(problem.v)), final_state: state, ..Targets::default() };
        let plan = Plan::new(&call, Numbers::H200);
        suite.add_for(&["sm_90a", "sm_120"], &STEPS, &call.steps_config(&plan, &targets));
        let route = hopper::Route::new(&call, Some(problem.v), Numbers::H200).unwrap();
        suite.add_for(&["sm_90a"], route.chain(), &route.chain_config(&call, &targets));
        suite.add_for(&["sm_90a"], &hopper::segments::HAND_ON, &route.hand_on_config(&call));
    }
    suite.compile();
}
