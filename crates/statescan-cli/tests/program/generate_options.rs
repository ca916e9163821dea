//! The options of `statescan generate`, and what is left when it is interrupted.

use crate::common::*;
use serde_json::Value;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Output, Stdio};

fn generate(args: &[&str]) -> Output {
    statescan(&[&["generate"], args].concat())
}

#[track_caller]
fn generated(args: &[&str]) -> String {
    let output = generate(args);
    assert_eq!(status(&output), 0, "{args:?}: {}", stderr(&output));
    stdout(&output)
}

#[track_caller]
fn refused(args: &[&str], says: &str) {
    let output = generate(args);
    let message = stderr(&output);
    assert_eq!((status(&output), output.stdout.len()), (2, 0), "{args:?}: {message}");
    assert!(message.contains(says) && message.trim_end().lines().count() == 1, "{args:?} should say {says:?}: {message}");
}

/// The share of places in a text at which 20 bytes begin that were there before.
fn repeated(text: &str) -> f64 {
    let parts: Vec<_> = text.as_bytes().windows(20).collect();
    let again = (1..parts.len()).filter(|&i| parts[..i].contains(&parts[i])).count();
    again as f64 / parts.len() as f64
}

#[test]
fn the_default_does_not_repeat_itself() {
    let with = |args: &[&str]| generated(&[&["--prompt", "Alice was ", "--tokens", "600"], args].concat());
    let (default, greedy) = (with(&[]), with(&["--temperature", "0"]));
    assert_eq!(with(&["--temperature", "0.8", "--top-p", "0.95", "--top-k", "0", "--seed", "0"]), default, "as the help says");
    assert!(repeated(&default) < 0.02, "{} of {default}", repeated(&default));
    assert!(repeated(&greedy) > 0.3, "{} of {greedy}", repeated(&greedy));
    let penalized = with(&["--temperature", "0", "--repetition-penalty", "1.3"]);
    assert!(repeated(&penalized) < repeated(&greedy), "{penalized}");
}

#[test]
fn options_without_effect_are_refused() {
    for (option, value) in [("--top-k", "3"), ("--top-p", "0.5"), ("--min-p", "0.1"), ("--seed", "1")] {
        refused(
            &["--prompt", "a", "--temperature", "0", option, value],
            &format!("{option} must be left out with --temperature 0"),
        );
    }
    refused(&["--prompt", "a", "--stop", ""], "--stop must be a text, got ``");
    refused(&["--prompt", "a", "--repetition-penalty", "0"], "`repetition-penalty` must be a positive number, got 0");
}

#[test]
fn the_text_alone_or_its_pace_or_shares_of_floors() {
    let said = |args: &[&str]| stderr(&generate(&[&["--prompt", "Alice", "--tokens", "20"], args].concat()));
    assert_eq!(said(&["--quiet"]), "");
    let default = said(&[]);
    assert!(
        default.contains("prefill  5 tokens, ") && default.contains("decode   20 tokens, ") && !default.contains('%'),
        "{default}"
    );
    assert_eq!(said(&["--floors"]).matches(" % of the floor of ").count(), 2);
}

#[test]
fn json_has_every_token() {
    let common = ["--prompt", "Alice was ", "--tokens", "40", "--seed", "3"];
    let (text, json) = (generated(&common), generated(&[&common[..], &["--json"]].concat()));
    let objects: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 40);
    let all: String = objects.iter().map(|object| object["text"].as_str().unwrap()).collect();
    assert_eq!(all + "\n", text);
    for object in &objects {
        let logprob = object["logprob"].as_f64().unwrap();
        assert!(logprob <= 0.0 && logprob > -20.0, "{object}");
        assert_eq!(object["text"], String::from(object["token"].as_u64().unwrap() as u8 as char));
    }
}

#[test]
fn texts_end_before_stop_strings() {
    let common = ["--prompt", "Alice was ", "--tokens", "300", "--temperature", "0"];
    let whole = generated(&common);
    let stop: String = whole.chars().skip(20).take(7).collect();
    let at = whole.find(&stop).unwrap();
    let ended = generated(&[&common[..], &["--stop", "no such text", "--stop", &stop]].concat());
    assert_eq!(ended, whole[..at].to_owned() + "\n");
    assert_eq!(generated(&[&common[..], &["--stop", "no such text"]].concat()), whole, "nothing is held back at the end");
    assert_eq!(generated(&[&common[..], &["--echo"]].concat()), "Alice was ".to_owned() + &whole);
}

#[test]
fn tokens_of_the_folder_end_a_text() {
    let folder = model();
    let common = [text(folder.path()), "--prompt", "Once", "--temperature", "0", "--tokens", "9", "--json"];
    let first: Value = serde_json::from_str(generated(&common).lines().next().unwrap()).unwrap();
    let settings = serde_json::json!({"eos_token_id": [first["token"]]});
    std::fs::write(folder.path().join("generation_config.json"), settings.to_string()).unwrap();
    assert_eq!(generated(&common), "");
}

#[test]
fn a_prompt_may_come_from_standard_input() {
    let common = ["generate", "--tokens", "20", "--file", "-"];
    let mut process = command(&common).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(b"Alice was").unwrap();
    let output = process.wait_with_output().unwrap();
    assert_eq!(stdout(&output), generated(&["--tokens", "20", "--prompt", "Alice was"]));
}

#[test]
fn lines_are_continued_beside_each_other_as_they_are_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompts.txt");
    let prompts = ["Alice was ", "The Queen", "\"Why?\" said the Caterpillar, and that was a long line to begin with"];
    std::fs::write(&path, prompts.join("\n") + "\n\n").unwrap();
    let all = generated(&["--prompts", text(&path), "--tokens", "50", "--seed", "7"]);
    let json = generated(&["--prompts", text(&path), "--tokens", "50", "--seed", "7", "--json"]);
    let mut expected = Vec::new();
    for (number, prompt) in prompts.iter().enumerate() {
        let alone = generated(&["--prompt", prompt, "--tokens", "50", "--seed", &(7 + number).to_string()]);
        let objects = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let own = objects.filter(|object| object["prompt"] == number).map(|object| object["text"].as_str().unwrap().to_owned());
        assert_eq!(own.collect::<String>() + "\n", alone, "{prompt}");
        expected.push(format!("== {prompt}\n{alone}"));
    }
    assert_eq!(all, expected.join("\n"));
    // from the state of what they all begin with
    let state = folder.path().join("state");
    generated(&["--prompt", "One day ", "--tokens", "0", "--save-state", text(&state)]);
    let behind = |args: &[&str]| generated(&[&["--state", text(&state), "--tokens", "9"], args].concat());
    let alone = |(number, prompt): (usize, &&str)| {
        format!("== {prompt}\n{}", behind(&["--prompt", prompt, "--seed", &number.to_string()]))
    };
    assert_eq!(behind(&["--prompts", text(&path)]), prompts.iter().enumerate().map(alone).collect::<Vec<_>>().join("\n"));
    std::fs::write(&path, "\n\n").unwrap();
    refused(&["--prompts", text(&path)], "--prompts must be a file with lines");
}

#[test]
fn samples_go_on_with_a_prompt_as_it_is_alone() {
    let common = ["--prompt", "Alice was beginning to get very tired", "--tokens", "40", "--repetition-penalty", "1.2"];
    let with = |args: &[&str]| generated(&[&common[..], args].concat());
    let alone = |seed: u32| with(&["--seed", &seed.to_string()]);
    let expected: Vec<_> = (0..3).map(|number| format!("== sample {number}\n{}", alone(7 + number))).collect();
    assert_eq!(with(&["--samples", "3", "--seed", "7"]), expected.join("\n"));
    let json = with(&["--samples", "2", "--json"]);
    let of = |number: u32| {
        let objects = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        objects
            .filter(|object| object["sample"] == number)
            .map(|object| object["text"].as_str().unwrap().to_owned())
            .collect::<String>()
    };
    assert_eq!((of(0) + "\n", of(1) + "\n"), (alone(0), alone(1)));
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    generated(&["--prompt", "Alice", "--tokens", "0", "--save-state", text(&state)]);
    let behind = |args: &[&str]| generated(&[&["--state", text(&state), "--tokens", "9"], args].concat());
    assert_eq!(behind(&["--samples", "2"]), format!("== sample 0\n{}\n== sample 1\n{}", behind(&[]), behind(&["--seed", "1"])));
}

#[test]
fn tokens_of_a_prompt_are_echoed() {
    let json = generated(&["--prompt", "Alice", "--tokens", "2", "--echo", "--json"]);
    let objects: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 7);
    for (object, letter) in objects.iter().zip("Alice".chars()) {
        assert_eq!((&object["text"], &object["logprob"]), (&letter.to_string().into(), &Value::Null));
    }
    assert!(objects[5]["logprob"].as_f64().unwrap() < 0.0);
}

#[test]
fn unlikely_tokens_are_left_out() {
    let greedy = generated(&["--prompt", "Alice was ", "--temperature", "0"]);
    assert_eq!(generated(&["--prompt", "Alice was ", "--min-p", "1"]), greedy);
    assert_ne!(generated(&["--prompt", "Alice was ", "--min-p", "0.05"]), greedy);
    refused(&["--prompt", "a", "--min-p", "2"], "`min-p` must be from 0 to 1, got 2");
}

#[test]
fn numbers_below_zero_and_texts_that_begin_with_a_hyphen_are_values() {
    refused(&["--prompt", "a", "--temperature", "-1"], "`temperature` must be a number of at least 0, got -1");
    refused(&["--prompt", "a", "--min-p", "-0.5"], "`min-p` must be from 0 to 1, got -0.5");
    assert_eq!(
        generated(&["--prompt", "- a list", "--tokens", "3", "--stop", "- b"]),
        generated(&["--prompt=- a list", "--tokens", "3"])
    );
}

#[test]
fn places_for_states_are_tried_before_anything_is_computed() {
    let folder = tempfile::tempdir().unwrap();
    let (there, nowhere) = (folder.path().join("notes.txt"), folder.path().join("none/state"));
    let with = |path: &Path| ["--prompt", "Alice", "--tokens", "1", "--save-state", text(path)].map(str::to_owned);
    let with = |path: &Path, force: bool| {
        let args = with(path).into_iter().chain(force.then(|| "--force".to_owned())).collect::<Vec<_>>();
        generate(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for (path, says) in [(&*nowhere, "No such file"), (folder.path(), "it is a folder")] {
        let output = with(path, true);
        assert_eq!((status(&output), output.stdout.len()), (2, 0));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
    std::fs::write(&there, "mine").unwrap();
    let output = with(&there, false);
    assert_eq!((status(&output), output.stdout.len()), (2, 0));
    assert!(stderr(&output).contains("notes.txt: it is there already; --force replaces it"), "{}", stderr(&output));
    assert_eq!(std::fs::read(&there).unwrap(), b"mine");
    assert_eq!(status(&with(&there, true)), 0);
    assert_ne!(std::fs::read(&there).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[cfg(unix)]
mod ended {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    const SIGPIPE: i32 = 13;

    /// The text so far, how the process ended, and what it complained about; it is interrupted, or its reader leaves.
    fn ended(state: &Path, interrupt: bool) -> (Vec<u8>, std::process::ExitStatus, String) {
        let args = ["generate", "--prompt", "Alice was ", "--tokens", "1000000", "--save-state", text(state)];
        let mut process = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut pipe, mut written) = (process.stdout.take().unwrap(), vec![0; 30]);
        pipe.read_exact(&mut written).unwrap();
        match interrupt {
            true => {
                let killed = std::process::Command::new("kill").args(["-INT", &process.id().to_string()]).status().unwrap();
                assert!(killed.success());
                pipe.read_to_end(&mut written).unwrap();
            }
            false => drop(pipe),
        }
        let output = process.wait_with_output().unwrap();
        (written, output.status, stderr(&output))
    }

    /// The text behind a state is drawn as the whole text is: greedily, for the seeds of both would differ.
    fn check_state(state: &Path) {
        let rest = generated(&["--state", text(state), "--tokens", "5"]);
        assert_eq!(rest.len(), 6, "{rest:?}");
    }

    #[test]
    fn an_interrupted_text_leaves_its_state() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let (written, status, said) = ended(&state, true);
        assert_eq!(status.code(), Some(130), "{said}");
        assert_eq!(written.last(), Some(&b'\n'), "the line is ended");
        check_state(&state);
        // the state is that of the prompt and of all that was written
        let model = statescan_models::Model::from_bytes(
            include_str!("../../assets/alice/config.json"),
            include_bytes!("../../assets/alice/model.safetensors"),
        );
        let read = [&b"Alice was "[..], &written[..written.len() - 1]].concat();
        let (model, tokens): (_, Vec<u32>) = (model.unwrap(), read.into_iter().map(u32::from).collect());
        let mut expected = model.state();
        model.prefill(&statescan::Exec::cpu(1), &tokens, &mut expected).unwrap();
        assert!(model.load_state(&state).unwrap() == expected);
    }

    #[test]
    fn a_reader_that_has_left_leaves_the_state() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let (_, status, said) = ended(&state, false);
        assert_eq!((status.signal(), said.as_str()), (Some(SIGPIPE), ""));
        check_state(&state);
    }
}
