//! The CUDA kernels against the oracle, by the same cases as the CPU's. Without a GPU each test says so and passes.

use super::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use statescan::cuda::DeviceTensor;
use statescan::{Error, View};

/// The first device, or the reason why there is none.
fn gpu() -> Option<Exec> {
    match Exec::cuda(0) {
        Ok(exec) => Some(exec),
        Err(error @ Error::Unavailable { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The inputs of a case in the device's memory.
struct OnDevice<'i> {
    inputs: &'i Inputs,
    tensors: Vec<(&'static str, DeviceTensor)>,
}

impl<'i> OnDevice<'i> {
    fn new(exec: &Exec, inputs: &'i Inputs) -> Self {
        let i = inputs;
        let bounds = View::new(&i.bounds, &[5]).unwrap();
        let views = [
            ("x", i.x.view()),
            ("dt", i.dt.view()),
            ("a", i.a.view()),
            ("b", i.b.view()),
            ("c", i.c.view()),
            ("d", i.d.view()),
            ("z", i.z.view()),
            ("bias", i.bias.view()),
            ("dt_a", i.dt_a.view()),
            ("state", i.state.view()),
            ("bounds", bounds),
            ("index", i.index.view()),
            ("dy", i.dy.view()),
            ("dstate", i.dstate.view()),
        ];
        let copy = |(name, view): &(&'static str, View<'_>)| (*name, DeviceTensor::from_host(exec, view).unwrap());
        OnDevice { inputs, tensors: views.iter().map(copy).collect() }
    }

    fn view(&self, name: &str) -> View<'_> {
        self.tensors.iter().find(|(n, _)| *n == name).unwrap().1.view()
    }

    fn args<'a>(&'a self, case: &Case) -> Args<'a> {
        let host: Args<'a> = self.inputs.args(case);
        let on = |option, name| case.has(option).then(|| self.view(name));
        Args {
            x: self.view("x"),
            dt: self.view("dt"),
            a: self.view("a"),
            b: self.view("b"),
            c: self.view("c"),
            d: on(SKIP, "d"),
            z: on(GATE, "z"),
            dt_bias: on(BIAS, "bias"),
            dt_a: on(OWN_DECAY_STEP, "dt_a"),
            initial_state: on(INITIAL, "state"),
            sequences: match host.sequences {
                Sequences::CuSeqlens(_) => Sequences::CuSeqlens(self.view("bounds")),
                Sequences::SeqIdx(_) => Sequences::SeqIdx(self.view("index")),
                other => other,
            },
            ..host
        }
    }
}

/// `y`, the final state and the saved states of one run, each poisoned before; with or without the workspace that is asked for.
fn run(exec: &Exec, case: &Case, args: &Args<'_>, with_workspace: bool) -> [Tensor; 3] {
    let rng = &mut Rng::new(case.seed + 1);
    let saved = selective_scan::checkpoints_len(args).unwrap();
    let mut results = [
        poisoned(rng, case.dtype, &[case.batch, case.dim, case.seqlen], case.layout),
        poisoned(rng, case.wide(), &case.state_shape(), case.layout),
        poisoned(rng, DType::F32, &[saved], Layout::Dense),
    ];
    let [mut y, mut last, mut kept] = results.each_ref().map(|r| DeviceTensor::from_host(exec, &r.view()).unwrap());
    let scratch = poisoned(rng, DType::F32, &[selective_scan::workspace_len(exec, args).unwrap()], Layout::Dense);
    let mut scratch = DeviceTensor::from_host(exec, &scratch.view()).unwrap();
    let mut out = Outputs {
        y: Some(y.view_mut()),
        final_state: Some(last.view_mut()),
        checkpoints: Some(kept.view_mut()),
        workspace: with_workspace.then(|| scratch.view_mut()),
    };
    selective_scan::forward(exec, args, &mut out).unwrap();
    for (tensor, buffer) in [&y, &last, &kept].into_iter().zip(&mut results) {
        tensor.to_host(&mut buffer.view_mut()).unwrap();
    }
    results
}

/// Every gradient of one run, each poisoned before.
fn run_backward(exec: &Exec, case: &Case, device: &OnDevice<'_>, saved: Option<&Tensor>) -> Vec<(&'static str, Tensor)> {
    let (rng, args, i) = (&mut Rng::new(case.seed + 2), device.args(case), device.inputs);
    let saved = saved.map(|saved| DeviceTensor::from_host(exec, &saved.view()).unwrap());
    let len = selective_scan::backward_workspace_len(exec, &args, saved.is_some()).unwrap();
    let scratch = poisoned(rng, DType::F32, &[len], Layout::Dense);
    let mut scratch = DeviceTensor::from_host(exec, &scratch.view()).unwrap();
    let names = ["x", "dt", "a", "b", "c", "d", "z", "dt_bias", "dt_a", "initial_state"];
    let likes = [&i.x, &i.dt, &i.a, &i.b, &i.c, &i.d, &i.z, &i.bias, &i.dt_a, &i.state];
    let mut results = likes.map(|like| poisoned(rng, like.dtype(), &like.shape(), case.layout));
    let mut tensors = results.each_ref().map(|result| DeviceTensor::from_host(exec, &result.view()).unwrap());
    let [x, dt, a, b, c, d, z, bias, dt_a, state] = tensors.each_mut().map(|tensor| tensor.view_mut());
    let mut grads = Gradients {
        x: Some(x),
        dt: Some(dt),
        a: Some(a),
        b: Some(b),
        c: Some(c),
        d: case.has(SKIP).then_some(d),
        z: case.has(GATE).then_some(z),
        dt_bias: case.has(BIAS).then_some(bias),
        dt_a: case.has(OWN_DECAY_STEP).then_some(dt_a),
        initial_state: Some(state),
        workspace: Some(scratch.view_mut()),
    };
    let cotangents = Cotangents { y: Some(device.view("dy")), final_state: Some(device.view("dstate")) };
    selective_scan::backward(exec, &args, saved.as_ref().map(|saved| saved.view()), &cotangents, &mut grads).unwrap();
    for (tensor, result) in tensors.iter().zip(&mut results) {
        tensor.to_host(&mut result.view_mut()).unwrap();
    }
    names.into_iter().zip(results).collect()
}

fn check_backward(exec: &Exec, case: &Case, device: &OnDevice<'_>, saved: Option<&Tensor>) {
    let inputs = device.inputs;
    let cotangents = inputs.cotangents();
    let e = reference::backward(&inputs.args(case), &cotangents).unwrap();
    let expected = [Some(e.x), Some(e.dt), Some(e.a), Some(e.b), Some(e.c), e.d, e.z, e.dt_bias, e.dt_a, Some(e.initial_state)];
    let results = run_backward(exec, case, device, saved);
    let again = run_backward(exec, case, device, saved);
    for (((name, got), (_, second)), expected) in results.iter().zip(&again).zip(expected) {
        let Some(expected) = expected else { continue };
        let name = format!("gradient by {name} of {case:?} on {exec:?}, saved states {}", saved.is_some());
        assert_close(&name, got, &expected, ErrorBound::for_gradient(got.dtype(), case.seqlen));
        assert!(got.bytes() == second.bytes(), "{name}: two runs differ");
    }
}

fn check(exec: &Exec, case: &Case) {
    let inputs = Inputs::new(case);
    let expected = reference::forward_with_state_shape(&inputs.args(case), &case.state_shape()).unwrap();
    let device = OnDevice::new(exec, &inputs);
    let args = device.args(case);
    let cut = selective_scan::workspace_len(exec, &args).unwrap() > 0;
    let mut kept = Vec::new();
    for with_workspace in if cut { &[true, false][..] } else { &[true] } {
        let [y, last, saved] = run(exec, case, &args, *with_workspace);
        let name = |what: &str| format!("{what} of {case:?} on {exec:?}, workspace {with_workspace}");
        assert_close(&name("y"), &y, &expected.y, ErrorBound::for_scan(case.dtype, case.seqlen));
        assert_close(&name("final_state"), &last, &expected.final_state, ErrorBound::for_scan(case.wide(), case.seqlen));
        let again = run(exec, case, &args, *with_workspace);
        for (what, first, second) in [("y", &y, &again[0]), ("final_state", &last, &again[1]), ("checkpoints", &saved, &again[2])]
        {
            assert!(first.bytes() == second.bytes(), "{}: two runs differ", name(what));
        }
        check_backward(exec, case, &device, Some(&saved));
        kept.push(saved.to_dense());
    }
    if case.seed.is_multiple_of(2) {
        check_backward(exec, case, &device, None);
    }
    // saved states are the same however the scan is cut
    if let [cut, whole] = &kept[..] {
        for i in 0..whole.shape()[0] {
            let (got, expected) = (cut.at(&[i]).re, whole.at(&[i]).re);
            assert!((got - expected).abs() < 1e-5 * (1.0 + expected.abs()), "saved state {i} of {case:?}: {got} {expected}");
        }
    }
}

fn check_all(cases: impl IntoIterator<Item = Case>) {
    let Some(exec) = gpu() else { return };
    for case in cases {
        check(&exec, &case);
    }
}

#[test]
fn cuda_plain_shapes() {
    let sizes = [(1, 1, 1, 1), (2, 5, 67, 16), (1, 17, 64, 4), (2, 16, 65, 7), (1, 33, 129, 3), (3, 48, 31, 1), (1, 2, 200, 70)];
    check_all(sizes.map(|(b, d, l, n)| Case::new(DType::F32, b, d, l, n, 0)));
    // enough channels for few lanes, many states, long rows
    let sizes = [(4, 4096, 40, 16), (1, 9, 100, 256), (2, 40, 1000, 128), (1, 6, 5000, 16), (2, 2100, 70, 16), (1, 3, 33, 400)];
    check_all(sizes.map(|(b, d, l, n)| Case::new(DType::F32, b, d, l, n, 0)));
}

#[test]
fn cuda_every_option() {
    let all = [GATE, SKIP, BIAS, SOFTPLUS, BIAS | SOFTPLUS, LIMIT, OWN_DECAY_STEP, INITIAL, REVERSE];
    check_all(all.map(|option| Case { seed: 2, ..Case::new(DType::F32, 2, 19, 70, 5, option) }));
    for packed in [BOUNDS, INDEX, INDEX | INDEX_STATES] {
        check_all([0, INITIAL, INITIAL | REVERSE | GATE | SKIP].map(|o| Case::new(DType::F32, 2, 6, 150, 4, packed | o)));
    }
}

/// Long rows of few channels, which are cut into segments when there is a workspace.
#[test]
fn cuda_segments() {
    let Some(exec) = gpu() else { return };
    let options = GATE | SKIP | BIAS | SOFTPLUS | INITIAL;
    let cases = [
        Case::new(DType::F32, 1, 7, 6000, 16, 0),
        Case::new(DType::F32, 2, 33, 2817, 5, options),
        Case::new(DType::BF16, 1, 40, 4096, 16, options | REVERSE),
        Case::new(DType::F32, 1, 3, 5121, 70, INITIAL | OWN_DECAY_STEP),
        Case { discretization: Discretization::Dirac, constant_b: true, ..Case::new(DType::F32, 1, 5, 4000, 3, INITIAL) },
        Case { groups: 3, layout: Layout::Scattered, ..Case::new(DType::F16, 2, 21, 3333, 8, options) },
    ];
    for case in cases {
        let inputs = Inputs::new(&case);
        let device = OnDevice::new(&exec, &inputs);
        assert!(selective_scan::workspace_len(&exec, &device.args(&case)).unwrap() > 0, "{case:?}");
        check(&exec, &case);
    }
}

#[test]
fn cuda_types_and_layouts() {
    let options = GATE | SKIP | BIAS | SOFTPLUS | INITIAL;
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for seqlen in [77, 128] {
            check_all(
                [Layout::Dense, Layout::Scattered].map(|layout| Case { layout, ..Case::new(dtype, 2, 18, seqlen, 6, options) }),
            );
        }
    }
}

#[test]
fn cuda_groups_and_constant_maps() {
    check_all([(2, 8), (3, 51), (4, 4)].map(|(groups, dim)| Case { groups, ..Case::new(DType::F32, 2, dim, 66, 4, 0) }));
    check_all([(true, false), (false, true), (true, true)].map(|(constant_b, constant_c)| Case {
        constant_b,
        constant_c,
        groups: 3,
        ..Case::new(DType::F32, 2, 9, 66, 5, REVERSE)
    }));
}

#[test]
fn cuda_complex_states_and_discretizations() {
    for discretization in Discretization::ALL {
        for complex in [false, true] {
            for (constant_b, options) in [(false, INITIAL), (true, OWN_DECAY_STEP | GATE | SKIP)] {
                check_all([Case { discretization, complex, constant_b, ..Case::new(DType::F32, 2, 7, 70, 6, options) }]);
            }
        }
    }
}

#[test]
fn cuda_empty_problems() {
    for (batch, dim, seqlen, dstate) in [(0, 3, 5, 2), (2, 0, 5, 2), (2, 3, 0, 2), (2, 3, 5, 0)] {
        check_all(
            [0, INITIAL | SKIP | GATE, REVERSE, BOUNDS, INDEX | INITIAL]
                .map(|o| Case::new(DType::F32, batch, dim, seqlen, dstate, o)),
        );
    }
}

/// Random problems, as on the CPU; several tests, so that kernels are compiled side by side.
fn random_problems(part: u64) {
    let Some(exec) = gpu() else { return };
    let mut runner = TestRunner::deterministic();
    let mut all = (0..).map(|_| cases().new_tree(&mut runner).unwrap().current()).filter(|case| !case.double());
    for _ in 0..part * 25 {
        all.next();
    }
    for case in all.take(25) {
        check(&exec, &case);
    }
}

#[test]
fn cuda_random_problems_0() {
    random_problems(0);
}
#[test]
fn cuda_random_problems_1() {
    random_problems(1);
}
#[test]
fn cuda_random_problems_2() {
    random_problems(2);
}
#[test]
fn cuda_random_problems_3() {
    random_problems(3);
}

/// Dense tensors whose channels are contiguous, as (batch, step, channel) memory is.
#[test]
fn cuda_channels_last() {
    let Some(exec) = gpu() else { return };
    for dtype in [DType::F32, DType::BF16] {
        let case = Case::new(dtype, 2, 64, 96, 16, GATE | SKIP);
        let mut inputs = Inputs::new(&case);
        for tensor in [&mut inputs.x, &mut inputs.dt, &mut inputs.z] {
            let dense = tensor.to_dense();
            let (batch, dim, seqlen) = (2, 64, 96);
            let strides = [(dim * seqlen) as isize, 1, dim as isize];
            *tensor = Tensor::strided(dtype, &[batch, dim, seqlen], &strides, 0, batch * dim * seqlen).unwrap();
            tensor.copy_from(&dense);
        }
        let expected = reference::forward(&inputs.args(&case)).unwrap();
        let device = OnDevice::new(&exec, &inputs);
        let [y, ..] = run(&exec, &case, &device.args(&case), true);
        assert_close("y with channels last", &y, &expected.y, ErrorBound::for_scan(dtype, 96));
    }
}

#[test]
fn cuda_saved_states_are_those_of_the_scan() {
    let Some(exec) = gpu() else { return };
    let case = Case::new(DType::F32, 2, 9, 200, 5, INITIAL);
    let inputs = Inputs::new(&case);
    let device = OnDevice::new(&exec, &inputs);
    let [_, _, saved] = run(&exec, &case, &device.args(&case), true);
    let saved = saved.to_dense();
    assert_eq!(saved.shape()[..], [2 * 3 * 9 * 5]);
    for k in 1..4 {
        let whole = inputs.args(&case);
        let cut =
            |view: View<'_>| Tensor::from_dense(&statescan::tensor::Dense::from_view(&view.slice(2, 0..64 * k)), DType::F32);
        let [x, dt, b, c] = [whole.x, whole.dt, whole.b, whole.c].map(cut);
        let args = Args { x: x.view(), dt: dt.view(), b: b.view(), c: c.view(), ..whole };
        let state = reference::forward(&args).unwrap().final_state;
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
fn cuda_nan_stays_where_it_is() {
    let Some(exec) = gpu() else { return };
    for constant_b in [false, true] {
        let case = Case { constant_b, ..Case::new(DType::F32, 1, 21, 90, 5, BOUNDS | INITIAL | SKIP | GATE) };
        let clean = Inputs::new(&case);
        let mut dirty = Inputs::new(&case);
        let mut x = dirty.x.to_dense();
        *x.at_mut(&[0, 3, 40]) = f64::NAN.into();
        *x.at_mut(&[0, 3, 45]) = f64::INFINITY.into();
        dirty.x.copy_from(&x);
        if !constant_b {
            // a NaN in B of one sequence reaches all of its channels, and no other sequence
            let mut b = dirty.b.to_dense();
            *b.at_mut(&[0, 1, 50]) = f64::NAN.into();
            dirty.b.copy_from(&b);
        }
        let [clean, dirty] = [&clean, &dirty].map(|inputs| {
            let device = OnDevice::new(&exec, inputs);
            run(&exec, &case, &device.args(&case), true)[0].to_dense()
        });
        for d in 0..21 {
            for t in 0..90 {
                if !(30..60).contains(&t) || (constant_b && d != 3) {
                    assert_eq!(dirty.at(&[0, d, t]), clean.at(&[0, d, t]), "y at {d}, {t}");
                }
            }
        }
        assert!(dirty.at(&[0, 3, 41]).re.is_nan());
    }
}

#[test]
fn cuda_extreme_steps_and_decays() {
    let Some(exec) = gpu() else { return };
    let one = |value: f64, shape: &[usize]| {
        let mut buffer = Tensor::host(DType::F32, shape).unwrap();
        buffer.fill_with(|| value.into());
        DeviceTensor::from_host(&exec, &buffer.view()).unwrap()
    };
    for (dt, a, expected) in [(0.0, -1.0, 0.625), (1.0, -1e30, 0.0), (1e30, -1e30, 0.0), (1.0, f64::NEG_INFINITY, 0.0)] {
        let (x, dt, a) = (one(0.0, &[1, 3, 1000]), one(dt, &[1, 3, 1000]), one(a, &[3, 2]));
        let (b, c, h) = (one(1.0, &[1, 2, 1000]), one(0.5, &[1, 2, 1000]), one(0.625, &[1, 3, 2]));
        let mut last = one(7.0, &[1, 3, 2]);
        let args = Args { initial_state: Some(h.view()), ..Args::new(x.view(), dt.view(), a.view(), b.view(), c.view()) };
        selective_scan::forward(&exec, &args, &mut Outputs { final_state: Some(last.view_mut()), ..Default::default() }).unwrap();
        let mut host = Tensor::host(DType::F32, &[1, 3, 2]).unwrap();
        last.to_host(&mut host.view_mut()).unwrap();
        assert!(host.to_dense().data().iter().all(|v| v.re == expected), "{:?}", host.to_dense());
    }
}

#[test]
fn cuda_refuses_by_name() {
    let Some(exec) = gpu() else { return };
    let case = Case::new(DType::F32, 2, 4, 6, 3, 0);
    let inputs = Inputs::new(&case);
    // tensors of the host
    let mut y = Tensor::host(DType::F32, &[2, 4, 6]).unwrap();
    let mut out = Outputs { y: Some(y.view_mut()), ..Default::default() };
    let error = selective_scan::forward(&exec, &inputs.args(&case), &mut out);
    assert!(matches!(error, Err(Error::Device { argument: "x", .. })), "{error:?}");
    let device = OnDevice::new(&exec, &inputs);
    let error = selective_scan::backward(&exec, &device.args(&case), None, &Cotangents::default(), &mut Gradients::default());
    assert!(matches!(error, Err(Error::Presence { argument: "workspace", .. })), "{error:?}");
    let case = Case { dtype: DType::F64, ..case };
    let inputs = Inputs::new(&case);
    let device = OnDevice::new(&exec, &inputs);
    let error = selective_scan::forward(&exec, &device.args(&case), &mut Outputs::default());
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
    assert!(matches!(Exec::cuda(1000), Err(Error::Unavailable { .. })));
}
