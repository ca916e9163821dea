//! One step of a selective scan: the oracle against the scan's oracle, the kernel against the oracle.

mod cuda;

use crate::common::device::{home, is_gpu, on, ran};
use crate::common::options::*;
use crate::common::vectors::Case as Vectors;
use crate::common::{
    Layout, Rng, assert_close, assert_too_large, broadcast, executors, indices, normal, poisoned, random, random_cases, uniform,
};
use num_complex::Complex64;
use proptest::prelude::*;
use statescan::ops::selective_scan;
use statescan::ops::selective_scan::update::{Args, reference, update};
use statescan::tensor::{Dense, ErrorBound};
use statescan::{DType, Discretization, Error, Exec, Tensor, View, ViewMut};

#[derive(Debug, Clone)]
struct Case {
    batch: usize,
    /// [D] or [H, P].
    own: Vec<usize>,
    dstate: usize,
    /// None for maps of shape (B, N).
    groups: Option<usize>,
    dtype: DType,
    state: DType,
    layout: Layout,
    complex: bool,
    options: u32,
    discretization: Discretization,
    /// dt, a, d and dt_bias the same for all channels of a head, expanded with strides of zero.
    shared: bool,
    indexed: bool,
    seed: u64,
}

const ALL: u32 = SKIP | GATE | BIAS | SOFTPLUS | LIMIT;

struct Inputs {
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    z: Tensor,
    bias: Tensor,
    dt_a: Tensor,
    state: Tensor,
    rows: Tensor,
}

impl Inputs {
    /// The same on an executor's device.
    fn on(&self, exec: &Exec) -> Self {
        let on = |tensor| on(exec, tensor);
        let [x, dt, a, b, c, d] = [&self.x, &self.dt, &self.a, &self.b, &self.c, &self.d].map(on);
        let [z, bias, dt_a, state, rows] = [&self.z, &self.bias, &self.dt_a, &self.state, &self.rows].map(on);
        Inputs { x, dt, a, b, c, d, z, bias, dt_a, state, rows }
    }
}

impl Case {
    fn new(batch: usize, own: &[usize], dstate: usize, options: u32) -> Self {
        Case {
            batch,
            own: own.to_vec(),
            dstate,
            groups: None,
            dtype: DType::F32,
            state: DType::F32,
            layout: Layout::Dense,
            complex: false,
            options,
            discretization: Discretization::Mamba,
            shared: false,
            indexed: false,
            seed: 1,
        }
    }

    fn has(&self, option: u32) -> bool {
        self.options & option != 0
    }

    fn double(&self) -> bool {
        self.dtype == DType::F64 || self.state == DType::F64
    }

    fn inputs(&self) -> Inputs {
        let (rng, l) = (&mut Rng::new(self.seed), self.layout);
        let wide = if self.double() { DType::F64 } else { DType::F32 };
        let wide_field = match (self.complex, self.double()) {
            (false, _) => wide,
            (true, false) => DType::Complex64,
            (true, true) => DType::Complex128,
        };
        let state = if self.complex { wide_field } else { self.state };
        let batched = [&[self.batch], &self.own[..]].concat();
        let with_states = |first: usize| [&[first], &self.own[..], &[self.dstate]].concat();
        // an argument that a head shares has one element where the channels of the head would be
        let mut parameter = self.own.clone();
        let mut steps = batched.clone();
        let mut a_shape = with_states(1)[1..].to_vec();
        if self.shared {
            parameter.truncate(1);
            steps.truncate(2);
            a_shape.truncate(1);
        }
        let map = [&[self.batch], self.groups.as_slice(), &[self.dstate]].concat();
        let complex = self.complex;
        let states = if self.indexed { self.batch + 2 } else { self.batch };
        Inputs {
            x: normal(rng, self.dtype, &batched, l, 1.0),
            dt: match self.has(SOFTPLUS) {
                true => normal(rng, self.dtype, &steps, l, 1.0),
                false => uniform(rng, self.dtype, &steps, l, 0.001, 0.5),
            },
            a: random(rng, wide_field, &a_shape, l, |rng| {
                Complex64::new(-rng.uniform(0.05, 3.0), if complex { rng.uniform(-4.0, 4.0) } else { 0.0 })
            }),
            b: normal(rng, if complex { wide_field } else { self.dtype }, &map, l, 0.7),
            c: normal(rng, self.dtype, &map, l, 0.7),
            d: normal(rng, wide, &parameter, l, 1.0),
            z: normal(rng, self.dtype, &batched, l, 1.0),
            bias: uniform(rng, wide, &parameter, l, 0.0, 0.1),
            dt_a: uniform(rng, self.dtype, &steps, l, 0.001, 0.4),
            state: normal(rng, state, &with_states(states), l, 1.0),
            rows: indices(
                DType::I32,
                &(0..self.batch).map(|b| if b % 3 == 1 { -7 } else { (states - 1 - b) as i64 }).collect::<Vec<_>>(),
            ),
        }
    }

    fn args<'a>(&self, i: &'a Inputs) -> Args<'a> {
        let [x, dt, a, b, c] = [&i.x, &i.dt, &i.a, &i.b, &i.c].map(|tensor| tensor.view());
        let [d, z, bias, dt_a, rows] = [&i.d, &i.z, &i.bias, &i.dt_a, &i.rows].map(|tensor| tensor.view());
        // puts back the axes that a head shares
        let expand = |view: View<'a>, axes: &[usize]| axes.iter().fold(view, |v, &size| v.expand(v.rank(), size));
        let tail = if self.shared { &self.own[1..] } else { &[] };
        let a_tail = if self.shared { [tail, &[self.dstate]].concat() } else { vec![] };
        let on = |option, view: View<'a>| self.has(option).then_some(view);
        Args::new(x, expand(dt, tail), expand(a, &a_tail), b, c)
            .d(on(SKIP, expand(d, tail)))
            .z(on(GATE, z))
            .dt_bias(on(BIAS, expand(bias, tail)))
            .dt_softplus(self.has(SOFTPLUS))
            .dt_limit(if self.has(LIMIT) { (0.02, 0.4) } else { (f64::NEG_INFINITY, f64::INFINITY) })
            .dt_a(on(OWN_DECAY_STEP, expand(dt_a, tail)))
            .discretization(self.discretization)
            .state_batch_indices(self.indexed.then_some(rows))
    }
}

/// `y`, poisoned before, and the state after a step; nothing where a GPU has no kernel for the case.
fn run(case: &Case, exec: &Exec, inputs: &Inputs) -> Option<(Tensor, Tensor)> {
    let here = inputs.on(exec);
    let mut y = on(exec, &poisoned(&mut Rng::new(2), case.dtype, &inputs.x.shape(), case.layout));
    let mut state = here.state.clone();
    let call = update(exec, &case.args(&here), &mut state.view_mut(), &mut y.view_mut());
    let ran = ran(exec, call, &[&y]);
    let (y, state) = (home(&y), home(&state));
    assert!(ran || state.bytes() == inputs.state.bytes(), "a state was written by no kernel");
    ran.then_some((y, state))
}

/// The kernels of executors against the oracle; on a GPU a second run gives the same bits.
fn check(case: &Case, execs: &[Exec]) {
    check_inputs(case, &case.inputs(), execs);
}

fn check_inputs(case: &Case, inputs: &Inputs, execs: &[Exec]) {
    let (y, next) = reference::update(&case.args(inputs), &inputs.state.view()).unwrap();
    for exec in execs {
        let name = |what: &str| format!("{what} of {case:?} on {exec:?}");
        let Some((got, state)) = run(case, exec, inputs) else {
            assert!(case.double(), "{}", name("no kernel"));
            continue;
        };
        assert_close(&name("y"), &got, &y, ErrorBound::for_scan(case.dtype, 1));
        assert_close(&name("state"), &state, &next, ErrorBound::for_scan(state.dtype(), 1));
        if is_gpu(exec) {
            let again = run(case, exec, inputs).expect("it ran before");
            assert!(got.bytes() == again.0.bytes() && state.bytes() == again.1.bytes(), "{}", name("two runs differ"));
        }
    }
}

fn everywhere(case: Case) {
    check(&case, &executors());
}

#[test]
fn shapes_on_every_level() {
    for dstate in [0, 1, 3, 8, 15, 16, 17, 33, 64, 200] {
        for own in [vec![1], vec![37], vec![300], vec![3, 5], vec![2, 130], vec![4, 0], vec![0]] {
            everywhere(Case::new(2, &own, dstate, SKIP));
        }
    }
    everywhere(Case::new(0, &[3], 4, ALL));
    everywhere(Case::new(1, &[2, 64], 128, ALL));
}

#[test]
fn every_option_groups_and_shared_parameters() {
    for option in [SKIP, GATE, BIAS, SOFTPLUS, LIMIT, OWN_DECAY_STEP, ALL] {
        for (own, groups) in
            [(vec![24], None), (vec![24], Some(1)), (vec![24], Some(4)), (vec![6, 5], Some(3)), (vec![6, 5], None)]
        {
            for shared in [false, true] {
                for dstate in [5, 16] {
                    if !(shared && own.len() == 1) {
                        everywhere(Case { groups, shared, ..Case::new(2, &own, dstate, option) });
                    }
                }
            }
        }
    }
}

#[test]
fn types_layouts_and_indices() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for state in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            for layout in [Layout::Dense, Layout::Scattered] {
                for dstate in [4, 16] {
                    everywhere(Case { dtype, state, layout, indexed: true, ..Case::new(4, &[3, 20], dstate, ALL) });
                }
            }
        }
    }
}

#[test]
fn complex_states_and_discretizations() {
    for discretization in Discretization::ALL {
        for complex in [false, true] {
            for dtype in [DType::F32, DType::F64] {
                for (dstate, options) in [(3, ALL), (16, OWN_DECAY_STEP), (10, ALL)] {
                    let case = Case { discretization, complex, dtype, ..Case::new(2, &[19], dstate, options) };
                    everywhere(case.clone());
                    everywhere(Case { own: vec![3, 6], shared: true, ..case });
                }
            }
        }
    }
}

/// A state of (batch, state, channel) memory.
#[test]
fn channels_next_to_each_other() {
    for (dstate, dim) in [(16, 40), (5, 17)] {
        let case = Case::new(2, &[dim], dstate, ALL);
        let mut inputs = case.inputs();
        let strides = [(dim * dstate) as isize, 1, dim as isize];
        let mut state = Tensor::strided(DType::F32, &[2, dim, dstate], &strides, 0, 2 * dim * dstate).unwrap();
        state.copy_from(&inputs.state.to_dense());
        inputs.state = state;
        check_inputs(&case, &inputs, &executors());
    }
}

/// Random problems.
fn cases() -> impl Strategy<Value = Case> {
    let sizes = (0usize..4, 1usize..7, 0usize..40, 0usize..40);
    (sizes, 0u32..1024, 0usize..4, 0u64..1000).prop_map(|(sizes, flags, discretization, seed)| {
        let on = |bit: u32| flags >> bit & 1 == 1;
        let own = if on(6) { vec![sizes.1, sizes.2] } else { vec![sizes.2] };
        let layout = if on(7) { Layout::Scattered } else { Layout::Dense };
        let case = Case { layout, indexed: on(8), complex: on(9), seed, ..Case::new(sizes.0, &own, sizes.3, flags & 63) };
        Case { discretization: Discretization::ALL[discretization], ..case }
    })
}

proptest! {
    #![proptest_config(random_cases(60, "tests/selective_state_update.proptest-regressions"))]
    #[test]
    fn random_problems(case in cases()) {
        check(&case, &[Exec::cpu(1)]);
    }
}

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
fn any_number_of_threads_gives_the_same_bits() {
    let case = Case { indexed: true, ..Case::new(5, &[9, 140], 24, ALL) };
    let inputs = case.inputs();
    let run = |threads| {
        let mut state = inputs.state.clone();
        let mut y = Tensor::host(DType::F32, &inputs.x.shape()).unwrap();
        update(&Exec::cpu(threads), &case.args(&inputs), &mut state.view_mut(), &mut y.view_mut()).unwrap();
        [state.bytes().to_vec(), y.bytes().to_vec()]
    };
    let first = run(1);
    assert!([1, 2, 3, 7].into_iter().all(|threads| run(threads) == first));
}

#[test]
fn nan_stays_in_its_row_and_channel() {
    for dstate in [4, 16, 19] {
        for bad in [f64::NAN, f64::INFINITY] {
            let case = Case { indexed: true, ..Case::new(3, &[40], dstate, ALL) };
            let mut inputs = case.inputs();
            let mut x = inputs.x.to_dense();
            *x.at_mut(&[0, 3]) = bad.into();
            inputs.x.copy_from(&x);
            for exec in executors() {
                let (y, state) = run(&case, &exec, &inputs).unwrap();
                for (i, value) in y.to_dense().data().iter().enumerate() {
                    assert_eq!(value.re.is_finite(), i != 3, "y {i}");
                }
                let hit = inputs.rows.to_dense().at(&[0]).re as usize * 40 + 3;
                for (i, value) in state.to_dense().data().iter().enumerate() {
                    assert_eq!(value.re.is_finite(), i / dstate != hit, "state {i}");
                }
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
fn wrong_arguments_are_named_and_nothing_is_written() {
    let case = Case { indexed: true, groups: Some(2), ..Case::new(3, &[4, 5], 6, ALL) };
    let mut inputs = case.inputs();
    let failing = |args: &Args<'_>, state: &Tensor| {
        let (mut state, mut y) = (state.clone(), poisoned(&mut Rng::new(1), DType::F32, &[3, 4, 5], Layout::Dense));
        let before = state.clone();
        let error = update(&Exec::cpu(1), args, &mut state.view_mut(), &mut y.view_mut()).unwrap_err();
        assert!(y.bytes().iter().all(|&b| b == 0xff) && state.bytes() == before.bytes(), "written in spite of {error}");
        error
    };
    for (rows, position) in [([5, -1, 1], 0), ([2, 0, 2], 2)] {
        inputs.rows = indices(DType::I32, &rows);
        let error = failing(&case.args(&inputs), &inputs.state);
        let right = matches!(error, Error::Index { argument: "state_batch_indices", position: p, .. } if p == position);
        assert!(right, "{error}");
    }
    inputs.rows = indices(DType::I32, &[-1, 1, 0]);
    let args = case.args(&inputs);
    let buffer = |dtype, shape: &[usize]| Tensor::host(dtype, shape).unwrap();
    let flat = buffer(DType::F32, &[3, 20]);
    let error = failing(&args.x(flat.view()), &inputs.state);
    assert!(matches!(error, Error::Rank { argument: "x", .. }), "{error}");
    let error = failing(&args.dt(flat.view()), &inputs.state);
    assert!(matches!(error, Error::Shape { argument: "dt", .. }), "{error}");
    let three = buffer(DType::F32, &[3, 3, 6]);
    let error = failing(&args.b(three.view()), &inputs.state);
    assert!(matches!(error, Error::Value { argument: "b", .. }), "{error}");
    let error = failing(&args.c(inputs.x.view().index(2, 0).index(1, 0)), &inputs.state);
    assert!(matches!(error, Error::Rank { argument: "c", .. }), "{error}");
    let error = failing(&args.dt_limit((1.0, 0.0)), &inputs.state);
    assert!(matches!(error, Error::Limits { argument: "dt_limit", .. }), "{error}");
    let error = failing(&args, &buffer(DType::F32, &[5, 4, 5, 7]));
    assert!(matches!(error, Error::Shape { .. }), "{error}");
    let error = failing(&args, &buffer(DType::Complex64, &[5, 4, 5, 6]));
    assert!(matches!(error, Error::DType { argument: "state", .. }), "{error}");
    let error = failing(&args, &buffer(DType::F32, &[5, 4]));
    assert!(matches!(error, Error::Rank { argument: "state", .. }), "{error}");
    let error = failing(&args.state_batch_indices(None), &inputs.state);
    assert!(matches!(error, Error::Shape { argument: "state", .. }), "{error}");
}

#[test]
fn sizes_that_no_memory_has_are_refused() {
    let one = &[0.5f32];
    for ([batch, dim, groups, dstate], states) in [
        ([1, 1, 1, 1], [1, 1, 1 << 62]),
        ([1, 1, 1, 1], [1, 1, (1 << 20) + 1]),
        ([1, 1 << 62, 1, 1], [1, 1, 1]),
        ([1 << 62, 1, 1, 1], [1, 1, 1]),
        ([1, 0, 1 << 62, 1], [1, 0, 1]),
        ([1 << 30, 1 << 30, 1, 1], [1, 1, 1]),
        ([1, 1, 1, 1], [1 << 62, 1, 1]),
    ] {
        let (x, map) = (broadcast(one, &[batch, dim]), broadcast(one, &[batch, groups, dstate]));
        let args = &Args::new(x, x, broadcast(one, &[dim, dstate]), map, map);
        assert_too_large("selective_state_update", reference::update(args, &broadcast(one, &states)));
        // a tensor that is written has as much memory as it claims
        let Some(len) = states.iter().try_fold(1usize, |n, &size| n.checked_mul(size)).filter(|&len| len <= 1 << 21) else {
            continue;
        };
        let (mut state, mut y) = (vec![7f32; len], [7f32]);
        let (mut state_view, mut y_view) = (ViewMut::new(&mut state, &states).unwrap(), ViewMut::new(&mut y, &[1, 1]).unwrap());
        assert_too_large("selective_state_update", update(&Exec::cpu(2), args, &mut state_view, &mut y_view));
        assert!(state.iter().chain(&y).all(|&v| v == 7.0));
    }
}
