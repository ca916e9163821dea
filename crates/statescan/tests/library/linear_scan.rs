//! The linear scan, beside what is drawn for every operation: identities, and what GPUs do with rows that they cut.

use crate::common::device::{gpu, home, on};
use crate::common::{Layout, Rng, assert_close_in_scale, executors, normal, poisoned, uniform};
use statescan::ops::linear_scan::{self, Args, Cotangents, Gradients, Outputs, reference};
use statescan::tensor::{Dense, ErrorBound};
use statescan::{DType, Error, Exec, Tensor, View};

#[test]
fn oracle_identities() {
    let (rng, shape) = (&mut Rng::new(2), [3, 4, 20]);
    let complex = |rng: &mut Rng, shape: &[usize], scale| normal(rng, DType::Complex128, shape, Layout::Dense, scale);
    let (a, b, first) = (complex(rng, &shape, 0.5), complex(rng, &shape, 1.0), complex(rng, &[3, 4], 1.0));
    let by_h = complex(rng, &shape, 1.0);
    let whole = reference::forward(&Args::new(a.view(), b.view()).initial_state(first.view())).unwrap();
    let close = |a: &Dense, b: &Dense| {
        assert_eq!(a.shape(), b.shape());
        a.data().iter().zip(b.data()).for_each(|(a, b)| assert!((a - b).norm() < 1e-12, "{a} {b}"));
    };
    // a scan from zero is joined by the total decay
    let zero = reference::forward(&Args::new(a.view(), b.view())).unwrap();
    let mut joined = zero.final_state.clone();
    for ((joined, decay), first) in joined.data_mut().iter_mut().zip(zero.decay.data()).zip(first.to_dense().data()) {
        *joined += decay * first;
    }
    close(&joined, &whole.final_state);
    // no decay: cumulative sums; full decay: the input itself
    let constant = |value: f64| Dense::from_slice(&[value; 240], &shape).unwrap();
    let sums = reference::forward(&Args::new(constant(1.0).view(), constant(1.0).view())).unwrap();
    assert_eq!(sums.h.at(&[2, 3, 19]).re, 20.0);
    let inputs = reference::forward(&Args::new(constant(0.0).view(), b.view())).unwrap();
    close(&inputs.h, &b.to_dense());
    // the adjoint identity: <cotangent, J b> = <J^H cotangent, b> for the linear map b -> h
    let linear = Args::new(a.view(), b.view());
    let grad = reference::backward(&linear, &Cotangents::default().h(by_h.view())).unwrap().b;
    let dot = |a: &Dense, b: &Dense| a.data().iter().zip(b.data()).map(|(a, b)| (a.conj() * b).re).sum::<f64>();
    let (left, right) = (dot(&by_h.to_dense(), &zero.h), dot(&grad, &b.to_dense()));
    assert!((left - right).abs() < 1e-10 * left.abs().max(1.0));
}

#[test]
fn total_decays_are_those_of_the_oracle() {
    for (exec, dtype) in
        executors().into_iter().flat_map(|exec| [DType::F32, DType::Complex64].map(|dtype| (exec.clone(), dtype)))
    {
        let [a, b] = [(); 2].map(|()| normal(&mut Rng::new(6), dtype, &[17, 130], Layout::Sliced, 0.7));
        let expected = reference::forward(&Args::new(a.view(), b.view())).unwrap().decay;
        let mut decay = on(&exec, &poisoned(&mut Rng::new(7), dtype, &[17], Layout::Dense));
        let [a, b] = [a, b].map(|tensor| on(&exec, &tensor));
        linear_scan::forward(&exec, &Args::new(a.view(), b.view()), &mut Outputs::default().decay(decay.view_mut())).unwrap();
        // a product of many decays may be smaller than any number of its type
        let bound = ErrorBound::for_scan(dtype, 130);
        assert_close_in_scale(&format!("{dtype} on {exec:?}"), &home(&decay), &expected, bound, f64::from(f32::MIN_POSITIVE));
    }
}

#[test]
fn the_largest_size_needs_no_scratch_memory_on_a_cpu() {
    let one = [0.5f32];
    let most = crate::common::broadcast(&one, &[1, 1 << 48]);
    assert_eq!(linear_scan::backward_workspace_len(&Exec::cpu(2), &Args::new(most, most), false), Ok(0));
}

#[test]
fn cuda_nan_stays_in_its_row_and_zero_stays_zero() {
    let Some(exec) = gpu() else { return };
    let rng = &mut Rng::new(3);
    let mut a = uniform(rng, DType::F32, &[6, 3000], Layout::Dense, 0.3, 0.999).to_dense();
    let mut b = normal(rng, DType::F32, &[6, 3000], Layout::Dense, 1.0).to_dense();
    *b.at_mut(&[2, 1500]) = f64::NAN.into();
    // the product of these decays is infinite, the state before them zero
    for t in 0..1000 {
        *a.at_mut(&[4, t]) = 3.0.into();
        *b.at_mut(&[4, t]) = 0.0.into();
    }
    let [a, b] = [a, b].map(|dense| Tensor::from_dense(&dense, DType::F32));
    let expected = reference::forward(&Args::new(a.view(), b.view())).unwrap().h;
    let [a, b] = [a, b].map(|tensor| on(&exec, &tensor));
    let h = home(&linear_scan::run(&exec, &Args::new(a.view(), b.view())).unwrap().h).to_dense();
    for (i, (got, expected)) in h.data().iter().zip(expected.data()).enumerate() {
        assert_eq!(got.re.is_nan(), expected.re.is_nan(), "step {i}");
        assert!(got.re.is_nan() || (got - expected).norm() < 1e-3, "step {i}: {got} {expected}");
    }
}

#[test]
fn cuda_needs_the_states_or_room_for_them() {
    let Some(exec) = gpu() else { return };
    let a = on(&exec, &normal(&mut Rng::new(4), DType::F32, &[2, 9], Layout::Dense, 0.5));
    let mut by_a = Tensor::empty(&exec, DType::F32, &[2, 9]).unwrap();
    let grads = &mut Gradients::default().a(by_a.view_mut());
    let error = linear_scan::backward(&exec, &Args::new(a.view(), a.view()), None::<View<'_>>, &Cotangents::default(), grads);
    assert!(matches!(error, Err(Error::Presence { argument: "h", .. })), "{error:?}");
}
