//! One step of the simplified scan, beside what is drawn for every operation: its steps are the scan.

use crate::common::device::{home, on};
use crate::common::*;
use num_complex::Complex64;
use statescan::ops::simplified_scan;
use statescan::ops::simplified_scan::update::{Args, update};
use statescan::tensor::ErrorBound;
use statescan::{DType, Discretization, Tensor};

#[test]
fn steps_give_the_scan() {
    let (batch, dim, dstate, seqlen) = (2, 5, 7, 40);
    for (i, method) in Discretization::ALL.into_iter().enumerate() {
        let mut rng = Rng::new(i as u64);
        let dense = Layout::Dense;
        let u = normal(&mut rng, DType::Complex64, &[batch, dim, seqlen], dense, 1.0);
        let delta = uniform(&mut rng, DType::F32, &[batch, dstate, seqlen], dense, 0.01, 0.6);
        let delta_a = uniform(&mut rng, DType::F32, &[dstate], dense, 0.01, 0.6);
        let a = random(&mut rng, DType::Complex64, &[dstate], dense, |rng| {
            Complex64::new(rng.uniform(-1.5, -0.05), rng.uniform(-4.0, 4.0))
        });
        let b = normal(&mut rng, DType::Complex64, &[dstate, dim], dense, 0.4);
        let c = normal(&mut rng, DType::Complex64, &[dim, dstate], dense, 0.4);
        let d = normal(&mut rng, DType::F32, &[dim], dense, 1.0);
        let host = [u, delta, delta_a, a, b, c, d];
        let [u, delta, delta_a, a, b, c, d] = host.each_ref().map(|tensor| tensor.view());
        let real = !i.is_multiple_of(2);
        let scan = simplified_scan::Args::new(u, delta, a, b, c)
            .delta_a((i > 1).then_some(delta_a))
            .discretization(method)
            .d(real.then_some(d));
        let whole = simplified_scan::reference::forward(&scan).unwrap();
        let y_type = if real { DType::F32 } else { DType::Complex64 };
        for exec in executors() {
            let here = host.each_ref().map(|tensor| on(&exec, tensor));
            let [u, delta, delta_a, a, b, c, d] = here.each_ref().map(|tensor| tensor.view());
            let mut state = Tensor::zeros(&exec, DType::Complex64, &[batch, dstate]).unwrap();
            let mut y = on(&exec, &poisoned(&mut rng, y_type, &[batch, dim, seqlen], dense));
            for t in 0..seqlen {
                let args = Args::new(u.index(2, t), delta.index(2, t), a, b, c)
                    .delta_a((i > 1).then_some(delta_a))
                    .discretization(method)
                    .d(real.then_some(d));
                update(&exec, &args, &mut state.view_mut(), &mut y.view_mut().index(2, t)).unwrap();
            }
            assert_close("y", &home(&y), &whole.y, ErrorBound::for_scan(y_type, seqlen));
            let bound = ErrorBound::for_scan(DType::Complex64, seqlen);
            assert_close("state", &home(&state), &whole.last_state, bound);
        }
    }
}
