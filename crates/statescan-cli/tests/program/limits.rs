//! These ended the program otherwise than by a sentence: memory that a file or a count asks for, pipes, files that shrink.

use crate::common::*;
use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The output of a process that ends by itself.
fn ended(mut process: Child) -> Output {
    drop(process.stdin.take());
    let begin = Instant::now();
    while process.try_wait().unwrap().is_none() {
        if begin.elapsed() > Duration::from_secs(60) {
            process.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    process.wait_with_output().unwrap()
}

fn piped(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_of_more_than_memory_is_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.safetensors");
    let header = r#"{"x":{"dtype":"F32","shape":[1,1,68719476736],"data_offsets":[0,274877906944]}}"#;
    std::fs::write(&path, raw(header, b"")).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(8 + header.len() as u64 + (1 << 38)).unwrap();
    for command in ["run selective_scan", "verify"] {
        let args: Vec<_> = command.split(' ').chain([text(&path)]).collect();
        let output = statescan(&args);
        assert_eq!(status(&output), 2, "{}", stderr(&output));
        assert!(stderr(&output).contains("its tensors need 274877906944 bytes of memory, which the system does not give"));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn many_prompts_go_in_groups_that_fit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompts.txt");
    std::fs::write(&path, "a\n".repeat(1000)).unwrap();
    // the states of all of them would take 117 MB
    let program = env!("CARGO_BIN_EXE_statescan");
    let limited = format!("ulimit -v 90000; exec {program} generate --prompts {} --tokens 1 --threads 1", text(&path));
    let output = Command::new("sh").args(["-c", &limited]).output().unwrap();
    assert_eq!(status(&output), 0, "{}", stderr(&output));
    let said = stdout(&output);
    let all: Vec<_> = said.split("\n\n").collect();
    assert_eq!(all.len(), 1000);
    for number in [0, 511, 512, 999] {
        let alone = statescan(&["generate", "--prompt", "a", "--tokens", "1", "--seed", &number.to_string()]);
        assert_eq!(all[number].trim_end(), format!("== a\n{}", stdout(&alone)).trim_end(), "{number}");
    }
}

#[test]
fn files_of_tensors_come_from_standard_input() {
    let path = &own_vectors()[0];
    let bytes = std::fs::read(path).unwrap();
    let mut process = piped(command(&["verify", "-"]));
    process.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = ended(process);
    assert_eq!(status(&output), 0, "{}", stderr(&output));
    let expected = stdout(&statescan(&["verify", text(path)]));
    let tensors = |text: &str| text.lines().filter(|line| line.contains("ok")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(tensors(&stdout(&output)), tensors(&expected));
    let mut process = piped(command(&["run", "selective_scan", "-", "--json"]));
    process.stdin.take().unwrap().write_all(&file(None, &small_scan())).unwrap();
    let output = ended(process);
    assert_eq!(status(&output), 0, "{}", stderr(&output));
}

#[cfg(unix)]
#[test]
fn pipes_are_looked_at_before_they_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let [pipe, of_training] = ["pipe", "training"].map(|name| folder.path().join(name));
    std::fs::create_dir(&of_training).unwrap();
    for path in [&pipe, &of_training.join("training.safetensors")] {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }
    let (pipe, of_training) = (text(&pipe), text(&of_training));
    for args in [
        &["run", "selective_scan", pipe][..],
        &["verify", pipe],
        &["train", "--resume", pipe],
        &["train", "--resume", of_training],
        &["generate", pipe, "--prompt", "a"],
        &["generate", "--state", pipe],
    ] {
        let output = ended(piped(command(args)));
        assert_eq!(status(&output), 2, "{args:?}: {}", stderr(&output));
    }
}

#[cfg(unix)]
#[test]
fn a_model_that_is_cut_while_it_is_in_use_goes_on() {
    use std::io::{BufRead, BufReader};
    let folder = model();
    let path = folder.path().join("model.safetensors");
    let talk = || {
        let mut process = piped(command(&["chat", text(folder.path()), "--tokens", "5", "--temperature", "0"]));
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        (process, lines)
    };
    let (mut whole, mut lines) = talk();
    whole.stdin.as_mut().unwrap().write_all(b"one\ntwo\n").unwrap();
    assert!((0..2).all(|_| lines.next().unwrap().unwrap().contains(" tokens in ")));
    let expected = ended(whole);
    let (mut cut, mut lines) = talk();
    cut.stdin.as_mut().unwrap().write_all(b"one\n").unwrap();
    assert!(lines.next().unwrap().unwrap().contains(" tokens in "));
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    cut.stdin.as_mut().unwrap().write_all(b"two\n").unwrap();
    assert!(lines.next().unwrap().unwrap().contains(" tokens in "));
    let output = ended(cut);
    assert_eq!((output.status.code(), &output.stdout), (Some(0), &expected.stdout));
    let output = statescan(&["generate", text(folder.path()), "--prompt", "one"]);
    assert!(status(&output) == 2 && stderr(&output).contains("got 100"), "{}", stderr(&output));
}
