//! `statescan train` from outside: a model to generate with, and going on after it was killed.

mod common;

use common::*;
use std::path::Path;
use std::time::{Duration, Instant};

const SMALL: [&str; 12] = ["--dim", "16", "--layers", "1", "--batch", "2", "--seqlen", "32", "--steps", "30", "--every", "5"];

#[track_caller]
fn trained(args: &[&str]) -> String {
    let output = statescan(&[&["train"], args].concat());
    assert_eq!(status(&output), 0, "{}", stderr(&output));
    stdout(&output)
}

fn weights(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("model.safetensors")).unwrap()
}

#[test]
fn a_trained_model_generates_and_has_a_plot() {
    let folder = tempfile::tempdir().unwrap();
    let said = trained(&[&SMALL[..], &["--save", text(folder.path())]].concat());
    assert!(said.contains("bits for a byte after 30 steps") && said.contains("148480 bytes of text"), "{said}");
    let plot = std::fs::read_to_string(folder.path().join("loss.svg")).unwrap();
    assert!(plot.starts_with("<svg") && plot.contains("30 steps") && plot.trim_end().ends_with("</svg>"));
    let output = statescan(&["generate", text(folder.path()), "--prompt", "Alice", "--tokens", "5"]);
    assert_eq!((status(&output), output.stdout.len()), (0, 6), "{}", stderr(&output));
}

#[test]
fn a_training_that_was_killed_goes_on_with_the_same_bits() {
    let [whole, killed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    trained(&[&SMALL[..], &["--save", text(whole.path())]].concat());
    let mut process = command(&[&["train"], &SMALL[..], &["--save", text(killed.path())]].concat());
    let mut process = process.stdout(std::process::Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while !killed.path().join("model.safetensors").exists() && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    process.kill().unwrap();
    process.wait().unwrap();
    trained(&["--resume", text(killed.path())]);
    assert_eq!(weights(killed.path()), weights(whole.path()));
    trained(&["--resume", text(killed.path())]);
    assert_eq!(weights(killed.path()), weights(whole.path()), "there was nothing left to do");
}

#[test]
fn texts_folders_and_settings_that_cannot_be_used_end_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let (short, none) = (folder.path().join("short.txt"), folder.path().join("none"));
    std::fs::write(&short, "too short").unwrap();
    for (args, says) in [
        (&[text(&short)][..], "`text` must be at least ten rows long"),
        (&[text(&none)], "none: No such file"),
        (&["--resume", text(&none)], "training.safetensors: No such file"),
        (&["--steps", "0"], "`steps` must be"),
        (&["--rate", "0"], "`rate` must be a positive number"),
        (&["--device", "gpu"], "--device must be cpu, cuda or cuda:N"),
    ] {
        let output = statescan(&[&["train"], args].concat());
        let message = stderr(&output);
        assert_eq!(status(&output), 2, "{args:?}: {message}");
        assert!(message.contains(says) && message.trim_end().lines().count() == 1, "{message}");
        assert!(output.stdout.is_empty() && !none.exists());
    }
}
