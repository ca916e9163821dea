//! The kernels of GPUs against the oracle: widths of models, and sequences that are cut. Without a GPU each test says so and passes.

use super::*;
use crate::common::device::on_gpu;

#[test]
fn widths_of_models_on_a_gpu() {
    let options = DECAY | BETA | UNIT | INITIAL;
    let cases = [DType::F32, DType::BF16, DType::F16].into_iter().flat_map(|dtype| {
        [0, CHANNELS, BOUNDS, RAW | BIAS | SIGMOID | DOUBLED].into_iter().flat_map(move |more| {
            [
                [2, 333, 2, 4, 128, 128],
                [1, 200, 2, 2, 64, 64],
                [1, 65, 1, 3, 64, 128],
                [2, 100, 2, 2, 128, 64],
                [1, 77, 2, 2, 256, 256],
            ]
            .map(|sizes| Case { seed: 2, ..Case::new(dtype, sizes, options | more) })
        })
    });
    on_gpu(cases, check);
}

/// Rows of one token, and packed ones of few, which the step's kernel takes.
#[test]
fn one_token_on_a_gpu() {
    let options = [0, CHANNELS, RAW | BIAS | SIGMOID | DOUBLED | UNIT, RAW | BIAS | LOWER | CHANNELS | TOGETHER, COLUMNS_FIRST];
    let cases = [DType::F32, DType::BF16].into_iter().flat_map(|dtype| {
        options.into_iter().flat_map(move |more| {
            let sizes = [([3, 1, 2, 4, 128, 128], 0), ([1, 3, 2, 2, 64, 128], BOUNDS), ([1, 4, 1, 3, 33, 70], BOUNDS)];
            let layout = if more == COLUMNS_FIRST { Layout::SlicedAcross } else { Layout::Dense };
            sizes.map(|(sizes, packed)| Case { layout, ..Case::new(dtype, sizes, DECAY | BETA | INITIAL | more | packed) })
        })
    });
    on_gpu(cases, check);
}

/// Sequences that are cut into segments, with and without decays that forget what was before them.
#[test]
fn long_sequences_of_few_heads_on_a_gpu() {
    let options = DECAY | BETA | UNIT | INITIAL;
    let cases = [0, CHANNELS].into_iter().flat_map(|more| {
        let sizes = [
            ([1, 2100, 1, 2, 128, 128], 0),
            ([2, 2500, 1, 1, 64, 128], RAW | BIAS | SIGMOID | DOUBLED),
            ([1, 4096, 1, 2, 128, 64], 0),
            ([1, 8300, 1, 1, 64, 64], BOUNDS),
        ];
        let decays = [0.0, 0.01, 0.7, 30.0];
        sizes
            .into_iter()
            .zip(decays)
            .map(move |((sizes, own), decay)| Case { decay, ..Case::new(DType::BF16, sizes, options | more | own) })
    });
    on_gpu(cases, check);
}

/// More columns of heads than a GPU has multiprocessors.
#[test]
fn rows_that_fill_a_gpu() {
    let sizes = [
        ([3, 100, 16, 32, 128, 128], 0),
        ([1, 140, 36, 72, 128, 128], BOUNDS),
        ([1, 65, 40, 40, 64, 256], RAW | BIAS | SIGMOID | DOUBLED),
    ];
    let options = DECAY | BETA | UNIT | INITIAL;
    on_gpu(sizes.map(|(sizes, own)| Case::new(DType::BF16, sizes, options | own)), check);
}
