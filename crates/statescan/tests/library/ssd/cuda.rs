//! These tests concern the CUDA kernels alone: how they cut rows and tile heads and states. Without a GPU each test says so and passes.

use super::*;
use crate::common::Layout;
use crate::common::device::{gpu, on_gpu, on_routes};
use crate::common::executors;
use statescan::Error;

const ALL: u32 = GATE | SKIP | BIAS | SOFTPLUS | INITIAL;

/// Lengths, columns and states around the sizes of tiles, in every storage type.
#[test]
fn cuda_sizes_around_tiles() {
    let sizes = [
        [2, 63, 4, 64, 1, 128],
        [1, 64, 3, 80, 3, 64],
        [1, 65, 4, 24, 2, 17],
        [2, 127, 2, 128, 1, 16],
        [1, 333, 8, 64, 2, 128],
        [1, 130, 2, 64, 1, 256],
        [1, 1, 2, 1, 1, 1],
        [1, 100, 2, 200, 1, 40],
    ];
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        on_gpu(sizes.map(|sizes| Case::new(dtype, sizes, ALL)), check);
    }
}

/// Models make these calls, which Hopper has a kernel of its own for: lengths around chunks, columns and states around tiles, any number of heads in a
/// block, long rows of few heads.
#[test]
fn cuda_rows_of_bf16() {
    let case = |sizes, options| Case { seed: 2, ..Case::new(DType::BF16, sizes, options) };
    let short = [
        case([2, 1, 3, 64, 1, 128], ALL),
        case([1, 63, 2, 64, 1, 64], INITIAL | SKIP),
        case([1, 65, 5, 64, 1, 128], GATE),
        case([3, 127, 4, 80, 2, 72], ALL),
        case([1, 129, 3, 128, 1, 128], 0),
        case([2, 333, 8, 24, 4, 8], INITIAL),
        case([1, 1000, 6, 64, 2, 128], WIDE_SKIP | GATE | LIMIT | UNGROUPED),
        case([2, 200, 3, 64, 1, 256], 0),
        case([1, 129, 4, 80, 2, 200], ALL),
        // so many that gradients are formed from one half of the states after the other
        case([2, 333, 44, 8, 4, 256], 0),
        case([1, 129, 180, 8, 2, 200], ALL),
        case([2, 130, 90, 16, 1, 136], WIDE_SKIP | GATE | OWN_DECAY_STEP | INITIAL),
    ];
    on_gpu(short, check);
    for sizes in [[1, 5000, 3, 64, 1, 128], [1, 1500, 3, 64, 1, 256], [1, 1500, 24, 8, 1, 256]] {
        on_gpu([0, ALL].map(|options| Case { decay: 0.05, ..case(sizes, options) }), check);
    }
}

/// Blocks that have a head and blocks that have two of them, one of which may be missing: rows of so few heads that every head has a
/// multiprocessor, and of so many that heads share them. In the backward pass few blocks or many share the heads of a group.
#[test]
fn cuda_heads_of_a_block() {
    let case = |sizes, options| Case { seed: 7, ..Case::new(DType::BF16, sizes, options) };
    let cases = [
        case([1, 129, 5, 64, 1, 128], ALL),
        case([2, 70, 161, 8, 1, 64], ALL),
        case([1, 32, 80, 64, 1, 128], INITIAL | GATE),
        case([1, 200, 301, 8, 7, 72], BOUNDS | INITIAL),
    ];
    on_gpu(cases, check);
}

/// The kernels of other devices compute calls that Hopper has kernels of its own for, with rows in one pass and in segments.
#[test]
fn cuda_routes_of_other_devices() {
    let case = |sizes, options| Case { seed: 11, decay: 0.05, ..Case::new(DType::BF16, sizes, options) };
    on_routes([case([1, 1500, 2, 64, 1, 64], ALL), case([2, 300, 4, 64, 2, 128], BOUNDS | INITIAL)], check);
}

/// Packed sequences as models train on them: each begins with a chunk of its own there, and its gradients do not see its neighbours.
#[test]
fn cuda_rows_of_bf16_packed() {
    let case = |sizes, options| Case { seed: 5, ..Case::new(DType::BF16, sizes, options) };
    let mut cases = Vec::new();
    for packed in [BOUNDS, INDEX, INDEX | INDEX_STATES] {
        cases.push(case([2, 300, 4, 64, 2, 128], packed | ALL));
        cases.push(case([1, 555, 2, 80, 1, 64], packed | INITIAL | WIDE_SKIP | GATE));
        cases.push(case([1, 2500, 1, 64, 1, 64], packed | INITIAL));
    }
    cases.push(case([2, 200, 2, 64, 1, 256], BOUNDS | INITIAL));
    cases.push(case([2, 333, 44, 8, 2, 200], INDEX | SHORT | ALL));
    cases.push(case([1, 300, 104, 8, 1, 256], INDEX | INITIAL | WIDE_SKIP | GATE | OWN_DECAY_STEP));
    // rows cut into segments, and gradients from one half of the states after the other
    cases.push(Case { decay: 0.05, ..case([1, 3000, 12, 8, 1, 256], BOUNDS | INITIAL | GATE) });
    cases.push(case([1, 1, 2, 64, 1, 128], BOUNDS));
    // more sequences than blocks
    cases.push(case([2, 2000, 1, 64, 1, 128], INDEX | SHORT | ALL));
    cases.push(case([1, 3000, 1, 64, 1, 64], INDEX | SHORT | WIDE_SKIP));
    on_gpu(cases, check);
}

/// Chunks whose decays have no common scale in f32 beside chunks that have one.
#[test]
fn cuda_rows_of_bf16_with_decays_of_any_size() {
    for decay in [0.0, 0.03, 3.0, 10.0, 30.0, 100.0, 500.0, 1e4, 1e6] {
        for options in [INITIAL, INITIAL | GATE | SKIP] {
            let sizes = [[1, 300, 4, 64, 1, 64], [1, 200, 2, 64, 1, 256], [1, 200, 130, 8, 1, 136], [2, 130, 161, 8, 1, 64]];
            on_gpu(sizes.map(|sizes| Case { decay, seed: 3, ..Case::new(DType::BF16, sizes, options) }), check);
        }
    }
}

/// Long rows of few heads, which are cut into segments when there is a workspace.
#[test]
fn cuda_segments() {
    let cases = [
        Case { decay: 0.05, ..Case::new(DType::F32, [1, 3000, 2, 16, 1, 16], 0) },
        Case { decay: 0.1, ..Case::new(DType::BF16, [2, 2817, 3, 64, 1, 64], ALL | REVERSE) },
        Case { decay: 0.05, ..Case::new(DType::F16, [1, 4000, 2, 64, 1, 128], GATE | INITIAL) },
        Case { decay: 0.05, ..Case::new(DType::F32, [1, 3333, 2, 24, 1, 20], BOUNDS | INITIAL) },
        Case { decay: 0.05, ..Case::new(DType::F32, [2, 2500, 2, 8, 2, 8], INDEX | INDEX_STATES | INITIAL | REVERSE) },
        Case {
            layout: Layout::Scattered,
            ..Case::new(DType::F16, [1, 2111, 4, 32, 2, 32], INDEX | INITIAL | SKIP | OWN_DECAY_STEP)
        },
    ];
    on_gpu(cases, |case, execs| {
        let inputs = Inputs::new(case).on(&execs[0]);
        assert!(ssd::workspace_len(&execs[0], &inputs.args(case)).unwrap() > 0, "{case:?}");
        check(case, execs);
    });
}

/// Decays that leave nothing within a few steps, and none at all.
#[test]
fn cuda_decays_of_any_size() {
    for decay in [0.0, 0.03, 30.0, 500.0, 1e5] {
        for (dtype, options) in [(DType::F32, INITIAL | GATE | SKIP), (DType::BF16, INITIAL), (DType::F16, INITIAL | GATE)] {
            on_gpu([Case { decay, ..Case::new(dtype, [1, 300, 4, 32, 1, 32], options) }], check);
        }
    }
}

/// Arguments of f16 whose states, weights and gradients are beyond what f16 holds, and such whose are far below; and a NaN in another column.
#[test]
fn f16_of_any_size() {
    let multiplied = |tensor: &mut Tensor, by: f64| {
        let values = tensor.to_dense();
        let mut values = values.data().iter();
        tensor.fill_with(|| values.next().unwrap() * by);
    };
    let case = Case::new(DType::F16, [1, 200, 4, 32, 2, 32], INITIAL | SKIP | OWN_DECAY_STEP);
    for packed in [0, INDEX] {
        let case = Case { options: case.options | packed, ..case.clone() };
        let mut large = Inputs::new(&case);
        for (tensor, by) in
            [(&mut large.x, 1024.0), (&mut large.b, 1024.0), (&mut large.c, 1.0 / 4096.0), (&mut large.dy, 1.0 / 1024.0)]
        {
            multiplied(tensor, by);
        }
        multiplied(&mut large.dstate, 1.0 / 8192.0);
        multiplied(&mut large.d, 0.125);
        check_inputs(&case, &large, &executors());
        let mut small = Inputs::new(&case);
        multiplied(&mut small.dt, 1.0 / 8192.0);
        multiplied(&mut small.state, 1.0 / 8192.0);
        multiplied(&mut small.dstate, 128.0);
        check_inputs(&case, &small, &executors());
    }
    let case = Case { options: INITIAL, ..case };
    let mut one = Inputs::new(&case);
    let mut i = 0;
    one.x.fill_with(|| {
        i += 1;
        if i == 1 { f64::NAN.into() } else { ((i % 7) as f64 - 3.0).into() }
    });
    let expected = reference::forward(&one.args(&case)).unwrap();
    for exec in executors() {
        let got = run_forward(&case, &one, &exec, true).unwrap().y.to_dense();
        let pairs = got.data().iter().zip(expected.y.data());
        let (nan, rest): (Vec<_>, Vec<_>) = pairs.partition(|(_, wanted)| wanted.re.is_nan());
        assert!(!nan.is_empty() && nan.iter().all(|(got, _)| got.re.is_nan()));
        let [got, wanted]: [Vec<_>; 2] = [rest.iter().map(|r| *r.0).collect(), rest.iter().map(|r| *r.1).collect()];
        let bound = ErrorBound::for_scan(case.dtype, case.seqlen).in_products(case.dtype);
        assert!(statescan::tensor::max_errors(&got, &wanted, bound).2, "columns beside a NaN on {exec:?}");
    }
}

/// Packed sequences with states of their own, in models' sizes.
#[test]
fn cuda_packed_sequences() {
    for packed in [BOUNDS, INDEX, INDEX | INDEX_STATES] {
        for (dtype, options) in [(DType::BF16, INITIAL), (DType::BF16, ALL | REVERSE), (DType::F16, ALL)] {
            on_gpu([Case::new(dtype, [2, 500, 4, 64, 2, 128], packed | options)], check);
        }
    }
}

/// Products of f32 are rounded to 11 bits where that is allowed, and those of 16 bits are as they were.
#[test]
fn cuda_tf32_where_it_is_allowed() {
    let Some(exec) = gpu() else { return };
    let rounded = exec.clone().with_tf32(true);
    for sizes in [[1, 200, 4, 64, 1, 128], [2, 100, 2, 24, 1, 17]] {
        let case = Case::new(DType::F32, sizes, ALL);
        let inputs = Inputs::new(&case);
        let args = inputs.args(&case);
        let expected = reference::forward(&args).unwrap();
        let [plain, tf32] = [&exec, &rounded].map(|exec| run_forward(&case, &inputs, exec, true).unwrap());
        let bound = ErrorBound::for_scan(DType::F32, case.seqlen).in_products(DType::F16);
        assert_close("y in tf32", &tf32.y, &expected.y, bound);
        assert_close("final_state in tf32", &tf32.last, &expected.final_state, bound);
        assert!(plain.y.bytes() != tf32.y.bytes(), "the option has no effect");
        let cotangents = Cotangents::default().y(inputs.dy.view()).final_state(inputs.dstate.view());
        let by = reference::backward(&args, &cotangents).unwrap();
        let bound = ErrorBound::for_gradient(DType::F16, case.seqlen).in_products(DType::F16);
        for (name, got) in run_backward(&case, &inputs, &rounded, None) {
            let terms = by.dt.data().iter().map(|v| v.norm_sqr()).sum::<f64>().sqrt();
            let scale = if matches!(name, "a" | "dt_bias") { terms } else { 0.0 };
            assert_close_in_scale(&format!("gradient by {name} in tf32"), &got, of(&by, name), bound, scale);
        }
        let case = Case { dtype: DType::BF16, ..case };
        let inputs = Inputs::new(&case);
        let [plain, tf32] = [&exec, &rounded].map(|exec| run_forward(&case, &inputs, exec, true).unwrap());
        assert_eq!(plain.y.bytes(), tf32.y.bytes());
    }
}

#[test]
fn cuda_refuses_what_it_cannot_do() {
    let Some(exec) = gpu() else { return };
    let case = Case::new(DType::F32, [1, 10, 2, 4, 1, 4], 0);
    let inputs = Inputs::new(&case).on(&exec);
    let mut dx = on(&exec, &Tensor::host(DType::F32, &inputs.x.shape()).unwrap());
    let cotangents = Cotangents::default().y(inputs.dy.view());
    let error = ssd::backward(&exec, &inputs.args(&case), None, &cotangents, &mut Gradients::default().x(dx.view_mut()));
    assert!(matches!(error, Err(Error::Presence { argument: "workspace", .. })), "{error:?}");
    let case = Case { dtype: DType::F64, ..case };
    let inputs = Inputs::new(&case).on(&exec);
    let mut y = on(&exec, &Tensor::host(DType::F64, &inputs.x.shape()).unwrap());
    let error = ssd::forward(&exec, &inputs.args(&case), &mut Outputs::default().y(y.view_mut()));
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
}
