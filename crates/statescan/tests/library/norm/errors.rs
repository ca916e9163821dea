//! Bad arguments: an error that names the argument, and nothing written.

use super::*;
use crate::common::{assert_too_large, broadcast};

fn refuses(args: Args<'_>, words: &str) {
    let mut y = Tensor::host(DType::F32, &args.x.shape()).unwrap();
    y.fill_bytes(0xff);
    let error = norm::forward(&Exec::cpu(1), &args, &mut Outputs::default().y(y.view_mut())).unwrap_err();
    assert!(error.to_string().starts_with(&format!("norm: `{words}`")), "{error}");
    assert!(y.bytes().iter().all(|&byte| byte == 0xff), "written in spite of {error}");
}

#[test]
fn bad_arguments_are_named() {
    let data = [0.5f32; 24];
    let view = |shape: &[usize]| View::new(&data[..shape.iter().product()], shape).unwrap();
    let args = Args::new(view(&[4, 6]));
    refuses(args.weight(view(&[5])), "weight");
    refuses(args.bias(view(&[2, 3])), "bias");
    refuses(args.z(view(&[6, 4])), "z");
    refuses(args.residual(view(&[4, 5])), "residual");
    refuses(args.residual(view(&[6])), "residual");
    refuses(args.z(view(&[2, 2, 6])), "z");
    refuses(args.x(view(&[6])).residual(view(&[4, 6])), "residual");
    refuses(args.groups(0), "groups");
    refuses(args.groups(4), "groups");
    refuses(args.eps(-1.0), "eps");
    refuses(args.eps(f64::NAN), "eps");
    refuses(args.x(view(&[1, 1, 1, 2, 3])), "x");
}

#[test]
fn gradients_of_what_was_not_given_are_refused() {
    let (x, mut weight) = ([0.5f32; 6], [0f32; 6]);
    let args = Args::new(View::new(&x, &[1, 6]).unwrap());
    let mut grads = Gradients::default().weight(ViewMut::new(&mut weight, &[6]).unwrap());
    let error = norm::backward(&Exec::cpu(1), &args, &Cotangents::default(), &mut grads).unwrap_err();
    assert!(matches!(error, Error::Presence { op: "norm", argument: "weight", .. }), "{error}");
}

#[test]
fn sizes_have_a_limit() {
    let one = [1f32];
    let args = Args::new(broadcast(&one, &[1 << 20, 1 << 20, 1 << 20]));
    assert_too_large("norm", norm::forward(&Exec::cpu(1), &args, &mut Outputs::default()));
}
