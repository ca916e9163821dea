//! Norms: the oracle against identities, the kernels against the oracle.

mod errors;
mod oracle;

use crate::common::device::{home, is_gpu, on, ran};
use crate::common::{Layout, Rng, assert_close, assert_close_in_scale, cpu_executors, executors, normal, poisoned, random_cases};
use proptest::prelude::*;
use statescan::ops::norm::{self, Args, Cotangents, Gradients, Kind, Outputs, reference};
use statescan::tensor::{Dense, ErrorBound};
use statescan::{DType, Error, Exec, Tensor, View, ViewMut};

/// Whether there is a gate, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    None,
    Before,
    After,
}

const GATES: [Gate; 3] = [Gate::None, Gate::Before, Gate::After];

#[derive(Debug, Clone)]
struct Case {
    rows: Vec<usize>,
    dim: usize,
    groups: usize,
    dtype: DType,
    parameters: DType,
    /// Type of the residual, the sum and their gradients.
    wide: DType,
    layout: Layout,
    kind: Kind,
    gate: Gate,
    weight: bool,
    bias: bool,
    residual: bool,
    seed: u64,
}

impl Case {
    fn new(dtype: DType, rows: &[usize], dim: usize) -> Self {
        let parameters = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        Case {
            rows: rows.to_vec(),
            dim,
            groups: 1,
            dtype,
            parameters,
            wide: parameters,
            layout: Layout::Dense,
            kind: Kind::Rms,
            gate: Gate::Before,
            weight: true,
            bias: true,
            residual: true,
            seed: 1,
        }
    }

    fn shape(&self) -> Vec<usize> {
        [&self.rows[..], &[self.dim]].concat()
    }

    fn count(&self) -> usize {
        self.rows.iter().product()
    }
}

struct Inputs {
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    z: Tensor,
    residual: Tensor,
    dy: Tensor,
    dsum: Tensor,
}

impl Inputs {
    fn new(case: &Case) -> Self {
        let (rng, l) = (&mut Rng::new(case.seed), case.layout);
        let mut rows = |dtype| normal(rng, dtype, &case.shape(), l, 1.0);
        let [x, z, dy] = [case.dtype; 3].map(&mut rows);
        let [residual, dsum] = [case.wide; 2].map(&mut rows);
        let [weight, bias] = [1.0, 0.5].map(|scale| normal(rng, case.parameters, &[case.dim], l, scale));
        Inputs { x, weight, bias, z, residual, dy, dsum }
    }

    fn on(&self, exec: &Exec) -> Self {
        let all = [&self.x, &self.weight, &self.bias, &self.z, &self.residual, &self.dy, &self.dsum];
        let [x, weight, bias, z, residual, dy, dsum] = all.map(|tensor| on(exec, tensor));
        Inputs { x, weight, bias, z, residual, dy, dsum }
    }

    fn args(&self, case: &Case) -> Args<'_> {
        Args::new(self.x.view())
            .weight(case.weight.then(|| self.weight.view()))
            .bias(case.bias.then(|| self.bias.view()))
            .z((case.gate != Gate::None).then(|| self.z.view()))
            .residual(case.residual.then(|| self.residual.view()))
            .kind(case.kind)
            .eps(1e-3)
            .groups(case.groups)
            .norm_before_gate(case.gate == Gate::After)
    }

    fn cotangents(&self) -> Cotangents<'_> {
        Cotangents::default().y(self.dy.view()).sum(self.dsum.view())
    }
}

/// Everything that the kernels compute, poisoned beforehand.
struct Results {
    y: Tensor,
    sum: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    z: Tensor,
    residual: Tensor,
}

impl Results {
    /// Nothing where a GPU has no kernel for the case.
    fn compute(case: &Case, exec: &Exec, inputs: &Inputs) -> Option<Self> {
        let inputs = inputs.on(exec);
        let (args, rng) = (inputs.args(case), &mut Rng::new(case.seed + 1));
        let mut like = |b: &Tensor| on(exec, &poisoned(rng, b.dtype(), &b.shape(), case.layout));
        let [mut y, mut x, mut z] = [&inputs.x; 3].map(&mut like);
        let [mut sum, mut residual] = [&inputs.residual; 2].map(&mut like);
        let [mut weight, mut bias] = [&inputs.weight; 2].map(&mut like);
        let call = norm::forward(exec, &args, &mut Outputs::default().y(y.view_mut()).sum(sum.view_mut()));
        if !ran(exec, call, &[&y, &sum]) {
            return None;
        }
        let len = norm::backward_workspace_len(exec, &args).unwrap();
        let mut workspace = on(exec, &poisoned(rng, DType::F32, &[len], Layout::Dense));
        let mut grads = Gradients::default()
            .x(x.view_mut())
            .weight(case.weight.then(|| weight.view_mut()))
            .bias(case.bias.then(|| bias.view_mut()))
            .z((case.gate != Gate::None).then(|| z.view_mut()))
            .residual(case.residual.then(|| residual.view_mut()))
            .workspace(workspace.view_mut());
        norm::backward(exec, &args, &inputs.cotangents(), &mut grads).unwrap();
        let [y, sum, x, weight, bias, z, residual] = [&y, &sum, &x, &weight, &bias, &z, &residual].map(home);
        Some(Results { y, sum, x, weight, bias, z, residual })
    }

    fn all(&self) -> [&Tensor; 7] {
        [&self.y, &self.sum, &self.x, &self.weight, &self.bias, &self.z, &self.residual]
    }
}

/// The kernels of executors against the oracle; on a GPU a second run gives the same bits.
fn check(case: &Case, execs: &[Exec]) {
    let inputs = Inputs::new(case);
    let args = inputs.args(case);
    let expected = reference::forward(&args).unwrap();
    let by = reference::backward(&args, &inputs.cotangents()).unwrap();
    for exec in execs {
        let name = |what: &str| format!("{what} of {case:?} on {exec:?}");
        let Some(got) = Results::compute(case, exec, &inputs) else {
            assert_eq!(case.dtype, DType::F64, "{}", name("no kernel"));
            continue;
        };
        let length = case.dim / case.groups;
        assert_close(&name("y"), &got.y, &expected.y, ErrorBound::for_scan(case.dtype, length));
        assert_close(&name("sum"), &got.sum, &expected.sum, ErrorBound::for_scan(case.wide, 1));
        assert_close(&name("gradient by x"), &got.x, &by.x, ErrorBound::for_gradient(case.dtype, length));
        if case.residual {
            assert_close(&name("gradient by residual"), &got.residual, &by.x, ErrorBound::for_gradient(case.wide, length));
        }
        if case.gate != Gate::None {
            assert_close(&name("gradient by z"), &got.z, &by.z, ErrorBound::for_gradient(case.dtype, length));
        }
        // terms of sums over rows may cancel
        let (bound, scale) = (ErrorBound::for_gradient(case.parameters, case.count()), (case.count() as f64).sqrt());
        if case.weight {
            assert_close_in_scale(&name("gradient by weight"), &got.weight, &by.weight, bound, scale);
        }
        if case.bias {
            assert_close_in_scale(&name("gradient by bias"), &got.bias, &by.bias, bound, scale);
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
fn every_width_and_number_of_rows() {
    for (i, dim) in [1, 2, 3, 7, 8, 15, 16, 17, 31, 64, 65, 100, 127, 128, 333, 768, 1009].into_iter().enumerate() {
        let rows: &[&[usize]] = &[&[], &[1], &[37], &[2, 5], &[2, 3, 7]];
        everywhere(Case { gate: GATES[i % 3], ..Case::new(DType::F32, rows[i % 5], dim) });
    }
    for (rows, dim) in [(1031, 16), (300, 257), (3, 5120), (2, 8191), (1, 40_000)] {
        everywhere(Case::new(DType::F32, &[rows], dim));
        everywhere(Case { kind: Kind::Layer, gate: Gate::None, ..Case::new(DType::BF16, &[rows], dim) });
    }
}

#[test]
fn every_option() {
    for kind in [Kind::Rms, Kind::Layer] {
        for gate in GATES {
            for flags in 0..8 {
                let [weight, bias, residual] = [1, 2, 4].map(|bit| flags & bit > 0);
                for groups in [1, 4] {
                    everywhere(Case { kind, gate, weight, bias, residual, groups, ..Case::new(DType::F32, &[2, 19], 76) });
                }
            }
        }
    }
}

#[test]
fn types_and_layouts() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for layout in [Layout::Dense, Layout::Scattered, Layout::Sliced, Layout::SlicedAcross] {
            for groups in [1, 5] {
                everywhere(Case { layout, groups, ..Case::new(dtype, &[3, 2, 11], 160) });
            }
        }
        everywhere(Case { parameters: dtype, wide: dtype, gate: Gate::After, ..Case::new(dtype, &[65], 512) });
    }
}

#[test]
fn empty_problems() {
    for (rows, dim) in [(&[0][..], 5), (&[3], 0), (&[2, 0, 3], 4), (&[0], 0)] {
        for gate in GATES {
            everywhere(Case { gate, ..Case::new(DType::F32, rows, dim) });
        }
    }
}

#[test]
fn numbers_stay_in_their_row_and_group() {
    for exec in executors() {
        for (kind, bad) in [(Kind::Rms, f64::NAN), (Kind::Layer, f64::INFINITY)] {
            let case = Case { kind, groups: 2, ..Case::new(DType::F32, &[5], 34) };
            let clean = Results::compute(&case, &exec, &Inputs::new(&case)).unwrap();
            let mut inputs = Inputs::new(&case);
            let mut dense = inputs.x.to_dense();
            *dense.at_mut(&[2, 20]) = bad.into();
            inputs.x.copy_from(&dense);
            let got = Results::compute(&case, &exec, &inputs).unwrap();
            for (got, clean) in [(&got.y, &clean.y), (&got.x, &clean.x), (&got.z, &clean.z)] {
                let (got, clean) = (got.to_dense(), clean.to_dense());
                for (row, channel) in (0..5).flat_map(|row| (0..34).map(move |channel| (row, channel))) {
                    let same = got.at(&[row, channel]) == clean.at(&[row, channel]);
                    assert!(same || (row == 2 && channel >= 17), "{exec:?} {kind:?}: row {row}, channel {channel}");
                }
            }
            assert!(got.y.to_dense().at(&[2, 20]).re.is_nan(), "{exec:?} {kind:?}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads() {
    let case = Case { groups: 3, ..Case::new(DType::BF16, &[700], 96) };
    let inputs = Inputs::new(&case);
    let [one, many] = [1, 3].map(|threads| Results::compute(&case, &Exec::cpu(threads), &inputs).unwrap());
    assert!(one.all().into_iter().zip(many.all()).all(|(a, b)| a.bytes() == b.bytes()));
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = (prop::collection::vec(0usize..7, 0..4), 1usize..90, 1usize..4);
    (sizes, 0u32..64, 0usize..3, 0usize..4, 0usize..4, 0u64..1000).prop_map(
        |((rows, group, groups), flags, gate, dtype, layout, seed)| {
            let dtype = [DType::F32, DType::F64, DType::BF16, DType::F16][dtype];
            let on = |bit: u32| flags >> bit & 1 == 1;
            let case = Case {
                groups,
                layout: [Layout::Dense, Layout::Scattered, Layout::Sliced, Layout::SlicedAcross][layout],
                gate: GATES[gate],
                kind: if on(0) { Kind::Layer } else { Kind::Rms },
                weight: on(1),
                bias: on(2),
                residual: on(3),
                seed,
                ..Case::new(dtype, &rows, group * groups)
            };
            Case { wide: if on(4) { dtype } else { case.wide }, ..case }
        },
    )
}

proptest! {
    #![proptest_config(random_cases(60, concat!(env!("CARGO_MANIFEST_DIR"), "/tests/norm.proptest-regressions")))]
    #[test]
    fn random_problems_agree_with_the_oracle(case in cases()) {
        everywhere(case);
    }
}
