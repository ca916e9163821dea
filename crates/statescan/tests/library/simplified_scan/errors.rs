//! What is wrong with a call is named.

use super::*;

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let exec = Exec::cpu(1);
    let (real, complex) = (vec![0.5f32; 240], vec![num_complex::Complex32::ONE; 240]);
    let index = vec![0i32; 240];
    let view = |shape: &[usize]| View::new(&real[..shape.iter().product()], shape).unwrap();
    let cview = |shape: &[usize]| View::new(&complex[..shape.iter().product()], shape).unwrap();
    let good = Args::new(cview(&[2, 3, 5]), view(&[2, 4, 5]), cview(&[4]), cview(&[4, 3]), cview(&[3, 4]));
    let run = |args: Args<'_>| {
        let mut y = vec![num_complex::Complex32::I; 30];
        let mut out = Outputs::default().y(statescan::ViewMut::new(&mut y, &[2, 3, 5]).unwrap());
        let result = forward(&exec, &args, &mut out);
        assert!(result.is_ok() || y.iter().all(|v| *v == num_complex::Complex32::I));
        result
    };
    run(good).unwrap();
    let fails = |args: Args<'_>| run(args).unwrap_err();
    assert!(matches!(fails(good.u(cview(&[3, 5]))), Error::Rank { argument: "u", .. }));
    assert!(matches!(fails(good.delta(view(&[2, 4, 6]))), Error::Shape { argument: "delta", .. }));
    assert!(matches!(fails(good.delta(view(&[2, 4]))), Error::Rank { argument: "delta", .. }));
    assert!(matches!(fails(good.delta(cview(&[4]))), Error::DType { argument: "delta", .. }));
    assert!(matches!(fails(good.delta_a(view(&[5]))), Error::Shape { argument: "delta_a", .. }));
    assert!(matches!(fails(good.a(cview(&[4, 2]))), Error::Shape { argument: "a", .. }));
    assert!(matches!(fails(good.a(cview(&[4, 1, 1]))), Error::Rank { argument: "a", .. }));
    assert!(matches!(fails(good.b(cview(&[3, 4]))), Error::Shape { argument: "b", .. }));
    assert!(matches!(fails(good.c(cview(&[4, 3]))), Error::Shape { argument: "c", .. }));
    assert!(matches!(fails(good.initial_state(cview(&[3, 4]))), Error::Shape { argument: "initial_state", .. }));
    let bounds = View::new(&index[..3], &[3]).unwrap();
    assert!(matches!(fails(good.sequences(Sequences::CuSeqlens(bounds))), Error::Value { argument: "cu_seqlens", .. }));
    let inner = |d| good.d(view(d));
    assert!(matches!(fails(inner(&[3])), Error::DType { op: "s5_inner", argument: "y", .. }));
    assert!(matches!(fails(inner(&[4])), Error::Shape { argument: "d", .. }));

    let mut d = vec![7f32; 3];
    let mut grads = Gradients::default().d(statescan::ViewMut::new(&mut d, &[3]).unwrap());
    let error = backward(&exec, &good, None, &Cotangents::default(), &mut grads).unwrap_err();
    assert!(matches!(error, Error::Presence { argument: "d", .. }));
    let mut u = vec![7f32; 30];
    let mut grads = Gradients::default().u(statescan::ViewMut::new(&mut u, &[2, 3, 5]).unwrap());
    let error = backward(&exec, &good, None, &Cotangents::default(), &mut grads).unwrap_err();
    assert!(matches!(error, Error::DType { argument: "grad of u", .. }));
    assert!(u.iter().chain(&d).all(|&v| v == 7.0));
    // saved states of one piece only
    let long = Args::new(cview(&[1, 1, 130]), view(&[1, 1, 130]), cview(&[1]), cview(&[1, 1]), cview(&[1, 1]));
    let len = checkpoints_len(&long).unwrap();
    let mut saved = vec![0f32; 2 * len];
    let checkpoints = Some(statescan::ViewMut::strided(&mut saved, 0, &[len], &[2]).unwrap());
    let error = forward(&exec, &long, &mut Outputs::default().checkpoints(checkpoints)).unwrap_err();
    assert!(matches!(error, Error::Presence { argument: "checkpoints", .. }));
}

#[test]
fn sizes_that_no_memory_has_are_refused() {
    let (one, none, exec) = (&[0.5f32], &[0i64], &Exec::cpu(2));
    for (op, real) in [("simplified_scan", false), ("s5_inner", true)] {
        let is_too_large = |args: &Args<'_>| {
            assert_too_large(op, forward(exec, args, &mut Outputs::default()));
            let mut grad = [7f32];
            let mut grads = Gradients::default().a(statescan::ViewMut::new(&mut grad, &[1]).unwrap());
            assert_too_large(op, backward(exec, args, None, &Cotangents::default(), &mut grads));
            assert_too_large(op, checkpoints_len(args));
            assert_too_large(op, last_state_shape(args));
            assert_too_large(op, reference::forward(args));
            assert_too_large(op, reference::backward(args, &Cotangents::default()));
            assert_eq!(grad, [7.0]);
        };
        let args = |[batch, dim, seqlen, dstate]: [usize; 4]| {
            let (u, delta) = (broadcast(one, &[batch, dim, seqlen]), broadcast(one, &[dstate]));
            let maps = [broadcast(one, &[dstate, dim]), broadcast(one, &[dim, dstate])];
            Args::new(u, delta, delta, maps[0], maps[1]).d(real.then(|| broadcast(one, &[dim])))
        };
        for sizes in [
            [1, 1, 1, 1 << 62],
            [1, 1, 1 << 62, 1],
            [1, 1, (1 << 40) + 1, 1],
            [1, 1 << 62, 1, 1],
            [1 << 62, 1, 1, 1],
            [1, 1 << 31, 1, 1 << 31],
            [1 << 62, 0, 1, 0],
        ] {
            is_too_large(&args(sizes));
            is_too_large(&args(sizes).reverse(true));
        }
        is_too_large(&args([1, 1, 0, 1]).sequences(Sequences::CuSeqlens(broadcast(none, &[1 << 62]))));
        let index = Sequences::SeqIdx(broadcast(none, &[1, 1]));
        is_too_large(&args([1; 4]).sequences(index).initial_state(broadcast(one, &[1, 1 << 62, 1])));
        assert_eq!(checkpoints_len(&args([1, 1, 1 << 40, 1])), Ok(((1 << 34) - 1) * 32));
    }
}
