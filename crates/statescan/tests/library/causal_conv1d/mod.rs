//! The causal convolution: the oracle against identities, the kernels against the oracle.

mod cuda;
mod errors;
mod oracle;
mod vectors;

use crate::common::device::{home, is_gpu, on, ran};
use crate::common::{Layout, Rng, assert_close, cpu_executors, executors, normal, poisoned, random_cases, tensor};
use num_complex::Complex64;
use proptest::prelude::*;
use statescan::ops::causal_conv1d::{self, Activation, Args, Cotangents, Gradients, Outputs, reference};
use statescan::tensor::{Dense, ErrorBound};
use statescan::{DType, Error, Exec, Sequences, Tensor, View, ViewMut};

/// How the steps of a case divide into sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    Whole,
    Bounds,
    /// Runs with one state for each row.
    Runs,
    /// Runs and padding at the front, in the middle and at the end.
    Padded,
    /// Numbered sequences with a state each.
    Numbered,
}

const PACKINGS: [Packing; 5] = [Packing::Whole, Packing::Bounds, Packing::Runs, Packing::Padded, Packing::Numbered];

#[derive(Debug, Clone)]
struct Case {
    batch: usize,
    dim: usize,
    seqlen: usize,
    width: usize,
    dtype: DType,
    parameters: DType,
    layout: Layout,
    /// Whether channels lie next to each other (for the dense layout).
    channels_last: bool,
    bias: bool,
    silu: bool,
    initial: bool,
    reverse: bool,
    packing: Packing,
    seed: u64,
}

impl Case {
    fn new(dtype: DType, batch: usize, dim: usize, seqlen: usize, width: usize) -> Self {
        let parameters = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let (layout, packing) = (Layout::Dense, Packing::Whole);
        let (channels_last, bias, silu, initial, reverse) = (false, true, true, true, false);
        Case {
            batch,
            dim,
            seqlen,
            width,
            dtype,
            parameters,
            layout,
            channels_last,
            bias,
            silu,
            initial,
            reverse,
            packing,
            seed: 1,
        }
    }

    fn packed(self, packing: Packing) -> Self {
        Case { batch: if packing == Packing::Bounds { 1 } else { self.batch }, packing, ..self }
    }

    fn state_shape(&self) -> Vec<usize> {
        let own = [self.dim, self.width - 1];
        match self.packing {
            Packing::Bounds => vec![5, own[0], own[1]],
            Packing::Numbered => vec![self.batch, 5, own[0], own[1]],
            _ => vec![self.batch, own[0], own[1]],
        }
    }

    /// A (B, D, L) tensor in the layout of the case; the steps are the last axis or, with channels last, the middle one of the memory.
    fn tensor(&self, rng: &mut Rng, poison: bool) -> Tensor {
        let (shape, l) = ([self.batch, self.dim, self.seqlen], self.layout);
        if !self.channels_last || l != Layout::Dense {
            return if poison { poisoned(rng, self.dtype, &shape, l) } else { normal(rng, self.dtype, &shape, l, 1.0) };
        }
        let strides = [(self.dim * self.seqlen) as isize, 1, self.dim as isize];
        let mut buffer = Tensor::strided(self.dtype, &shape, &strides, 0, shape.iter().product()).unwrap();
        if poison {
            buffer.fill_bytes(0xff)
        } else {
            buffer.fill_with(|| rng.normal().into())
        }
        buffer
    }
}

struct Inputs {
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    states: Tensor,
    dy: Tensor,
    dlast: Tensor,
    bounds: Tensor,
    index: Tensor,
}

impl Inputs {
    fn new(case: &Case) -> Self {
        let rng = &mut Rng::new(case.seed);
        let (l, length) = (case.layout, case.seqlen);
        let third = length / 3;
        let mut index = tensor(rng, DType::I64, &[case.batch, length], l);
        let mut position = 0;
        index.fill_with(|| {
            let t = position % length.max(1);
            position += 1;
            let value = match case.packing {
                // sequences 0, 2 and 3 of five: the others do not occur
                Packing::Numbered => [0, 2, 3][(t * 3 / length.max(1)).min(2)],
                Packing::Padded => [-1, 0, 7, -2, 1, 1, -3][(t * 7 / length.max(1)).min(6)],
                _ => [9, 4, 4, 6, 1][(t * 5 / length.max(1)).min(4)],
            };
            Complex64::from(f64::from(value))
        });
        let ends = [0, third, third, (third + 1).min(length), (2 * third + 1).min(length), length];
        let mut bounds = Tensor::host(DType::I32, &[6]).unwrap();
        let mut next = ends.iter();
        bounds.fill_with(|| Complex64::from(*next.next().unwrap() as f64));
        Inputs {
            x: case.tensor(rng, false),
            weight: normal(rng, case.parameters, &[case.dim, case.width], l, 0.5),
            bias: normal(rng, case.parameters, &[case.dim], l, 0.5),
            states: normal(rng, case.dtype, &case.state_shape(), l, 1.0),
            dy: case.tensor(rng, false),
            dlast: normal(rng, case.dtype, &case.state_shape(), l, 1.0),
            bounds,
            index,
        }
    }

    /// The same on an executor's device.
    fn on(&self, exec: &Exec) -> Self {
        let all = [&self.x, &self.weight, &self.bias, &self.states, &self.dy, &self.dlast, &self.bounds, &self.index];
        let [x, weight, bias, states, dy, dlast, bounds, index] = all.map(|tensor| on(exec, tensor));
        Inputs { x, weight, bias, states, dy, dlast, bounds, index }
    }

    fn args(&self, case: &Case) -> Args<'_> {
        let sequences = match case.packing {
            Packing::Whole => Sequences::Whole,
            Packing::Bounds => Sequences::CuSeqlens(self.bounds.view()),
            _ => Sequences::SeqIdx(self.index.view()),
        };
        Args::new(self.x.view(), self.weight.view())
            .bias(case.bias.then(|| self.bias.view()))
            .activation(if case.silu { Activation::Silu } else { Activation::None })
            .initial_states(case.initial.then(|| self.states.view()))
            .sequences(sequences)
            .reverse(case.reverse)
    }

    fn cotangents(&self) -> Cotangents<'_> {
        Cotangents::default().y(self.dy.view()).final_states(self.dlast.view())
    }
}

/// Everything that the kernels compute, poisoned beforehand.
struct Results {
    y: Tensor,
    last: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    states: Tensor,
}

impl Results {
    /// Nothing where a GPU has no kernel for the case.
    fn compute(case: &Case, exec: &Exec, inputs: &Inputs) -> Option<Self> {
        let inputs = inputs.on(exec);
        let (args, rng) = (inputs.args(case), &mut Rng::new(case.seed + 1));
        let mut like = |b: &Tensor| on(exec, &poisoned(rng, b.dtype(), &b.shape(), case.layout));
        let [mut weight, mut bias, mut states, mut last] =
            [&inputs.weight, &inputs.bias, &inputs.states, &inputs.states].map(&mut like);
        let [mut y, mut x] = [(); 2].map(|()| on(exec, &case.tensor(rng, true)));
        let mut out = Outputs::default().y(y.view_mut()).final_states(last.view_mut());
        let call = causal_conv1d::forward(exec, &args, &mut out);
        if !ran(exec, call, &[&y, &last]) {
            return None;
        }
        let len = causal_conv1d::backward_workspace_len(exec, &args).unwrap();
        let mut workspace = on(exec, &poisoned(rng, DType::F32, &[len], Layout::Dense));
        let mut grads = Gradients::default()
            .x(x.view_mut())
            .weight(weight.view_mut())
            .bias(case.bias.then(|| bias.view_mut()))
            .initial_states(states.view_mut())
            .workspace((case.seed % 2 == 1).then(|| workspace.view_mut()));
        causal_conv1d::backward(exec, &args, &inputs.cotangents(), &mut grads).unwrap();
        let [y, last, x, weight, bias, states] = [&y, &last, &x, &weight, &bias, &states].map(home);
        Some(Results { y, last, x, weight, bias, states })
    }

    fn all(&self) -> [&Tensor; 6] {
        [&self.y, &self.last, &self.x, &self.weight, &self.bias, &self.states]
    }
}

/// The kernels of executors against the oracle; on a GPU a second run gives the same bits.
fn check(case: &Case, execs: &[Exec]) {
    let inputs = Inputs::new(case);
    let args = inputs.args(case);
    let expected = reference::forward_with_state_shape(&args, &case.state_shape()).unwrap();
    let by = reference::backward(&args, &inputs.cotangents()).unwrap();
    for exec in execs {
        let name = |what: &str| format!("{what} of {case:?} on {exec:?}");
        let Some(got) = Results::compute(case, exec, &inputs) else {
            assert_eq!(case.dtype, DType::F64, "{}", name("no kernel"));
            continue;
        };
        // a convolution remembers no more steps than it has taps
        let bound = ErrorBound::for_scan(case.dtype, case.width);
        assert_close(&name("y"), &got.y, &expected.y, bound);
        assert_close(&name("final_states"), &got.last, &expected.final_states, ErrorBound { absolute: 0.0, relative: 0.0 });
        let bound = ErrorBound::for_gradient(case.dtype, case.width);
        assert_close(&name("gradient by x"), &got.x, &by.x, bound);
        assert_close(&name("gradient by initial_states"), &got.states, &by.initial_states, bound);
        let bound = ErrorBound::for_gradient(case.parameters, case.batch * case.seqlen);
        assert_close(&name("gradient by weight"), &got.weight, &by.weight, bound);
        if case.bias {
            assert_close(&name("gradient by bias"), &got.bias, &by.bias, bound);
        }
        if is_gpu(exec) {
            let again = Results::compute(case, exec, &inputs).expect("it ran before");
            let same = got.all().into_iter().zip(again.all()).all(|(a, b)| a.bytes() == b.bytes());
            assert!(same, "{}", name("two runs differ"));
        }
    }
}

fn everywhere(case: Case) {
    check(&case, &executors());
}

#[test]
fn shapes_and_widths_on_every_level() {
    let shapes =
        [(1, 1, 1), (2, 5, 67), (1, 17, 64), (2, 16, 65), (1, 33, 129), (3, 130, 15), (1, 2, 1031), (1, 3, 2049), (2, 3, 5049)];
    for (i, (batch, dim, seqlen)) in shapes.into_iter().enumerate() {
        for channels_last in [false, true] {
            // with a workspace and without
            everywhere(Case { channels_last, seed: i as u64, ..Case::new(DType::F32, batch, dim, seqlen, 2 + i % 7) });
        }
    }
    for width in 2..=8 {
        everywhere(Case::new(DType::F32, 1, 4, 37, width));
        everywhere(Case { channels_last: true, ..Case::new(DType::F32, 1, 70, 37, width) });
    }
}

#[test]
fn every_option_on_every_level() {
    for packing in PACKINGS {
        for channels_last in [false, true] {
            for (bias, silu, initial, reverse) in
                [(false, false, false, false), (true, false, true, false), (false, true, true, true), (true, true, false, true)]
            {
                let case = Case::new(DType::F32, 2, 9, 71, 4).packed(packing);
                everywhere(Case { channels_last, bias, silu, initial, reverse, ..case });
            }
        }
    }
}

#[test]
fn types_and_layouts() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for layout in [Layout::Dense, Layout::Scattered] {
            for channels_last in [false, true] {
                everywhere(Case { layout, channels_last, ..Case::new(dtype, 2, 18, 77, 4) });
            }
        }
        // lines of whole cache lines
        for channels_last in [false, true] {
            everywhere(Case { channels_last, ..Case::new(dtype, 2, 24, 2048, 4) });
        }
    }
    everywhere(Case { parameters: DType::BF16, ..Case::new(DType::F32, 2, 18, 77, 3) });
}

#[test]
fn sequences_shorter_than_the_filter() {
    for (seqlen, width) in [(1, 8), (3, 5), (5, 8), (7, 4), (20, 8)] {
        for packing in PACKINGS {
            everywhere(Case::new(DType::F32, 2, 5, seqlen, width).packed(packing));
        }
    }
    // a piece of fewer steps than the filter has taps after a whole one
    everywhere(Case::new(DType::F32, 1, 5, 1025, 5));
    everywhere(Case { channels_last: true, ..Case::new(DType::F32, 1, 5, 65, 5) });
}

#[test]
fn empty_problems() {
    for (batch, dim, seqlen) in [(0, 3, 5), (2, 0, 5), (2, 3, 0), (0, 0, 0)] {
        for packing in PACKINGS {
            everywhere(Case::new(DType::F32, batch, dim, seqlen, 3).packed(packing));
        }
    }
}

/// Random problems.
fn cases() -> impl Strategy<Value = Case> {
    let sizes = (1usize..3, 1usize..40, 0usize..150, 2usize..=8);
    (sizes, 0u32..64, 0usize..5, 0usize..4, 0u64..1000).prop_map(|(sizes, flags, packing, dtype, seed)| {
        let packing = PACKINGS[packing];
        let dtype = [DType::F32, DType::F64, DType::BF16, DType::F16][dtype];
        let on = |bit: u32| flags >> bit & 1 == 1;
        let case = Case {
            bias: on(0),
            silu: on(1),
            initial: on(2),
            reverse: on(3),
            channels_last: on(4),
            layout: if on(5) { Layout::Scattered } else { Layout::Dense },
            seed,
            ..Case::new(dtype, sizes.0, sizes.1, sizes.2, sizes.3)
        };
        case.packed(packing)
    })
}

proptest! {
    #![proptest_config(random_cases(60, "tests/causal_conv1d.proptest-regressions"))]
    #[test]
    fn random_problems(case in cases()) {
        check(&case, &[Exec::cpu(1)]);
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for channels_last in [false, true] {
        let case = Case { channels_last, ..Case::new(DType::F32, 3, 70, 2500, 4) };
        let inputs = Inputs::new(&case);
        let first = Results::compute(&case, &Exec::cpu(1), &inputs).unwrap();
        for threads in [1, 2, 3, 7] {
            let again = Results::compute(&case, &Exec::cpu(threads), &inputs).unwrap();
            for (a, b) in first.all().into_iter().zip(again.all()) {
                assert_eq!(a.bytes(), b.bytes(), "{threads} threads");
            }
        }
    }
}

/// A NaN and an infinity in one channel's input and another's cotangent reach what they reach in the oracle, and nothing else.
fn nan_stays(case: &Case) {
    let mut inputs = Inputs::new(case);
    for (t, value) in [(14, f64::NAN), (44, f64::INFINITY)] {
        let mut dense = inputs.x.to_dense();
        *dense.at_mut(&[0, 3, t]) = value.into();
        inputs.x.copy_from(&dense);
        let mut dense = inputs.dy.to_dense();
        *dense.at_mut(&[0, 11, t]) = value.into();
        inputs.dy.copy_from(&dense);
    }
    let args = inputs.args(case);
    let expected = reference::forward_with_state_shape(&args, &case.state_shape()).unwrap();
    let by = reference::backward(&args, &inputs.cotangents()).unwrap();
    for exec in executors() {
        let got = Results::compute(case, &exec, &inputs).unwrap();
        let expected = [&expected.y, &expected.final_states, &by.x, &by.weight, &by.bias, &by.initial_states];
        for (got, expected) in got.all().into_iter().zip(expected) {
            let finite = |z: &Complex64| z.re.is_finite();
            let (got, expected) = (got.to_dense(), expected.data());
            let wrong = got.data().iter().zip(expected).filter(|&(a, b)| !finite(a) && finite(b)).count();
            assert_eq!(wrong, 0, "{case:?} on {exec:?}");
        }
    }
}

#[test]
fn nan_stays_in_its_sequence_and_channel() {
    for packing in PACKINGS {
        for channels_last in [false, true] {
            for silu in [false, true] {
                nan_stays(&Case { channels_last, silu, ..Case::new(DType::F32, 2, 19, 80, 4).packed(packing) });
            }
        }
    }
}

/// Far below 0 the result is 0 up to denormal numbers, and at -infinity NaN, as by the formula and in PyTorch.
#[test]
fn silu_of_any_number_is_that_of_the_formula() {
    let sums =
        [f32::NEG_INFINITY, -1e30, -1000.0, -200.0, -89.0, -88.0, -80.0, -1.0, 0.0, 1.0, 100.0, 1e30, f32::INFINITY, f32::NAN];
    let (dim, seqlen) = (sums.len(), 40);
    let (x, weight) = (vec![0.0f32; dim * seqlen], vec![1.0f32; dim * 2]);
    let bias = View::new(&sums, &[dim]).unwrap();
    for strides in [[0, seqlen as isize, 1], [0, 1, dim as isize]] {
        let x = View::strided(&x, 0, &[1, dim, seqlen], &strides).unwrap();
        let weight = View::new(&weight, &[dim, 2]).unwrap();
        let args = Args::new(x, weight).bias(bias).activation(Activation::Silu);
        let expected = reference::forward(&args).unwrap().y;
        for exec in cpu_executors() {
            let mut y = vec![9.0f32; dim * seqlen];
            let out = ViewMut::strided(&mut y, 0, &[1, dim, seqlen], &strides).unwrap();
            causal_conv1d::forward(&exec, &args, &mut Outputs::default().y(out)).unwrap();
            let got = Dense::from_view(&View::strided(&y, 0, &[1, dim, seqlen], &strides).unwrap());
            for (i, (got, expected)) in got.data().iter().zip(expected.data()).enumerate() {
                let (got, expected) = (got.re, expected.re);
                let same = got == expected || (got.is_nan() && expected.is_nan());
                assert!(
                    same || (got - expected).abs() <= 1e-35 + 1e-6 * expected.abs(),
                    "{}: {got}, not {expected}",
                    sums[i / seqlen]
                );
            }
        }
    }
}
