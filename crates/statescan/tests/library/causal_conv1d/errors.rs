//! What is wrong with a call is named.

use super::*;
use crate::common::{assert_too_large, broadcast};

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let case = Case::new(DType::F32, 2, 3, 8, 4);
    let inputs = Inputs::new(&case);
    let args = inputs.args(&case);
    let ones = |dtype, shape: &[usize]| Tensor::host(dtype, shape).unwrap();
    let (flat, wide, short) = (ones(DType::F32, &[3, 8]), ones(DType::F32, &[3, 9]), ones(DType::F32, &[2, 3, 2]));
    let (integers, four) = (ones(DType::I32, &[2, 3, 8]), ones(DType::F32, &[4]));
    let failing = |args: &Args<'_>| {
        let mut y = poisoned(&mut Rng::new(1), DType::F32, &[2, 3, 8], Layout::Dense);
        let out = &mut Outputs::default().y(y.view_mut());
        let error = causal_conv1d::forward(&Exec::cpu(1), args, out).unwrap_err();
        assert!(y.bytes().iter().all(|&b| b == 0xff), "written in spite of {error}");
        error
    };
    assert!(matches!(failing(&args.x(flat.view())), Error::Rank { argument: "x", .. }));
    assert!(matches!(failing(&args.x(integers.view())), Error::DType { argument: "x", .. }));
    assert!(matches!(failing(&args.weight(wide.view())), Error::Value { argument: "weight", .. }));
    assert!(matches!(failing(&args.weight(four.view())), Error::Rank { argument: "weight", .. }));
    assert!(matches!(failing(&args.weight(flat.view())), Error::Shape { argument: "initial_states", .. }));
    assert!(matches!(failing(&args.bias(four.view())), Error::Shape { argument: "bias", .. }));
    let states = Some(short.view());
    assert!(matches!(failing(&args.initial_states(states)), Error::Shape { argument: "initial_states", .. }));
    let bounds = [0i64, 8];
    let sequences = Sequences::CuSeqlens(View::new(&bounds, &[2]).unwrap());
    assert!(matches!(failing(&args.sequences(sequences)), Error::Value { argument: "cu_seqlens", .. }));
    let sequences = Sequences::SeqIdx(View::new(&bounds, &[2]).unwrap());
    assert!(matches!(failing(&args.sequences(sequences)), Error::Shape { argument: "seq_idx", .. }));

    let exec = Exec::cpu(1);
    let mut wrong = ones(DType::F32, &[2, 3, 7]);
    let error = causal_conv1d::forward(&exec, &args, &mut Outputs::default().y(wrong.view_mut()));
    assert!(matches!(error, Err(Error::Shape { argument: "y", .. })));
    let mut folded = Tensor::strided(DType::F32, &[2, 3, 8], &[0, 8, 1], 0, 24).unwrap();
    let error = causal_conv1d::forward(&exec, &args, &mut Outputs::default().y(folded.view_mut()));
    assert!(matches!(error, Err(Error::Stride { argument: "y", .. })));
    let mut bias = ones(DType::F32, &[3]);
    let grads = &mut Gradients::default().bias(bias.view_mut());
    let error = causal_conv1d::backward(&exec, &args.bias(None), &Cotangents::default(), grads);
    assert!(matches!(error, Err(Error::Presence { argument: "bias", .. })));
}

#[test]
fn sizes_that_no_memory_has_are_refused() {
    let (one, none, exec) = (&[0.5f32], &[0i64], &Exec::cpu(2));
    let is_too_large = |args: &Args<'_>| {
        let op = "causal_conv1d";
        assert_too_large(op, causal_conv1d::forward(exec, args, &mut Outputs::default()));
        let mut grad = [7f32; 2];
        let mut grads = Gradients::default().weight(ViewMut::new(&mut grad, &[1, 2]).unwrap());
        assert_too_large(op, causal_conv1d::backward(exec, args, &Cotangents::default(), &mut grads));
        assert_too_large(op, causal_conv1d::final_states_shape(args));
        assert_too_large(op, causal_conv1d::backward_workspace_len(exec, args));
        assert_too_large(op, reference::forward(args));
        assert_too_large(op, reference::backward(args, &Cotangents::default()));
        assert_eq!(grad, [7.0; 2]);
    };
    let args = |shape: [usize; 3]| Args::new(broadcast(one, &shape), broadcast(one, &[shape[1], 2]));
    for shape in [
        [1, 1, 1 << 62],
        [1, 1, (1 << 44) + 1],
        [1, 1 << 62, 1],
        [1 << 62, 1, 1],
        [1 << 20, 1 << 20, 1 << 20],
        [1 << 62, 0, 1],
        [1, 0, 1 << 62],
    ] {
        is_too_large(&args(shape));
        is_too_large(&args(shape).reverse(true));
    }
    is_too_large(&args([1, 1, 0]).sequences(Sequences::CuSeqlens(broadcast(none, &[1 << 62]))));
    let index = Sequences::SeqIdx(broadcast(none, &[1, 1]));
    is_too_large(&args([1; 3]).sequences(index).initial_states(broadcast(one, &[1, 1 << 62, 1, 1])));
    assert_eq!(causal_conv1d::final_states_shape(&args([1, 1, 1 << 44])).unwrap()[..], [1, 1, 1]);
}
