//! The CUDA kernel against the oracle, by the same body as the CPU's. Without a GPU each test says so and passes.

use super::common::device::{gpu, on_gpu};
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
    for dstate in [0, 1, 3, 8, 15, 16, 64, 200] {
        on_gpu([vec![37], vec![300], vec![3, 5], vec![4, 0]].map(|own| Case::new(2, &own, dstate, SKIP)), check_twice);
    }
    on_gpu([Case::new(0, &[3], 4, ALL), Case::new(1, &[2, 64], 128, ALL), Case::new(40, &[4099], 16, ALL)], check_twice);
}

#[test]
fn cuda_options_groups_and_shared_parameters() {
    for option in [SKIP, GATE, BIAS, SOFTPLUS, LIMIT, OWN_DECAY_STEP, ALL] {
        let heads = [(vec![24], Some(4), false), (vec![6, 5], Some(3), true), (vec![6, 5], None, false)];
        on_gpu(heads.map(|(own, groups, shared)| Case { groups, shared, ..Case::new(2, &own, 16, option) }), check_twice);
    }
}

#[test]
fn cuda_types_layouts_and_indices() {
    let types = [DType::F32, DType::BF16, DType::F16];
    for (dtype, state) in types.iter().flat_map(|&dtype| types.map(|state| (dtype, state))) {
        on_gpu(
            [Layout::Dense, Layout::Scattered].map(|layout| Case {
                dtype,
                state,
                layout,
                indexed: true,
                ..Case::new(4, &[3, 20], 16, ALL)
            }),
            check_twice,
        );
    }
}

#[test]
fn cuda_complex_states_and_discretizations() {
    for discretization in Discretization::ALL {
        for complex in [false, true] {
            let case =
                |own: &[usize], options, shared| Case { discretization, complex, shared, ..Case::new(2, own, 10, options) };
            on_gpu([case(&[19], OWN_DECAY_STEP, false), case(&[3, 6], ALL, true)], check_twice);
        }
    }
}

#[test]
fn cuda_channels_side_by_side_and_nan() {
    let Some(exec) = gpu() else { return };
    channels_side_by_side(std::slice::from_ref(&exec));
    nan_stays(&[exec]);
}

#[test]
fn cuda_random_problems() {
    let mut runner = TestRunner::deterministic();
    on_gpu((0..40).map(|_| cases().new_tree(&mut runner).unwrap().current()), check_twice);
}

#[test]
fn cuda_wrong_indices_touch_nothing() {
    let case = Case { indexed: true, ..Case::new(3, &[40], 16, ALL) };
    let mut inputs = case.inputs();
    inputs.rows = indices(DType::I32, &[i32::MAX.into(), 5, 1]);
    let wrong = |case: &Case, exec: &Exec| {
        let (y, state) = run(case, exec, &inputs);
        let (y, before, after) = (y.to_dense(), inputs.state.to_dense(), state.to_dense());
        assert!((0..80).all(|i| y.data()[i].re == 0.0) && (80..120).all(|i| y.data()[i].re != 0.0));
        let row = 40 * 16;
        let same = |range: core::ops::Range<usize>| before.data()[range.clone()] == after.data()[range];
        assert!(same(0..row) && !same(row..2 * row) && same(2 * row..5 * row));
    };
    on_gpu([case], wrong);
}
