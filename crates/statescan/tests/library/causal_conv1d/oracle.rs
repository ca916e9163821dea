//! The oracle against central differences, identities and numbers worked out by hand.

use super::*;
use crate::common::central_differences;

fn dense(rng: &mut Rng, shape: &[usize]) -> Dense {
    normal(rng, DType::F64, shape, Layout::Dense, 0.6).to_dense()
}

#[test]
fn the_oracle_agrees_with_central_differences() {
    for packing in [Packing::Whole, Packing::Bounds, Packing::Padded, Packing::Numbered] {
        let case = Case { reverse: packing == Packing::Bounds, ..Case::new(DType::F64, 2, 2, 14, 3).packed(packing) };
        let inputs = Inputs::new(&case);
        let args = inputs.args(&case);
        let cotangents = Cotangents::default().y(inputs.dy.view()).final_states(inputs.dlast.view());
        let by = reference::backward(&args, &cotangents).unwrap();
        let loss = |args: &Args<'_>| {
            let out = reference::forward_with_state_shape(args, &case.state_shape()).unwrap();
            let dot = |a: &Dense, b: &Tensor| -> f64 { a.data().iter().zip(b.to_dense().data()).map(|(a, b)| a.re * b.re).sum() };
            dot(&out.y, &inputs.dy) + dot(&out.final_states, &inputs.dlast)
        };
        let close = |name: &str, got: &Dense, expected: Dense| {
            let bound = ErrorBound { absolute: 1e-8, relative: 1e-7 };
            let (error, _, within) = statescan::tensor::max_errors(got.data(), expected.data(), bound);
            assert!(within, "{name} {packing:?}: {error:e}");
        };
        let at = |b: &Tensor, f: &mut dyn FnMut(View<'_>) -> f64| central_differences(&b.to_dense(), 1e-5, false, f);
        close("x", &by.x, at(&inputs.x, &mut |x| loss(&args.x(x))));
        close("weight", &by.weight, at(&inputs.weight, &mut |weight| loss(&args.weight(weight))));
        close("bias", &by.bias, at(&inputs.bias, &mut |bias| loss(&args.bias(bias))));
        let states = at(&inputs.states, &mut |s| loss(&args.initial_states(s)));
        close("initial_states", &by.initial_states, states);
    }
}

#[test]
fn the_oracle_keeps_the_identities() {
    let rng = &mut Rng::new(5);
    let (x, weight, first) = (dense(rng, &[2, 3, 20]), dense(rng, &[3, 4]), dense(rng, &[2, 3, 3]));
    let args = Args::new(x.real_view(), weight.real_view()).activation(Activation::Silu).initial_states(first.real_view());
    let whole = reference::forward(&args).unwrap();
    // a sequence cut in two, its state carried over, is the sequence
    for cut in [0, 1, 2, 7, 19, 20] {
        let left = reference::forward(&args.x(args.x.slice(2, 0..cut))).unwrap();
        let state = left.final_states.real_view();
        let right = reference::forward(&args.x(args.x.slice(2, cut..20)).initial_states(state)).unwrap();
        for t in 0..20 {
            let half = if t < cut { left.y.at(&[1, 2, t]) } else { right.y.at(&[1, 2, t - cut]) };
            assert_eq!(half, whole.y.at(&[1, 2, t]));
        }
        assert_eq!(right.final_states, whole.final_states);
    }
    // reversed is mirrored
    let mirrored = reference::forward(&args.x(args.x.flip(2)).reverse(true)).unwrap();
    assert_eq!(Dense::from_view(&mirrored.y.view().flip(2)), whole.y);
    assert_eq!(mirrored.final_states, whole.final_states);
    // a filter that is one at the present is the identity
    let unit = Dense::from_slice(&[0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0], &[3, 3]).unwrap();
    assert_eq!(reference::forward(&Args::new(x.real_view(), unit.real_view())).unwrap().y, x);
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
