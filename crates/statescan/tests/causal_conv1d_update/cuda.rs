//! The CUDA kernel against the oracle, by the same body as the CPU's. Without a GPU each test says so and passes.

use super::common::device::on_gpu;
use super::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

fn check_twice(case: &Case, exec: &Exec) {
    check(case, exec);
    let inputs = case.inputs();
    let [first, second] = [(); 2].map(|()| run(case, exec, &inputs));
    assert!(first.0.bytes() == second.0.bytes() && first.1.bytes() == second.1.bytes(), "two runs of {case:?} differ");
}

#[test]
fn cuda_shapes() {
    for (batch, dim, width) in [(3, 5, 4), (4, 67, 8), (1, 1100, 4), (0, 3, 4), (2, 0, 3)] {
        for steps in [None, Some(3), Some(70), Some(0)] {
            let states = [(0, false), (9, false), (0, true), (80, true)];
            on_gpu(states.map(|(extra, circular)| Case { circular, ..Case::new(batch, dim, steps, width, extra) }), check_twice);
        }
    }
}

#[test]
fn cuda_types_layouts_and_options() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for layout in [Layout::Dense, Layout::Scattered] {
            let options = [(false, true, true, false), (true, true, false, true)];
            let case = |(circular, indexed, silu, bias)| Case {
                dtype,
                layout,
                circular,
                indexed,
                silu,
                bias,
                ..Case::new(5, 33, Some(5), 4, 1)
            };
            on_gpu(options.map(case), check_twice);
        }
    }
}

#[test]
fn cuda_random_problems() {
    let mut runner = TestRunner::deterministic();
    on_gpu((0..40).map(|_| cases().new_tree(&mut runner).unwrap().current()), check_twice);
}

#[test]
fn cuda_wrong_indices_touch_nothing() {
    let case = Case { indexed: true, ..Case::new(3, 40, Some(2), 4, 0) };
    let mut inputs = case.inputs();
    inputs.rows = indices(DType::I64, &[6, -1, 2]);
    let wrong = |case: &Case, exec: &Exec| {
        let (y, state) = run(case, exec, &inputs);
        let (y, before, after) = (y.to_dense(), inputs.state.to_dense(), state.to_dense());
        assert!((0..160).all(|i| y.data()[i].re == 0.0) && (160..240).all(|i| y.data()[i].re != 0.0));
        for i in 0..before.data().len() {
            assert_eq!(before.data()[i] == after.data()[i], !(240..360).contains(&i), "state {i}");
        }
    };
    on_gpu([case], wrong);
}
