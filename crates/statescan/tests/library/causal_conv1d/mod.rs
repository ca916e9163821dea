//! The causal convolution, beside what is drawn for every operation: numbers worked out by hand, extremes, vectors.

mod vectors;

use crate::common::device::{home, on};
use crate::common::{Layout, Rng, cpu_executors, executors, normal};
use statescan::ops::causal_conv1d::{self, Activation, Args, Cotangents, Gradients, Outputs, reference};
use statescan::tensor::Dense;
use statescan::{DType, Error, Exec, Sequences, Tensor, View, ViewMut};

#[test]
fn a_filter_that_is_one_at_the_present_is_the_identity() {
    let x = normal(&mut Rng::new(5), DType::F64, &[2, 3, 20], Layout::Dense, 0.6);
    let unit = Dense::from_slice(&[0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0], &[3, 3]).unwrap();
    assert_eq!(reference::forward(&Args::new(x.view(), unit.real_view())).unwrap().y, x.to_dense());
}

#[test]
fn padding_is_zero_and_silent() {
    let x: Vec<f32> = (1..=6).map(|i| i as f32).collect();
    let index = [-1i32, 0, 0, -1, 1, 1];
    let (weight, bias, first) = ([10.0f32, 1.0], [0.5f32], [100.0f32]);
    let args = Args::new(View::new(&x, &[1, 1, 6]).unwrap(), View::new(&weight, &[1, 2]).unwrap())
        .bias(View::new(&bias, &[1]).unwrap())
        .initial_states(View::new(&first, &[1, 1, 1]).unwrap())
        .sequences(Sequences::SeqIdx(View::new(&index, &[1, 6]).unwrap()));
    let (mut y, mut last) = ([f32::NAN; 6], [f32::NAN]);
    let mut out = Outputs::default()
        .y(ViewMut::new(&mut y, &[1, 1, 6]).unwrap())
        .final_states(ViewMut::new(&mut last, &[1, 1, 1]).unwrap());
    causal_conv1d::forward(&Exec::cpu(1), &args, &mut out).unwrap();
    assert_eq!(y, [0.0, 1002.5, 23.5, 0.0, 5.5, 56.5]);
    assert_eq!(last, [6.0]);
}

/// Far below 0 the result is 0 up to denormal numbers, and at -infinity NaN, as by the formula and in PyTorch.
#[test]
fn silu_of_any_number_is_that_of_the_formula() {
    let sums =
        [f32::NEG_INFINITY, -1e30, -1000.0, -200.0, -89.0, -88.0, -80.0, -1.0, 0.0, 1.0, 100.0, 1e30, f32::INFINITY, f32::NAN];
    let (dim, seqlen) = (sums.len(), 40);
    let (x, weight) = (vec![0.0f32; dim * seqlen], vec![1.0f32; dim * 2]);
    let bias = View::new(&sums, &[dim]).unwrap();
    for strides in [[0, seqlen as isize, 1], [0, 1, dim as isize]] {
        let x = View::strided(&x, 0, &[1, dim, seqlen], &strides).unwrap();
        let weight = View::new(&weight, &[dim, 2]).unwrap();
        let args = Args::new(x, weight).bias(bias).activation(Activation::Silu);
        let expected = reference::forward(&args).unwrap().y;
        for exec in cpu_executors() {
            let mut y = vec![9.0f32; dim * seqlen];
            let out = ViewMut::strided(&mut y, 0, &[1, dim, seqlen], &strides).unwrap();
            causal_conv1d::forward(&exec, &args, &mut Outputs::default().y(out)).unwrap();
            let got = Dense::from_view(&View::strided(&y, 0, &[1, dim, seqlen], &strides).unwrap());
            for (i, (got, expected)) in got.data().iter().zip(expected.data()).enumerate() {
                let (got, expected) = (got.re, expected.re);
                let same = got == expected || (got.is_nan() && expected.is_nan());
                assert!(
                    same || (got - expected).abs() <= 1e-35 + 1e-6 * expected.abs(),
                    "{}: {got}, not {expected}",
                    sums[i / seqlen]
                );
            }
        }
    }
}

#[test]
fn a_filter_has_at_most_eight_taps() {
    let ones = [0.5f32; 27];
    let view = |shape: &[usize]| View::new(&ones[..shape.iter().product()], shape).unwrap();
    let error = reference::forward(&Args::new(view(&[1, 3, 8]), view(&[3, 9]))).unwrap_err();
    assert!(matches!(error, Error::Value { argument: "weight", .. }), "{error}");
}
