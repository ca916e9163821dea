//! The selective scan, beside what is drawn for every operation: identities, extremes, memory that overlaps, and what only GPUs have.

mod case;
mod cuda;
mod phases;

use crate::common::device::{home, is_gpu, on, ran};
use crate::common::options::*;
use crate::common::{Layout, Rng, assert_close, executors, indices, normal, poisoned, random, uniform};
use case::{Case, Computed, Expected, Inputs};
use num_complex::Complex64;
use statescan::ops::selective_scan::{self, Args, Cotangents, Gradients, Outputs, reference};
use statescan::tensor::{Dense, ErrorBound};
use statescan::{DType, Discretization, Error, Exec, Sequences, Tensor, View, ViewMut};

fn check(case: &Case, execs: &[Exec]) {
    let expected = Expected::new(case);
    execs.iter().for_each(|exec| expected.check(exec));
}

#[test]
fn without_decay_it_is_a_cumulative_sum() {
    let case = Case::new(DType::F64, 1, 2, 9, 1, 0);
    let mut inputs = Inputs::new(&case);
    inputs.a.fill_with(|| Complex64::ZERO);
    inputs.c.fill_with(|| Complex64::ONE);
    let y = reference::forward(&inputs.args(&case)).unwrap().y;
    for d in 0..2 {
        let mut sum = 0.0;
        for t in 0..9 {
            let at = |b: &Tensor, i: &[usize]| b.view().at(i).re;
            sum += at(&inputs.dt, &[0, d, t]) * at(&inputs.x, &[0, d, t]) * at(&inputs.b, &[0, 0, t]);
            assert!((y.at(&[0, d, t]).re - sum).abs() < 1e-12);
        }
    }
}

#[test]
fn with_fixed_maps_the_reversed_scan_is_the_adjoint() {
    // y = S x is linear in x; with the roles of B and C exchanged, dt folded into x, and time reversed one step later it is S^T
    let case = Case { discretization: Discretization::Dirac, ..Case::new(DType::F64, 1, 2, 10, 3, 0) };
    let mut inputs = Inputs::new(&case);
    // a constant step makes the decay between two steps symmetric
    inputs.dt.fill_with(|| 0.3.into());
    let args = inputs.args(&case);
    let transposed = args.b(args.c).c(args.b).reverse(true);
    let y = reference::forward(&args).unwrap().y;
    let adjoint = reference::forward(&transposed.x(inputs.dy.view())).unwrap().y;
    let dot = |a: &Dense, b: &Dense| a.data().iter().zip(b.data()).map(|(a, b)| a.re * b.re).sum::<f64>();
    let (left, right) = (dot(&y, &inputs.dy.to_dense()), dot(&inputs.x.to_dense(), &adjoint));
    assert!((left - right).abs() < 1e-12 * left.abs().max(1.0), "{left} {right}");
}

#[test]
fn extreme_steps_and_decays() {
    // dt = 0 keeps the state exactly; a huge decay forgets it exactly
    for exec in executors() {
        let one =
            |value: f64, shape: &[usize]| Tensor::from_slice(&exec, &vec![value as f32; shape.iter().product()], shape).unwrap();
        for (dt, a, expected) in [(0.0, -1.0, 0.625), (1.0, -1e30, 0.0), (1e30, -1e30, 0.0), (1.0, f64::NEG_INFINITY, 0.0)] {
            let (x, dt, a) = (one(0.0, &[1, 3, 1000]), one(dt, &[1, 3, 1000]), one(a, &[3, 2]));
            let (b, c, h) = (one(1.0, &[1, 2, 1000]), one(0.5, &[1, 2, 1000]), one(0.625, &[1, 3, 2]));
            let mut last = one(7.0, &[1, 3, 2]);
            let args = Args::new(x.view(), dt.view(), a.view(), b.view(), c.view()).initial_state(h.view());
            let mut out = Outputs::default().final_state(last.view_mut());
            selective_scan::forward(&exec, &args, &mut out).unwrap();
            let last = last.to_vec::<f32>().unwrap();
            assert!(last.iter().all(|&v| v == expected), "{exec:?} {last:?}");
        }
    }
}

#[test]
fn outputs_must_be_distinct_memory() {
    let case = Case::new(DType::F32, 2, 4, 6, 3, 0);
    let inputs = Inputs::new(&case);
    let mut memory = vec![0f32; 48];
    let ptr = memory.as_mut_ptr().cast();
    // SAFETY: the checks refuse the call before anything is written.
    let view = |shape: &[usize], strides: &[isize]| unsafe {
        ViewMut::from_raw_parts(ptr, DType::F32, statescan::Device::Cpu, shape, strides).unwrap()
    };
    let mut grads = Gradients::default().x(view(&[2, 4, 6], &[24, 6, 1])).dt(view(&[2, 4, 6], &[24, 6, 1]));
    let error = selective_scan::backward(&Exec::cpu(1), &inputs.args(&case), None, &Cotangents::default(), &mut grads);
    assert!(matches!(error, Err(Error::Overlap { argument: "grad of dt", other: "grad of x", .. })), "{error:?}");
}

#[test]
fn limits_and_devices_are_named() {
    let case = Case::new(DType::F32, 2, 4, 6, 3, 0);
    let inputs = Inputs::new(&case);
    let args = inputs.args(&case);
    let fails = |args: &Args<'_>| selective_scan::forward(&Exec::cpu(1), args, &mut Outputs::default()).unwrap_err();
    assert!(matches!(fails(&args.dt_limit((1.0, 0.0))), Error::Limits { argument: "dt_limit", .. }));
    // SAFETY: never read, the device is refused first.
    let elsewhere =
        unsafe { View::from_raw_parts(core::ptr::dangling(), DType::F32, statescan::Device::Cuda(0), &[2, 4, 6], &[24, 6, 1]) };
    assert!(matches!(fails(&args.x(elsewhere.unwrap())), Error::Device { argument: "x", .. }));
    // as many saved states and states as there may be
    let one = [0.5f32];
    let of = |shape: &[usize]| crate::common::broadcast(&one, shape);
    let long = Args::new(of(&[1, 1, 1 << 40]), of(&[1, 1, 1 << 40]), of(&[1, 1]), of(&[1, 1]), of(&[1, 1]));
    assert_eq!(selective_scan::checkpoints_len(&long), Ok(((1 << 34) - 1) * 16));
    let wide = Args::new(of(&[1, 1, 1]), of(&[1, 1, 1]), of(&[1, 1 << 20]), of(&[1, 1 << 20]), of(&[1, 1 << 20]));
    assert_eq!(selective_scan::final_state_shape(&wide).unwrap()[..], [1, 1, 1 << 20]);
}
