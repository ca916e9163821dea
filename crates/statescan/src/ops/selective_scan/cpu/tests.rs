//! Scratch memory is as long as it must be, and no longer.

use crate::cpu::every_array_is_needed_to_its_end;
use crate::ops::selective_scan::{Args, Cotangents, Gradients, Outputs, backward, forward};
use crate::{DType, Exec, Tensor};

/// Whole tiles of whole vectors, with everything that has an array of its own.
fn call(dim: usize) -> impl Fn(bool) {
    let filled = |dtype, shape: &[usize]| {
        let mut tensor = Tensor::host(dtype, shape).unwrap();
        tensor.fill_with(|| (-0.5).into());
        tensor
    };
    // of a type that is converted on its way: f32 goes without a place for that
    let [x, z, dt, dt_a] = [(); 4].map(|()| filled(DType::BF16, &[1, dim, 128]));
    let [b, c] = [(); 2].map(|()| filled(DType::F32, &[1, 4, 128]));
    let [a, d] = [&[dim, 4][..], &[dim]].map(|shape| filled(DType::F32, shape));
    move |gradients| {
        let args = Args::new(x.view(), dt.view(), a.view(), b.view(), c.view()).d(d.view()).z(z.view());
        let args = args.dt_a(dt_a.view()).dt_softplus(true);
        let exec = Exec::cpu(1);
        let mut y = x.to(&exec).unwrap();
        if !gradients {
            return forward(&exec, &args, &mut Outputs::default().y(y.view_mut())).unwrap();
        }
        let mut by_z = z.to(&exec).unwrap();
        let mut wanted = Gradients::default().x(y.view_mut()).z(by_z.view_mut());
        backward(&exec, &args, None, &Cotangents::default().y(x.view()), &mut wanted).unwrap();
    }
}

#[test]
fn every_array_is_as_long_as_it_must_be() {
    // many channels have a lane each, few several
    for dim in [128, 4] {
        let call = call(dim);
        let counts = [false, true].map(|gradients| every_array_is_needed_to_its_end(|| call(gradients)));
        assert!(counts[0] >= 10 && counts[1] >= 20, "arrays of some jobs: {counts:?}");
    }
}
