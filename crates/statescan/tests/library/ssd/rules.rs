//! What every operation promises: results that do not depend on threads, sequences that do not disturb each other, errors that name the
//! argument and write nothing.

use super::*;
use crate::common::Layout;
use crate::common::device::gpu;
use crate::common::{assert_too_large, broadcast};
use statescan::{Error, ViewMut};

#[test]
fn results_do_not_depend_on_threads_or_runs() {
    for (sizes, options) in [
        ([3, 150, 12, 50, 2, 9], GATE | SKIP | BIAS | SOFTPLUS | INITIAL),
        ([1, 200, 9, 64, 1, 16], BOUNDS | INITIAL | WIDE_SKIP),
        // two jobs in eight pieces
        ([2, 1300, 4, 64, 1, 16], SKIP | INITIAL),
    ] {
        let case = Case::new(DType::F32, sizes, options);
        let inputs = Inputs::new(&case);
        let whole = |threads| {
            let exec = Exec::cpu(threads);
            let out = run_forward(&case, &inputs, &exec, true).unwrap();
            let mut bytes = [out.y.bytes(), out.last.bytes(), out.saved.bytes()].concat();
            for (_, grad) in run_backward(&case, &inputs, &exec, Some(&out.saved)) {
                bytes.extend_from_slice(grad.bytes());
            }
            bytes
        };
        let expected = whole(1);
        for threads in [1, 2, 3, 7] {
            assert!(whole(threads) == expected, "{threads} threads differ");
        }
    }
}

#[test]
fn chunk_size_changes_nothing() {
    let case = Case::new(DType::F32, [1, 100, 4, 8, 1, 6], INITIAL);
    let inputs = Inputs::new(&case);
    let expected = run_forward(&case, &inputs, &Exec::cpu(1), true).unwrap();
    for chunk_size in [1, 5, 1000] {
        let args = inputs.args(&case).chunk_size(chunk_size);
        let mut y = Tensor::host(DType::F32, &inputs.x.shape()).unwrap();
        ssd::forward(&Exec::cpu(1), &args, &mut Outputs::default().y(y.view_mut())).unwrap();
        assert_eq!(y.bytes(), expected.y.bytes());
    }
}

#[test]
fn nan_and_infinity_stay_where_they_are() {
    for exec in [Some(Exec::cpu(1)), gpu()].into_iter().flatten() {
        nan_and_infinity_stay(&exec);
    }
}

fn nan_and_infinity_stay(exec: &Exec) {
    let poison = |buffer: &mut Tensor, at: &[usize], with: f64| {
        let mut dense = buffer.to_dense();
        *dense.at_mut(at) = with.into();
        buffer.copy_from(&dense);
    };
    for with in [f64::NAN, f64::INFINITY] {
        // one row, head and column of x
        let case = Case::new(DType::F32, [2, 90, 4, 5, 2, 6], GATE | SKIP | INITIAL);
        let mut inputs = Inputs::new(&case);
        poison(&mut inputs.x, &[1, 40, 2, 3], with);
        let out = run_forward(&case, &inputs, exec, true).unwrap();
        clean("y", &out.y, |i| i[0] == 1 && i[2] == 2 && i[3] == 3);
        clean("state", &out.last, |i| i[0] == 1 && i[1] == 2 && i[2] == 3);
        for (name, grad) in run_backward(&case, &inputs, exec, Some(&out.saved)) {
            match name {
                "x" | "z" | "initial_state" => clean(name, &grad, |i| i[0] == 1 && (i[1] == 2 || i[2] == 2)),
                "dt" => clean(name, &grad, |i| i[0] == 1 && i[2] == 2),
                "b" | "c" => clean(name, &grad, |i| i[0] == 1 && i[2] == 1),
                _ => clean(name, &grad, |i| i[0] == 2),
            }
        }
        // one group's B, one head's dt
        let mut inputs = Inputs::new(&case);
        poison(&mut inputs.b, &[0, 10, 1, 0], with);
        let out = run_forward(&case, &inputs, exec, true).unwrap();
        clean("y", &out.y, |i| i[0] == 0 && i[2] >= 2 && i[1] >= 10);
        let mut inputs = Inputs::new(&case);
        poison(&mut inputs.dt, &[0, 70, 3], with);
        let out = run_forward(&case, &inputs, exec, true).unwrap();
        clean("y", &out.y, |i| i[0] == 0 && i[2] == 3 && i[1] >= 70);
        let case = Case { options: case.options | OWN_DECAY_STEP, ..case };
        let mut inputs = Inputs::new(&case);
        poison(&mut inputs.dt_a, &[0, 70, 3], with);
        let out = run_forward(&case, &inputs, exec, true).unwrap();
        clean("y", &out.y, |i| i[0] == 0 && i[2] == 3 && i[1] >= 70);
        for (name, grad) in run_backward(&case, &inputs, exec, None) {
            match name {
                "x" | "z" | "dt" | "dt_a" => clean(name, &grad, |i| i[0] == 0 && i[2] == 3),
                "initial_state" => clean(name, &grad, |i| i[0] == 0 && i[1] == 3),
                "b" | "c" => clean(name, &grad, |i| i[0] == 0 && i[2] == 1),
                _ => clean(name, &grad, |i| i[0] == 3),
            }
        }
        // one packed sequence
        let case = Case::new(DType::F32, [1, 90, 3, 5, 1, 6], BOUNDS | INITIAL);
        let mut inputs = Inputs::new(&case);
        for t in 30..60 {
            poison(&mut inputs.x, &[0, t, 1, 1], with);
            poison(&mut inputs.c, &[0, t, 0, 1], with);
        }
        let out = run_forward(&case, &inputs, exec, true).unwrap();
        clean("y", &out.y, |i| (30..60).contains(&i[1]));
        clean("state", &out.last, |i| i[0] == 2);
        for (name, grad) in run_backward(&case, &inputs, exec, None) {
            match name {
                "x" | "dt" | "b" | "c" => clean(name, &grad, |i| (30..60).contains(&i[1])),
                "initial_state" => clean(name, &grad, |i| i[0] == 2),
                _ => {}
            }
        }
    }
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let case = Case::new(DType::F32, [2, 7, 4, 3, 2, 5], GATE | SKIP | BIAS | INITIAL);
    let inputs = Inputs::new(&case);
    let good = inputs.args(&case);
    let small = Tensor::host(DType::F32, &[1]).unwrap();
    let ints = Tensor::host(DType::I32, &[4]).unwrap();
    let odd = Tensor::host(DType::F32, &[2, 7, 3, 5]).unwrap();
    let bounds = [0i64, 3, 7];
    type Wrong<'a> = (&'static str, Args<'a>, fn(&Error) -> bool);
    let wrong: Vec<Wrong<'_>> = vec![
        ("x", good.x(small.view()), |e| matches!(e, Error::Rank { .. })),
        ("dt", good.dt(good.x), |e| matches!(e, Error::Shape { .. })),
        ("dt", good.dt(good.dt.slice(1, 0..3)), |e| matches!(e, Error::Shape { .. })),
        ("a", good.a(small.view()), |e| matches!(e, Error::Shape { .. })),
        ("a", good.a(ints.view()), |e| matches!(e, Error::DType { .. })),
        ("b", good.b(small.view()), |e| matches!(e, Error::Rank { .. })),
        ("b", good.b(odd.view()).c(odd.view()), |e| matches!(e, Error::Value { .. })),
        ("c", good.c(good.c.slice(3, 0..4)), |e| matches!(e, Error::Shape { .. })),
        ("d", good.d(small.view()), |e| matches!(e, Error::Shape { .. })),
        ("z", good.z(good.x.slice(3, 0..1)), |e| matches!(e, Error::Shape { .. })),
        ("dt_bias", good.dt_bias(small.view()), |e| matches!(e, Error::Shape { .. })),
        ("dt_a", good.dt_a(good.x), |e| matches!(e, Error::Shape { .. })),
        ("dt_a", good.dt_a(good.dt.slice(2, 0..1)), |e| matches!(e, Error::Shape { .. })),
        ("initial_state", good.initial_state(good.x), |e| matches!(e, Error::Shape { .. })),
        ("dt_limit", good.dt_limit((1.0, 0.0)), |e| matches!(e, Error::Limits { .. })),
        ("dt_limit", good.dt_limit((f64::NAN, 0.0)), |e| matches!(e, Error::Limits { .. })),
        ("chunk_size", good.chunk_size(0), |e| matches!(e, Error::Value { .. })),
        ("cu_seqlens", good.sequences(Sequences::CuSeqlens(View::new(&bounds, &[3]).unwrap())), |e| {
            matches!(e, Error::Value { .. })
        }),
        ("seq_idx", good.sequences(Sequences::SeqIdx(good.dt)), |e| matches!(e, Error::DType { .. })),
    ];
    for (argument, args, expected) in wrong {
        let mut y = Tensor::host(DType::F32, &inputs.x.shape()).unwrap();
        let before = y.bytes().to_vec();
        let mut out = Outputs::default().y(y.view_mut());
        let error = ssd::forward(&Exec::cpu(1), &args, &mut out).unwrap_err();
        assert!(expected(&error) && error.to_string().contains(&format!("`{argument}`")), "{argument}: {error}");
        let error = ssd::backward(&Exec::cpu(1), &args, None, &Cotangents::default(), &mut Gradients::default()).unwrap_err();
        assert!(expected(&error), "{argument}: {error}");
        assert!(y.bytes() == before, "{argument}: something was written");
    }
}

#[test]
fn wrong_outputs_are_named() {
    let case = Case::new(DType::F32, [1, 70, 2, 3, 1, 5], INITIAL);
    let inputs = Inputs::new(&case);
    let (args, exec) = (inputs.args(&case), Exec::cpu(1));
    let forward = |out: &mut Outputs<'_>| ssd::forward(&exec, &args, out).unwrap_err();
    let mut memory = vec![0f32; 4000];
    let shape = [1, 70, 2, 3];
    let y = ViewMut::new(&mut memory[..419], &[419]).unwrap();
    assert!(matches!(forward(&mut Outputs::default().y(y)), Error::Shape { argument: "y", .. }));
    let y = ViewMut::strided(&mut memory, 0, &shape, &[0, 6, 3, 0]).unwrap();
    assert!(matches!(forward(&mut Outputs::default().y(y)), Error::Stride { argument: "y", .. }));
    let len = ssd::checkpoints_len(&args).unwrap();
    assert_eq!(len, 2 * 3 * 5);
    let saved = ViewMut::strided(&mut memory, 0, &[len], &[2]).unwrap();
    let error = forward(&mut Outputs::default().checkpoints(saved));
    assert!(matches!(error, Error::Presence { argument: "checkpoints", .. }), "{error}");
    let state = ViewMut::new(&mut memory[..30], &[1, 2, 5, 3]).unwrap();
    let error = forward(&mut Outputs::default().final_state(state));
    assert!(matches!(error, Error::Shape { argument: "final_state", .. }), "{error}");
    let mut grads = Gradients::default().z(ViewMut::new(&mut memory[..420], &shape).unwrap());
    let error = ssd::backward(&exec, &args, None, &Cotangents::default(), &mut grads).unwrap_err();
    assert!(matches!(error, Error::Presence { argument: "z", .. }), "{error}");
    let mut grads = Gradients::default().dt_a(ViewMut::new(&mut memory[..140], &shape[..3]).unwrap());
    let error = ssd::backward(&exec, &args, None, &Cotangents::default(), &mut grads).unwrap_err();
    assert!(matches!(error, Error::Presence { argument: "dt_a", .. }), "{error}");
    let mut same = poisoned(&mut Rng::new(1), DType::F32, &shape, Layout::Dense);
    // SAFETY: nothing is written, since the call refuses.
    let twice = unsafe {
        ViewMut::from_raw_parts(same.view_mut().as_mut_ptr(), DType::F32, statescan::Device::Cpu, &shape, &[420, 6, 3, 1])
    };
    let over = args.x(same.view());
    let error = ssd::forward(&exec, &over, &mut Outputs::default().y(twice.unwrap())).unwrap_err();
    assert!(matches!(error, Error::Overlap { argument: "y", other: "x", .. }), "{error}");
}

#[test]
fn sizes_that_no_memory_has_are_refused() {
    let (one, none, exec) = (&[0.5f32], &[0i64], &Exec::cpu(2));
    let is_too_large = |args: &Args<'_>| {
        assert_too_large("ssd", ssd::forward(exec, args, &mut Outputs::default()));
        let mut grad = [7f32];
        let mut grads = Gradients::default().a(ViewMut::new(&mut grad, &[1]).unwrap());
        assert_too_large("ssd", ssd::backward(exec, args, None, &Cotangents::default(), &mut grads));
        assert_too_large("ssd", ssd::checkpoints_len(args));
        assert_too_large("ssd", ssd::final_state_shape(args));
        assert_too_large("ssd", reference::forward(args));
        assert_too_large("ssd", reference::backward(args, &Cotangents::default()));
        assert_eq!(grad, [7.0]);
    };
    let args = |[batch, seqlen, heads, headdim, groups, dstate]: [usize; 6]| {
        let (x, dt) = (broadcast(one, &[batch, seqlen, heads, headdim]), broadcast(one, &[batch, seqlen, heads]));
        let map = broadcast(one, &[batch, seqlen, groups, dstate]);
        Args::new(x, dt, broadcast(one, &[heads]), map, map)
    };
    for sizes in [
        [1, 1, 1, 1, 1, 1 << 62],
        [1, 1, 1, 1 << 62, 1, 1],
        [1, 1, 1 << 62, 1, 1, 1],
        [1, 1, 1 << 62, 1, 1 << 62, 1],
        [1, 1 << 62, 1, 1, 1, 1],
        [1, (1 << 36) + 1, 1, 1, 1, 1],
        [1 << 62, 1, 1, 1, 1, 1],
        [1, 1, 1 << 20, 1 << 20, 1, 1 << 20],
        [1, 1, 0, 1, 1 << 62, 1],
        [1 << 40, 0, 1 << 20, 1, 1, 1],
    ] {
        is_too_large(&args(sizes));
        is_too_large(&args(sizes).reverse(true));
    }
    is_too_large(&args([1, 0, 1, 1, 1, 1]).sequences(Sequences::CuSeqlens(broadcast(none, &[1 << 62]))));
    let index = Sequences::SeqIdx(broadcast(none, &[1, 1]));
    is_too_large(&args([1; 6]).sequences(index).initial_state(broadcast(one, &[1, 1 << 62, 1, 1, 1])));
    assert_eq!(ssd::checkpoints_len(&args([1, 1 << 36, 1, 1, 1, 1])), Ok((1 << 30) - 1));
}
