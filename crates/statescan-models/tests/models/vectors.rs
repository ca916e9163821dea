//! Models of `transformers`: their logits, and their greedy tokens.

use crate::common::{self, apart, largest};
use statescan::Exec;
use statescan_models::{Array, Model, Sampler, Tensors};
use std::path::Path;

/// The logits of every text in a folder's `expected.safetensors`, within 1e-4 of the largest.
pub fn check_logits(folder: &Path) -> Model {
    let (model, exec) = (Model::load(folder).unwrap(), Exec::cpu(0));
    let expected = folder.join("expected.safetensors");
    let ((shape, ids), (_, logits)) = (common::read(&expected, "input_ids"), common::read(&expected, "logits"));
    let largest = largest(logits.iter().copied());
    let vocab = model.config().vocab;
    for (ids, expected) in ids.chunks(shape[1]).zip(logits.chunks(shape[1] * vocab)) {
        let tokens: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
        let got = model.forward(&exec, &tokens).unwrap();
        let worst = apart(&got, expected);
        assert!(worst <= 1e-4 * largest.max(1.0), "{}: {worst:e} of {largest}", folder.display());
    }
    model
}

fn check_greedy(folder: &Path, model: &Model) {
    let (_, greedy) = common::read(&folder.join("expected.safetensors"), "greedy");
    let tokens: Vec<u32> = greedy.iter().map(|&id| id as u32).collect();
    let (prompt, expected) = tokens.split_at(9);
    let (exec, mut state, mut sampler) = (Exec::cpu(0), model.state(), Sampler::greedy());
    let mut logits = model.prefill(&exec, prompt, &mut state).unwrap();
    for (i, &expected) in expected.iter().enumerate() {
        let token = sampler.draw(&logits).unwrap();
        assert_eq!(token, expected, "token {i}");
        logits = model.step(&exec, token, &mut state).unwrap();
    }
    assert_eq!(state.position(), tokens.len() as u64);
}

#[test]
fn models_of_transformers_give_their_logits_and_tokens() {
    for folder in ["hf_mamba", "hf_mamba2"].into_iter().filter_map(common::shared) {
        let model = check_logits(&folder);
        check_greedy(&folder, &model);
    }
}

#[test]
fn hybrids_of_transformers_give_their_logits_tokens_and_gradients() {
    for name in ["bamba", "granite_hybrid", "qwen3_5", "olmo_hybrid", "olmo_hybrid_plain"] {
        let folder = common::own(name);
        let model = check_logits(&folder);
        check_greedy(&folder, &model);
        let expected = folder.join("expected.safetensors");
        let (_, ids) = common::read(&expected, "input_ids");
        let tokens: Vec<u32> = ids[..40].iter().map(|&id| id as u32).collect();
        let zeros = |(name, shape): (String, Vec<usize>)| {
            let data = vec![f32::NAN; shape.iter().product()];
            (name, Array { shape, data })
        };
        let mut gradients: Tensors = model.config().tensors().into_iter().map(zeros).collect();
        let loss = model.loss_and_gradients(&Exec::cpu(0), &tokens, 19, &mut gradients).unwrap();
        let (_, expected_loss) = common::read(&expected, "loss");
        assert!((loss - expected_loss[0]).abs() < 1e-5, "{name}: {loss} is not {}", expected_loss[0]);
        for (tensor, got) in &gradients {
            let (_, expected) = common::read(&expected, &format!("grad.{tensor}"));
            let (worst, largest) = (apart(&got.data, &expected), largest(expected.iter().copied()));
            assert!(largest > 0.0 && worst <= 1e-4 * largest, "{name} {tensor}: {worst:e} of {largest:e}");
        }
    }
}

#[test]
fn norms_on_maps_groups_biases_and_limits_are_those_of_transformers() {
    for name in ["falcon_mamba", "mamba2_groups"] {
        check_logits(&common::own(name));
    }
}
