//! The simplified scan, beside what is drawn for every operation: identities, what saved states must be, what GPUs refuse and round.

use crate::common::device::{gpu, home, on};
use crate::common::*;
use num_complex::Complex64;
use statescan::ops::linear_scan;
use statescan::ops::simplified_scan::{self, Args, Cotangents, Gradients, Outputs, checkpoints_len, reference};
use statescan::tensor::{Dense, ErrorBound, max_errors};
use statescan::{DType, Discretization, Error, Exec, Tensor, View};

/// u, delta, A, B, C and the initial state of (batch, dim, dstate, seqlen), complex but for the steps.
fn inputs(rng: &mut Rng, dtype: DType, [batch, dim, dstate, seqlen]: [usize; 4]) -> [Tensor; 6] {
    let dense = Layout::Dense;
    let fan = |n: usize| 1.0 / (n as f64).sqrt();
    [
        normal(rng, dtype, &[batch, dim, seqlen], dense, 1.0),
        uniform(rng, dtype.real(), &[batch, dstate, seqlen], dense, 0.01, 0.6),
        random(rng, dtype, &[dstate], dense, |rng| Complex64::new(rng.uniform(-1.5, -0.05), rng.uniform(-4.0, 4.0))),
        normal(rng, dtype, &[dstate, dim], dense, fan(dim)),
        normal(rng, dtype, &[dim, dstate], dense, fan(dstate)),
        normal(rng, dtype, &[batch, dstate], dense, 1.0),
    ]
}

fn args([u, delta, a, b, c, first]: &[Tensor; 6]) -> Args<'_> {
    Args::new(u.view(), delta.view(), a.view(), b.view(), c.view()).initial_state(first.view())
}

#[test]
fn it_is_the_linear_scan_of_discretized_numbers_and_keeps_conjugate_pairs() {
    for method in Discretization::ALL {
        let all = inputs(&mut Rng::new(3), DType::Complex128, [2, 3, 4, 20]);
        let args = args(&all).discretization(method);
        let whole = reference::forward(&args).unwrap();
        let (mut decay, mut input) = (Dense::zeros(&[2, 4, 20]).unwrap(), Dense::zeros(&[2, 4, 20]).unwrap());
        for (b, n, t) in (0..2).flat_map(|b| (0..4).flat_map(move |n| (0..20).map(move |t| (b, n, t)))) {
            let (d, a) = (args.delta.at(&[b, n, t]).re, args.a.at(&[n]));
            *decay.at_mut(&[b, n, t]) = method.decay(a * d).0;
            let driven: Complex64 = (0..3).map(|h| args.b.at(&[n, h]) * args.u.at(&[b, h, t])).sum();
            *input.at_mut(&[b, n, t]) = method.input(d, a, driven);
        }
        let linear = linear_scan::Args::new(decay.view(), input.view()).initial_state(args.initial_state);
        let linear = linear_scan::reference::forward(&linear).unwrap().final_state;
        linear.data().iter().zip(whole.last_state.data()).for_each(|(a, b)| assert!((a - b).norm() < 1e-11, "{a} {b}"));
        // conjugate pairs kept whole: B and A with their conjugates, twice the states
        let real = reference::forward(&args.d(View::new(&[0f64; 3], &[3]).unwrap())).unwrap();
        whole.y.data().iter().zip(real.y.data()).for_each(|(c, r)| assert!((2.0 * c.re - r.re).abs() < 1e-12));
    }
}

#[test]
fn saved_states_are_dense_and_a_gradient_of_a_complex_input_is_complex() {
    let (all, exec) = (inputs(&mut Rng::new(4), DType::Complex64, [1, 1, 1, 130]), Exec::cpu(1));
    let len = checkpoints_len(&args(&all)).unwrap();
    let mut saved = vec![0f32; 2 * len];
    let checkpoints = Some(statescan::ViewMut::strided(&mut saved, 0, &[len], &[2]).unwrap());
    let error = simplified_scan::forward(&exec, &args(&all), &mut Outputs::default().checkpoints(checkpoints)).unwrap_err();
    assert!(matches!(error, Error::Presence { argument: "checkpoints", .. }));
    let mut u = Tensor::host(DType::F32, &[1, 1, 130]).unwrap();
    let grads = &mut Gradients::default().u(u.view_mut());
    let error = simplified_scan::backward(&exec, &args(&all), None, &Cotangents::default(), grads).unwrap_err();
    assert!(matches!(error, Error::DType { argument: "grad of u", .. }));
    let mut y = Tensor::host(DType::Complex64, &[1, 1, 130]).unwrap();
    let real = args(&all).d(all[1].view().index(0, 0).index(1, 0));
    let error = simplified_scan::forward(&exec, &real, &mut Outputs::default().y(y.view_mut())).unwrap_err();
    assert!(matches!(error, Error::DType { op: "s5_inner", argument: "y", .. }), "{error}");
}

/// Products lose some bits where tf32 is allowed, fewer than tf32 has less.
#[test]
fn cuda_tf32_is_close() {
    let Some(exec) = gpu() else { return };
    let all = inputs(&mut Rng::new(14), DType::Complex64, [1, 70, 40, 200]);
    let exact = reference::forward(&args(&all)).unwrap().y;
    let all = all.map(|tensor| on(&exec, &tensor));
    let error = |exec: &Exec| {
        let y = home(&simplified_scan::run(exec, &args(&all)).unwrap().y).to_dense();
        max_errors(y.data(), exact.data(), ErrorBound::for_scan(DType::Complex64, 200)).1
    };
    let (short, precise) = (error(&exec.clone().with_tf32(true)), error(&exec));
    assert!(short < 1e-4 && precise < 2e-6 && precise < short, "{short} {precise}");
}

#[test]
fn cuda_refuses_what_it_cannot_do() {
    let Some(exec) = gpu() else { return };
    let here = |dtype| inputs(&mut Rng::new(13), dtype, [1, 3, 4, 10]).map(|tensor| on(&exec, &tensor));
    let single = here(DType::Complex64);
    let mut y = Tensor::zeros(&exec, DType::Complex64, &[1, 3, 10]).unwrap();
    let missing = |result| matches!(result, Err(Error::Presence { op: "simplified_scan", argument: "workspace", .. }));
    assert!(missing(simplified_scan::forward(&exec, &args(&single), &mut Outputs::default().y(y.view_mut()))));
    let grads = &mut Gradients::default().u(y.view_mut());
    assert!(missing(simplified_scan::backward(&exec, &args(&single), None, &Cotangents::default(), grads)));
    let double = here(DType::Complex128);
    assert!(matches!(simplified_scan::workspace_len(&exec, &args(&double)), Err(Error::Unavailable { .. })));
    let mut y = Tensor::zeros(&exec, DType::Complex128, &[1, 3, 10]).unwrap();
    let error = simplified_scan::forward(&exec, &args(&double), &mut Outputs::default().y(y.view_mut()));
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
}
