//! Properties of the kernels, on every instruction set and on the GPU: parts joined by their state, other operations that SSD is a case of,
//! decays of any size, sizes around those of chunks and tiles.

use super::*;
use crate::common::{Rng, executors};
use statescan::ops::selective_scan;

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
fn a_carried_state_joins_parts() {
    for (dtype, sizes) in [(DType::F32, [2, 150, 3, 17, 1, 9]), (DType::BF16, [1, 300, 4, 64, 1, 128])] {
        let case = Case::new(dtype, sizes, INITIAL | GATE | SKIP | OWN_DECAY_STEP);
        let inputs = Inputs::new(&case);
        for exec in executors() {
            let there = inputs.on(&exec);
            let whole = there.args(&case);
            let Some([y, last]) = forward(&exec, &whole) else { continue };
            let by = backward(&exec, &whole, &Cotangents::default().y(there.dy.view()).final_state(there.dstate.view()));
            for cut in [1, 63, 64, 65, 149] {
                let part = |from: usize, to: usize, state| {
                    whole
                        .x(whole.x.slice(1, from..to))
                        .dt(whole.dt.slice(1, from..to))
                        .dt_a(whole.dt_a.map(|v| v.slice(1, from..to)))
                        .b(whole.b.slice(1, from..to))
                        .c(whole.c.slice(1, from..to))
                        .z(whole.z.map(|v| v.slice(1, from..to)))
                        .initial_state(state)
                };
                let first = part(0, cut, there.state.view());
                let [y_first, middle] = forward(&exec, &first).unwrap();
                let middle = on(&exec, &middle);
                let second = part(cut, case.seqlen, middle.view());
                let [y_second, end] = forward(&exec, &second).unwrap();
                let bound = bound_on(&exec, dtype, ErrorBound::for_scan(dtype, case.seqlen));
                let expected = |tensor: &Tensor, from, to| Dense::from_view(&tensor.view().slice(1, from..to));
                let what = |name: &str| format!("{name} of {case:?} cut at {cut} on {exec:?}");
                assert_close(&what("y before"), &y_first, &expected(&y, 0, cut), bound);
                assert_close(&what("y after"), &y_second, &expected(&y, cut, case.seqlen), bound);
                assert_close(&what("final_state"), &end, &last.to_dense(), bound);

                let dy = there.dy.view();
                let cotangents = Cotangents::default().y(dy.slice(1, cut..case.seqlen)).final_state(there.dstate.view());
                let after = backward(&exec, &second, &cotangents);
                let joint = on(&exec, &after[3]);
                let before = backward(&exec, &first, &Cotangents::default().y(dy.slice(1, 0..cut)).final_state(joint.view()));
                let bound = bound_on(&exec, dtype, ErrorBound::for_gradient(dtype, case.seqlen));
                for (i, name) in ["x", "dt", "dt_a"].into_iter().enumerate() {
                    assert_close(&what(&format!("gradient by {name} before")), &before[i], &expected(&by[i], 0, cut), bound);
                    assert_close(
                        &what(&format!("gradient by {name} after")),
                        &after[i],
                        &expected(&by[i], cut, case.seqlen),
                        bound,
                    );
                }
                assert_close(&what("gradient by initial_state"), &before[3], &by[3].to_dense(), bound);
            }
        }
    }
}

/// Two operations with kernels of their own: what one has for a head the other has for each of its channels.
#[test]
fn kernels_agree_with_those_of_selective_scan() {
    let case = Case::new(DType::F32, [2, 140, 4, 24, 2, 16], GATE | BIAS | SOFTPLUS | OWN_DECAY_STEP);
    let (inputs, channels) = (Inputs::new(&case), case.heads * case.headdim);
    let head = |c: usize| (c / case.headdim, c % case.headdim);
    // (B, L, H, P) or (B, L, H) as (B, D, L)
    let timed = |tensor: &Tensor| {
        let (view, mut out) = (tensor.view(), Dense::zeros(&[case.batch, channels, case.seqlen]).unwrap());
        for b in 0..case.batch {
            for c in 0..channels {
                for t in 0..case.seqlen {
                    *out.at_mut(&[b, c, t]) = view.at(&[b, t, head(c).0, head(c).1][..view.rank()]);
                }
            }
        }
        Tensor::from_dense(&out, DType::F32)
    };
    // (H,) as (D, ..)
    let by_channel = |tensor: &Tensor, shape: &[usize]| {
        let (mut out, width, mut i) = (Tensor::host(DType::F32, shape).unwrap(), shape.get(1).copied().unwrap_or(1), 0);
        out.fill_with(|| {
            i += 1;
            tensor.view().at(&[head((i - 1) / width).0])
        });
        out
    };
    let (a, bias) = (by_channel(&inputs.a, &[channels, case.dstate]), by_channel(&inputs.bias, &[channels]));
    let [x, dt, dt_a, z] = [&inputs.x, &inputs.dt, &inputs.dt_a, &inputs.z].map(timed);
    for exec in executors() {
        let there = inputs.on(&exec);
        let Some([y, _]) = forward(&exec, &there.args(&case)) else { continue };
        let [x, dt, dt_a, z, a, bias] = [&x, &dt, &dt_a, &z, &a, &bias].map(|tensor| on(&exec, tensor));
        let [b, c] = [&there.b, &there.c].map(|map| map.view().permute(&[0, 2, 3, 1]));
        let args = selective_scan::Args::new(x.view(), dt.view(), a.view(), b, c)
            .z(z.view())
            .dt_bias(bias.view())
            .dt_softplus(true)
            .dt_a(dt_a.view());
        let mut other = on(&exec, &Tensor::host(DType::F32, &x.shape()).unwrap());
        selective_scan::forward(&exec, &args, &mut selective_scan::Outputs::default().y(other.view_mut())).unwrap();
        let bound = ErrorBound::for_scan(DType::F32, case.seqlen);
        assert_close(&format!("y on {exec:?}"), &timed(&y), &home(&other).to_dense(), bound);
    }
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

#[test]
fn the_processed_step_as_its_own_decay_step_changes_little() {
    let case = Case::new(DType::F32, [2, 130, 4, 16, 2, 16], INITIAL | BIAS | SOFTPLUS | LIMIT);
    let mut inputs = Inputs::new(&case);
    let (dt, bias) = (inputs.dt.to_dense().to_real(), inputs.bias.to_dense().to_real());
    let mut i = 0;
    inputs.dt_a.fill_with(|| {
        let raw: f64 = dt[i] + bias[i % case.heads];
        i += 1;
        raw.exp().ln_1p().clamp(0.02, 0.3).into()
    });
    for exec in executors() {
        let there = inputs.on(&exec);
        let plain = there.args(&case);
        let Some([y, last]) = forward(&exec, &plain) else { continue };
        let [own_y, own_last] = forward(&exec, &plain.dt_a(there.dt_a.view())).unwrap();
        let bound = ErrorBound::for_scan(DType::F32, case.seqlen);
        assert_close(&format!("y on {exec:?}"), &own_y, &y.to_dense(), bound);
        assert_close(&format!("final_state on {exec:?}"), &own_last, &last.to_dense(), bound);
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
            (DType::BF16, [1, 200, 4, 64, 1, 128]),
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

/// Lengths around chunks, each with columns and states below and above tiles; storage types in turns.
fn sizes_around_chunks(headdim: usize) {
    for (i, dstate) in [1, 17, 256].into_iter().enumerate() {
        let dtype = [DType::F32, DType::BF16, DType::F16][(i + headdim) % 3];
        for seqlen in [1, 63, 64, 65, 127, 333] {
            let options = INITIAL | SKIP | if seqlen % 2 == 0 { REVERSE } else { OWN_DECAY_STEP };
            check(&Case::new(dtype, [1, seqlen, 2, headdim, 1, dstate], options), &executors());
        }
    }
}

#[test]
fn sizes_around_chunks_of_1_column() {
    sizes_around_chunks(1);
}

#[test]
fn sizes_around_chunks_of_24_columns() {
    sizes_around_chunks(24);
}

#[test]
fn sizes_around_chunks_of_80_columns() {
    sizes_around_chunks(80);
}
