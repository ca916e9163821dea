//! The CUDA kernels against the oracle, by the same body as the CPU's. Without a GPU each test says so and passes.

use super::common::device::{gpu, on_gpu};
use super::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

fn check_twice(case: &Case, exec: &Exec) {
    check(case, exec);
    let inputs = Inputs::new(case);
    let [first, second] = [(); 2].map(|()| Results::compute(case, exec, &inputs));
    for (a, b) in first.all().into_iter().zip(second.all()) {
        assert!(a.bytes() == b.bytes(), "two runs of {case:?} differ");
    }
}

const PACKINGS: [Packing; 5] = [Packing::Whole, Packing::Bounds, Packing::Runs, Packing::Padded, Packing::Numbered];

#[test]
fn cuda_shapes_and_widths() {
    let shapes = [(1, 1, 1), (2, 5, 67), (1, 17, 64), (2, 16, 65), (1, 33, 129), (3, 130, 15), (1, 2, 1031), (2, 3, 5049)];
    let cases = shapes.into_iter().enumerate().flat_map(|(i, (batch, dim, seqlen))| {
        [false, true].map(|channels_last| Case {
            channels_last,
            seed: i as u64,
            ..Case::new(DType::F32, batch, dim, seqlen, 2 + i % 7)
        })
    });
    on_gpu(cases, check_twice);
}

#[test]
fn cuda_types_and_layouts() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for channels_last in [false, true] {
            on_gpu([77, 2048].map(|seqlen| Case { channels_last, ..Case::new(dtype, 2, 24, seqlen, 4) }), check_twice);
            on_gpu([Case { channels_last, layout: Layout::Scattered, ..Case::new(dtype, 2, 18, 77, 4) }], check_twice);
        }
    }
    on_gpu([Case { parameters: DType::BF16, ..Case::new(DType::F32, 2, 18, 77, 3) }], check_twice);
}

fn options(packing: Packing) {
    for channels_last in [false, true] {
        for (bias, silu, initial, reverse) in
            [(false, false, false, false), (true, false, true, false), (false, true, true, true), (true, true, false, true)]
        {
            let case = Case::new(DType::F32, 2, 9, 71, 4).packed(packing);
            on_gpu([Case { channels_last, bias, silu, initial, reverse, ..case }], check_twice);
        }
    }
}

// a test each, so that kernels are compiled side by side
#[test]
fn cuda_options_of_whole_rows() {
    options(Packing::Whole);
}
#[test]
fn cuda_options_with_bounds() {
    options(Packing::Bounds);
}
#[test]
fn cuda_options_with_runs() {
    options(Packing::Runs);
}
#[test]
fn cuda_options_with_padding() {
    options(Packing::Padded);
}
#[test]
fn cuda_options_with_numbers() {
    options(Packing::Numbered);
}

#[test]
fn cuda_sequences_shorter_than_the_filter() {
    for (seqlen, width) in [(1, 8), (3, 5), (7, 4), (20, 8)] {
        on_gpu(PACKINGS.map(|packing| Case::new(DType::F32, 2, 5, seqlen, width).packed(packing)), check_twice);
    }
}

#[test]
fn cuda_empty_problems() {
    for (batch, dim, seqlen) in [(0, 3, 5), (2, 0, 5), (2, 3, 0), (0, 0, 0)] {
        on_gpu(PACKINGS.map(|packing| Case::new(DType::F32, batch, dim, seqlen, 3).packed(packing)), check_twice);
    }
}

fn random_problems(part: usize) {
    let mut runner = TestRunner::deterministic();
    let all = (0..).map(|_| cases().new_tree(&mut runner).unwrap().current()).filter(|case| case.dtype != DType::F64);
    on_gpu(all.skip(part * 20).take(20), check_twice);
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
fn cuda_nan_stays_in_its_sequence_and_channel() {
    let Some(exec) = gpu() else { return };
    for packing in PACKINGS {
        for channels_last in [false, true] {
            nan_stays(
                &Case { channels_last, ..Case::new(DType::F32, 2, 19, 80, 4).packed(packing) },
                std::slice::from_ref(&exec),
            );
        }
    }
}

#[test]
fn cuda_vectors_of_the_origin() {
    let Some(exec) = gpu() else { return };
    vectors::check_vectors(&exec);
}

#[test]
fn cuda_refuses_double_precision() {
    let refused = |case: &Case, exec: &Exec| {
        let inputs = Inputs::new(case);
        let placed = inputs.all().map(|buffer| Placed::new(exec, buffer));
        let args = case.args(&placed.each_ref().map(|p| p.view()));
        let error = causal_conv1d::forward(exec, &args, &mut Outputs::default());
        assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
    };
    on_gpu([Case::new(DType::F64, 1, 2, 3, 4)], refused);
}
