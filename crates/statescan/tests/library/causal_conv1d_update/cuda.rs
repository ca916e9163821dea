//! What concerns the CUDA kernel alone. Without a GPU each test says so and passes.

use super::*;
use crate::common::device::{gpu, on_gpu};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

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
    let case = Case { indexed: true, ..Case::new(3, 40, Some(2), 4, 0) };
    let mut inputs = case.inputs();
    inputs.rows = indices(DType::I64, &[6, -1, 2]);
    let (y, state) = run(&case, &exec, &inputs).unwrap();
    let (y, before, after) = (y.to_dense(), inputs.state.to_dense(), state.to_dense());
    assert!((0..160).all(|i| y.data()[i].re == 0.0) && (160..240).all(|i| y.data()[i].re != 0.0));
    for i in 0..before.data().len() {
        assert_eq!(before.data()[i] == after.data()[i], !(240..360).contains(&i), "state {i}");
    }
}
