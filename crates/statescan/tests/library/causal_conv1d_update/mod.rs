//! One-step causal convolution: the oracle against the whole convolution, the kernel against the oracle.

mod cuda;

use crate::common::device::{home, is_gpu, on, ran};
use crate::common::{Layout, Rng, assert_close, assert_too_large, broadcast, executors, indices, normal, poisoned, random_cases};
use num_complex::Complex64;
use proptest::prelude::*;
use statescan::ops::causal_conv1d::update::{Args as UpdateArgs, reference as oracle, update};
use statescan::ops::causal_conv1d::{Activation, Args, reference};
use statescan::tensor::{Dense, ErrorBound};
use statescan::{DType, Error, Exec, Tensor, View, ViewMut};

#[derive(Debug, Clone)]
struct Case {
    batch: usize,
    dim: usize,
    /// None for inputs of shape (B, D).
    steps: Option<usize>,
    width: usize,
    extra: usize,
    circular: bool,
    indexed: bool,
    silu: bool,
    bias: bool,
    dtype: DType,
    layout: Layout,
    seed: u64,
}

struct Inputs {
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    state: Tensor,
    seen: Tensor,
    rows: Tensor,
}

impl Inputs {
    /// The same on an executor's device.
    fn on(&self, exec: &Exec) -> Self {
        let all = [&self.x, &self.weight, &self.bias, &self.state, &self.seen, &self.rows];
        let [x, weight, bias, state, seen, rows] = all.map(|tensor| on(exec, tensor));
        Inputs { x, weight, bias, state, seen, rows }
    }
}

impl Case {
    fn new(batch: usize, dim: usize, steps: Option<usize>, width: usize, extra: usize) -> Self {
        let (circular, indexed, silu, bias) = (false, false, true, true);
        let (dtype, layout) = (DType::F32, Layout::Dense);
        Case { batch, dim, steps, width, extra, circular, indexed, silu, bias, dtype, layout, seed: 1 }
    }

    fn inputs(&self) -> Inputs {
        let (rng, l) = (&mut Rng::new(self.seed), self.layout);
        let shape = [&[self.batch, self.dim], self.steps.as_slice()].concat();
        let states = if self.indexed { self.batch + 3 } else { self.batch };
        let wide = if self.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        Inputs {
            x: normal(rng, self.dtype, &shape, l, 1.0),
            weight: normal(rng, wide, &[self.dim, self.width], l, 0.5),
            bias: normal(rng, wide, &[self.dim], l, 0.5),
            state: normal(rng, self.dtype, &[states, self.dim, self.width - 1 + self.extra], l, 1.0),
            seen: indices(DType::I32, &(0..self.batch).map(|_| rng.below(40) as i64).collect::<Vec<_>>()),
            // states from the end; every third row has none
            rows: indices(
                DType::I64,
                &(0..self.batch).map(|b| if b % 3 == 1 { -1 - b as i64 } else { (states - 1 - b) as i64 }).collect::<Vec<_>>(),
            ),
        }
    }

    fn args<'a>(&self, i: &'a Inputs) -> UpdateArgs<'a> {
        UpdateArgs::new(i.x.view(), i.weight.view())
            .bias(self.bias.then(|| i.bias.view()))
            .activation(if self.silu { Activation::Silu } else { Activation::None })
            .cache_seqlens(self.circular.then(|| i.seen.view()))
            .conv_state_indices(self.indexed.then(|| i.rows.view()))
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
    let inputs = case.inputs();
    let (y, last) = oracle::update(&case.args(&inputs), &inputs.state.view()).unwrap();
    for exec in execs {
        let name = |what: &str| format!("{what} of {case:?} on {exec:?}");
        let Some((got, state)) = run(case, exec, &inputs) else {
            assert_eq!(case.dtype, DType::F64, "{}", name("no kernel"));
            continue;
        };
        assert_close(&name("y"), &got, &y, ErrorBound::for_scan(case.dtype, case.width));
        assert_close(&name("state"), &state, &last, ErrorBound { absolute: 0.0, relative: 0.0 });
        if is_gpu(exec) {
            let again = run(case, exec, &inputs).expect("it ran before");
            assert!(got.bytes() == again.0.bytes() && state.bytes() == again.1.bytes(), "{}", name("two runs differ"));
        }
    }
}

fn everywhere(case: Case) {
    check(&case, &executors());
}

#[test]
fn shapes_on_every_level() {
    for (batch, dim, width) in [(1, 1, 2), (3, 5, 4), (4, 67, 8), (1, 1100, 4), (0, 3, 4), (2, 0, 3)] {
        for steps in [None, Some(1), Some(3), Some(9), Some(70), Some(0)] {
            for (extra, circular) in [(0, false), (1, false), (9, false), (0, true), (1, true), (80, true), (80, false)] {
                everywhere(Case { circular, ..Case::new(batch, dim, steps, width, extra) });
            }
        }
    }
}

#[test]
fn types_layouts_and_options() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for layout in [Layout::Dense, Layout::Scattered] {
            for (circular, indexed, silu, bias) in [(false, true, true, false), (true, true, false, true)] {
                for steps in [None, Some(5)] {
                    everywhere(Case { dtype, layout, circular, indexed, silu, bias, ..Case::new(5, 33, steps, 4, 1) });
                }
            }
        }
    }
}

/// Random problems.
fn cases() -> impl Strategy<Value = Case> {
    let sizes = (0usize..5, 0usize..80, 0usize..80, 2usize..=8, 0usize..12);
    (sizes, 0u32..64, 0u64..1000).prop_map(|(sizes, flags, seed)| {
        let on = |bit: u32| flags >> bit & 1 == 1;
        let steps = on(0).then_some(sizes.2);
        let layout = if on(1) { Layout::Scattered } else { Layout::Dense };
        let case = Case::new(sizes.0, sizes.1, steps, sizes.3, sizes.4);
        Case { circular: on(2), indexed: on(3), silu: on(4), bias: on(5), layout, seed, ..case }
    })
}

proptest! {
    #![proptest_config(random_cases(60, "tests/causal_conv1d_update.proptest-regressions"))]
    #[test]
    fn random_problems(case in cases()) {
        check(&case, &[Exec::cpu(1)]);
    }
}

#[test]
fn steps_one_by_one_are_the_convolution() {
    let rng = &mut Rng::new(3);
    let mut dense = |shape: &[usize]| normal(rng, DType::F64, shape, Layout::Dense, 0.6).to_dense();
    let (x, weight, first) = (dense(&[2, 3, 11]), dense(&[3, 4]), dense(&[2, 3, 3]));
    let args = Args::new(x.real_view(), weight.real_view()).initial_states(first.real_view());
    let whole = reference::forward(&args).unwrap();
    // the latest inputs last, or a ring of five
    for ring in [false, true] {
        let mut state = Dense::zeros(&[2, 3, 5]).unwrap();
        let mut seen = vec![7i64; 2];
        for (b, d) in (0..2).flat_map(|b| (0..3).map(move |d| (b, d))) {
            for j in 0..3 {
                *state.at_mut(&[b, d, if ring { (7 - 3 + j) % 5 } else { 2 + j }]) = first.at(&[b, d, j]);
            }
        }
        for t in 0..11 {
            let counts = View::new(&seen, &[2]).unwrap();
            let args = UpdateArgs::new(x.real_view().index(2, t), weight.real_view()).cache_seqlens(ring.then_some(counts));
            let y;
            (y, state) = oracle::update(&args, &state.real_view()).unwrap();
            for (b, d) in (0..2).flat_map(|b| (0..3).map(move |d| (b, d))) {
                assert!((y.at(&[b, d]) - whole.y.at(&[b, d, t])).norm() < 1e-14);
            }
            seen.iter_mut().for_each(|n| *n += 1);
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let case = Case { indexed: true, ..Case::new(7, 3000, Some(2), 4, 0) };
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
    let case = Case { indexed: true, ..Case::new(3, 20, Some(2), 4, 1) };
    let mut inputs = case.inputs();
    let mut x = inputs.x.to_dense();
    *x.at_mut(&[0, 3, 0]) = f64::NAN.into();
    inputs.x.copy_from(&x);
    // a state that no row uses
    let mut state = inputs.state.to_dense();
    state.data_mut()[..20 * 4].fill(Complex64::from(f64::NAN));
    inputs.state.copy_from(&state);
    everywhere(case.clone());
    let mut y = Tensor::host(DType::F32, &x.shape()).unwrap();
    update(&Exec::cpu(1), &case.args(&inputs), &mut inputs.state.clone().view_mut(), &mut y.view_mut()).unwrap();
    let y = y.to_dense();
    for (i, value) in y.data().iter().enumerate() {
        assert_eq!(value.re.is_nan(), i / 2 == 3, "element {i}");
    }
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let case = Case { indexed: true, circular: true, ..Case::new(3, 4, None, 4, 0) };
    let mut inputs = case.inputs();
    let failing = |args: &UpdateArgs<'_>, state: &Tensor| {
        let (mut state, mut y) = (state.clone(), poisoned(&mut Rng::new(1), DType::F32, &[3, 4], Layout::Dense));
        let before = state.clone();
        let error = update(&Exec::cpu(1), args, &mut state.view_mut(), &mut y.view_mut()).unwrap_err();
        assert!(y.bytes().iter().all(|&b| b == 0xff) && state.bytes() == before.bytes(), "written in spite of {error}");
        error
    };
    for (rows, position) in [([5i64, -1, 6], 2), ([2, 4, 2], 2), ([i64::MAX, 0, 1], 0)] {
        inputs.rows = indices(DType::I64, &rows);
        let error = failing(&case.args(&inputs), &inputs.state);
        assert!(matches!(error, Error::Index { argument: "conv_state_indices", position: p, .. } if p == position), "{error}");
    }
    inputs.rows = indices(DType::I64, &[0, -1, 2]);
    inputs.seen = indices(DType::I32, &[3, -5, -1]);
    let error = failing(&case.args(&inputs), &inputs.state);
    assert!(matches!(error, Error::Index { argument: "cache_seqlens", position: 2, .. }), "{error}");
    inputs.seen = indices(DType::I32, &[3; 3]);
    let args = case.args(&inputs);
    let buffer = |shape: &[usize]| Tensor::host(DType::F32, shape).unwrap();
    let error = failing(&args, &buffer(&[6, 4, 2]));
    assert!(matches!(error, Error::Value { argument: "conv_state", .. }), "{error}");
    let error = failing(&args, &buffer(&[6, 5, 3]));
    assert!(matches!(error, Error::Shape { argument: "conv_state", .. }), "{error}");
    let error = failing(&args, &buffer(&[6, 4]));
    assert!(matches!(error, Error::Rank { argument: "conv_state", .. }), "{error}");
    let error = failing(&args.conv_state_indices(None), &inputs.state);
    assert!(matches!(error, Error::Shape { argument: "conv_state", .. }), "{error}");
    let wrong = buffer(&[3]);
    let error = failing(&args.cache_seqlens(wrong.view()), &inputs.state);
    assert!(matches!(error, Error::DType { argument: "cache_seqlens", .. }), "{error}");
    let error = update(&Exec::cpu(1), &args, &mut buffer(&[6, 4, 3]).view_mut(), &mut buffer(&[3, 5]).view_mut());
    assert!(matches!(error, Err(Error::Shape { argument: "y", .. })));
}

#[test]
fn sizes_that_no_memory_has_are_refused() {
    let one = &[0.5f32];
    for (shape, states) in [
        ([1, 1, 1 << 62], [1, 1, 1]),
        ([1, 1 << 62, 1], [1, 1, 1]),
        ([1 << 62, 1, 1], [1, 1, 1]),
        ([1, 0, 1 << 62], [1, 0, 1]),
        ([1, 0, 1], [1, 0, 1 << 62]),
        ([1 << 20, 1 << 20, 1 << 20], [1, 1, 1]),
        ([0, 1, 1], [1 << 62, 0, 1]),
    ] {
        let args = &UpdateArgs::new(broadcast(one, &shape), broadcast(one, &[shape[1], 2]));
        let (mut state, mut y) = ([7f32; 1], [7f32; 1]);
        let len = states.iter().product::<usize>();
        let (state_view, y_view) = (ViewMut::new(&mut state[..len], &states), ViewMut::new(&mut y, &[1, 1, 1]));
        assert_too_large("causal_conv1d_update", update(&Exec::cpu(2), args, &mut state_view.unwrap(), &mut y_view.unwrap()));
        assert_too_large("causal_conv1d_update", oracle::update(args, &broadcast(one, &states)));
        assert_eq!((state, y), ([7.0], [7.0]));
    }
}
