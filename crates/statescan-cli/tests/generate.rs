//! `statescan generate` from outside: text, states, folders that mean harm.

mod common;

use common::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;
use statescan::Exec;
use statescan_models::Model;
use std::path::Path;
use tempfile::TempDir;

/// Bits for a byte of the last tenth of the book, which the model in the program was not trained on; docs/models.md has them, too.
const HELD_OUT: f64 = 2.016;

/// A tiny model over bytes with made-up weights, each a function of its place.
fn model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"model_type": "mamba", "vocab_size": 128, "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4, "conv_kernel": 2});
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let shapes: [(&str, &[usize]); 12] = [
        ("embeddings.weight", &[128, 8]),
        ("norm_f.weight", &[8]),
        ("layers.0.norm.weight", &[8]),
        ("layers.0.mixer.in_proj.weight", &[32, 8]),
        ("layers.0.mixer.conv1d.weight", &[16, 1, 2]),
        ("layers.0.mixer.conv1d.bias", &[16]),
        ("layers.0.mixer.x_proj.weight", &[9, 16]),
        ("layers.0.mixer.dt_proj.weight", &[16, 1]),
        ("layers.0.mixer.dt_proj.bias", &[16]),
        ("layers.0.mixer.A_log", &[16, 4]),
        ("layers.0.mixer.D", &[16]),
        ("layers.0.mixer.out_proj.weight", &[8, 16]),
    ];
    let value = |i: usize| ((i * i * 7 + i * 13 + 5) % 101) as f32 / 50.0 - 1.0;
    let bytes = |shape: &[usize]| (0..shape.iter().product()).flat_map(|i: usize| value(i).to_le_bytes()).collect::<Vec<u8>>();
    let data: Vec<_> = shapes.iter().map(|(name, shape)| (format!("backbone.{name}"), *shape, bytes(shape))).collect();
    let views = data.iter().map(|(name, shape, data)| (name, TensorView::new(Dtype::F32, shape.to_vec(), data).unwrap()));
    std::fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    folder
}

#[track_caller]
fn generated(args: &[&str]) -> Vec<u8> {
    let output = statescan(&[&["generate"], args].concat());
    assert_eq!(status(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("tokens/s"), "{}", stderr(&output));
    output.stdout
}

#[track_caller]
fn refused(args: &[&str], says: &str) {
    let output = statescan(&[&["generate"], args].concat());
    let message = stderr(&output);
    assert_eq!(status(&output), 2, "{args:?}: {message}");
    assert!(message.contains(says) && message.trim_end().lines().count() == 1, "{args:?} should say {says:?}: {message}");
    assert!(output.stdout.is_empty(), "nothing is written");
}

#[test]
fn a_prompt_is_continued_with_as_many_tokens_as_asked_for() {
    let (folder, elsewhere) = (model(), tempfile::tempdir().unwrap());
    let path = elsewhere.path().join("prompt.txt");
    std::fs::write(&path, "Once").unwrap();
    let greedy = generated(&[text(folder.path()), "--prompt", "Once", "--tokens", "20"]);
    assert_eq!(greedy.len(), 21, "twenty bytes and the end of the line");
    assert_eq!(generated(&[text(folder.path()), "--file", text(&path), "--tokens", "20", "--threads", "1"]), greedy);
    let drawn =
        |seed| generated(&[text(folder.path()), "--prompt", "Once", "--tokens", "20", "--temperature", "1.5", "--seed", seed]);
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
}

#[test]
fn the_program_has_a_model_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.safetensors");
    let greedy = generated(&["--prompt", "Alice was not", "--tokens", "60"]);
    assert_eq!(greedy.len(), 61, "sixty bytes and the end of the line");
    assert!(greedy.is_ascii() && greedy.iter().filter(|byte| **byte == b' ').count() > 5, "words: {greedy:?}");
    assert_eq!(generated(&["--prompt", "Alice was not", "--tokens", "60", "--threads", "1"]), greedy);
    generated(&["--prompt", "Alice was", "--tokens", "0", "--save-state", text(&state)]);
    assert_eq!(generated(&["--prompt", " not", "--tokens", "60", "--state", text(&state)]), greedy);
    let drawn = |seed| generated(&["--prompt", "Alice", "--tokens", "60", "--temperature", "0.8", "--seed", seed]);
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
    refused(&["--prompt", "a", "--chat"], "the folder of --chat must be one with a chat template, got `none`");
}

#[test]
fn its_weights_guess_the_text_that_was_held_out_as_recorded() {
    let weights = include_bytes!("../assets/alice/model.safetensors");
    let model = Model::from_bytes(include_str!("../assets/alice/config.json"), weights).unwrap();
    let book = include_bytes!("../assets/alice29.txt");
    let held_out: Vec<u32> = book[book.len() - book.len() / 10..].iter().map(|&byte| u32::from(byte)).collect();
    let bits = model.bits_per_token(&Exec::cpu(0), &held_out).unwrap();
    assert!((bits - HELD_OUT).abs() < 2e-3, "{bits} bits for a byte");
    assert!(weights.len() <= 4 << 20);
}

#[test]
fn chat_needs_a_template() {
    let folder = model();
    refused(&[text(folder.path()), "--prompt", "a", "--chat"], "the folder of --chat must be one with a chat template");
    std::fs::write(folder.path().join("tokenizer_config.json"), "{").unwrap();
    refused(&[text(folder.path()), "--prompt", "a", "--chat"], "tokenizer_config.json: it is no JSON");
}

#[test]
fn a_saved_state_goes_on_with_the_text() {
    let (folder, elsewhere) = (model(), tempfile::tempdir().unwrap());
    let state = elsewhere.path().join("state.safetensors");
    let whole = generated(&[text(folder.path()), "--prompt", "Once upon a time", "--tokens", "9"]);
    generated(&[text(folder.path()), "--prompt", "Once upon", "--tokens", "0", "--save-state", text(&state)]);
    let rest = generated(&[text(folder.path()), "--prompt", " a time", "--tokens", "9", "--state", text(&state)]);
    assert_eq!(rest, whole);
}

#[test]
fn folders_prompts_and_settings_that_cannot_be_used_end_with_2() {
    let (folder, elsewhere) = (model(), tempfile::tempdir().unwrap());
    let (good, empty, none) = (text(folder.path()), text(elsewhere.path()), elsewhere.path().join("none"));
    let state = elsewhere.path().join("state");
    refused(&[text(&none), "--prompt", "a"], "config.json: No such file");
    refused(&[empty, "--prompt", "a"], "config.json: No such file");
    refused(&[good, "--prompt", "", "--save-state", text(&state)], "at least one token");
    refused(&[good, "--prompt", "caf\u{e9}", "--save-state", text(&state)], "token 195 at position 3 must be less than");
    refused(&[good, "--file", text(&none)], "none: No such file");
    refused(&[good, "--prompt", "a", "--state", text(&none)], "none: No such file");
    refused(&[good, "--prompt", "a", "--state", text(&folder.path().join("config.json"))], "it is not a saved state");
    refused(&[good, "--prompt", "a", "--temperature=-1"], "`temperature` must be");
    refused(&[good, "--prompt", "a", "--top-p", "0"], "`top-p` must be");
    refused(&[good, "--prompt", "a", "--device", "cuda:99"], "CUDA");
    refused(&[good, "--prompt", "a", "--type", "bf16"], "the device of --type must be a GPU, got `cpu`");
    assert!(!state.exists());
    let weights = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    let spoiled = |bytes: &[u8], says: &str| {
        std::fs::write(&weights, bytes).unwrap();
        refused(&[good, "--prompt", "a"], says);
    };
    spoiled(&bytes[..bytes.len() - 1], "it is not a whole safetensors file");
    spoiled(&[&bytes[..bytes.len() - 4], &f32::NAN.to_le_bytes()[..]].concat(), "must be finite, got NaN");
    spoiled(
        &bytes.iter().map(|b| if *b == b'D' { b'E' } else { *b }).collect::<Vec<_>>(),
        "the tensor `backbone.layers.0.mixer.D` is missing",
    );
    std::fs::write(Path::new(good).join("config.json"), "{\"model_type\": \"gpt2\"}").unwrap();
    refused(&[good, "--prompt", "a"], "`model_type` must be mamba, falcon_mamba or mamba2, got \"gpt2\"");
}
