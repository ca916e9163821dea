//! SSD, beside what is drawn for every operation: identities, decays of any size, and what Hopper has kernels of its own for.

mod cuda;
mod oracle;
mod phases;
mod properties;
mod rules;
mod vectors;

use crate::common::device::{home, is_gpu, on, ran};
use crate::common::options::*;
use crate::common::{Layout, Rng, assert_close, assert_close_in_scale, indices, normal, poisoned, random, uniform};
use num_complex::Complex64;
use statescan::ops::ssd::{self, Args, Cotangents, Gradients, Outputs, reference};
use statescan::tensor::{Dense, ErrorBound};
use statescan::{DType, Error, Exec, Sequences, Tensor, View};

/// With `INDEX`: short sequences, whose first steps repeat every 210 steps, of 1, 2, 7, 65, 64, 63 and 8 steps.
const SHORT: u32 = 1 << 20;
const RUNS: [usize; 7] = [0, 1, 3, 10, 75, 139, 202];

/// A random problem: which options are set, how large, stored how.
#[derive(Debug, Clone)]
struct Case {
    batch: usize,
    seqlen: usize,
    heads: usize,
    headdim: usize,
    groups: usize,
    dstate: usize,
    dtype: DType,
    options: u32,
    layout: Layout,
    /// Decays are drawn from 0 to this.
    decay: f64,
    seed: u64,
}

impl Case {
    /// Sizes are (B, L, H, P, G, N).
    fn new(dtype: DType, sizes: [usize; 6], options: u32) -> Self {
        let [batch, seqlen, heads, headdim, groups, dstate] = sizes;
        let batch = if options & BOUNDS != 0 { 1 } else { batch };
        Case { batch, seqlen, heads, headdim, groups, dstate, dtype, options, layout: Layout::Dense, decay: 3.0, seed: 1 }
    }

    fn has(&self, option: u32) -> bool {
        self.options & option != 0
    }

    /// The type of parameters and states.
    fn wide(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    fn state_shape(&self) -> Vec<usize> {
        let mut shape = match (self.has(BOUNDS), self.has(INDEX) && self.has(INDEX_STATES)) {
            (true, _) => vec![4],
            (_, true) => vec![self.batch, 5],
            _ => vec![self.batch],
        };
        shape.extend([self.heads, self.headdim, self.dstate]);
        shape
    }
}

/// Every tensor that a call can read.
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
    bounds: Tensor,
    index: Tensor,
    dy: Tensor,
    dstate: Tensor,
}

impl Inputs {
    fn new(case: &Case) -> Self {
        let rng = &mut Rng::new(case.seed);
        let (l, wide, dtype) = (case.layout, case.wide(), case.dtype);
        let (heads, seqlen) = (case.heads, case.seqlen);
        let wide_x = [case.batch, seqlen, heads, case.headdim];
        let steps = [case.batch, seqlen, heads];
        let grouped = [case.batch, seqlen, case.groups, case.dstate];
        let map = if case.groups == 1 && case.has(UNGROUPED) { vec![case.batch, seqlen, case.dstate] } else { grouped.to_vec() };
        let third = seqlen / 3;
        let bounds = indices(DType::I64, &[0, third, third, 2 * third, seqlen].map(|bound| bound as i64));
        let mut step = 0;
        let index = random(rng, DType::I32, &[case.batch, seqlen], l, |_| {
            let t = step % seqlen.max(1);
            step += 1;
            if case.has(SHORT) {
                return Complex64::from((t / 210 * 7 + RUNS.iter().filter(|&&first| first <= t % 210).count()) as f64);
            }
            // sequences 0, 2 and 3 of five; 1 and 4 do not occur
            Complex64::from(if t < seqlen / 4 {
                0.0
            } else if t < seqlen / 2 + 1 {
                2.0
            } else {
                3.0
            })
        });
        let raw = case.has(SOFTPLUS);
        Inputs {
            x: normal(rng, dtype, &wide_x, l, 1.0),
            dt: if raw { normal(rng, dtype, &steps, l, 1.0) } else { uniform(rng, dtype, &steps, l, 0.001, 0.4) },
            a: uniform(rng, wide, &[heads], l, -case.decay, -0.02),
            b: normal(rng, dtype, &map, l, 0.7),
            c: normal(rng, dtype, &map, l, 0.7),
            d: if case.has(WIDE_SKIP) {
                normal(rng, DType::F32, &[heads, case.headdim], l, 1.0)
            } else {
                normal(rng, DType::F32, &[heads], l, 1.0)
            },
            z: normal(rng, dtype, &wide_x, l, 1.0),
            bias: uniform(rng, DType::F32, &[heads], l, 0.0, 0.1),
            state: normal(rng, wide, &case.state_shape(), l, 1.0),
            bounds,
            index,
            dy: normal(rng, dtype, &wide_x, l, 1.0),
            dstate: normal(rng, wide, &case.state_shape(), l, 1.0),
            dt_a: uniform(rng, dtype, &steps, l, 0.001, 0.4),
        }
    }

    /// Copies of the inputs on an executor's device.
    fn on(&self, exec: &Exec) -> Self {
        let on = |tensor| on(exec, tensor);
        let [x, dt, a, b, c, d, z] = [&self.x, &self.dt, &self.a, &self.b, &self.c, &self.d, &self.z].map(on);
        let [bias, dt_a, state, bounds] = [&self.bias, &self.dt_a, &self.state, &self.bounds].map(on);
        let [index, dy, dstate] = [&self.index, &self.dy, &self.dstate].map(on);
        Inputs { x, dt, a, b, c, d, z, bias, dt_a, state, bounds, index, dy, dstate }
    }

    fn args<'a>(&'a self, case: &Case) -> Args<'a> {
        let on = |option, view: &'a Tensor| case.has(option).then(|| view.view());
        let (x, dt, a, b, c) = (self.x.view(), self.dt.view(), self.a.view(), self.b.view(), self.c.view());
        Args::new(x, dt, a, b, c)
            .d(on(SKIP | WIDE_SKIP, &self.d))
            .z(on(GATE, &self.z))
            .dt_bias(on(BIAS, &self.bias))
            .dt_softplus(case.has(SOFTPLUS))
            .dt_limit(if case.has(LIMIT) { (0.02, 0.3) } else { (f64::NEG_INFINITY, f64::INFINITY) })
            .dt_a(on(OWN_DECAY_STEP, &self.dt_a))
            .initial_state(on(INITIAL, &self.state))
            .sequences(if case.has(BOUNDS) {
                Sequences::CuSeqlens(self.bounds.view())
            } else if case.has(INDEX) {
                Sequences::SeqIdx(self.index.view())
            } else {
                Sequences::Whole
            })
            .reverse(case.has(REVERSE))
    }
}

/// The results of a forward pass, poisoned beforehand.
struct Results {
    y: Tensor,
    last: Tensor,
    saved: Tensor,
}

/// Nothing where a GPU has no kernel for the case.
fn run_forward(case: &Case, inputs: &Inputs, exec: &Exec, with_workspace: bool) -> Option<Results> {
    run_forward_by(case, inputs, exec, with_workspace, |args, out| ssd::forward(exec, args, out))
}

/// The results of a forward pass of one's own.
fn run_forward_by(
    case: &Case,
    inputs: &Inputs,
    exec: &Exec,
    with_workspace: bool,
    pass: impl FnOnce(&Args<'_>, &mut Outputs<'_>) -> Result<(), Error>,
) -> Option<Results> {
    let (inputs, rng) = (inputs.on(exec), &mut Rng::new(case.seed + 1));
    let args = inputs.args(case);
    let (len, scratch) = (ssd::checkpoints_len(&args).unwrap(), ssd::workspace_len(exec, &args).unwrap());
    let mut fresh = |dtype, shape: &[usize], layout| on(exec, &poisoned(rng, dtype, shape, layout));
    let mut y = fresh(case.dtype, &inputs.x.shape(), case.layout);
    let mut last = fresh(case.wide(), &case.state_shape(), case.layout);
    let [mut saved, mut scratch] = [(case.wide(), len), (DType::F32, scratch)].map(|(of, len)| fresh(of, &[len], Layout::Dense));
    let mut out = Outputs::default()
        .y(y.view_mut())
        .final_state(last.view_mut())
        .checkpoints(saved.view_mut())
        .workspace(with_workspace.then(|| scratch.view_mut()));
    let call = pass(&args, &mut out);
    let results = [&y, &last, &saved];
    ran(exec, call, &results).then(|| {
        let [y, last, saved] = results.map(home);
        Results { y, last, saved }
    })
}

/// The gradients that a case has, by name, poisoned beforehand.
fn run_backward(case: &Case, inputs: &Inputs, exec: &Exec, saved: Option<&Tensor>) -> Vec<(&'static str, Tensor)> {
    run_backward_by(case, inputs, exec, saved, |args, saved, cotangents, grads| {
        ssd::backward(exec, args, saved, cotangents, grads).unwrap();
    })
}

/// The gradients by a pass that takes arguments, saved states, cotangents and targets.
fn run_backward_by(
    case: &Case,
    inputs: &Inputs,
    exec: &Exec,
    saved: Option<&Tensor>,
    pass: impl FnOnce(&Args<'_>, Option<View<'_>>, &Cotangents<'_>, &mut Gradients<'_>),
) -> Vec<(&'static str, Tensor)> {
    let (i, saved) = (inputs.on(exec), saved.map(|tensor| on(exec, tensor)));
    let args = i.args(case);
    let cotangents = Cotangents::default().y(i.dy.view()).final_state(i.dstate.view());
    let rng = &mut Rng::new(case.seed + 2);
    let len = ssd::backward_workspace_len(exec, &args).unwrap();
    let mut scratch = on(exec, &poisoned(rng, DType::F32, &[len], Layout::Dense));
    let mut fresh = |like: &Tensor| on(exec, &poisoned(rng, like.dtype(), &like.shape(), case.layout));
    let [mut x, mut dt, mut a, mut b, mut c] = [&i.x, &i.dt, &i.a, &i.b, &i.c].map(&mut fresh);
    let [mut d, mut z, mut bias, mut dt_a, mut state] = [&i.d, &i.z, &i.bias, &i.dt_a, &i.state].map(&mut fresh);
    let mut grads = Gradients::default()
        .x(x.view_mut())
        .dt(dt.view_mut())
        .a(a.view_mut())
        .b(b.view_mut())
        .c(c.view_mut())
        .d(args.d.is_some().then(|| d.view_mut()))
        .z(args.z.is_some().then(|| z.view_mut()))
        .dt_bias(args.dt_bias.is_some().then(|| bias.view_mut()))
        .dt_a(args.dt_a.is_some().then(|| dt_a.view_mut()))
        .initial_state(state.view_mut())
        .workspace(scratch.view_mut());
    pass(&args, saved.as_ref().map(|s| s.view()), &cotangents, &mut grads);
    let mut all = vec![("x", &x), ("dt", &dt), ("a", &a), ("b", &b), ("c", &c), ("initial_state", &state)];
    all.extend(args.d.is_some().then_some(("d", &d)));
    all.extend(args.z.is_some().then_some(("z", &z)));
    all.extend(args.dt_bias.is_some().then_some(("dt_bias", &bias)));
    all.extend(args.dt_a.is_some().then_some(("dt_a", &dt_a)));
    all.into_iter().map(|(name, tensor)| (name, home(tensor))).collect()
}

/// The oracle's gradient of this name.
fn of<'g>(all: &'g reference::Backward, name: &str) -> &'g Dense {
    match name {
        "x" => &all.x,
        "dt" => &all.dt,
        "a" => &all.a,
        "b" => &all.b,
        "c" => &all.c,
        "d" => all.d.as_ref().unwrap(),
        "z" => all.z.as_ref().unwrap(),
        "dt_bias" => all.dt_bias.as_ref().unwrap(),
        "dt_a" => all.dt_a.as_ref().unwrap(),
        _ => &all.initial_state,
    }
}

/// All elements of a result for which `touched` is false are finite.
fn clean(name: &str, buffer: &Tensor, touched: impl Fn(&[usize]) -> bool) {
    let (dense, shape) = (buffer.to_dense(), buffer.shape());
    let mut index = vec![0; shape.len()];
    for value in dense.data() {
        assert!(touched(&index) || value.re.is_finite(), "{name} at {index:?} is {}", value.re);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// A copy without what is too small for the type of the carried values.
fn held(dense: &Dense, dtype: DType) -> Dense {
    let mut dense = dense.clone();
    let least = if dtype == DType::F64 { 0.0 } else { f64::from(f32::MIN_POSITIVE) };
    dense.data_mut().iter_mut().filter(|v| v.norm() < least).for_each(|v| *v = Complex64::ZERO);
    dense
}

/// The kernels of executors against the oracle, the backward pass with and without checkpoints.
fn check(case: &Case, execs: &[Exec]) {
    check_inputs(case, &Inputs::new(case), execs);
}

/// The results and gradients of a case by the oracle.
struct Expected<'c> {
    case: &'c Case,
    forward: reference::Forward,
    by: reference::Backward,
}

impl<'c> Expected<'c> {
    fn new(case: &'c Case, inputs: &Inputs) -> Self {
        let args = inputs.args(case);
        let forward = reference::forward_with_state_shape(&args, &case.state_shape()).unwrap();
        let cotangents = Cotangents::default().y(inputs.dy.view()).final_state(inputs.dstate.view());
        Expected { case, forward, by: reference::backward(&args, &cotangents).unwrap() }
    }

    fn on_device(&self, exec: &Exec, bound: ErrorBound) -> ErrorBound {
        if is_gpu(exec) { bound.in_products(self.case.dtype) } else { bound }
    }

    fn compare_results(&self, exec: &Exec, got: &Results) {
        let (case, expected) = (self.case, &self.forward);
        let bound = self.on_device(exec, ErrorBound::for_scan(case.dtype, case.seqlen));
        assert_close(&format!("y of {case:?} on {exec:?}"), &got.y, &expected.y, bound);
        let bound = self.on_device(exec, ErrorBound::for_scan(case.wide(), case.seqlen));
        assert_close(&format!("final_state of {case:?} on {exec:?}"), &got.last, &expected.final_state, bound);
    }

    fn compare_gradients(&self, exec: &Exec, grads: &[(&'static str, Tensor)]) {
        let Expected { case, by, .. } = self;
        for (name, got) in grads {
            let what = format!("gradient by {name} of {case:?} on {exec:?}");
            let wanted = held(of(by, name), case.wide());
            let bound = self.on_device(exec, ErrorBound::for_gradient(got.dtype(), case.seqlen));
            if matches!(*name, "a" | "dt_bias") {
                // one number a head, a sum over steps that may cancel: its terms are as large as the gradients by dt and dt_a
                let steps = [Some(&by.dt), by.dt_a.as_ref()].into_iter().flatten();
                let terms = steps.flat_map(|of| of.data()).map(|v| v.norm_sqr()).sum::<f64>().sqrt();
                assert_close_in_scale(&what, got, &wanted, bound, terms);
            } else {
                assert_close(&what, got, &wanted, bound);
            }
        }
    }
}

/// Checks a case with inputs of one's own.
fn check_inputs(case: &Case, inputs: &Inputs, execs: &[Exec]) {
    let expected = Expected::new(case, inputs);
    for exec in execs {
        let cut = ssd::workspace_len(exec, &inputs.on(exec).args(case)).unwrap() > 0;
        let runs = [cut.then_some(false), Some(true)].into_iter().flatten();
        let runs: Option<Vec<_>> = runs.map(|with_workspace| run_forward(case, inputs, exec, with_workspace)).collect();
        let Some(runs) = runs else { continue };
        runs.iter().for_each(|got| expected.compare_results(exec, got));
        let got = runs.last().unwrap();
        if is_gpu(exec) {
            let again = run_forward(case, inputs, exec, true).unwrap();
            assert!(got.y.bytes() == again.y.bytes() && got.last.bytes() == again.last.bytes(), "two runs differ: {case:?}");
        }
        let grads = run_backward(case, inputs, exec, Some(&got.saved));
        expected.compare_gradients(exec, &grads);
        if case.seed.is_multiple_of(2) {
            for ((name, with), (_, without)) in grads.iter().zip(run_backward(case, inputs, exec, None)) {
                assert_eq!(with.bytes(), without.bytes(), "gradient by {name} without checkpoints, {case:?} on {exec:?}");
            }
        }
    }
}
