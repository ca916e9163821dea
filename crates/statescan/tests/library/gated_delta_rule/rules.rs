//! Every operation promises this: results that do not depend on threads or cuts, heads and sequences that do not disturb each other, errors that
//! name the argument and write nothing.

use super::*;
use crate::common::device::gpu;
use core::ops::Range;
use statescan::Level;

/// `y` and the final state of a call, as bytes.
fn forward(exec: &Exec, args: &Args<'_>) -> [Tensor; 2] {
    let mut y = Tensor::host(args.v.dtype(), &args.v.shape()).unwrap();
    let mut last = Tensor::host(DType::F32, &gdr::final_state_shape(args).unwrap()).unwrap();
    gdr::forward(exec, args, &mut Outputs::default().y(y.view_mut()).final_state(last.view_mut())).unwrap();
    [y, last]
}

fn part<'v>(view: View<'v>, steps: &Range<usize>) -> View<'v> {
    view.slice(1, steps.clone())
}

#[test]
fn a_cut_changes_no_bit() {
    for (channels, raw) in [(0, 0), (CHANNELS, 0), (0, RAW | BIAS), (CHANNELS, RAW | BIAS | LOWER)] {
        let case = Case::new(DType::F32, [2, 150, 2, 4, 33, 70], INITIAL | DECAY | BETA | UNIT | channels | raw);
        let inputs = Inputs::new(&case);
        let all = inputs.args(&case);
        for level in Level::available() {
            let exec = Exec::cpu(1).with_level(level).unwrap();
            let [y, last] = forward(&exec, &all);
            let (mut state, mut from) = (Tensor::from_dense(&inputs.state.to_dense(), DType::F32), 0);
            for to in [1, 2, 65, 128, 150] {
                let steps = from..to;
                let cut = |view| part(view, &steps);
                let piece = all.q(cut(all.q)).k(cut(all.k)).v(cut(all.v)).g(all.g.map(cut)).beta(all.beta.map(cut));
                let [got, after] = forward(&exec, &piece.initial_state(state.view()));
                let expected = Dense::from_view(&y.view().slice(1, from..to));
                assert_eq!(got.to_dense().data(), expected.data(), "{from} to {to} on {level}");
                (state, from) = (after, to);
            }
            assert_eq!(state.bytes(), last.bytes());
        }
    }
}

#[test]
fn instruction_sets_with_fused_products_give_the_same_bits() {
    let levels: Vec<_> = Level::available().filter(|level| matches!(level, Level::Avx2 | Level::Avx512)).collect();
    let [first, others @ ..] = &levels[..] else { return println!("skipped: one instruction set alone") };
    for channels in [0, CHANNELS] {
        let case = Case::new(DType::F32, [1, 130, 2, 4, 37, 70], INITIAL | DECAY | BETA | UNIT | channels);
        let inputs = Inputs::new(&case);
        let on = |level| forward(&Exec::cpu(1).with_level(level).unwrap(), &inputs.args(&case)).map(|x| x.bytes().to_vec());
        for level in others {
            assert!(on(*level) == on(*first), "{level}");
        }
    }
}

/// All elements of a result for which `touched` is false are finite.
fn clean(name: &str, buffer: &Tensor, touched: impl Fn(&[usize]) -> bool) {
    let (dense, shape) = (buffer.to_dense(), buffer.shape());
    for (at, value) in dense.data().iter().enumerate() {
        let (mut rest, mut index) = (at, vec![0; shape.len()]);
        for axis in (0..shape.len()).rev() {
            (index[axis], rest) = (rest % shape[axis], rest / shape[axis]);
        }
        assert!(touched(&index) || value.re.is_finite(), "{name} at {index:?} is {}", value.re);
    }
}

fn poison(buffer: &mut Tensor, at: &[usize]) {
    let mut dense = buffer.to_dense();
    *dense.at_mut(at) = f64::NAN.into();
    buffer.copy_from(&dense);
}

#[test]
fn nan_stays_in_its_head_and_sequence() {
    let case = |dtype, widths: [usize; 2], options| Case::new(dtype, [2, 90, 2, 4, widths[0], widths[1]], options);
    let options = INITIAL | DECAY | BETA | UNIT;
    for exec in [Exec::cpu(1)].into_iter().chain(gpu()) {
        nan_stays(&case(DType::F32, [6, 5], options), &exec);
        nan_stays(&case(DType::F32, [6, 5], options | CHANNELS), &exec);
        if is_gpu(&exec) {
            nan_stays(&case(DType::BF16, [128, 64], options), &exec);
        }
    }
}

fn nan_stays(case: &Case, exec: &Exec) {
    let run = |case: &Case, inputs: &Inputs| run_forward(case, inputs, exec).unwrap();
    // products of a chunk of 64 steps take it to all of them
    let first = if is_gpu(exec) && case.dtype == DType::BF16 { 0 } else { 40 };
    let mut inputs = Inputs::new(case);
    poison(&mut inputs.v, &[1, 40, 2, 3]);
    let out = run(case, &inputs);
    clean("y", &out.y, |i| i[0] == 1 && i[1] >= first && i[2] == 2 && i[3] == 3);
    clean("state", &out.last, |i| i[0] == 1 && i[1] == 2 && i[3] == 3);
    let mut inputs = Inputs::new(case);
    poison(&mut inputs.k, &[1, 40, 1, 3]);
    let out = run(case, &inputs);
    clean("y", &out.y, |i| i[0] == 1 && i[1] >= first && i[2] >= 2);
    for (name, grad) in run_backward(case, &inputs, exec, Some(&out.saved)).into_iter().flatten() {
        match name {
            "q" | "k" => clean(name, &grad, |i| i[0] == 1 && i[2] == 1),
            "v" | "g" | "beta" => clean(name, &grad, |i| i[0] == 1 && i[2] >= 2),
            _ => clean(name, &grad, |i| i[0] == 1 && i[1] >= 2),
        }
    }
    let case = &Case { batch: 1, options: case.options | BOUNDS, ..case.clone() };
    let mut inputs = Inputs::new(case);
    poison(&mut inputs.q, &[0, 40, 0, 0]);
    poison(&mut inputs.k, &[0, 41, 0, 0]);
    let out = run(case, &inputs);
    clean("y", &out.y, |i| (30..60).contains(&i[1]));
    clean("state", &out.last, |i| i[0] == 2);
    for (name, grad) in run_backward(case, &inputs, exec, None).into_iter().flatten() {
        match name {
            "initial_state" => clean(name, &grad, |i| i[0] == 2),
            _ => clean(name, &grad, |i| (30..60).contains(&i[1])),
        }
    }
}

#[test]
fn arguments_that_do_not_go_together_are_named() {
    let case = Case::new(DType::F32, [2, 7, 2, 4, 3, 5], RAW | BIAS | SIGMOID | INITIAL);
    let inputs = Inputs::new(&case);
    let good = inputs.args(&case);
    let wide = Tensor::host(DType::F32, &[2, 7, 2, 257]).unwrap();
    let odd = Tensor::host(DType::F32, &[2, 7, 3, 3]).unwrap();
    let plain = good.a_log(None::<View<'_>>).dt_bias(None::<View<'_>>);
    type Wrong<'a> = (&'static str, Args<'a>, fn(&Error) -> bool);
    let wrong: Vec<Wrong<'_>> = vec![
        ("q", good.q(odd.view()).k(odd.view()), |e| matches!(e, Error::Value { .. })),
        ("g", good.g(None::<View<'_>>), |e| matches!(e, Error::Presence { .. })),
        ("beta", good.beta(None::<View<'_>>), |e| matches!(e, Error::Presence { .. })),
        ("a_log", good.a_log(None::<View<'_>>), |e| matches!(e, Error::Presence { .. })),
        ("a_log", plain.lower_bound(-5.0), |e| matches!(e, Error::Presence { .. })),
        ("lower_bound", good.lower_bound(1.0), |e| matches!(e, Error::Value { .. })),
        ("lower_bound", good.lower_bound(f64::NAN), |e| matches!(e, Error::Value { .. })),
        ("scale", good.scale(f64::INFINITY), |e| matches!(e, Error::Value { .. })),
        ("allow_neg_eigval", good.beta_sigmoid(false).allow_neg_eigval(true), |e| matches!(e, Error::Value { .. })),
        ("key_width", good.q(wide.view()).k(wide.view()), |e| matches!(e, Error::Value { .. })),
    ];
    for (argument, args, expected) in wrong {
        let mut y = Tensor::host(DType::F32, &inputs.v.shape()).unwrap();
        let before = y.bytes().to_vec();
        let error = gdr::forward(&Exec::cpu(1), &args, &mut Outputs::default().y(y.view_mut())).unwrap_err();
        assert!(expected(&error) && error.to_string().contains(&format!("`{argument}`")), "{argument}: {error}");
        let error = gdr::backward(&Exec::cpu(1), &args, None, &Cotangents::default(), &mut Gradients::default()).unwrap_err();
        assert!(expected(&error), "{argument}: {error}");
        assert!(y.bytes() == before, "{argument}: something was written");
    }
}

#[test]
fn double_precision_is_refused_on_a_gpu() {
    let Some(exec) = gpu() else { return };
    let case = Case::new(DType::F64, [1, 10, 2, 2, 4, 4], 0);
    assert!(run_forward(&case, &Inputs::new(&case), &exec).is_none());
}
