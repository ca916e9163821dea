//! Wrong arguments: named, and nothing is written.

use super::*;
use statescan::{Error, View, ViewMut};

/// Runs a forward pass that must fail, and checks that the output keeps its bytes.
#[track_caller]
fn fails(args: &Args<'_>, op: impl FnOnce(&Error) -> bool) {
    let mut y = Buffer::zeros(DType::F32, &[2, 4, 6]).unwrap();
    y.fill_bytes(0x5a);
    let before = y.bytes().to_vec();
    let error =
        selective_scan::forward(&Exec::cpu(1), args, &mut Outputs { y: Some(y.view_mut()), ..Default::default() }).unwrap_err();
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
    let error = selective_scan::forward(&Exec::cpu(1), &args, &mut Outputs { y: Some(y), ..Default::default() });
    assert!(matches!(error, Err(Error::Stride { argument: "y", .. })), "{error:?}");
    let ptr = memory.as_mut_ptr().cast();
    // SAFETY: the checks refuse the call before anything is written.
    let view = |shape: &[usize], strides: &[isize]| unsafe {
        ViewMut::from_raw_parts(ptr, DType::F32, statescan::Device::Cpu, shape, strides).unwrap()
    };
    let mut grads =
        Gradients { x: Some(view(&[2, 4, 6], &[24, 6, 1])), dt: Some(view(&[2, 4, 6], &[24, 6, 1])), ..Default::default() };
    let error = selective_scan::backward(&Exec::cpu(1), &args, None, &Cotangents::default(), &mut grads);
    assert!(matches!(error, Err(Error::Overlap { argument: "grad of dt", other: "grad of x", .. })), "{error:?}");
}

#[test]
fn a_gradient_needs_its_argument_and_its_device() {
    let inputs = &Inputs::new(&Case::new(DType::F32, 2, 4, 6, 3, 0));
    let args = with(inputs, |_| ());
    let mut dz = Buffer::zeros(DType::F32, &[2, 4, 6]).unwrap();
    let mut grads = Gradients { z: Some(dz.view_mut()), ..Default::default() };
    let error = selective_scan::backward(&Exec::cpu(1), &args, None, &Cotangents::default(), &mut grads);
    assert!(matches!(error, Err(Error::Presence { argument: "z", .. })), "{error:?}");
    // SAFETY: never read, the device is refused first.
    let elsewhere =
        unsafe { View::from_raw_parts(core::ptr::dangling(), DType::F32, statescan::Device::Cuda(0), &[2, 4, 6], &[24, 6, 1]) };
    fails(&Args { x: elsewhere.unwrap(), ..args }, |e| matches!(e, Error::Device { argument: "x", .. }));
}
