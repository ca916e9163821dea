//! One-step causal convolution, beside what is drawn for every operation: its steps are the convolution.

use crate::common::{Layout, Rng, indices, normal};
use statescan::ops::causal_conv1d::update::{Args as UpdateArgs, reference as oracle};
use statescan::ops::causal_conv1d::{Args, reference};
use statescan::tensor::Dense;
use statescan::{DType, Error, View};

#[test]
fn steps_one_by_one_are_the_convolution() {
    let rng = &mut Rng::new(3);
    let mut dense = |shape: &[usize]| normal(rng, DType::F64, shape, Layout::Dense, 0.6).to_dense();
    let (x, weight, first) = (dense(&[2, 3, 11]), dense(&[3, 4]), dense(&[2, 3, 3]));
    let args = Args::new(x.real_view(), weight.real_view()).initial_states(first.real_view());
    let whole = reference::forward(&args).unwrap();
    // the latest inputs last, or a ring of five
    for ring in [false, true] {
        let mut state = Dense::zeros(&[2, 3, 5]).unwrap();
        let mut seen = vec![7i64; 2];
        for (b, d) in (0..2).flat_map(|b| (0..3).map(move |d| (b, d))) {
            for j in 0..3 {
                *state.at_mut(&[b, d, if ring { (7 - 3 + j) % 5 } else { 2 + j }]) = first.at(&[b, d, j]);
            }
        }
        for t in 0..11 {
            let counts = View::new(&seen, &[2]).unwrap();
            let args = UpdateArgs::new(x.real_view().index(2, t), weight.real_view()).cache_seqlens(ring.then_some(counts));
            let y;
            (y, state) = oracle::update(&args, &state.real_view()).unwrap();
            for (b, d) in (0..2).flat_map(|b| (0..3).map(move |d| (b, d))) {
                assert!((y.at(&[b, d]) - whole.y.at(&[b, d, t])).norm() < 1e-14);
            }
            seen.iter_mut().for_each(|n| *n += 1);
        }
    }
}

#[test]
fn a_state_holds_what_a_filter_reaches_and_counts_are_not_negative() {
    let ones = [0.5f32; 24];
    let view = |shape: &[usize]| View::new(&ones[..shape.iter().product()], shape).unwrap();
    let args = UpdateArgs::new(view(&[2, 3]), view(&[3, 4]));
    let error = oracle::update(&args, &view(&[2, 3, 2])).unwrap_err();
    assert!(matches!(error, Error::Value { argument: "conv_state", .. }), "{error}");
    let counts = indices(DType::I32, &[3, -1]);
    let error = oracle::update(&args.cache_seqlens(counts.view()), &view(&[2, 3, 4])).unwrap_err();
    assert!(matches!(error, Error::Index { argument: "cache_seqlens", position: 1, .. }), "{error}");
}
