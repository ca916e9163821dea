//! The kernels against the oracle: types, layouts, levels, sizes, options.

use super::*;
use crate::common::device::on_gpu;
use crate::common::{Rng, executors, random_cases};
use proptest::prelude::*;

fn everywhere(case: Case) {
    check(&case, &executors());
}

#[test]
fn plain_shapes_on_every_level() {
    for sizes in [
        [1, 1, 1, 1, 1, 1],
        [2, 67, 3, 3, 5, 16],
        [1, 64, 2, 4, 17, 4],
        [2, 65, 1, 3, 16, 7],
        [1, 129, 2, 2, 33, 130],
        [1, 31, 1, 1, 256, 200],
        [1, 63, 4, 4, 1, 65],
        [1, 200, 1, 2, 64, 48],
    ] {
        for options in [0, DECAY | BETA, DECAY | CHANNELS | BETA | UNIT] {
            everywhere(Case { seed: 2, ..Case::new(DType::F32, sizes, options) });
        }
    }
}

#[test]
fn every_option_on_every_level() {
    let alone = [
        DECAY,
        BETA,
        SIGMOID,
        SIGMOID | DOUBLED,
        RAW,
        RAW | BIAS,
        RAW | BIAS | LOWER,
        UNIT,
        SCALE | UNIT,
        INITIAL,
        REVERSE,
        TOGETHER,
        COLUMNS_FIRST | INITIAL,
    ];
    for option in alone {
        for channels in [0, CHANNELS] {
            everywhere(Case { seed: 2, ..Case::new(DType::F32, [2, 70, 2, 4, 9, 6], option | channels) });
        }
    }
    for packed in [BOUNDS, INDEX, INDEX | INDEX_STATES] {
        for option in [DECAY | BETA, INITIAL | DECAY, INITIAL | REVERSE | RAW | BIAS | CHANNELS | SIGMOID | UNIT] {
            everywhere(Case { seed: 4, ..Case::new(DType::F32, [2, 250, 2, 2, 6, 4], packed | option) });
        }
    }
}

#[test]
fn types_and_layouts() {
    for channels in [0, CHANNELS] {
        let options = RAW | BIAS | SIGMOID | UNIT | INITIAL | channels;
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            for layout in [Layout::Dense, Layout::Scattered, Layout::Sliced, Layout::SlicedAcross] {
                everywhere(Case { layout, ..Case::new(dtype, [2, 77, 2, 4, 18, 21], options) });
            }
        }
    }
}

#[test]
fn decays_of_any_size() {
    for decay in [0.0, 0.03, 30.0, 500.0] {
        for channels in [0, CHANNELS] {
            let options = DECAY | BETA | UNIT | INITIAL | channels;
            everywhere(Case { decay, ..Case::new(DType::F32, [1, 150, 2, 2, 16, 16], options) });
            check(&Case { decay, ..Case::new(DType::F64, [1, 150, 2, 2, 16, 16], options) }, &[Exec::cpu(1)]);
        }
    }
}

#[test]
fn empty_problems() {
    for sizes in [[0, 5, 1, 2, 3, 2], [2, 0, 1, 2, 3, 2], [2, 5, 1, 0, 3, 2], [2, 5, 1, 2, 0, 3], [2, 5, 1, 2, 3, 0]] {
        for options in [0, INITIAL | DECAY | BETA, RAW | CHANNELS | UNIT, BOUNDS, INDEX | INITIAL, INDEX | INDEX_STATES] {
            everywhere(Case { seed: 2, ..Case::new(DType::F32, sizes, options) });
        }
    }
}

#[test]
fn any_subset_of_gradients_is_the_same() {
    let case = Case::new(DType::F32, [2, 100, 2, 4, 8, 6], RAW | BIAS | SIGMOID | UNIT | INITIAL);
    let (inputs, exec) = (Inputs::new(&case), Exec::cpu(1));
    let args = inputs.args(&case);
    for (name, whole) in run_backward(&case, &inputs, &exec, None).unwrap() {
        let mut alone = poisoned(&mut Rng::new(1), whole.dtype(), &whole.shape(), Layout::Dense);
        let mut grads = Gradients::default();
        let slot = match name {
            "q" => &mut grads.q,
            "k" => &mut grads.k,
            "v" => &mut grads.v,
            "g" => &mut grads.g,
            "beta" => &mut grads.beta,
            "a_log" => &mut grads.a_log,
            "dt_bias" => &mut grads.dt_bias,
            _ => &mut grads.initial_state,
        };
        *slot = Some(alone.view_mut());
        gdr::backward(&exec, &args, None, &inputs.cotangents(), &mut grads).unwrap();
        assert_eq!(alone.bytes(), whole.bytes(), "{name}");
    }
    // and of cotangents: their gradients add up
    let both = reference::backward(&args, &inputs.cotangents()).unwrap();
    let parts =
        [Cotangents::default().y(inputs.dy.view()), Cotangents::default().final_state(inputs.dstate.view())].map(|part| {
            let mut v = poisoned(&mut Rng::new(1), DType::F64, &inputs.v.shape(), Layout::Dense);
            gdr::backward(&exec, &args, None, &part, &mut Gradients::default().v(v.view_mut())).unwrap();
            v.to_dense()
        });
    let mut sum = Tensor::host(DType::F64, &inputs.v.shape()).unwrap();
    let mut values = parts[0].data().iter().zip(parts[1].data());
    sum.fill_with(|| values.next().map(|(a, b)| a + b).unwrap());
    assert_close("sum of parts", &sum, &both.v, ErrorBound::for_gradient(DType::F32, 100));
}

proptest! {
    #![proptest_config(random_cases(40, "tests/gated_delta_rule.proptest-regressions"))]
    #[test]
    fn random_problems(
        sizes in (0usize..3, 0usize..140, 1usize..4, 1usize..4, 0usize..40, 0usize..90),
        dtype in prop::sample::select(vec![DType::F32, DType::F64, DType::BF16, DType::F16]),
        options in 0u32..131_072,
        scattered in any::<bool>(),
        decay in prop::sample::select(vec![0.1, 3.0, 40.0]),
        seed in any::<u32>(),
    ) {
        let (batch, seqlen, heads, group, keys, values) = sizes;
        let options = if options & BOUNDS != 0 { options & !(INDEX | INDEX_STATES) } else { options };
        let layout = if scattered { Layout::Scattered } else { Layout::Dense };
        let case = Case::new(dtype, [batch, seqlen, heads, heads * group, keys, values], options | UNIT);
        check(&Case { layout, decay, seed: u64::from(seed), ..case }, &[Exec::cpu(1)]);
    }
}

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
