//! The selective scan's kernels against its oracle: types, layouts, levels, sizes, options.

mod case;
mod cuda;
mod errors;
mod oracle;
mod phases;

use crate::common::device::{home, is_gpu, on, ran};
use crate::common::options::*;
use crate::common::{Layout, Rng, assert_close, executors, indices, normal, poisoned, random, random_cases, uniform};
use case::{Case, Computed, Expected, Inputs};
use num_complex::Complex64;
use proptest::prelude::*;
use statescan::ops::selective_scan::{self, Args, Cotangents, Gradients, Outputs, reference};
use statescan::tensor::{Dense, ErrorBound, Workspace};
use statescan::{DType, Discretization, Exec, Level, Sequences, Tensor, View};
use std::sync::Arc;

fn check(case: &Case, execs: &[Exec]) {
    let expected = Expected::new(case);
    execs.iter().for_each(|exec| expected.check(exec));
}

fn everywhere(case: Case) {
    check(&case, &executors());
}

#[test]
fn plain_shapes_on_every_level() {
    for (batch, dim, seqlen, dstate) in
        [(1, 1, 1, 1), (2, 5, 67, 16), (1, 17, 64, 4), (2, 16, 65, 7), (1, 33, 129, 3), (3, 48, 31, 1), (1, 2, 200, 70)]
    {
        everywhere(Case::new(DType::F32, batch, dim, seqlen, dstate, 0));
    }
}

#[test]
fn every_option_on_every_level() {
    let all = [GATE, SKIP, BIAS, SOFTPLUS, BIAS | SOFTPLUS, LIMIT, OWN_DECAY_STEP, INITIAL, REVERSE];
    for option in all {
        everywhere(Case { seed: 2, ..Case::new(DType::F32, 2, 19, 70, 5, option) });
        // several lanes for each channel
        everywhere(Case { seed: 2, ..Case::new(DType::F32, 1, 19, 70, 8, option) });
        everywhere(Case { seed: 2, ..Case::new(DType::F32, 2, 1, 70, 16, option) });
    }
}

#[test]
fn packed_sequences_on_every_level() {
    for packed in [BOUNDS, INDEX, INDEX | INDEX_STATES] {
        for option in [0, INITIAL, INITIAL | REVERSE | GATE | SKIP] {
            everywhere(Case { seed: 4, ..Case::new(DType::F32, 2, 6, 150, 4, packed | option) });
        }
    }
}

#[test]
fn few_channels_of_every_type_and_number() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for (dim, dstate) in [(1, 16), (2, 8), (3, 4), (5, 2), (7, 6), (17, 16)] {
            for layout in [Layout::Dense, Layout::Scattered] {
                everywhere(Case { layout, ..Case::new(dtype, 1, dim, 131, dstate, GATE | SKIP | BIAS | SOFTPLUS | INITIAL) });
            }
        }
    }
}

#[test]
fn long_rows_are_walked_in_windows() {
    // windows have 1024 steps here, and ranges of channels as many states
    everywhere(Case::new(DType::F32, 1, 260, 1030, 16, GATE | SKIP | BIAS | SOFTPLUS | INITIAL));
    everywhere(Case { complex: true, ..Case::new(DType::F32, 2, 130, 1030, 8, REVERSE | SKIP) });
}

/// Rows of few channels, whose tiles threads share backwards.
fn few(batch: usize, dim: usize, seqlen: usize, dstate: usize, options: u32) -> Case {
    Case { seed: 2, ..Case::new(DType::F32, batch, dim, seqlen, dstate, options) }
}

#[test]
fn long_rows_of_few_channels_are_walked_together() {
    let options = GATE | SKIP | BIAS | SOFTPLUS | INITIAL;
    // whole tiles of 64 steps and not; one block of channels and several, whole and not; one lane for each channel and several; one row
    // and more, fewer than threads and not
    for (batch, dim, seqlen, dstate) in [
        (1, 16, 1024, 16),
        (1, 16, 256, 2),
        (1, 16, 289, 4),
        (1, 13, 2300, 16),
        (1, 32, 1027, 4),
        (1, 5, 1152, 32),
        (2, 40, 300, 12),
        (1, 16, 257, 64),
        (2, 9, 1025, 2),
        (1, 16, 1030, 3),
        (5, 7, 260, 5),
        (1, 256, 320, 2),
    ] {
        everywhere(few(batch, dim, seqlen, dstate, 0));
        everywhere(few(batch, dim, seqlen, dstate, options));
    }
}

#[test]
fn long_rows_of_few_channels_of_any_kind_are_walked_together() {
    let options = GATE | SKIP | BIAS | SOFTPLUS | INITIAL;
    for option in [GATE, OWN_DECAY_STEP, OWN_DECAY_STEP | GATE, REVERSE | LIMIT | INITIAL] {
        everywhere(few(1, 16, 1030, 6, option));
    }
    for dtype in [DType::F64, DType::BF16, DType::F16] {
        everywhere(Case { dtype, layout: Layout::Scattered, ..few(1, 16, 1100, 6, options) });
    }
    for discretization in Discretization::ALL {
        for complex in [false, true] {
            everywhere(Case { discretization, complex, ..few(1, 16, 1030, 4, INITIAL | SKIP) });
        }
    }
    for (constant_b, constant_c) in [(true, false), (false, true), (true, true)] {
        everywhere(Case { constant_b, constant_c, complex: constant_b, ..few(1, 16, 1030, 8, REVERSE) });
    }
    for (groups, dim) in [(2, 16), (2, 64), (3, 51)] {
        everywhere(Case { groups, ..few(1, dim, 1030, 5, 0) });
    }
}

#[test]
fn long_rows_do_not_depend_on_threads_or_runs() {
    // rows that threads share, and rows in windows
    for (batch, dim, seqlen, dstate, options) in [
        (1, 16, 9000, 16, GATE | SKIP),
        (2, 48, 5001, 8, GATE | SKIP | OWN_DECAY_STEP | INITIAL),
        (1, 260, 1030, 16, GATE | SKIP | BIAS | SOFTPLUS),
    ] {
        let case = few(batch, dim, seqlen, dstate, options);
        let alone = all_bytes(&case, &Exec::cpu(1));
        for threads in [2, 3, 8].into_iter().cycle().take(20) {
            assert!(all_bytes(&case, &Exec::cpu(threads)) == alone, "{threads} threads");
        }
    }
}

#[test]
fn types_and_layouts() {
    let options = GATE | SKIP | BIAS | SOFTPLUS | INITIAL;
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for layout in [Layout::Dense, Layout::Scattered] {
            for seqlen in [77, 128] {
                everywhere(Case { layout, ..Case::new(dtype, 2, 18, seqlen, 6, options) });
            }
        }
    }
}

/// Dense tensors whose channels are contiguous, as (batch, step, channel) memory is.
#[test]
fn channels_last() {
    for dtype in [DType::F32, DType::BF16] {
        let (batch, dim, seqlen) = (2, 64, 96);
        let case = Case::new(dtype, batch, dim, seqlen, 16, GATE | SKIP);
        let mut expected = Expected::new(&case);
        let inputs = &mut expected.inputs;
        for tensor in [&mut inputs.x, &mut inputs.dt, &mut inputs.z] {
            let dense = tensor.to_dense();
            let strides = [(dim * seqlen) as isize, 1, dim as isize];
            *tensor = Tensor::strided(dtype, &[batch, dim, seqlen], &strides, 0, batch * dim * seqlen).unwrap();
            tensor.copy_from(&dense);
        }
        executors().iter().for_each(|exec| expected.check(exec));
    }
}

/// Slices of larger tensors, along steps or along channels: lines of any length that begin anywhere.
#[test]
fn rows_begin_anywhere() {
    let options = GATE | SKIP | BIAS | SOFTPLUS | INITIAL;
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for layout in [Layout::Sliced, Layout::SlicedAcross] {
            for (seed, dim, seqlen) in [(1, 24, 3), (2, 40, 77), (3, 70, 150)] {
                everywhere(Case { layout, seed, ..Case::new(dtype, 2, dim, seqlen, 16, options) });
            }
        }
        for (dim, seqlen, packed) in [(16, 131, 0), (17, 33, REVERSE), (40, 129, BOUNDS), (9, 95, INDEX)] {
            everywhere(Case::new(dtype, 2, dim, seqlen, 16, options | packed));
        }
        let (layout, groups) = (Layout::Sliced, 3);
        everywhere(Case { layout, groups, ..Case::new(dtype, 2, 48, 67, 16, OWN_DECAY_STEP | SKIP) });
    }
}

#[test]
fn groups_and_constant_maps() {
    for (groups, dim) in [(2, 8), (3, 51), (4, 4)] {
        everywhere(Case { groups, ..Case::new(DType::F32, 2, dim, 66, 4, 0) });
    }
    for (constant_b, constant_c) in [(true, false), (false, true), (true, true)] {
        everywhere(Case { constant_b, constant_c, groups: 3, ..Case::new(DType::F32, 2, 9, 66, 5, REVERSE) });
    }
}

#[test]
fn complex_states_and_discretizations() {
    for discretization in Discretization::ALL {
        for complex in [false, true] {
            for dtype in [DType::F32, DType::F64] {
                for (constant_b, options) in [(false, INITIAL), (true, OWN_DECAY_STEP | GATE | SKIP)] {
                    everywhere(Case { discretization, complex, constant_b, ..Case::new(dtype, 2, 7, 70, 6, options) });
                }
            }
        }
    }
}

#[test]
fn empty_problems() {
    for (batch, dim, seqlen, dstate) in [(0, 3, 5, 2), (2, 0, 5, 2), (2, 3, 0, 2), (2, 3, 5, 0)] {
        for options in [0, INITIAL | SKIP | GATE, REVERSE, BOUNDS, INDEX | INITIAL] {
            everywhere(Case::new(DType::F32, batch, dim, seqlen, dstate, options));
        }
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = (0usize..4, 0usize..40, 0usize..140, 0usize..10);
    let kinds = (0u8..4, any::<bool>(), any::<bool>(), any::<bool>(), 0usize..4);
    (sizes, kinds, any::<u32>(), any::<bool>(), any::<u32>()).prop_map(|((b, d, l, n), kinds, options, dense, seed)| {
        let (dtype, complex, constant_b, constant_c, discretization) = kinds;
        let dtype = [DType::F32, DType::F64, DType::BF16, DType::F16][usize::from(dtype)];
        // at most one way of packing
        let options = if options & BOUNDS != 0 { options & !INDEX } else { options };
        let groups = if d > 0 && d % 3 == 0 { 3 } else { 1 };
        Case {
            groups,
            complex,
            constant_b,
            constant_c,
            discretization: Discretization::ALL[discretization],
            layout: if dense { Layout::Dense } else { Layout::Scattered },
            seed: u64::from(seed),
            ..Case::new(dtype, b, d, l, n, options % 2048)
        }
    })
}

proptest! {
    #![proptest_config(random_cases(60, "tests/selective_scan.proptest-regressions"))]
    #[test]
    fn any_problem_agrees_with_the_oracle(case in cases(), threads in 1usize..4) {
        Expected::new(&case).check(&Exec::cpu(threads));
    }
}

/// The bytes of every result and gradient of a case.
fn all_bytes(case: &Case, exec: &Exec) -> Vec<Vec<u8>> {
    let inputs = Inputs::new(case);
    let args = inputs.args(case);
    let zeros = |like: &Tensor| Tensor::host(like.dtype(), &like.shape()).unwrap();
    let (mut y, mut last) = (zeros(&inputs.x), zeros(&inputs.state));
    let mut out = Outputs::default().y(y.view_mut()).final_state(last.view_mut());
    selective_scan::forward(exec, &args, &mut out).unwrap();
    let mut grads = Computed::new(&inputs, zeros);
    selective_scan::backward(exec, &args, None, &inputs.cotangents(), &mut grads.targets(case)).unwrap();
    let grads = grads.all().map(|(_, tensor)| tensor);
    [&y, &last].into_iter().chain(grads).map(|tensor| tensor.bytes().to_vec()).collect()
}

#[test]
fn results_do_not_depend_on_threads_or_runs() {
    let options = SKIP | INITIAL | BIAS | SOFTPLUS | GATE;
    let foreign = Arc::new(|count: usize, work: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| (0..count).for_each(|_| drop(scope.spawn(work))));
    });
    for complex in [false, true] {
        // jobs of many channels, and rows that threads share, of one channel a lane and of fewer
        for case in [
            Case { complex, ..Case::new(DType::F32, 3, 100, 140, 5, options | OWN_DECAY_STEP) },
            Case { complex, ..Case::new(DType::F32, 2, 3, 300, 64, options | OWN_DECAY_STEP) },
            Case { complex, ..Case::new(DType::F32, 1, 16, 300, 8, options) },
        ] {
            for level in Level::available() {
                let bytes = |exec: Exec| all_bytes(&case, &exec.with_level(level).unwrap());
                let first = bytes(Exec::cpu(1));
                for exec in [1, 2, 3, 7].map(Exec::cpu).into_iter().chain([Exec::cpu_on(3, foreign.clone())]) {
                    let name = format!("{exec:?}, {level:?}, {case:?}");
                    assert!(bytes(exec) == first, "{name}");
                }
            }
        }
    }
}

/// `y` and the gradient by `x`.
fn run(case: &Case, inputs: &Inputs, exec: &Exec) -> [Dense; 2] {
    let (inputs, mut workspace) = (inputs.on(exec), Workspace::default());
    let args = inputs.args(case);
    let [mut y, mut dx] = [(); 2].map(|()| Tensor::like(exec, &args.x).unwrap());
    let mut out = Outputs::default().y(y.view_mut());
    selective_scan::forward(exec, &args, &mut out).unwrap();
    let len = selective_scan::backward_workspace_len(exec, &args, false).unwrap();
    let scratch = workspace.view_mut(exec, len).unwrap();
    let mut grads = Gradients::default().x(dx.view_mut()).workspace(scratch);
    let cotangents = Cotangents::default().y(inputs.dy.view());
    selective_scan::backward(exec, &args, None, &cotangents, &mut grads).unwrap();
    [y, dx].map(|tensor| home(&tensor).to_dense())
}

#[test]
fn nan_stays_where_it_is() {
    for (constant_b, dstate) in [(false, 4), (false, 5), (true, 5)] {
        let case = Case { constant_b, ..Case::new(DType::F32, 1, 21, 90, dstate, BOUNDS | INITIAL | SKIP | GATE) };
        let (clean, mut dirty) = (Inputs::new(&case), Inputs::new(&case));
        // a NaN and an infinity in one channel of one packed sequence: everything else is as without them
        let (channel, steps) = (3, 30..60);
        let mut x = dirty.x.to_dense();
        *x.at_mut(&[0, channel, 40]) = f64::NAN.into();
        *x.at_mut(&[0, channel, 45]) = f64::INFINITY.into();
        dirty.x.copy_from(&x);
        for exec in executors() {
            let ([y, dx], [dirty_y, dirty_dx]) = (run(&case, &clean, &exec), run(&case, &dirty, &exec));
            for (d, t) in (0..21).flat_map(|d| (0..90).map(move |t| (d, t))) {
                if d != channel || !steps.contains(&t) {
                    assert_eq!(dirty_y.at(&[0, d, t]), y.at(&[0, d, t]), "y at {d}, {t} on {exec:?}");
                    assert_eq!(dirty_dx.at(&[0, d, t]), dx.at(&[0, d, t]), "dx at {d}, {t} on {exec:?}");
                }
            }
            assert!(dirty_y.at(&[0, channel, 41]).re.is_nan());
        }
        if constant_b {
            continue;
        }
        // a NaN in B of one sequence reaches all of its channels, and no other sequence
        let mut b = dirty.b.to_dense();
        *b.at_mut(&[0, 1, 50]) = f64::NAN.into();
        dirty.b.copy_from(&b);
        for exec in executors() {
            let ([y, _], [dirty, _]) = (run(&case, &clean, &exec), run(&case, &dirty, &exec));
            for (d, t) in (0..21).flat_map(|d| (0..90).map(move |t| (d, t))).filter(|(_, t)| !steps.contains(t)) {
                assert_eq!(dirty.at(&[0, d, t]), y.at(&[0, d, t]), "y at {d}, {t} on {exec:?}");
            }
            assert!((0..21).all(|d| dirty.at(&[0, d, 51]).re.is_nan()));
        }
    }
}

#[test]
fn extreme_steps_and_decays() {
    // dt = 0 keeps the state exactly; a huge decay forgets it exactly
    for exec in executors() {
        let one =
            |value: f64, shape: &[usize]| Tensor::from_slice(&exec, &vec![value as f32; shape.iter().product()], shape).unwrap();
        for (dt, a, expected) in [(0.0, -1.0, 0.625), (1.0, -1e30, 0.0), (1e30, -1e30, 0.0), (1.0, f64::NEG_INFINITY, 0.0)] {
            let (x, dt, a) = (one(0.0, &[1, 3, 1000]), one(dt, &[1, 3, 1000]), one(a, &[3, 2]));
            let (b, c, h) = (one(1.0, &[1, 2, 1000]), one(0.5, &[1, 2, 1000]), one(0.625, &[1, 3, 2]));
            let mut last = one(7.0, &[1, 3, 2]);
            let args = Args::new(x.view(), dt.view(), a.view(), b.view(), c.view()).initial_state(h.view());
            let mut out = Outputs::default().final_state(last.view_mut());
            selective_scan::forward(&exec, &args, &mut out).unwrap();
            let last = last.to_vec::<f32>().unwrap();
            assert!(last.iter().all(|&v| v == expected), "{exec:?} {last:?}");
        }
    }
}
