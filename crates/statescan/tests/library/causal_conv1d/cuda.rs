//! Random problems for the CUDA kernels, the same ones each time, for each needs kernels of its own. Without a GPU each test says so and passes.

use super::*;
use crate::common::device::on_gpu;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

// several tests, so that kernels are compiled side by side
fn random_problems(part: usize) {
    let mut runner = TestRunner::deterministic();
    let all = (0..).map(|_| cases().new_tree(&mut runner).unwrap().current()).filter(|case| case.dtype != DType::F64);
    on_gpu(all.skip(part * 20).take(20), check);
}

#[test]
fn cuda_random_problems_0() {
    random_problems(0);
}
#[test]
fn cuda_random_problems_1() {
    random_problems(1);
}
