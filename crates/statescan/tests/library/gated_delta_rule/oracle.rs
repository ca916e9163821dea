//! The oracle against what is known of the rule.

use super::*;

/// An argument's numbers, changed.
fn changed(tensor: &mut Tensor, mut value: impl FnMut(f64) -> f64) {
    let numbers = tensor.to_dense();
    let mut numbers = numbers.data().iter();
    tensor.fill_with(|| value(numbers.next().unwrap().re).into());
}

#[track_caller]
fn same(got: &Dense, expected: &Dense) {
    let bound = ErrorBound { absolute: 1e-12, relative: 1e-12 };
    let (absolute, _, within) = statescan::tensor::max_errors(got.data(), expected.data(), bound);
    assert!(within, "{absolute:.3e}");
}

#[test]
fn without_beta_a_state_decays_and_is_read() {
    let case = Case::new(DType::F64, [1, 9, 1, 2, 4, 3], DECAY | BETA | INITIAL);
    let mut inputs = Inputs::new(&case);
    changed(&mut inputs.beta, |_| 0.0);
    let got = reference::forward(&inputs.args(&case)).unwrap();
    let (g, state, q) = (inputs.g.to_dense(), inputs.state.to_dense(), inputs.q.to_dense());
    for j in 0..2 {
        let mut log = 0.0;
        for t in 0..9 {
            log += g.at(&[0, t, j]).re;
            for p in 0..3 {
                let read: f64 = (0..4).map(|n| q.at(&[0, t, 0, n]).re * state.at(&[0, j, n, p]).re).sum();
                assert!((got.y.at(&[0, t, j, p]).re - log.exp() * read / 2.0).abs() < 1e-12);
            }
        }
        for n in 0..4 {
            for p in 0..3 {
                let expected = log.exp() * state.at(&[0, j, n, p]).re;
                assert!((got.final_state.at(&[0, j, n, p]).re - expected).abs() < 1e-12);
            }
        }
    }
}

#[test]
fn a_unit_key_overwrites_its_value() {
    // beta is 1 where there is none: what is read with the key that was written last is the value that was written
    let case = Case::new(DType::F64, [2, 7, 2, 2, 5, 4], UNIT | INITIAL | SCALE);
    let mut inputs = Inputs::new(&case);
    changed(&mut inputs.k, |k| 1e5 * k);
    inputs.q = Tensor::from_dense(&inputs.k.to_dense(), DType::F64);
    let got = reference::forward(&inputs.args(&case)).unwrap();
    let mut expected = inputs.v.to_dense();
    expected.data_mut().iter_mut().for_each(|v| *v *= 0.3);
    let bound = ErrorBound { absolute: 1e-9, relative: 1e-9 };
    assert!(statescan::tensor::max_errors(got.y.data(), expected.data(), bound).2);
}

#[test]
fn equal_decays_of_channels_are_one_decay() {
    let wide = Case::new(DType::F64, [2, 11, 1, 2, 4, 3], RAW | BIAS | CHANNELS | BETA | INITIAL);
    let one = Case { options: wide.options & !CHANNELS, ..wide.clone() };
    let (mut inputs, narrow) = (Inputs::new(&wide), Inputs::new(&one));
    let (g, bias) = (narrow.g.to_dense(), narrow.bias.to_dense());
    let (mut at, mut own) = (0, 0);
    inputs.g.fill_with(|| {
        at += 1;
        g.data()[(at - 1) / 4]
    });
    inputs.bias.fill_with(|| {
        own += 1;
        bias.data()[(own - 1) / 4]
    });
    inputs.a_log = Tensor::from_dense(&narrow.a_log.to_dense(), DType::F64);
    let args = inputs.args(&wide);
    let narrow = args.g(narrow.g.view()).dt_bias(narrow.bias.view());
    let (got, expected) = (reference::forward(&args).unwrap(), reference::forward(&narrow).unwrap());
    same(&got.y, &expected.y);
    same(&got.final_state, &expected.final_state);
    let [got, expected] = [&args, &narrow].map(|args| reference::backward(args, &inputs.cotangents()).unwrap());
    for name in ["q", "k", "v", "beta", "a_log", "initial_state"] {
        same(of(&got, name), of(&expected, name));
    }
    for name in ["g", "dt_bias"] {
        let (wide, narrow) = (of(&got, name), of(&expected, name));
        for (at, sum) in narrow.data().iter().enumerate() {
            let channels: f64 = wide.data()[4 * at..][..4].iter().map(|v| v.re).sum();
            assert!((channels - sum.re).abs() < 1e-12, "{name}");
        }
    }
}
