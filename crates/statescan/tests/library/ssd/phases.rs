//! Passes in two phases give what whole passes give, whatever enters between them. Only Hopper has them.

use super::*;
use crate::common::device::on_gpu;
use statescan::ops::Summary;

fn check_phases(case: &Case, execs: &[Exec]) {
    let inputs = Inputs::new(case);
    let expected = Expected::new(case, &inputs);
    for exec in execs {
        let on_device = inputs.on(exec);
        let [forward, backward] = ssd::prepare(exec, &on_device.args(case)).unwrap().ends_len();
        if forward == 0 {
            println!("skipped: {exec:?} has no passes in two phases");
            continue;
        }
        check_forward(&expected, &inputs, exec, forward);
        check_backward(&expected, &inputs, exec, backward);
    }
}

fn check_forward(expected: &Expected<'_>, inputs: &Inputs, exec: &Exec, len: usize) {
    let (case, rng) = (expected.case, &mut Rng::new(expected.case.seed + 3));
    let mut fresh = |shape: &[usize]| on(exec, &poisoned(rng, DType::F32, shape, Layout::Dense));
    let [mut state, mut known] = [(); 2].map(|()| fresh(&case.state_shape()));
    let (mut ends, mut decay) = (fresh(&[len]), fresh(&[case.batch, case.heads]));
    let results = run_forward_by(case, inputs, exec, false, |args, out| {
        // without what enters, and with it
        let alone = ssd::prepare(exec, &args.initial_state(None::<View<'_>>))?;
        alone.forward_ends(ends.view_mut(), Summary::default().state(state.view_mut()).decay(decay.view_mut()))?;
        let call = ssd::prepare(exec, args)?;
        call.forward_rest(ends.view(), out)?;
        call.forward_ends(ends.view_mut(), Summary::default().state(known.view_mut()))
    });
    expected.compare_results(exec, &results.unwrap());
    let bound = expected.on_device(exec, ErrorBound::for_scan(case.wide(), case.seqlen));
    assert_close(&format!("known state of {case:?}"), &home(&known), &expected.forward.final_state, bound);
    let [state, decay, entering] = [&home(&state), &home(&decay), &inputs.state].map(Tensor::to_dense);
    let largest = expected.forward.final_state.data().iter().fold(1.0, |most: f64, v| most.max(v.norm()));
    let of_head = case.headdim * case.dstate;
    for (at, whole) in expected.forward.final_state.data().iter().enumerate() {
        let decay = decay.data()[at / of_head].re;
        assert!((0.0..=1.0).contains(&decay), "decay {decay} of {case:?}");
        let entered = if case.has(INITIAL) { decay * entering.data()[at] } else { Complex64::ZERO };
        let got = state.data()[at] + entered;
        assert!((got - whole).norm() < 1e-2 * largest, "summary of {case:?}: {got} {whole}");
    }
}

fn check_backward(expected: &Expected<'_>, inputs: &Inputs, exec: &Exec, len: usize) {
    let (case, rng) = (expected.case, &mut Rng::new(expected.case.seed + 4));
    let mut fresh = |shape: &[usize]| on(exec, &poisoned(rng, DType::F32, shape, Layout::Dense));
    let (mut ends, mut entering) = (fresh(&[len]), fresh(&case.state_shape()));
    let grads = run_backward_by(case, inputs, exec, None, |args, saved, cotangents, grads| {
        let call = ssd::prepare(exec, args).unwrap();
        call.backward_ends(ends.view_mut(), cotangents, entering.view_mut()).unwrap();
        let got = vec![("initial_state", home(&entering))];
        expected.compare_gradients(exec, &got);
        // gradients from the slice behind come between the phases
        let alone = Cotangents::default().y(cotangents.y.unwrap());
        call.backward_ends(ends.view_mut(), &alone, entering.view_mut()).unwrap();
        call.backward_rest(ends.view(), saved, cotangents, grads).unwrap();
    });
    expected.compare_gradients(exec, &grads);
}

#[test]
fn cuda_two_phases_are_whole_passes() {
    let case = |sizes, options| Case { decay: 0.05, ..Case::new(DType::BF16, sizes, options) };
    let cases = [
        case([1, 3000, 2, 64, 1, 128], INITIAL | SKIP),
        case([2, 2817, 3, 64, 1, 64], GATE | INITIAL | SKIP | BIAS | SOFTPLUS),
        case([1, 4001, 4, 128, 2, 128], 0),
        case([1, 2500, 2, 64, 1, 200], INITIAL),
        Case { decay: 300.0, ..case([1, 2900, 2, 64, 1, 128], INITIAL | OWN_DECAY_STEP) },
    ];
    on_gpu(cases, check_phases);
}

/// A gradient by y that Hopper's kernels cannot read makes the second phase a whole pass.
#[test]
fn cuda_two_phases_beside_other_kernels() {
    let case = Case { decay: 0.05, ..Case::new(DType::BF16, [1, 3000, 2, 64, 1, 64], INITIAL) };
    on_gpu([case], |case, execs| {
        let mut inputs = Inputs::new(case);
        inputs.dy = normal(&mut Rng::new(9), DType::F32, &inputs.x.shape(), Layout::Dense, 1.0);
        let expected = Expected::new(case, &inputs);
        for exec in execs {
            let len = ssd::prepare(exec, &inputs.on(exec).args(case)).unwrap().ends_len()[1];
            if len > 0 {
                check_backward(&expected, &inputs, exec, len);
            }
        }
    });
}

#[test]
fn passes_of_cpus_are_whole() {
    let (case, exec) = (Case::new(DType::F32, [1, 3000, 1, 2, 1, 2], 0), Exec::cpu(1));
    let inputs = Inputs::new(&case);
    let args = inputs.args(&case);
    let call = ssd::prepare(&exec, &args).unwrap();
    assert_eq!(call.ends_len(), [0, 0]);
    let mut ends = Tensor::host(DType::F32, &[8]).unwrap();
    let error = call.forward_ends(ends.view_mut(), Summary::default());
    assert!(matches!(error, Err(Error::Unavailable { what: "ssd", .. })), "{error:?}");
}
