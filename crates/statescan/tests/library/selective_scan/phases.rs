//! Passes in two phases give what whole passes give, whatever enters between them.

use super::*;
use crate::common::device::on_gpu;
use statescan::Error;
use statescan::ops::Summary;

/// A tensor of poison on an executor's device.
fn fresh(exec: &Exec, case: &Case, dtype: DType, shape: &[usize]) -> Tensor {
    on(exec, &poisoned(&mut Rng::new(case.seed + 3), dtype, shape, Layout::Dense))
}

fn check_phases(case: &Case, execs: &[Exec]) {
    let expected = Expected::new(case);
    for exec in execs {
        let inputs = expected.inputs.on(exec);
        let [forward, backward] = selective_scan::prepare(exec, &inputs.args(case)).unwrap().ends_len();
        assert!(forward > 0 && backward > 0, "{case:?}");
        let saved = check_forward(&expected, &inputs, exec, forward);
        check_backward(&expected, &inputs, exec, backward, &saved);
    }
}

/// Gives the saved states.
fn check_forward(expected: &Expected<'_>, inputs: &Inputs, exec: &Exec, len: usize) -> Tensor {
    let case = expected.case;
    let args = inputs.args(case);
    let name = |what: &str| format!("{what} of {case:?} in two phases");
    let fresh = |dtype, shape: &[usize]| fresh(exec, case, dtype, shape);
    let [mut state, mut decay, mut last] = [(); 3].map(|()| fresh(case.wide(), &case.state_shape()));
    let mut ends = fresh(DType::F32, &[len]);
    let alone = selective_scan::prepare(exec, &args.initial_state(None::<View<'_>>)).unwrap();
    alone.forward_ends(ends.view_mut(), Summary::default().state(state.view_mut()).decay(decay.view_mut())).unwrap();
    let mut saved = fresh(DType::F32, &[selective_scan::checkpoints_len(&args).unwrap()]);
    let mut y = fresh(case.dtype, &[case.batch, case.dim, case.seqlen]);
    let mut out = Outputs::default().y(y.view_mut()).final_state(last.view_mut()).checkpoints(saved.view_mut());
    selective_scan::prepare(exec, &args).unwrap().forward_rest(ends.view(), &mut out).unwrap();
    assert_close(&name("y"), &home(&y), &expected.forward.y, ErrorBound::for_scan(case.dtype, case.seqlen));
    let bound = ErrorBound::for_scan(case.wide(), case.seqlen);
    assert_close(&name("final_state"), &home(&last), &expected.forward.final_state, bound);
    let [state, decay] = [&state, &decay].map(|tensor| home(tensor).to_dense());
    let entering = expected.inputs.state.to_dense();
    for (at, whole) in expected.forward.final_state.data().iter().enumerate() {
        let entered = if case.has(INITIAL) { decay.data()[at] * entering.data()[at] } else { Complex64::ZERO };
        let from_phases = state.data()[at] + entered;
        assert!((from_phases - whole).norm() < 1e-4 * (1.0 + whole.norm()), "{}: {from_phases} {whole}", name("summary"));
        assert!((0.0..=1.0).contains(&decay.data()[at].re), "{}", name("decay"));
    }
    // the state after a slice whose entering state is known
    let mut known = fresh(case.wide(), &case.state_shape());
    let call = selective_scan::prepare(exec, &args).unwrap();
    call.forward_ends(ends.view_mut(), Summary::default().state(known.view_mut())).unwrap();
    assert_close(&name("known state"), &home(&known), &expected.forward.final_state, bound);
    home(&saved)
}

fn check_backward(expected: &Expected<'_>, inputs: &Inputs, exec: &Exec, len: usize, saved: &Tensor) {
    let case = expected.case;
    let name = format!("{case:?} in two phases");
    let mut ends = fresh(exec, case, DType::F32, &[len]);
    let mut entering = fresh(exec, case, case.wide(), &case.state_shape());
    let args = inputs.args(case);
    let call = selective_scan::prepare(exec, &args).unwrap();
    // all of it, and without what the slice behind hands over
    call.backward_ends(ends.view_mut(), &inputs.cotangents(), entering.view_mut()).unwrap();
    let bound = ErrorBound::for_gradient(case.wide(), case.seqlen);
    assert_close(&format!("flowing gradient of {name}"), &home(&entering), &expected.backward.initial_state, bound);
    let alone = Cotangents::default().y(inputs.dy.view());
    call.backward_ends(ends.view_mut(), &alone, entering.view_mut()).unwrap();
    for saved in [Some(saved), None] {
        let got = Computed::by(case, inputs, exec, saved, |args, saved, grads| {
            let call = selective_scan::prepare(exec, args).unwrap();
            call.backward_rest(ends.view(), saved, &inputs.cotangents(), grads).unwrap();
        });
        expected.compare_gradients(&name, &got);
    }
}

#[test]
fn cuda_two_phases_are_whole_passes() {
    let options = GATE | SKIP | BIAS | SOFTPLUS | INITIAL;
    let cases = [
        Case::new(DType::F32, 1, 7, 6000, 16, 0),
        Case::new(DType::F32, 2, 33, 2817, 5, options),
        Case::new(DType::BF16, 1, 40, 4096, 16, options | REVERSE),
        Case::new(DType::F32, 1, 3, 5121, 70, INITIAL | OWN_DECAY_STEP),
        Case { groups: 3, layout: Layout::Scattered, ..Case::new(DType::F16, 2, 21, 3333, 8, options) },
        Case { discretization: Discretization::Dirac, constant_b: true, ..Case::new(DType::F32, 1, 5, 4000, 3, INITIAL) },
    ];
    on_gpu(cases, check_phases);
}

#[test]
fn passes_of_cpus_are_whole() {
    let (case, exec) = (Case::new(DType::F32, 1, 2, 6000, 4, 0), Exec::cpu(1));
    let inputs = Inputs::new(&case);
    let args = inputs.args(&case);
    let call = selective_scan::prepare(&exec, &args).unwrap();
    assert_eq!(call.ends_len(), [0, 0]);
    let mut ends = Tensor::host(DType::F32, &[8]).unwrap();
    let error = call.forward_ends(ends.view_mut(), Summary::default());
    assert!(matches!(error, Err(Error::Unavailable { what: "selective_scan", .. })), "{error:?}");
    let error = call.forward_rest(ends.view(), &mut Outputs::default());
    assert!(matches!(error, Err(Error::Unavailable { what: "selective_scan", .. })), "{error:?}");
}

#[test]
fn cuda_phases_refuse_other_sizes_by_name() {
    let Some(exec) = crate::common::device::gpu() else { return };
    let case = Case::new(DType::F32, 1, 7, 6000, 16, 0);
    let inputs = Inputs::new(&case).on(&exec);
    let args = inputs.args(&case);
    let call = selective_scan::prepare(&exec, &args).unwrap();
    let mut ends = fresh(&exec, &case, DType::F32, &[call.ends_len()[0] - 1]);
    let error = call.forward_ends(ends.view_mut(), Summary::default());
    assert!(matches!(error, Err(Error::Shape { argument: "ends", .. })), "{error:?}");
    let error = call.forward_rest(ends.view(), &mut Outputs::default());
    assert!(matches!(error, Err(Error::Shape { argument: "ends", .. })), "{error:?}");
    let short = Case::new(DType::F32, 1, 7, 60, 16, 0);
    let inputs = Inputs::new(&short).on(&exec);
    assert_eq!(selective_scan::prepare(&exec, &inputs.args(&short)).unwrap().ends_len()[0], 0);
}
