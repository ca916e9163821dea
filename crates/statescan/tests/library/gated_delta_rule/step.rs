//! The step against its oracle, and against the operation bit by bit.

use super::*;
use crate::common::executors;
use statescan::ops::gated_delta_rule::update::{self as step, reference as one};
use statescan::{Level, ViewMut};

/// The step of a call of one step.
fn step_of<'a>(args: &Args<'a>) -> step::Args<'a> {
    let now = |view: View<'a>| view.index(1, 0);
    step::Args::new(now(args.q), now(args.k), now(args.v))
        .g(args.g.map(now))
        .beta(args.beta.map(now))
        .a_log(args.a_log)
        .dt_bias(args.dt_bias)
        .scale(args.scale)
        .qk_l2norm(args.qk_l2norm)
        .lower_bound(args.lower_bound)
        .beta_sigmoid(args.beta_sigmoid)
        .allow_neg_eigval(args.allow_neg_eigval)
}

fn at(view: View<'_>, t: usize) -> View<'_> {
    view.slice(1, t..t + 1)
}

const OPTIONS: [u32; 7] = [
    0,
    DECAY | BETA,
    DECAY | CHANNELS | BETA | UNIT,
    RAW | BIAS | SIGMOID | DOUBLED | UNIT,
    RAW | LOWER | SCALE,
    RAW | BIAS | CHANNELS | SIGMOID,
    RAW | BIAS | LOWER | CHANNELS | UNIT | TOGETHER,
];

#[test]
fn agrees_with_its_oracle() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for (layout, states) in [(Layout::Dense, 0), (Layout::Scattered, 0), (Layout::Dense, COLUMNS_FIRST)] {
            for (at, options) in OPTIONS.into_iter().enumerate() {
                let sizes = [[3, 1, 2, 4, 24, 64], [2, 1, 1, 70, 5, 3], [1, 1, 3, 3, 130, 100]][at % 3];
                let case = Case { layout, ..Case::new(dtype, sizes, options | states) };
                let inputs = Inputs::new(&case);
                let args = step_of(&inputs.args(&case));
                let (y, state) = one::update(&args, &inputs.state.view()).unwrap();
                for exec in executors() {
                    let what = |name: &str| format!("{name} of {case:?} on {exec:?}");
                    let there = inputs.on(&exec);
                    let mut moved = on(&exec, &inputs.state);
                    let mut got = on(&exec, &poisoned(&mut Rng::new(3), dtype, &args.v.shape(), layout));
                    let call = step::update(&exec, &step_of(&there.args(&case)), &mut moved.view_mut(), &mut got.view_mut());
                    if !ran(&exec, call, &[&got]) {
                        continue;
                    }
                    assert_close(&what("y"), &home(&got), &y, ErrorBound::for_scan(dtype, 1));
                    assert_close(&what("state"), &home(&moved), &state, ErrorBound::for_scan(case.wide(), 1));
                }
            }
        }
    }
}

#[test]
fn steps_give_the_bits_of_the_operation() {
    for options in OPTIONS {
        for level in Level::available() {
            let exec = Exec::cpu(1).with_level(level).unwrap();
            let case = Case::new(DType::F32, [2, 70, 2, 4, 33, 80], options | INITIAL);
            let inputs = Inputs::new(&case);
            let out = run_forward(&case, &inputs, &exec).unwrap();
            let (args, mut state) = (inputs.args(&case), inputs.state.clone());
            for t in 0..70 {
                let cut = |view| at(view, t);
                let now = args.q(cut(args.q)).k(cut(args.k)).v(cut(args.v)).g(args.g.map(cut)).beta(args.beta.map(cut));
                let mut y = Tensor::host(DType::F32, &[2, 4, 80]).unwrap();
                step::update(&exec, &step_of(&now), &mut state.view_mut(), &mut y.view_mut()).unwrap();
                let expected = Dense::from_view(&out.y.view().index(1, t));
                assert_eq!(y.to_dense().data(), expected.data(), "step {t} of {case:?} on {level}");
            }
            assert_eq!(state.to_dense().data(), out.last.to_dense().data(), "{case:?} on {level}");
        }
    }
}

#[test]
fn rows_use_the_states_that_indices_say() {
    let case = Case::new(DType::F32, [3, 1, 1, 2, 8, 16], DECAY | BETA);
    let inputs = Inputs::new(&case);
    let rows = indices(DType::I64, &[4, -1, 1]);
    let plain = step_of(&inputs.args(&case));
    let args = plain.state_batch_indices(rows.view());
    let before = normal(&mut Rng::new(5), DType::F32, &[5, 2, 8, 16], Layout::Dense, 1.0);
    let mut state = before.clone();
    let mut y = poisoned(&mut Rng::new(3), DType::F32, &[3, 2, 16], Layout::Dense);
    step::update(&Exec::cpu(2), &args, &mut state.view_mut(), &mut y.view_mut()).unwrap();
    let (expected, moved) = one::update(&args, &before.view()).unwrap();
    assert_close("y", &y, &expected, ErrorBound::for_scan(DType::F32, 1));
    assert_close("state", &state, &moved, ErrorBound::for_scan(DType::F32, 1));
    for untouched in [0, 2, 3] {
        let [a, b] = [&before, &state].map(|tensor| Dense::from_view(&tensor.view().index(0, untouched)));
        assert_eq!(a.data(), b.data());
    }
    assert!(Dense::from_view(&y.view().index(0, 1)).data().iter().all(|v| v.re == 0.0));
    for wrong in [vec![4, 4, 1], vec![0, 5, 1]] {
        let wrong = indices(DType::I64, &wrong);
        let args = plain.state_batch_indices(wrong.view());
        let error = step::update(&Exec::cpu(1), &args, &mut state.view_mut(), &mut y.view_mut()).unwrap_err();
        assert!(matches!(error, Error::Index { .. }), "{error}");
    }
}

#[test]
fn wrong_arguments_are_named() {
    let case = Case::new(DType::F32, [2, 1, 1, 2, 4, 6], DECAY | BETA);
    let inputs = Inputs::new(&case);
    let good = step_of(&inputs.args(&case));
    let (mut memory, mut y) = ([0f32; 96], [0f32; 24]);
    let mut run = |args: &step::Args<'_>, shape: &[usize], argument: &str| {
        let len = shape.iter().product();
        let mut state = ViewMut::new(&mut memory[..len], shape).unwrap();
        let error = step::update(&Exec::cpu(1), args, &mut state, &mut ViewMut::new(&mut y, &[2, 2, 6]).unwrap()).unwrap_err();
        assert!(error.to_string().contains(&format!("`{argument}`")), "{error}");
    };
    run(&good, &[2, 2, 6, 4], "state");
    run(&good, &[2, 2, 24], "state");
    run(&good.k(good.v), &[2, 2, 4, 6], "k");
    run(&good.beta_sigmoid(false).allow_neg_eigval(true), &[2, 2, 4, 6], "allow_neg_eigval");
}
