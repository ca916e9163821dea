//! Properties of the kernels, on every instruction set and on the GPU: an operation that is a case of SSD, and decays of any size.

use super::*;
use crate::common::{Rng, executors};

/// The bound of a type on an executor's device.
fn bound_on(exec: &Exec, dtype: DType, bound: ErrorBound) -> ErrorBound {
    if is_gpu(exec) { bound.in_products(dtype) } else { bound }
}

/// `y` and the final state of a call, on the host; nothing where a GPU has no kernel for it.
fn forward(exec: &Exec, args: &Args<'_>) -> Option<[Tensor; 2]> {
    let rng = &mut Rng::new(1);
    let state = if args.x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let mut y = on(exec, &poisoned(rng, args.x.dtype(), &args.x.shape(), Layout::Dense));
    let mut last = on(exec, &poisoned(rng, state, &ssd::final_state_shape(args).unwrap(), Layout::Dense));
    let call = ssd::forward(exec, args, &mut Outputs::default().y(y.view_mut()).final_state(last.view_mut()));
    ran(exec, call, &[&y, &last]).then(|| [home(&y), home(&last)])
}

/// The gradients by x, by dt, by dt_a where there is one, and by the initial state.
fn backward(exec: &Exec, args: &Args<'_>, cotangents: &Cotangents<'_>) -> [Tensor; 4] {
    let rng = &mut Rng::new(2);
    let len = ssd::backward_workspace_len(exec, args).unwrap();
    let mut scratch = on(exec, &poisoned(rng, DType::F32, &[len], Layout::Dense));
    let state = args.initial_state.unwrap();
    let mut like = |view: &View<'_>| on(exec, &poisoned(rng, view.dtype(), &view.shape(), Layout::Dense));
    let [mut x, mut dt, mut dt_a, mut first] = [args.x, args.dt, args.dt_a.unwrap_or(args.dt), state].each_ref().map(&mut like);
    let mut grads = Gradients::default()
        .x(x.view_mut())
        .dt(dt.view_mut())
        .dt_a(args.dt_a.is_some().then(|| dt_a.view_mut()))
        .initial_state(first.view_mut())
        .workspace(scratch.view_mut());
    ssd::backward(exec, args, None, cotangents, &mut grads).unwrap();
    [x, dt, dt_a, first].map(|tensor| home(&tensor))
}

#[test]
fn the_step_as_its_own_decay_step_changes_nothing() {
    for dtype in [DType::F32, DType::BF16] {
        let case = Case::new(dtype, [2, 130, 4, 16, 2, 16], INITIAL);
        let inputs = Inputs::new(&case);
        for exec in executors() {
            let there = inputs.on(&exec);
            let plain = there.args(&case);
            let own = plain.dt_a(plain.dt);
            let Some([y, last]) = forward(&exec, &plain) else { continue };
            let [own_y, own_last] = forward(&exec, &own).unwrap();
            assert!(y.bytes() == own_y.bytes() && last.bytes() == own_last.bytes(), "{dtype:?} on {exec:?}");
            let cotangents = Cotangents::default().y(there.dy.view()).final_state(there.dstate.view());
            let [by, own_by] = [plain, own].map(|args| backward(&exec, &args, &cotangents));
            assert!(by[0].bytes() == own_by[0].bytes() && by[3].bytes() == own_by[3].bytes(), "{dtype:?} on {exec:?}");
            // the gradient by dt is the sum of both
            let mut sum = own_by[1].to_dense();
            sum.data_mut().iter_mut().zip(own_by[2].to_dense().data()).for_each(|(sum, v)| *sum += v);
            let bound = bound_on(&exec, dtype, ErrorBound::for_gradient(dtype, case.seqlen));
            assert_close(&format!("gradient by dt, {dtype:?} on {exec:?}"), &by[1], &sum, bound);
        }
    }
}

/// `S[t] = exp(g[t]) S[t-1] + v[t] k[t]^T`, `y[t] = S[t] q[t]`, with A = 1 and steps of 1 for the input.
#[test]
fn with_logarithms_of_decays_it_is_gated_linear_attention() {
    let case = Case::new(DType::F32, [1, 150, 2, 8, 2, 12], OWN_DECAY_STEP);
    let mut inputs = Inputs::new(&case);
    let rng = &mut Rng::new(7);
    inputs.a.fill_with(|| 1.0.into());
    inputs.dt.fill_with(|| 1.0.into());
    inputs.dt_a.fill_with(|| (-rng.uniform(0.0, 0.5)).into());
    let at = |tensor: &Tensor, index: &[usize]| tensor.view().at(index).re;
    let mut expected = Dense::zeros(&inputs.x.shape()).unwrap();
    for h in 0..case.heads {
        for p in 0..case.headdim {
            let mut state = vec![0.0; case.dstate];
            for t in 0..case.seqlen {
                let (decay, v) = (at(&inputs.dt_a, &[0, t, h]).exp(), at(&inputs.x, &[0, t, h, p]));
                let mut y = 0.0;
                for (n, s) in state.iter_mut().enumerate() {
                    *s = decay * *s + v * at(&inputs.b, &[0, t, h, n]);
                    y += *s * at(&inputs.c, &[0, t, h, n]);
                }
                *expected.at_mut(&[0, t, h, p]) = y.into();
            }
        }
    }
    for exec in executors() {
        let there = inputs.on(&exec);
        let Some([y, _]) = forward(&exec, &there.args(&case)) else { continue };
        assert_close(&format!("y on {exec:?}"), &y, &expected, ErrorBound::for_scan(DType::F32, case.seqlen));
    }
}

#[test]
fn one_huge_step_does_not_blur_the_small_ones() {
    // the running sum falls by 10^5 at once; differences after it must keep their digits
    let case = Case::new(DType::F32, [1, 60, 1, 4, 1, 4], INITIAL);
    let mut inputs = Inputs::new(&case);
    inputs.a.fill_with(|| (-1.0).into());
    let mut t = 0;
    inputs.dt.fill_with(|| {
        t += 1;
        if t == 9 { 1e5.into() } else { 0.01.into() }
    });
    let got = run_forward(&case, &inputs, &Exec::cpu(1), true).unwrap();
    let bound = ErrorBound::for_scan(DType::F32, case.seqlen);
    let expected = reference::forward(&inputs.args(&case)).unwrap();
    // the state after the huge step hides everything that comes later at its scale, so each step is compared on its own
    for t in 0..60 {
        let row = |dense: &Dense| dense.data()[t * 4..(t + 1) * 4].to_vec();
        let (_, relative, within) = statescan::tensor::max_errors(&row(&got.y.to_dense()), &row(&expected.y), bound);
        assert!(within, "step {t}: {relative:.2e}");
    }
}

/// The logarithm of the decay of each step.
type Decays = (&'static str, fn(usize) -> f64);

const DECAYS: [Decays; 6] = [
    ("half a chunk decays by more than 85 nats", |t| if t % 64 < 32 { -3.0 } else { -0.01 }),
    ("the other half", |t| if t % 64 < 32 { -0.01 } else { -3.0 }),
    ("by 500 nats a step", |_| -500.0),
    ("by 500 nats now and then", |t| if t % 37 == 5 { -500.0 } else { -0.02 }),
    ("not at all", |_| 0.0),
    ("it grows", |_| 0.1),
];

#[test]
fn decays_of_any_size() {
    for (name, decay) in DECAYS {
        let grows = decay(0) > 0.0;
        // the last one is cut into segments on a GPU, and long enough for what grows to leave the range of numbers
        let all = [
            (DType::F32, [1, 150, 2, 16, 1, 16]),
            (DType::BF16, [1, 200, 2, 64, 1, 128]),
            (DType::BF16, [1, 1100, 2, 64, 1, 16]),
        ];
        for &(dtype, sizes) in &all[..if grows { 2 } else { 3 }] {
            for options in [INITIAL, INITIAL | SKIP | GATE | OWN_DECAY_STEP] {
                let case = Case { seed: 3, ..Case::new(dtype, sizes, options) };
                let mut inputs = Inputs::new(&case);
                inputs.a.fill_with(|| if grows { 1.0 } else { -1.0 }.into());
                let mut i = 0;
                let steps = if case.has(OWN_DECAY_STEP) { &mut inputs.dt_a } else { &mut inputs.dt };
                steps.fill_with(|| {
                    i += 1;
                    decay((i - 1) / case.heads).abs().into()
                });
                println!("{name}, {dtype:?}, options {options}");
                check_inputs(&case, &inputs, &executors());
            }
        }
    }
}

/// In the sizes of models, where heads share maps: what one head holds reaches the gradients of B and C, and no other head.
#[test]
fn nan_stays_in_its_head() {
    for exec in executors() {
        for with in [f64::NAN, f64::INFINITY] {
            let case = Case::new(DType::BF16, [2, 150, 4, 64, 1, 128], INITIAL | GATE | SKIP);
            for argument in ["x", "dt", "z", "dy", "state"] {
                let mut inputs = Inputs::new(&case);
                let (tensor, at): (_, &[usize]) = match argument {
                    "x" => (&mut inputs.x, &[1, 70, 2, 9]),
                    "dt" => (&mut inputs.dt, &[1, 70, 2]),
                    "z" => (&mut inputs.z, &[1, 70, 2, 9]),
                    "dy" => (&mut inputs.dy, &[1, 70, 2, 9]),
                    _ => (&mut inputs.state, &[1, 2, 9, 50]),
                };
                let mut values = tensor.to_dense();
                *values.at_mut(at) = with.into();
                tensor.copy_from(&values);
                let Some(out) = run_forward(&case, &inputs, &exec, true) else { continue };
                let what = |name: &str| format!("{name} with {with} in {argument} on {exec:?}");
                clean(&what("y"), &out.y, |i| i[0] == 1 && i[2] == 2);
                clean(&what("final_state"), &out.last, |i| i[0] == 1 && i[1] == 2);
                for (name, grad) in run_backward(&case, &inputs, &exec, Some(&out.saved)) {
                    clean(&what(&format!("gradient by {name}")), &grad, |i| match name {
                        "x" | "z" | "dt" => i[0] == 1 && i[2] == 2,
                        "initial_state" => i[0] == 1 && i[1] == 2,
                        "b" | "c" => i[0] == 1,
                        _ => i[0] == 2,
                    });
                }
            }
        }
    }
}
