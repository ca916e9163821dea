//! The kernels against the oracle: types, layouts, levels, sizes, options.

use super::*;
use crate::common::{Layout, Rng, executors, random_cases};
use proptest::prelude::*;

fn everywhere(case: Case) {
    check(&case, &executors());
}

#[test]
fn plain_shapes_on_every_level() {
    for sizes in [
        [1, 1, 1, 1, 1, 1],
        [2, 67, 3, 5, 1, 16],
        [1, 64, 2, 17, 1, 4],
        [2, 65, 4, 16, 2, 7],
        [1, 129, 9, 33, 3, 3],
        [2, 31, 1, 300, 1, 1],
        [1, 63, 40, 1, 1, 5],
        [1, 200, 2, 8, 1, 70],
        [1, 33, 5, 64, 1, 128],
    ] {
        everywhere(Case { seed: 2, ..Case::new(DType::F32, sizes, 0) });
    }
}

#[test]
fn every_option_on_every_level() {
    let alone = [GATE, SKIP, WIDE_SKIP, BIAS, SOFTPLUS, BIAS | SOFTPLUS, LIMIT, OWN_DECAY_STEP, INITIAL, REVERSE, UNGROUPED];
    for option in alone {
        everywhere(Case { seed: 2, ..Case::new(DType::F32, [2, 70, 6, 9, 1, 5], option) });
    }
    for packed in [BOUNDS, INDEX, INDEX | INDEX_STATES] {
        for option in [0, INITIAL, INITIAL | REVERSE | GATE | SKIP | OWN_DECAY_STEP | UNGROUPED] {
            everywhere(Case { seed: 4, ..Case::new(DType::F32, [2, 250, 4, 6, 2, 4], packed | option) });
        }
    }
}

#[test]
fn types_and_layouts() {
    let options = GATE | WIDE_SKIP | BIAS | SOFTPLUS | OWN_DECAY_STEP | INITIAL;
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for layout in [Layout::Dense, Layout::Scattered] {
            everywhere(Case { layout, ..Case::new(dtype, [2, 77, 6, 10, 2, 6], options) });
        }
    }
}

#[test]
fn blocks_of_heads() {
    // several blocks in a group, the last one smaller
    for heads in [5, 7, 10] {
        everywhere(Case { seed: 2, ..Case::new(DType::F32, [2, 70, heads, 100, 1, 9], INITIAL | SKIP) });
        everywhere(Case { seed: 3, ..Case::new(DType::F64, [1, 70, 2 * heads, 60, 2, 3], INITIAL | SKIP | GATE) });
    }
}

#[test]
fn strong_decays_and_long_sequences() {
    for decay in [0.03, 30.0, 1e3, 1e6] {
        for options in [0, INITIAL | GATE | SKIP, SOFTPLUS | INITIAL] {
            check(&Case { decay, ..Case::new(DType::F32, [1, 300, 4, 8, 1, 8], options) }, &[Exec::cpu(1)]);
            check(&Case { decay, ..Case::new(DType::F64, [1, 130, 4, 8, 1, 8], options) }, &[Exec::cpu(1)]);
        }
    }
    check(&Case { decay: 0.05, ..Case::new(DType::F32, [1, 5000, 2, 4, 1, 4], INITIAL) }, &[Exec::cpu(1)]);
}

#[test]
fn one_huge_step_does_not_blur_the_small_ones() {
    // the running sum falls by 10^5 at once; differences after it must keep their digits
    let case = Case::new(DType::F32, [1, 60, 1, 4, 1, 4], INITIAL);
    let mut inputs = Inputs::new(&case);
    inputs.a.fill_with(|| (-1.0).into());
    let mut t = 0;
    inputs.dt.fill_with(|| {
        t += 1;
        if t == 9 { 1e5.into() } else { 0.01.into() }
    });
    let got = run_forward(&case, &inputs, &Exec::cpu(1), true).unwrap();
    let bound = ErrorBound::for_scan(DType::F32, case.seqlen);
    let expected = reference::forward(&inputs.args(&case)).unwrap();
    // the state after the huge step hides everything that comes later at its scale, so each step is compared on its own
    for t in 0..60 {
        let row = |dense: &Dense| dense.data()[t * 4..(t + 1) * 4].to_vec();
        let (_, relative, within) = statescan::tensor::max_errors(&row(&got.y.to_dense()), &row(&expected.y), bound);
        assert!(within, "step {t}: {relative:.2e}");
    }
}

#[test]
fn empty_problems() {
    for sizes in [[0, 5, 3, 2, 1, 2], [2, 0, 3, 2, 1, 2], [2, 5, 0, 2, 1, 2], [2, 5, 3, 0, 1, 2], [2, 5, 3, 2, 1, 0]] {
        for options in [0, INITIAL | SKIP | GATE, REVERSE | WIDE_SKIP, BOUNDS, INDEX | INITIAL, INDEX | INDEX_STATES] {
            everywhere(Case { seed: 2, ..Case::new(DType::F32, sizes, options) });
        }
    }
}

#[test]
fn any_subset_of_gradients_is_the_same() {
    let case = Case::new(DType::F32, [2, 100, 4, 8, 2, 6], GATE | SKIP | BIAS | SOFTPLUS | OWN_DECAY_STEP | INITIAL);
    let (inputs, exec) = (Inputs::new(&case), Exec::cpu(1));
    let args = inputs.args(&case);
    let cotangents = Cotangents::default().y(inputs.dy.view()).final_state(inputs.dstate.view());
    for (name, whole) in run_backward(&case, &inputs, &exec, None) {
        let mut alone = poisoned(&mut Rng::new(1), whole.dtype(), &whole.shape(), Layout::Dense);
        let mut grads = Gradients::default();
        let slot = match name {
            "x" => &mut grads.x,
            "dt" => &mut grads.dt,
            "a" => &mut grads.a,
            "b" => &mut grads.b,
            "c" => &mut grads.c,
            "d" => &mut grads.d,
            "z" => &mut grads.z,
            "dt_bias" => &mut grads.dt_bias,
            "dt_a" => &mut grads.dt_a,
            _ => &mut grads.initial_state,
        };
        *slot = Some(alone.view_mut());
        ssd::backward(&exec, &args, None, &cotangents, &mut grads).unwrap();
        assert_eq!(alone.bytes(), whole.bytes(), "{name}");
    }
    // and of cotangents: their gradients add up
    let both = reference::backward(&args, &cotangents).unwrap();
    let parts = [Cotangents::default().y(cotangents.y), Cotangents::default().final_state(cotangents.final_state)].map(|part| {
        let mut x = poisoned(&mut Rng::new(1), DType::F64, &inputs.x.shape(), Layout::Dense);
        ssd::backward(&exec, &args, None, &part, &mut Gradients::default().x(x.view_mut())).unwrap();
        x.to_dense()
    });
    let mut sum = Tensor::host(DType::F64, &inputs.x.shape()).unwrap();
    let mut values = parts[0].data().iter().zip(parts[1].data());
    sum.fill_with(|| values.next().map(|(a, b)| a + b).unwrap());
    assert_close("sum of parts", &sum, &both.x, ErrorBound::for_gradient(DType::F32, 100));
}

proptest! {
    #![proptest_config(random_cases(48, "tests/ssd.proptest-regressions"))]
    #[test]
    fn random_problems(
        sizes in (0usize..3, 0usize..140, 1usize..4, 0usize..40, 1usize..4, 0usize..20),
        dtype in prop::sample::select(vec![DType::F32, DType::F64, DType::BF16, DType::F16]),
        options in 0u32..8192,
        scattered in any::<bool>(),
        decay in prop::sample::select(vec![0.1, 3.0, 100.0]),
        seed in any::<u32>(),
    ) {
        let (batch, seqlen, per_group, headdim, groups, dstate) = sizes;
        let options = if options & BOUNDS != 0 { options & !(INDEX | INDEX_STATES) } else { options };
        let layout = if scattered { Layout::Scattered } else { Layout::Dense };
        let case = Case::new(dtype, [batch, seqlen, per_group * groups, headdim, groups, dstate], options);
        check(&Case { layout, decay, seed: u64::from(seed), ..case }, &[Exec::cpu(1)]);
    }
}
