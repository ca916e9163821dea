//! Wrong arguments: named, and nothing is written.

use super::*;
use crate::common::{assert_too_large, broadcast};
use statescan::{Error, View, ViewMut};

/// Runs a forward pass that must fail, and checks that the output keeps its bytes.
#[track_caller]
fn fails(args: &Args<'_>, op: impl FnOnce(&Error) -> bool) {
    let mut y = Tensor::host(DType::F32, &[2, 4, 6]).unwrap();
    y.fill_bytes(0x5a);
    let before = y.bytes().to_vec();
    let error = selective_scan::forward(&Exec::cpu(1), args, &mut Outputs::default().y(y.view_mut())).unwrap_err();
    assert!(op(&error), "{error}");
    assert!(error.to_string().starts_with("selective_scan: `"), "{error}");
    assert_eq!(y.bytes(), before);
}

fn with<'a>(inputs: &'a Inputs, change: impl FnOnce(&mut Args<'a>)) -> Args<'a> {
    let case = Case::new(DType::F32, 2, 4, 6, 3, 0);
    let mut args = inputs.args(&case);
    change(&mut args);
    args
}

#[test]
fn every_wrong_argument_is_named() {
    let inputs = &Inputs::new(&Case::new(DType::F32, 2, 4, 6, 3, 0));
    let small = vec![0f32; 1000];
    let ints = vec![0i32; 1000];
    let wrong = |shape: &[usize]| View::new(&small[..shape.iter().product()], shape).unwrap();
    let int = |shape: &[usize]| View::new(&ints[..shape.iter().product()], shape).unwrap();
    let named = |name: &'static str| move |e: &Error| e.to_string().contains(&format!("`{name}`"));
    fails(&with(inputs, |a| a.x = wrong(&[2, 4])), named("x"));
    fails(&with(inputs, |a| a.dt = wrong(&[2, 4, 5])), named("dt"));
    fails(&with(inputs, |a| a.dt = int(&[2, 4, 6])), named("dt"));
    fails(&with(inputs, |a| a.a = wrong(&[3])), named("a"));
    fails(&with(inputs, |a| a.a = wrong(&[3, 3])), named("a"));
    fails(&with(inputs, |a| a.b = wrong(&[2, 3, 3, 6])), named("b"));
    fails(&with(inputs, |a| a.b = wrong(&[2, 0, 3, 6])), named("b"));
    fails(&with(inputs, |a| a.c = wrong(&[2, 4, 6])), named("c"));
    fails(&with(inputs, |a| a.d = Some(wrong(&[5]))), named("d"));
    fails(&with(inputs, |a| a.z = Some(wrong(&[2, 4, 7]))), named("z"));
    fails(&with(inputs, |a| a.dt_bias = Some(wrong(&[4, 1]))), named("dt_bias"));
    fails(&with(inputs, |a| a.dt_a = Some(wrong(&[2, 4]))), named("dt_a"));
    fails(&with(inputs, |a| a.initial_state = Some(wrong(&[1, 4, 3]))), named("initial_state"));
    fails(&with(inputs, |a| a.dt_limit = (1.0, 0.0)), named("dt_limit"));
    fails(&with(inputs, |a| a.sequences = Sequences::CuSeqlens(int(&[3]))), named("cu_seqlens"));
    fails(&with(inputs, |a| a.sequences = Sequences::SeqIdx(int(&[2, 5]))), named("seq_idx"));
    let complex = vec![Complex64::ZERO; 36];
    let map = View::new(&complex, &[2, 3, 6]).unwrap();
    fails(&with(inputs, |a| a.b = map), |e| matches!(e, Error::DType { argument: "b", .. }));
}

#[test]
fn outputs_must_be_distinct_memory() {
    let inputs = &Inputs::new(&Case::new(DType::F32, 2, 4, 6, 3, 0));
    let args = with(inputs, |_| ());
    let mut memory = vec![0f32; 48];
    let y = ViewMut::strided(&mut memory, 0, &[2, 4, 6], &[0, 6, 1]).unwrap();
    let error = selective_scan::forward(&Exec::cpu(1), &args, &mut Outputs::default().y(y));
    assert!(matches!(error, Err(Error::Stride { argument: "y", .. })), "{error:?}");
    let ptr = memory.as_mut_ptr().cast();
    // SAFETY: the checks refuse the call before anything is written.
    let view = |shape: &[usize], strides: &[isize]| unsafe {
        ViewMut::from_raw_parts(ptr, DType::F32, statescan::Device::Cpu, shape, strides).unwrap()
    };
    let mut grads = Gradients::default().x(view(&[2, 4, 6], &[24, 6, 1])).dt(view(&[2, 4, 6], &[24, 6, 1]));
    let error = selective_scan::backward(&Exec::cpu(1), &args, None, &Cotangents::default(), &mut grads);
    assert!(matches!(error, Err(Error::Overlap { argument: "grad of dt", other: "grad of x", .. })), "{error:?}");
}

#[test]
fn a_gradient_needs_its_argument_and_its_device() {
    let inputs = &Inputs::new(&Case::new(DType::F32, 2, 4, 6, 3, 0));
    let args = with(inputs, |_| ());
    let mut dz = Tensor::host(DType::F32, &[2, 4, 6]).unwrap();
    let mut grads = Gradients::default().z(dz.view_mut());
    let error = selective_scan::backward(&Exec::cpu(1), &args, None, &Cotangents::default(), &mut grads);
    assert!(matches!(error, Err(Error::Presence { argument: "z", .. })), "{error:?}");
    // SAFETY: never read, the device is refused first.
    let elsewhere =
        unsafe { View::from_raw_parts(core::ptr::dangling(), DType::F32, statescan::Device::Cuda(0), &[2, 4, 6], &[24, 6, 1]) };
    fails(&args.x(elsewhere.unwrap()), |e| matches!(e, Error::Device { argument: "x", .. }));
}

/// Calls everything that takes arguments.
#[track_caller]
fn is_too_large(args: &Args<'_>) {
    let (op, exec) = ("selective_scan", &Exec::cpu(2));
    assert_too_large(op, selective_scan::forward(exec, args, &mut Outputs::default()));
    let (mut one, mut other) = ([7f32; 1], [7f32; 1]);
    let mut out =
        Outputs::default().y(ViewMut::new(&mut one, &[1, 1, 1]).unwrap()).checkpoints(ViewMut::new(&mut other, &[1]).unwrap());
    assert_too_large(op, selective_scan::forward(exec, args, &mut out));
    assert_too_large(op, selective_scan::backward(exec, args, None, &Cotangents::default(), &mut Gradients::default()));
    let mut grads = Gradients::default().d(ViewMut::new(&mut one, &[1]).unwrap());
    assert_too_large(op, selective_scan::backward(exec, args, None, &Cotangents::default(), &mut grads));
    assert_too_large(op, selective_scan::checkpoints_len(args));
    assert_too_large(op, selective_scan::final_state_shape(args));
    assert_too_large(op, selective_scan::backward_workspace_len(exec, args, false));
    assert_too_large(op, reference::forward(args));
    assert_too_large(op, reference::backward(args, &Cotangents::default()));
    assert_eq!([one, other], [[7.0]; 2]);
}

#[test]
fn sizes_that_no_memory_has_are_refused() {
    let (one, none) = (&[0.5f32], &[0i64]);
    let args = |[batch, dim, seqlen, dstate]: [usize; 4], varying: bool| {
        let (timed, own) = (broadcast(one, &[batch, dim, seqlen]), broadcast(one, &[dim, dstate]));
        let map = if varying { broadcast(one, &[batch, dstate, seqlen]) } else { own };
        Args::new(timed, timed, own, map, map)
    };
    for sizes in [
        [1, 1, 1, 1 << 62],
        [1, 1, 1, (1 << 62) + 3],
        [1, 1, 1, (1 << 20) + 1],
        [1, 1, 1 << 62, 1],
        [1, 1, (1 << 40) + 1, 1],
        [1, 1 << 62, 1, 1],
        [1 << 62, 1, 1, 1],
        [1 << 20, 1 << 20, 1 << 20, 1],
        [1, usize::MAX / 2, 1, 0],
        [1 << 62, 0, 1, 1],
        [1 << 30, 1 << 30, 0, 1],
        [1 << 24, 1 << 24, 1, 1 << 10],
    ] {
        for varying in [true, false] {
            is_too_large(&args(sizes, varying));
            is_too_large(&args(sizes, varying).reverse(true));
        }
    }
    // groups of no channels, sequences of no steps, sequences that states claim
    let groups = broadcast(one, &[1, 1 << 62, 1, 1]);
    is_too_large(&args([1, 0, 1, 1], true).b(groups));
    is_too_large(&args([1, 0, 1, 1], true).c(groups));
    is_too_large(&args([1, 1, 0, 1], true).sequences(Sequences::CuSeqlens(broadcast(none, &[1 << 62]))));
    let index = Sequences::SeqIdx(broadcast(none, &[1, 1]));
    is_too_large(&args([1; 4], true).sequences(index).initial_state(broadcast(one, &[1, 1 << 62, 1, 1])));
    // as many as there may be
    assert_eq!(selective_scan::checkpoints_len(&args([1, 1, 1 << 40, 1], true)), Ok(((1 << 34) - 1) * 16));
    assert_eq!(selective_scan::final_state_shape(&args([1, 1, 1, 1 << 20], false)).unwrap()[..], [1, 1, 1 << 20]);
}
