//! `statescan generate` from outside: text, states, folders that mean harm.

use crate::common::*;
use statescan::Exec;
use statescan_models::Model;
use std::path::Path;

/// Bits for a byte of the last tenth of the book, which the model in the program was not trained on; docs/models/training.md has them, too.
const HELD_OUT: f64 = 2.016;

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
    let with = |args: &[&str]| generated(&[&[text(folder.path()), "--tokens", "20"], args].concat());
    let greedy = with(&["--prompt", "Once", "--temperature", "0"]);
    assert_eq!(greedy.len(), 21, "twenty bytes and the end of the line");
    assert_eq!(with(&["--file", text(&path), "--temperature", "0", "--threads", "1"]), greedy);
    let drawn = |seed| with(&["--prompt", "Once", "--temperature", "1.5", "--seed", seed]);
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
}

#[test]
fn the_program_has_a_model_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.safetensors");
    let greedy = ["--tokens", "60", "--temperature", "0"];
    let greedy = |args: &[&str]| generated(&[&greedy, args].concat());
    let whole = greedy(&["--prompt", "Alice was not"]);
    assert_eq!(whole.len(), 61, "sixty bytes and the end of the line");
    assert!(whole.is_ascii() && whole.iter().filter(|byte| **byte == b' ').count() > 5, "words: {whole:?}");
    assert_eq!(greedy(&["--prompt", "Alice was not", "--threads", "1"]), whole);
    generated(&["--prompt", "Alice was", "--tokens", "0", "--save-state", text(&state)]);
    assert_eq!(greedy(&["--prompt", " not", "--state", text(&state)]), whole);
    let drawn = |seed| generated(&["--prompt", "Alice", "--tokens", "60", "--temperature", "0.8", "--seed", seed]);
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
    refused(&["--prompt", "a", "--chat"], "the folder of --chat must be one with a chat template, got `none`");
}

#[test]
fn its_weights_guess_the_text_that_was_held_out_as_recorded() {
    let weights = include_bytes!("../../assets/alice/model.safetensors");
    let model = Model::from_bytes(include_str!("../../assets/alice/config.json"), weights).unwrap();
    let book = include_bytes!("../../assets/alice29.txt");
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

#[cfg(not(feature = "tokenizers"))]
#[test]
fn a_build_without_tokenizers_prints_the_command_of_one_with_them() {
    let folder = model();
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    refused(
        &[text(folder.path()), "--prompt", "a"],
        "lacks the feature `tokenizers` (cargo build --release --features tokenizers)",
    );
}

#[test]
fn a_saved_state_goes_on_with_the_text() {
    let (folder, elsewhere) = (model(), tempfile::tempdir().unwrap());
    let state = elsewhere.path().join("state.safetensors");
    let with = |args: &[&str]| generated(&[&[text(folder.path())], args].concat());
    let whole = with(&["--prompt", "Once upon a time", "--tokens", "9"]);
    with(&["--prompt", "Once upon", "--tokens", "0", "--save-state", text(&state)]);
    assert_eq!(with(&["--prompt", " a time", "--tokens", "9", "--state", text(&state)]), whole);
    // without a prompt from the logits in the file, and the file may be replaced by what it becomes
    with(&["--prompt", " a time", "--tokens", "0", "--state", text(&state), "--save-state", text(&state)]);
    assert_eq!(with(&["--tokens", "9", "--state", text(&state)]), whole);
    let model = Model::load(folder.path()).unwrap();
    model.save_state(&model.load_state(&state).unwrap(), &state).unwrap();
    refused(&[text(folder.path()), "--state", text(&state)], "--prompt must be given, as the state has no logits to go on from");
}

#[test]
fn folders_prompts_and_settings_that_cannot_be_used_end_with_2() {
    let (folder, elsewhere) = (model(), tempfile::tempdir().unwrap());
    let (good, empty, none) = (text(folder.path()), text(elsewhere.path()), elsewhere.path().join("none"));
    let state = elsewhere.path().join("state");
    refused(
        &[text(&none), "--prompt", "a"],
        "none: there is no such folder; nothing is downloaded here, but `hf download NAME --local-dir ",
    );
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
    let output = statescan(&["generate", good, "--prompt", "a", "--type", "f64"]);
    assert!(status(&output) == 2 && stderr(&output).contains("[possible values: f32, bf16, f16]"), "{}", stderr(&output));
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
    refused(
        &[good, "--prompt", "a"],
        "`model_type` must be mamba, falcon_mamba, mamba2, bamba, granitemoehybrid, qwen3_5_text or olmo_hybrid, got \"gpt2\"",
    );
}

#[test]
fn numbers_that_are_not_finite_are_named() {
    let (folder, elsewhere) = (model(), tempfile::tempdir().unwrap());
    let (good, state) = (text(folder.path()), elsewhere.path().join("state"));
    generated(&[good, "--prompt", "a", "--save-state", text(&state)]);
    let mut bytes = std::fs::read(&state).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&state, bytes).unwrap();
    refused(&[good, "--prompt", "a", "--state", text(&state)], "must be finite, got NaN at element");
    // finite weights that are too large
    let weights = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    for (name, says) in
        [("backbone.layers.0.mixer.out_proj.weight", "layer 0 gives "), ("backbone.norm_f.weight", "the head gives ")]
    {
        let (mut spoiled, places) = (bytes.clone(), place(&bytes, name));
        spoiled[places].as_chunks_mut::<4>().0.iter_mut().for_each(|x| *x = 3e38f32.to_le_bytes());
        std::fs::write(&weights, spoiled).unwrap();
        refused(&[good, "--prompt", "abc", "--save-state", text(&elsewhere.path().join("new"))], says);
        assert!(!elsewhere.path().join("new").exists());
    }
}

/// The place of the bytes of a tensor in a file.
fn place(bytes: &[u8], name: &str) -> std::ops::Range<usize> {
    let file = safetensors::SafeTensors::deserialize(bytes).unwrap();
    let data = file.tensor(name).unwrap().data();
    let start = data.as_ptr().addr() - bytes.as_ptr().addr();
    start..start + data.len()
}
