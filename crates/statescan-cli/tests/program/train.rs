//! `statescan train` from outside: a model to generate with, going on after it was killed, and what is not overwritten.

use crate::common::*;
use std::path::Path;
use std::time::{Duration, Instant};

const SMALL: [&str; 12] = ["--dim", "16", "--layers", "1", "--batch", "2", "--seqlen", "32", "--steps", "30", "--every", "5"];

#[track_caller]
fn trained(args: &[&str]) -> String {
    let output = statescan(&[&["train"], args].concat());
    assert_eq!(status(&output), 0, "{}", stderr(&output));
    stdout(&output)
}

#[track_caller]
fn refused(args: &[&str], says: &str) {
    let output = statescan(&[&["train"], args].concat());
    let message = stderr(&output);
    assert_eq!(status(&output), 2, "{args:?}: {message}");
    assert!(message.contains(says) && message.trim_end().lines().count() == 1, "{args:?} should say {says:?}: {message}");
    assert!(output.stdout.is_empty(), "nothing is said");
}

fn weights(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("model.safetensors")).unwrap()
}

/// A text, smaller than the book.
fn short_text(folder: &Path) -> String {
    let path = folder.join("text.txt");
    std::fs::write(&path, b"the cat sat on the mat and the dog lay by the door; ".repeat(100)).unwrap();
    text(&path).to_owned()
}

#[test]
fn a_trained_model_generates_and_has_a_plot() {
    let folder = tempfile::tempdir().unwrap();
    let said = trained(&[&SMALL[..], &["--save", text(folder.path())]].concat());
    assert!(said.contains("bits/byte after 30 steps") && said.contains("148480 bytes of text"), "{said}");
    assert!(said.contains("held-out set: the last 10 % of the text, 14848 bytes"), "{said}");
    let plot = std::fs::read_to_string(folder.path().join("loss.svg")).unwrap();
    assert!(plot.starts_with("<svg") && plot.contains(">\n30\n</text>") && plot.trim_end().ends_with("</svg>"));
    assert_eq!(plot.matches("<circle").count(), 6, "six evaluations");
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
    while !killed.path().join("training.safetensors").exists() && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    process.kill().unwrap();
    process.wait().unwrap();
    trained(&["--resume", text(killed.path())]);
    assert_eq!(weights(killed.path()), weights(whole.path()));
    let said = trained(&["--resume", text(killed.path())]);
    assert!(said.contains(": all 30 steps are done, held-out set ") && said.contains("--steps N with more goes on"), "{said}");
    assert_eq!(weights(killed.path()), weights(whole.path()), "there was nothing left to do");
    assert!(
        std::fs::read_dir(killed.path()).unwrap().all(|entry| entry.unwrap().path().extension().is_none_or(|end| end != "part"))
    );
}

#[test]
fn what_is_there_is_not_overwritten_without_a_word() {
    let elsewhere = tempfile::tempdir().unwrap();
    let learn = short_text(elsewhere.path());
    let first = [&[&learn[..]], &SMALL[..8], &["--steps", "3", "--save"]].concat();
    let holds = |name: &str, says: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(name), "theirs").unwrap();
        refused(&[&first[..], &[text(folder.path())]].concat(), says);
        assert_eq!(std::fs::read(folder.path().join(name)).unwrap(), b"theirs");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is written");
        folder
    };
    holds(
        "training.safetensors",
        "it has a training (training.safetensors); --resume DIR goes on with it, --force overwrites it",
    );
    holds("pytorch_model.bin", "it has a model (pytorch_model.bin); --force overwrites it");
    holds("model.safetensors.index.json", "it has a model (model.safetensors.index.json)");
    holds("config.json", "it has a model's configuration (config.json)");
    holds("model.safetensors", "it has a model (model.safetensors)");
    let folder = holds("tokenizer.json", "it has a file of a model (tokenizer.json); --force overwrites it");
    std::fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    trained(&[&first[..], &[text(folder.path()), "--force"]].concat());
    assert!(!folder.path().join("tokenizer.json").exists(), "text is bytes to the model that is written");
    assert_eq!(std::fs::read(folder.path().join("notes.txt")).unwrap(), b"mine");
}

#[test]
fn a_folder_has_one_training_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    trained(&[&SMALL[..], &["--save", text(folder.path())]].concat());
    let lock = std::fs::File::open(folder.path()).unwrap();
    lock.lock().unwrap();
    let says = "another process is writing this folder";
    refused(&["--resume", text(folder.path())], says);
    refused(&[&SMALL[..], &["--save", text(folder.path()), "--force"]].concat(), says);
    drop(lock);
    trained(&["--resume", text(folder.path())]);
}

#[test]
fn a_training_that_has_ended_is_prolonged_and_a_folder_is_fine_tuned() {
    let folder = tempfile::tempdir().unwrap();
    let learn = short_text(folder.path());
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    trained(&[&[&learn[..]], &SMALL[..], &["--save", text(&first)]].concat());
    let before = weights(&first);
    let said = trained(&[&learn, "--resume", text(&first), "--steps", "33"]);
    assert!(said.contains("after 33 steps"), "{said}");
    assert_ne!(weights(&first), before);
    refused(&[&learn, "--resume", text(&first), "--steps", "32"], "`steps` must be at least as many as were done, got 32");
    std::fs::write(first.join("generation_config.json"), "{}").unwrap();
    let tuned = ["--batch", "2", "--seqlen", "32", "--steps", "4", "--type", "bf16", "--save", text(&second)];
    let said = trained(&[&[&learn, "--from", text(&first)], &tuned[..]].concat());
    assert!(said.contains("after 4 steps"), "{said}");
    assert!(second.join("generation_config.json").exists());
    trained(&[&learn, "--resume", text(&second), "--steps", "5"]);
    let evaluated = |folder: &Path| {
        let output = statescan(&["eval", text(folder), &learn, "--json"]);
        assert_eq!(status(&output), 0, "{}", stderr(&output));
        serde_json::from_str::<serde_json::Value>(&stdout(&output)).unwrap()["bits_per_byte"].as_f64().unwrap()
    };
    assert!((evaluated(&second) - evaluated(&first)).abs() < 0.5, "it begins where the folder ends");
    refused(&[&learn, "--from", text(&folder.path().join("none"))], "none: there is no such folder");
    let (kept, same) = (weights(&first), first.join("..").join("first"));
    refused(&[&learn, "--from", text(&first), "--save", text(&same), "--force"], "--save must be another folder than --from");
    assert!(weights(&first) == kept && first.join("generation_config.json").exists(), "nothing is written or removed");
}

#[test]
fn models_of_other_kinds_begin_with_random_weights() {
    let folder = tempfile::tempdir().unwrap();
    let learn = short_text(folder.path());
    let saved = folder.path().join("saved");
    let of_kind = ["--family", "mamba2", "--headdim", "8", "--dstate", "8", "--save", text(&saved)];
    trained(&[&[&learn[..]], &SMALL[..8], &["--steps", "3"], &of_kind].concat());
    let model = statescan_models::Model::load(&saved).unwrap();
    let config = model.config();
    assert_eq!((config.family.name(), config.nheads, config.dstate, config.tied), ("mamba2", 4, 8, true));
    let output = statescan(&["generate", text(&saved), "--prompt", "the", "--tokens", "3"]);
    assert_eq!(status(&output), 0, "{}", stderr(&output));
    trained(&[&learn, "--resume", text(&saved), "--steps", "4"]);
    refused(&[&learn, "--family", "mamba2", "--headdim", "48"], "--headdim must be a divisor of twice the width, got `48`");
    refused(&[&learn, "--family", "mamba2", "--layers", "1000000000000"], "`layers` must be");
    refused(&[&learn, "--layers", "1000000000000"], "`layers` must be");
}

#[test]
fn a_log_has_every_step_and_the_best_model_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (learn, saved, other) = (short_text(folder.path()), folder.path().join("saved"), folder.path().join("other.txt"));
    // learning makes it worse there, so that the first evaluation is the best one
    std::fs::write(&other, b"ZYX? 0123 QQQ! ".repeat(60)).unwrap();
    let args =
        ["--every", "5", "--warmup", "4", "--accumulate", "2", "--validation", text(&other), "--json", "--save", text(&saved)];
    let said = trained(&[&[&learn[..]], &SMALL[..8], &["--steps", "20", "--rate", "0.02"], &args].concat());
    let lines: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["held_out"], &lines[0]["bytes"]), (&900.into(), &5200.into()), "{}", lines[0]);
    let steps: Vec<_> = lines.iter().filter(|line| line["loss"].is_f64()).collect();
    assert_eq!(steps.len(), 20);
    for (i, line) in steps.iter().enumerate() {
        assert_eq!(line["step"], i as u64 + 1);
        assert!(i >= 4 || (line["rate"].as_f64().unwrap() - 0.005 * (i + 1) as f64).abs() < 1e-12, "{line}");
    }
    let evaluated: Vec<_> = lines[1..].iter().filter(|line| line["held_out"].is_f64()).collect();
    let found: Vec<_> =
        evaluated.iter().map(|line| (line["step"].as_u64().unwrap(), line["held_out"].as_f64().unwrap())).collect();
    assert_eq!(found.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [5, 10, 15, 20]);
    let (least, best) = found.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    assert!(least < 20 && evaluated[3]["best"]["step"] == least, "{found:?}");
    let tokens: Vec<u32> = std::fs::read(&other).unwrap().into_iter().map(u32::from).collect();
    let of =
        |folder: &Path| statescan_models::Model::load(folder).unwrap().bits_per_token(&statescan::Exec::cpu(1), &tokens).unwrap();
    assert!((of(&saved.join("best")) - best).abs() < 1e-9 && (of(&saved) - found[3].1).abs() < 1e-9);
    refused(&[&learn, "--resume", text(&saved), "--steps", "21"], "it was trained on another text");
    trained(&[&learn, "--resume", text(&saved), "--steps", "21", "--validation", text(&other)]);
    let from_best = [&learn[..], "--from", text(&saved.join("best")), "--force", "--save", text(&saved)].map(str::to_owned);
    refused(&from_best.each_ref().map(String::as_str), "--save must be another folder than --from");
    // another training has another best model
    trained(&[&[&learn[..]], &SMALL[..8], &["--steps", "1", "--force", "--save", text(&saved)]].concat());
    assert!(saved.join("best/model.safetensors").exists() && (of(&saved.join("best")) - of(&saved)).abs() < 1e-9);
}

#[test]
fn projections_are_fine_tuned_by_small_matrices_that_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let (learn, [from, to]) = (short_text(folder.path()), ["from", "to"].map(|name| folder.path().join(name)));
    trained(&[&[&learn[..]], &SMALL[..8], &["--steps", "3", "--save", text(&from)]].concat());
    let args = ["--batch", "2", "--seqlen", "32", "--steps", "3", "--lora", "2", "--rate", "0.01", "--save", text(&to)];
    let said = trained(&[&[&learn, "--from", text(&from)], &args[..]].concat());
    assert!(said.contains("numbers of LoRA's matrices are learned") && said.contains("\nstep 0: held-out set "), "{said}");
    let [before, after] = [&from, &to].map(|folder| statescan_models::Model::load(folder).unwrap());
    for (name, weight) in before.weights() {
        assert_eq!(weight.to_f32() != after.weights()[name].to_f32(), name.ends_with("proj.weight"), "{name}");
    }
    trained(&[&learn, "--resume", text(&to), "--steps", "4"]);
    refused(&[&learn, "--from", text(&from), "--lora", "0"], "`rank of LoRA` must be");
}

#[test]
fn a_large_held_out_set_is_sampled_and_read_once_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.txt");
    std::fs::write(&path, b"the cat sat on the mat and the dog lay by the door; ".repeat(20_000)).unwrap();
    // its three steps read more bytes than a sample has, and fewer than are held out
    let said =
        trained(&[&[text(&path)], &SMALL[..4], &["--batch", "8", "--seqlen", "1024", "--steps", "3", "--every", "1"]].concat());
    assert!(said.contains("held-out set: the last 10 % of the text, 104000 bytes"), "{said}");
    assert!(said.contains("evaluations read a sample of 16384 of them, the last one 24576"), "{said}");
    assert_eq!(said.matches("held-out set").count(), 4, "what it is, two samples, and the last one: {said}");
    assert!(said.lines().all(|line| line.len() <= 80 && line.trim_end() == line), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn sizes_beyond_memory_are_a_sentence() {
    let program = env!("CARGO_BIN_EXE_statescan");
    let limited = format!("ulimit -v 4000000; exec {program} train --dim 16384 --layers 1024");
    let output = std::process::Command::new("sh").args(["-c", &limited]).output().unwrap();
    assert_eq!(status(&output), 2, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("this training: it needs 34") && stderr(&output).contains("GB of memory"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn texts_folders_and_settings_that_cannot_be_used_end_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let (short, none) = (folder.path().join("short.txt"), folder.path().join("none"));
    std::fs::write(&short, "too short").unwrap();
    for (args, says) in [
        (
            &[text(&short), "--save", text(&none)][..],
            "the text must have at least 2580 bytes, which is ten rows and what follows each, got 9",
        ),
        (&[text(&none)], "none: No such file"),
        (&["--resume", text(&none)], "none: there is no such folder"),
        (&["--steps", "0"], "`steps` must be"),
        (&["--rate", "0"], "`rate` must be a positive number"),
        (&["--device", "gpu"], "--device must be cpu, cuda or cuda:N"),
    ] {
        refused(args, says);
        assert!(!none.exists());
    }
}

#[cfg(unix)]
mod ended {
    use super::*;
    use std::io::Read;
    use std::process::{Child, Command, Stdio};

    /// A long training that has begun, and writes what it says.
    fn begun(mut command: Command) -> Child {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // it says that it trains once it listens to signals; the first steps follow
        let mut said = [0; 400];
        process.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        process
    }

    fn send(signal: &str, to: &Child) {
        assert!(Command::new("kill").args([signal, &to.id().to_string()]).status().unwrap().success());
    }

    #[test]
    fn a_training_that_a_signal_ends_is_saved_and_goes_on_with_the_same_bits() {
        let folder = tempfile::tempdir().unwrap();
        let learn = short_text(folder.path());
        let common =
            [&learn[..], "--dim", "16", "--layers", "1", "--batch", "2", "--seqlen", "64", "--steps", "2000", "--every", "1900"];
        let mut saved = Vec::new();
        for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
            let path = folder.path().join(signal);
            let process = begun(command(&[&["train"], &common[..], &["--json", "--save", text(&path)]].concat()));
            send(signal, &process);
            let output = process.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
            assert!(
                stderr(&output).starts_with("interrupted after ") && stderr(&output).contains("--resume"),
                "{}",
                stderr(&output)
            );
            assert!(stdout(&output).lines().count() < 1900, "it had not ended");
            saved.push(path);
        }
        let steps =
            |folder: &Path| statescan_models::Trainer::resume(folder, std::fs::read(&learn).unwrap()).unwrap().losses().to_vec();
        let all: Vec<_> = saved.iter().map(|folder| steps(folder)).collect();
        let shortest = all.iter().map(Vec::len).min().unwrap();
        assert!(shortest > 0 && all.iter().all(|losses| losses[..shortest] == all[0][..shortest]), "{shortest}");
        let more = (all[0].len() + 1).to_string();
        trained(&[&learn, "--resume", text(&saved[0]), "--steps", &more]);
    }

    #[test]
    fn a_signal_that_is_ignored_stays_ignored_and_a_reader_that_leaves_takes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["saved", "other"].map(|name| folder.path().join(name));
        let small = "--dim 16 --layers 1 --batch 2 --seqlen 64 --steps 60 --every 5 --json";
        let program = env!("CARGO_BIN_EXE_statescan");
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("trap '' HUP; exec {program} train {small} --save {}", text(&path))]);
        let process = begun(shell);
        send("-HUP", &process);
        let output = process.wait_with_output().unwrap();
        assert_eq!(status(&output), 0, "{}", stderr(&output));
        let args: Vec<_> = small.split(' ').collect();
        let mut process = begun(command(&[&["train"], &args[..], &["--save", text(&other)]].concat()));
        drop(process.stdout.take());
        let output = process.wait_with_output().unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (None, String::new()));
        assert!(other.join("training.safetensors").exists());
    }
}
