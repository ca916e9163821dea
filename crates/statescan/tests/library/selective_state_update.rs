//! One step of a selective scan, beside what is drawn for every operation: its steps are the scan, vectors, limits that are none.

use crate::common::device::{home, on};
use crate::common::vectors::Case as Vectors;
use crate::common::{Layout, Rng, executors, normal, random};
use num_complex::Complex64;
use statescan::ops::selective_scan;
use statescan::ops::selective_scan::update::{Args, reference, update};
use statescan::tensor::Dense;
use statescan::{DType, Discretization, Error, Tensor, View};

#[test]
fn steps_one_by_one_are_the_scan() {
    let rng = &mut Rng::new(4);
    let (batch, dim, length, dstate) = (2, 6, 9, 3);
    for discretization in Discretization::ALL {
        for complex in [false, true] {
            let field = if complex { DType::Complex128 } else { DType::F64 };
            let bdl = [batch, dim, length];
            let [x, dt, z, dt_a] = [0; 4].map(|_| normal(rng, DType::F64, &bdl, Layout::Dense, 0.7));
            let [b, c] = [0; 2].map(|_| normal(rng, field, &[batch, 2, dstate, length], Layout::Dense, 0.7));
            let a = random(rng, field, &[dim, dstate], Layout::Dense, |rng| {
                Complex64::new(-rng.uniform(0.1, 2.0), if complex { rng.uniform(-2.0, 2.0) } else { 0.0 })
            });
            let [d, bias] = [0; 2].map(|_| normal(rng, DType::F64, &[dim], Layout::Dense, 0.5));
            for own_step in [false, true] {
                let scan = selective_scan::Args::new(x.view(), dt.view(), a.view(), b.view(), c.view())
                    .d(d.view())
                    .z(z.view())
                    .dt_bias(bias.view())
                    .dt_softplus(true)
                    .dt_limit((0.1, 0.9))
                    .dt_a(own_step.then(|| dt_a.view()))
                    .discretization(discretization);
                let expected = selective_scan::reference::forward(&scan).unwrap();
                let mut state = Dense::zeros(&[batch, dim, dstate]).unwrap();
                for t in 0..length {
                    let args = Args::new(
                        x.view().index(2, t),
                        dt.view().index(2, t),
                        a.view(),
                        b.view().index(3, t),
                        c.view().index(3, t),
                    )
                    .d(scan.d)
                    .z(z.view().index(2, t))
                    .dt_bias(scan.dt_bias)
                    .dt_softplus(true)
                    .dt_limit(scan.dt_limit)
                    .dt_a(scan.dt_a.map(|v| v.index(2, t)))
                    .discretization(discretization);
                    let view = if complex { state.view() } else { state.real_view() };
                    let (y, next) = reference::update(&args, &view).unwrap();
                    for (b, d) in (0..batch).flat_map(|b| (0..dim).map(move |d| (b, d))) {
                        assert!((y.at(&[b, d]) - expected.y.at(&[b, d, t])).norm() < 1e-13, "{discretization}");
                    }
                    state = next;
                }
                let far = state.data().iter().zip(expected.final_state.data()).any(|(a, b)| (a - b).norm() > 1e-13);
                assert!(!far, "{discretization}");
            }
        }
    }
}

#[test]
fn vectors_of_the_origin() {
    for name in ["step_mamba1", "step_mamba2"] {
        let Some(case) = Vectors::read(name) else { continue };
        let keys = ["in.x", "in.dt", "in.A", "in.B", "in.C", "in.D", "in.z", "in.dt_bias"];
        let (inputs, state) = (keys.map(|key| case.need(key)), case.need("in.state"));
        fn args([x, dt, a, b, c, d, z, bias]: &[Tensor; 8]) -> Args<'_> {
            Args::new(x.view(), dt.view(), a.view(), b.view(), c.view())
                .d(d.view())
                .z(z.view())
                .dt_bias(bias.view())
                .dt_softplus(true)
        }
        let (oracle, next) = reference::update(&args(&inputs), &state.view()).unwrap();
        case.assert_close("out.y", &oracle);
        case.assert_close("out.state", &next);
        for exec in executors() {
            let here = inputs.each_ref().map(|tensor| on(&exec, tensor));
            let (mut state, mut y) = (on(&exec, &state), Tensor::like(&exec, &here[0].view()).unwrap());
            update(&exec, &args(&here), &mut state.view_mut(), &mut y.view_mut()).unwrap();
            case.assert_close("out.y", &home(&y).to_dense());
            case.assert_close("out.state", &home(&state).to_dense());
        }
    }
}

#[test]
fn limits_that_are_none_are_named() {
    let ones = [0.5f32; 24];
    let view = |shape: &[usize]| View::new(&ones[..shape.iter().product()], shape).unwrap();
    let args = Args::new(view(&[2, 3]), view(&[2, 3]), view(&[3, 4]), view(&[2, 4]), view(&[2, 4]));
    let error = reference::update(&args.dt_limit((1.0, 0.0)), &view(&[2, 3, 4])).unwrap_err();
    assert!(matches!(error, Error::Limits { argument: "dt_limit", .. }), "{error}");
}
