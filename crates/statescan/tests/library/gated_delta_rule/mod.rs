//! The gated delta rule and its step, beside what is drawn for every operation: identities, equal bits, and kernels of GPUs.

mod kernels;
mod oracle;
mod rules;
mod step;
mod vectors;

use crate::common::device::{home, is_gpu, on, ran};
use crate::common::options::{BOUNDS, INDEX, INDEX_STATES, INITIAL, REVERSE};
use crate::common::{Layout, Rng, assert_close, assert_close_in_scale, indices, normal, poisoned, random, uniform};
use num_complex::Complex64;
use statescan::ops::gated_delta_rule::{self as gdr, Args, Cotangents, Gradients, Outputs, reference};
use statescan::tensor::{Dense, ErrorBound};
use statescan::{DType, Error, Exec, Sequences, Tensor, View};

/// Options of this operation, beside those of all.
const DECAY: u32 = 1;
const CHANNELS: u32 = 2;
const BETA: u32 = 4;
const RAW: u32 = 8;
const BIAS: u32 = 16;
const LOWER: u32 = 32;
const SIGMOID: u32 = 2048;
const DOUBLED: u32 = 4096;
const UNIT: u32 = 8192;
const SCALE: u32 = 16384;
/// Queries, keys and values are parts of one tensor whose channels come before time.
const TOGETHER: u32 = 32768;
/// The last two axes of states are exchanged in memory.
const COLUMNS_FIRST: u32 = 65536;

/// A random problem: which options are set, how large, stored how.
#[derive(Debug, Clone)]
struct Case {
    batch: usize,
    seqlen: usize,
    heads: usize,
    value_heads: usize,
    keys: usize,
    values: usize,
    dtype: DType,
    options: u32,
    layout: Layout,
    /// Logarithms of decays are drawn from minus this to 0.
    decay: f64,
    seed: u64,
}

impl Case {
    /// Sizes are (B, L, H, J, N, P).
    fn new(dtype: DType, sizes: [usize; 6], options: u32) -> Self {
        let [batch, seqlen, heads, value_heads, keys, values] = sizes;
        let batch = if options & BOUNDS != 0 { 1 } else { batch };
        // the length of one number divides it out: its gradient is a difference of equal terms
        let options = if keys == 1 { options & !UNIT } else { options };
        let layout = Layout::Dense;
        Case { batch, seqlen, heads, value_heads, keys, values, dtype, options, layout, decay: 0.7, seed: 1 }
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
        shape.extend([self.value_heads, self.keys, self.values]);
        shape
    }

    /// The shape of a gate without the axes of time.
    fn own(&self) -> Vec<usize> {
        if self.has(CHANNELS) { vec![self.value_heads, self.keys] } else { vec![self.value_heads] }
    }
}

/// Every tensor that a call can read.
struct Inputs {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    a_log: Tensor,
    bias: Tensor,
    state: Tensor,
    bounds: Tensor,
    index: Tensor,
    dy: Tensor,
    dstate: Tensor,
}

impl Inputs {
    fn new(case: &Case) -> Self {
        let rng = &mut Rng::new(case.seed);
        let (l, wide, dtype, seqlen) = (case.layout, case.wide(), case.dtype, case.seqlen);
        let timed = |own: &[usize]| [&[case.batch, seqlen], own].concat();
        let third = seqlen / 3;
        let bounds = indices(DType::I64, &[0, third, third, 2 * third, seqlen].map(|bound| bound as i64));
        let mut step = 0;
        let index = random(rng, DType::I32, &[case.batch, seqlen], l, |_| {
            let t = step % seqlen.max(1);
            step += 1;
            // sequences 0, 2 and 3 of five; 1 and 4 do not occur
            Complex64::from(if t < seqlen / 4 {
                0.0
            } else if t < seqlen / 2 + 1 {
                2.0
            } else {
                3.0
            })
        });
        // keys of about the length 1, and none longer than the root of 2: there each step is a contraction, and beyond it a chunk's triangle grows with the
        // state, whose rounding no bound by the results knows
        let size = 1.0 / (case.keys.max(1) as f64).sqrt();
        let most = size * 2f64.sqrt();
        let rows = timed(&[case.heads, case.keys]);
        let values = timed(&[case.value_heads, case.values]);
        let across = if case.has(TOGETHER) { Layout::SlicedAcross } else { l };
        let states = |rng: &mut Rng| match case.has(COLUMNS_FIRST) {
            false => normal(rng, wide, &case.state_shape(), l, 1.0),
            true => normal(rng, wide, &case.state_shape(), Layout::SlicedAcross, 1.0),
        };
        let gate = timed(&case.own());
        Inputs {
            q: normal(rng, dtype, &rows, across, 1.0),
            k: random(rng, dtype, &rows, across, |rng| (size * rng.normal()).clamp(-most, most).into()),
            v: normal(rng, dtype, &values, across, 1.0),
            g: match case.has(RAW) {
                true => normal(rng, dtype, &gate, l, 1.0),
                false => uniform(rng, dtype, &gate, l, -case.decay, 0.0),
            },
            beta: match case.has(SIGMOID) {
                true => normal(rng, dtype, &timed(&[case.value_heads]), l, 1.0),
                false => uniform(rng, dtype, &timed(&[case.value_heads]), l, 0.0, 1.0),
            },
            a_log: uniform(rng, wide, &[case.value_heads], l, -2.0, 0.5),
            bias: normal(rng, wide, &case.own(), l, 0.5),
            state: states(rng),
            bounds,
            index,
            dy: normal(rng, dtype, &values, l, 1.0),
            dstate: states(rng),
        }
    }

    /// Copies of the inputs on an executor's device.
    fn on(&self, exec: &Exec) -> Self {
        let on = |tensor| on(exec, tensor);
        let [q, k, v, g, beta, a_log] = [&self.q, &self.k, &self.v, &self.g, &self.beta, &self.a_log].map(on);
        let [bias, state, bounds, index, dy, dstate] =
            [&self.bias, &self.state, &self.bounds, &self.index, &self.dy, &self.dstate].map(on);
        Inputs { q, k, v, g, beta, a_log, bias, state, bounds, index, dy, dstate }
    }

    fn args<'a>(&'a self, case: &Case) -> Args<'a> {
        let on = |option, view: &'a Tensor| case.has(option).then(|| view.view());
        Args::new(self.q.view(), self.k.view(), self.v.view())
            .g(on(DECAY | RAW, &self.g))
            .beta(on(BETA | SIGMOID, &self.beta))
            .a_log(on(RAW, &self.a_log))
            .dt_bias(on(BIAS, &self.bias).filter(|_| case.has(RAW)))
            .initial_state(on(INITIAL, &self.state))
            .scale(if case.has(SCALE) { 0.3 } else { 0.0 })
            .qk_l2norm(case.has(UNIT))
            .lower_bound(if case.has(LOWER) && case.has(RAW) { -3.0 } else { 0.0 })
            .beta_sigmoid(case.has(SIGMOID))
            .allow_neg_eigval(case.has(DOUBLED) && case.has(SIGMOID))
            .sequences(if case.has(BOUNDS) {
                Sequences::CuSeqlens(self.bounds.view())
            } else if case.has(INDEX) {
                Sequences::SeqIdx(self.index.view())
            } else {
                Sequences::Whole
            })
            .reverse(case.has(REVERSE))
    }

    /// At least the size of the terms of the gradient by `A_log`, which are those by g, times the softplus over its slope, or times what the sigmoid is of.
    fn size_of_rates(&self, case: &Case, by_g: &Dense) -> f64 {
        let (g, bias) = (self.g.to_dense(), self.bias.to_dense());
        let bias = bias.data().iter().map(|bias| bias.re * f64::from(u8::from(case.has(BIAS)))).cycle();
        let terms = by_g.data().iter().zip(g.data()).zip(bias).map(|((by, g), bias)| by.re * (1.0 + (g.re + bias).abs()));
        terms.map(|term| term * term).sum::<f64>().sqrt()
    }

    fn cotangents(&self) -> Cotangents<'_> {
        Cotangents::default().y(self.dy.view()).final_state(self.dstate.view())
    }
}

/// The results of a forward pass, poisoned beforehand.
struct Results {
    y: Tensor,
    last: Tensor,
    saved: Tensor,
}

fn run_forward(case: &Case, inputs: &Inputs, exec: &Exec) -> Option<Results> {
    let (inputs, rng) = (inputs.on(exec), &mut Rng::new(case.seed + 1));
    let args = inputs.args(case);
    let len = gdr::checkpoints_len(&args).unwrap();
    // a call that there is no kernel for has no length either
    let scratch = gdr::workspace_len(exec, &args).unwrap_or(0);
    let mut fresh = |dtype, shape: &[usize], layout| on(exec, &poisoned(rng, dtype, shape, layout));
    let mut y = fresh(case.dtype, &inputs.v.shape(), case.layout);
    let mut last = fresh(case.wide(), &case.state_shape(), case.layout);
    let [mut saved, mut scratch] = [(case.wide(), len), (DType::F32, scratch)].map(|(of, len)| fresh(of, &[len], Layout::Dense));
    let mut out = Outputs::default().y(y.view_mut()).final_state(last.view_mut()).checkpoints(saved.view_mut());
    if !scratch.view().is_empty() {
        out = out.workspace(scratch.view_mut());
    }
    let call = gdr::forward(exec, &args, &mut out);
    ran(exec, call, &[&y, &last]).then(|| Results { y: home(&y), last: home(&last), saved })
}

/// The gradients that a case has, by name, poisoned beforehand.
fn run_backward(case: &Case, inputs: &Inputs, exec: &Exec, saved: Option<&Tensor>) -> Option<Vec<(&'static str, Tensor)>> {
    let (i, rng) = (&inputs.on(exec), &mut Rng::new(case.seed + 2));
    let args = i.args(case);
    let mut fresh = |like: &Tensor| on(exec, &poisoned(rng, like.dtype(), &like.shape(), case.layout));
    let [mut q, mut k, mut v, mut g] = [&i.q, &i.k, &i.v, &i.g].map(&mut fresh);
    let [mut beta, mut a_log, mut bias, mut state] = [&i.beta, &i.a_log, &i.bias, &i.state].map(&mut fresh);
    let scratch = gdr::backward_workspace_len(exec, &args).unwrap_or(0);
    let mut scratch = on(exec, &poisoned(&mut Rng::new(1), DType::F32, &[scratch], Layout::Dense));
    let mut grads = Gradients::default()
        .q(q.view_mut())
        .k(k.view_mut())
        .v(v.view_mut())
        .g(args.g.is_some().then(|| g.view_mut()))
        .beta(args.beta.is_some().then(|| beta.view_mut()))
        .a_log(args.a_log.is_some().then(|| a_log.view_mut()))
        .dt_bias(args.dt_bias.is_some().then(|| bias.view_mut()))
        .initial_state(state.view_mut())
        .workspace((!scratch.view().is_empty()).then(|| scratch.view_mut()));
    let call = gdr::backward(exec, &args, saved.map(Tensor::view), &i.cotangents(), &mut grads);
    if !ran(exec, call, &[&q, &k, &v, &state]) {
        return None;
    }
    let mut all = vec![("q", q), ("k", k), ("v", v), ("initial_state", state)];
    all.extend(args.g.is_some().then_some(("g", g)));
    all.extend(args.beta.is_some().then_some(("beta", beta)));
    all.extend(args.a_log.is_some().then_some(("a_log", a_log)));
    all.extend(args.dt_bias.is_some().then_some(("dt_bias", bias)));
    Some(all.into_iter().map(|(name, grad)| (name, home(&grad))).collect())
}

/// The oracle's gradient of this name.
fn of<'g>(all: &'g reference::Backward, name: &str) -> &'g Dense {
    match name {
        "q" => &all.q,
        "k" => &all.k,
        "v" => &all.v,
        "g" => all.g.as_ref().unwrap(),
        "beta" => all.beta.as_ref().unwrap(),
        "a_log" => all.a_log.as_ref().unwrap(),
        "dt_bias" => all.dt_bias.as_ref().unwrap(),
        _ => &all.initial_state,
    }
}

/// A tensor's numbers as one root of the sum of their squares.
fn size(dense: &Dense) -> f64 {
    dense.data().iter().map(|v| v.norm_sqr()).sum::<f64>().sqrt()
}

/// The kernels of executors against the oracle, the backward pass with and without what was saved.
fn check(case: &Case, execs: &[Exec]) {
    let inputs = Inputs::new(case);
    let args = inputs.args(case);
    let expected = reference::forward_with_state_shape(&args, &case.state_shape()).unwrap();
    let by = reference::backward(&args, &inputs.cotangents()).unwrap();
    for exec in execs {
        let what = |name: &str| format!("{name} of {case:?} on {exec:?}");
        let on_device = |bound: ErrorBound| if is_gpu(exec) { bound.in_products(case.dtype) } else { bound };
        let Some(got) = run_forward(case, &inputs, exec) else { continue };
        assert_close(&what("y"), &got.y, &expected.y, on_device(ErrorBound::for_scan(case.dtype, case.seqlen)));
        let bound = on_device(ErrorBound::for_scan(case.wide(), case.seqlen));
        assert_close(&what("final_state"), &got.last, &expected.final_state, bound);
        if is_gpu(exec) {
            let again = run_forward(case, &inputs, exec).unwrap();
            assert!(got.y.bytes() == again.y.bytes() && got.last.bytes() == again.last.bytes(), "{}", what("two runs differ"));
        }
        let Some(grads) = run_backward(case, &inputs, exec, Some(&got.saved)) else { continue };
        for (name, got) in &grads {
            let (wanted, bound) = (of(&by, name), on_device(ErrorBound::for_gradient(got.dtype(), case.seqlen)));
            // sums over steps, or differences of sums over a chunk, whose terms are as large as the gradients by queries; what is too small for a normal
            // number has no digits
            let scale = match *name {
                "a_log" => inputs.size_of_rates(case, by.g.as_ref().unwrap()) + size(&by.q) * 0.1,
                "dt_bias" => size(by.g.as_ref().unwrap()) + size(&by.q) * 0.1,
                "g" => size(&by.q) * 0.1,
                _ => f64::from(f32::MIN_POSITIVE),
            };
            assert_close_in_scale(&what(&format!("gradient by {name}")), got, wanted, bound, scale);
        }
        if case.seed.is_multiple_of(2) {
            for ((name, with), (_, without)) in grads.iter().zip(run_backward(case, &inputs, exec, None).unwrap()) {
                assert_eq!(with.bytes(), without.bytes(), "{}", what(&format!("gradient by {name} without checkpoints")));
            }
        }
    }
}
