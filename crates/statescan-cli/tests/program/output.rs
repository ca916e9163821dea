//! Printed lines are as wide as a terminal, and said to be lost where they cannot be written.

use crate::common::*;
use serde_json::Value;
use std::process::Output;

const COLUMNS: usize = 80;

/// Small work for every command that prints.
fn commands() -> Vec<Vec<String>> {
    let vectors = own_vectors();
    let small = "train --steps 1 --dim 16 --layers 1 --batch 1 --seqlen 16";
    let lines = ["", "info", "info --json", "run ssd", "run linear_scan --json", "bench causal_conv1d_update --quick", small];
    let mut all: Vec<Vec<String>> = lines.map(|line| line.split_whitespace().map(String::from).collect()).to_vec();
    for json in [&[][..], &["--json"]] {
        let args = ["verify", text(&vectors[0])].into_iter().chain(json.iter().copied());
        all.push(args.map(String::from).collect());
    }
    all.push(["generate", "--prompt", "Alice", "--tokens", "9"].map(String::from).to_vec());
    all.extend(pages());
    all
}

/// Every page of help, and what is printed for shells.
fn pages() -> Vec<Vec<String>> {
    let names = ["run", "verify", "bench", "generate", "chat", "train", "eval", "convert", "info", "completions"];
    let mut pages: Vec<Vec<String>> =
        ["--help", "-h", "--version", "completions bash"].map(|line| line.split(' ').map(String::from).collect()).to_vec();
    pages.extend(names.iter().flat_map(|name| ["--help", "-h"].map(|help| vec![name.to_string(), help.to_string()])));
    pages
}

fn run(args: &[String]) -> Output {
    statescan(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

#[cfg(target_os = "linux")]
mod full {
    use super::*;
    use std::fs::File;

    fn full() -> File {
        File::options().write(true).open("/dev/full").unwrap()
    }

    #[test]
    fn output_that_cannot_be_written_is_one_sentence() {
        for args in commands() {
            let args: Vec<_> = args.iter().map(String::as_str).collect();
            let output = command(&args).stdout(full()).output().unwrap();
            let said = stderr(&output);
            assert_eq!(status(&output), 2, "{args:?}: {said}");
            assert!(said.contains("error: standard output: No space left on device"), "{args:?}: {said}");
            assert!(!said.contains("panicked"), "{args:?}: {said}");
        }
    }

    #[test]
    fn complaints_that_cannot_be_written_change_no_status() {
        for (args, expected) in [(&["info"][..], 0), (&["run", "nothing"], 2), (&["verify", "none"], 2), (&["--nothing"], 2)] {
            assert_eq!(status(&command(args).stderr(full()).output().unwrap()), expected, "{args:?}");
        }
        let generate = ["generate", "--prompt", "Alice", "--tokens", "3"];
        assert_eq!(status(&command(&generate).stderr(full()).output().unwrap()), 0);
    }
}

#[test]
fn what_is_printed_fits_a_terminal() {
    for args in commands().iter().filter(|args| !args.iter().any(|arg| arg == "--json" || arg == "bash")) {
        let output = run(args);
        assert_eq!(status(&output), 0, "{args:?}: {}", stderr(&output));
        for line in stdout(&output).lines().chain(stderr(&output).lines()) {
            assert!(line.chars().count() <= COLUMNS, "{args:?}: {} columns: {line}", line.chars().count());
            // a model writes spaces as it likes
            assert!(line.trim_end() == line || args[0] == "generate", "{args:?}: spaces at the end: {line:?}");
        }
    }
}

#[test]
fn shells_get_completions_of_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = statescan(&["completions", shell]);
        assert_eq!(status(&output), 0, "{shell}: {}", stderr(&output));
        assert!(["verify", "generate", "temperature"].iter().all(|word| stdout(&output).contains(word)), "{shell}");
    }
}

#[test]
fn json_is_one_object_a_line() {
    for args in commands().iter().filter(|args| args.iter().any(|arg| arg == "--json")) {
        let text = stdout(&run(args));
        assert!(!text.is_empty(), "{args:?}");
        text.lines().for_each(|line| assert!(serde_json::from_str::<Value>(line).unwrap().is_object(), "{args:?}: {line}"));
    }
}
