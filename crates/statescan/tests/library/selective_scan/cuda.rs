//! These tests concern the CUDA kernels alone: how they cut rows, what they save, what they refuse. Without a GPU each test says so and passes.

use super::case::run_forward;
use super::*;
use crate::common::device::{gpu, on_gpu, on_routes};
use statescan::Error;

/// Long rows of few channels, which are cut into segments when there is a workspace.
#[test]
fn cuda_segments() {
    let options = GATE | SKIP | BIAS | SOFTPLUS | INITIAL;
    let cases = [
        Case::new(DType::F32, 1, 7, 6000, 16, 0),
        Case::new(DType::F32, 2, 33, 2817, 5, options),
        Case::new(DType::BF16, 1, 40, 4096, 16, options | REVERSE),
        Case::new(DType::F32, 1, 3, 5121, 70, INITIAL | OWN_DECAY_STEP),
        Case { discretization: Discretization::Dirac, constant_b: true, ..Case::new(DType::F32, 1, 5, 4000, 3, INITIAL) },
        Case { layout: Layout::Sliced, ..Case::new(DType::BF16, 1, 48, 2903, 16, options) },
        Case { groups: 3, layout: Layout::Scattered, ..Case::new(DType::F16, 2, 21, 3333, 8, options) },
    ];
    on_gpu(cases, |case, execs| {
        let inputs = Inputs::new(case).on(&execs[0]);
        assert!(selective_scan::workspace_len(&execs[0], &inputs.args(case)).unwrap() > 0, "{case:?}");
        check(case, execs);
    });
}

/// Rows in one pass where they would be cut, and in segments where they would not be.
#[test]
fn cuda_routes_of_other_devices() {
    let case = |dim, seqlen, options| Case::new(DType::F32, 1, dim, seqlen, 16, options | INITIAL);
    on_routes([case(7, 3000, GATE | SKIP | BIAS | SOFTPLUS), case(300, 2100, OWN_DECAY_STEP)], check);
}

#[test]
fn cuda_saved_states_are_those_of_the_scan() {
    let Some(exec) = gpu() else { return };
    let case = Case::new(DType::F32, 2, 9, 200, 5, INITIAL);
    let inputs = Inputs::new(&case);
    let [_, _, saved] = run_forward(&case, &inputs.on(&exec), &exec, true).unwrap();
    let saved = saved.to_dense();
    assert_eq!(saved.shape()[..], [2 * 3 * 9 * 5]);
    for k in 1..4 {
        let whole = inputs.args(&case);
        let [x, dt, b, c] = [whole.x, whole.dt, whole.b, whole.c].map(|view| view.slice(2, 0..64 * k));
        let state = reference::forward(&whole.x(x).dt(dt).b(b).c(c)).unwrap().final_state;
        for batch in 0..2 {
            for d in 0..9 {
                for n in 0..5 {
                    let (got, expected) = (saved.at(&[((batch * 3 + k - 1) * 9 + d) * 5 + n]).re, state.at(&[batch, d, n]).re);
                    assert!((got - expected).abs() < 1e-5 * (1.0 + expected.abs()), "{got} {expected} at {k}, {batch}, {d}, {n}");
                }
            }
        }
    }
}

#[test]
fn cuda_refuses_by_name() {
    let Some(exec) = gpu() else { return };
    let case = Case::new(DType::F32, 2, 4, 6, 3, 0);
    let inputs = Inputs::new(&case);
    // tensors of the host
    let mut y = Tensor::host(DType::F32, &[2, 4, 6]).unwrap();
    let mut out = Outputs::default().y(y.view_mut());
    let error = selective_scan::forward(&exec, &inputs.args(&case), &mut out);
    assert!(matches!(error, Err(Error::Device { argument: "x", .. })), "{error:?}");
    let inputs = inputs.on(&exec);
    let error = selective_scan::backward(&exec, &inputs.args(&case), None, &Cotangents::default(), &mut Gradients::default());
    assert!(matches!(error, Err(Error::Presence { argument: "workspace", .. })), "{error:?}");
    let case = Case { dtype: DType::F64, ..case };
    let inputs = Inputs::new(&case).on(&exec);
    let error = selective_scan::forward(&exec, &inputs.args(&case), &mut Outputs::default());
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
    assert!(matches!(Exec::cuda(1000), Err(Error::Unavailable { .. })));
}
