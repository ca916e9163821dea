//! What concerns the CUDA kernel alone. Without a GPU each test says so and passes.

use super::*;
use crate::common::device::{gpu, on_gpu};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

#[test]
fn cuda_many_channels() {
    on_gpu([Case::new(40, &[4099], 16, ALL)], check);
}

/// The same problems each time, for each needs a kernel of its own.
#[test]
fn cuda_random_problems() {
    let mut runner = TestRunner::deterministic();
    on_gpu((0..40).map(|_| cases().new_tree(&mut runner).unwrap().current()), check);
}

/// Only the device sees the indices.
#[test]
fn cuda_wrong_indices_touch_nothing() {
    let Some(exec) = gpu() else { return };
    let case = Case { indexed: true, ..Case::new(3, &[40], 16, ALL) };
    let mut inputs = case.inputs();
    inputs.rows = indices(DType::I32, &[i32::MAX.into(), 5, 1]);
    let (y, state) = run(&case, &exec, &inputs).unwrap();
    let (y, before, after) = (y.to_dense(), inputs.state.to_dense(), state.to_dense());
    assert!((0..80).all(|i| y.data()[i].re == 0.0) && (80..120).all(|i| y.data()[i].re != 0.0));
    let row = 40 * 16;
    let same = |range: core::ops::Range<usize>| before.data()[range.clone()] == after.data()[range];
    assert!(same(0..row) && !same(row..2 * row) && same(2 * row..5 * row));
}
