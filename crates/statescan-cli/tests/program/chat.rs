//! `statescan chat` from outside, with lines that come from a file.

use crate::common::*;
use std::io::Write;
use std::process::{Output, Stdio};

fn chat(args: &[&str], lines: &[&str]) -> Output {
    let mut process = command(&[&["chat"], args].concat());
    let mut process = process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all((lines.join("\n") + "\n").as_bytes()).unwrap();
    process.wait_with_output().unwrap()
}

#[track_caller]
fn answers(args: &[&str], lines: &[&str]) -> String {
    let output = chat(args, lines);
    assert_eq!(status(&output), 0, "{lines:?}: {}", stderr(&output));
    stdout(&output)
}

const GREEDY: [&str; 4] = ["--temperature", "0", "--tokens", "20"];

#[test]
fn lines_are_continued_as_generate_does() {
    let generated = statescan(&["generate", "--prompt", "Alice was ", "--tokens", "30", "--seed", "4"]);
    assert_eq!(answers(&["--tokens", "30", "--seed", "4"], &["Alice was "]), stdout(&generated));
    let whole = statescan(&["generate", "--prompt", "Alice was ", "--tokens", "60", "--temperature", "0"]);
    let parts = answers(&["--tokens", "30", "--temperature", "0"], &["Alice was ", ""]);
    // every answer ends with a line of its own
    assert_eq!(parts.len(), 62);
    assert_eq!(parts[..30].to_owned() + &parts[31..], stdout(&whole));
}

#[test]
fn lines_can_be_taken_back() {
    let alone = answers(&GREEDY, &["The Queen"]);
    let after = answers(&GREEDY, &["Alice was ", "/undo", "The Queen"]);
    assert_eq!(after[after.len() - alone.len()..], alone);
    let twice = answers(&GREEDY, &["The Queen", "Alice was ", "/reset", "/undo", "/undo", "/retry"]);
    assert!(twice.ends_with(&alone), "{twice}");
    let several = answers(&GREEDY, &["The Queen", "Alice was ", "and then", "/undo 2", "Alice was "]);
    let last = several.len() - alone.len();
    assert_eq!(several[last..], several[alone.len()..][..alone.len()], "it goes on behind the first line");
    let drawn = answers(&["--tokens", "20"], &["The Queen", "/retry"]);
    assert_ne!(drawn[..drawn.len() / 2], drawn[drawn.len() / 2..], "another answer is drawn");
    let output = chat(&GREEDY, &["/undo", "/retry"]);
    assert_eq!(stderr(&output).matches("error: what is taken back must be a line of this chat, got `none`").count(), 2);
    let output = chat(&GREEDY, &["Alice", "/undo 2"]);
    assert!(stderr(&output).contains("got `more than the 1 that are kept`"), "{}", stderr(&output));
}

#[test]
fn a_chat_is_saved_and_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let (save, load) = (format!("/save {}", text(&path)), format!("/load {}", text(&path)));
    let whole = answers(&GREEDY, &["Alice was ", &save, "and then", &load, "and then", &save]);
    let (first, last) = (&whole[21..42], &whole[42..]);
    assert_eq!(first, last, "it goes on from the same state");
    assert_eq!(
        answers(&[&GREEDY[..], &["--state", text(&path)]].concat(), &[""]),
        stdout(&statescan(&["generate", "--state", text(&path), "--temperature", "0", "--tokens", "20",]))
    );
    let output = chat(&GREEDY, &["Alice", &save]);
    assert!(stderr(&output).contains("it is there already; /save! FILE replaces it"), "{}", stderr(&output));
    let insisted = format!("/save! {}", text(&path));
    assert!(!stderr(&chat(&GREEDY, &["Alice", &insisted])).contains("error"));
    let output = chat(&GREEDY, &["/load nowhere", "/nothing", "/help", "/quit", "Alice"]);
    assert_eq!(status(&output), 0);
    assert!(stderr(&output).contains("nowhere: No such file") && stderr(&output).contains("there is no /nothing"));
    assert!(stdout(&output).contains("/undo") && stdout(&output).ends_with("in the next one.\n"), "nothing is said after /quit");
}

#[test]
fn memory_is_shown_and_does_not_grow() {
    let output = chat(&GREEDY, &["Alice was ", "and the Queen said that", "/memory"]);
    let lines: Vec<_> = stderr(&output).lines().map(str::to_owned).collect();
    let size = |line: &str| line.split(" tokens in ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("[30 tokens in ") && lines[1].starts_with("[73 tokens in "), "{lines:?}");
    assert!(lines.iter().all(|line| size(line) == size(&lines[0]) && line.len() <= 80), "{lines:?}");
    assert!(lines[2].contains("2 to undo"), "{lines:?}");
}

#[test]
fn a_state_that_grows_is_said_to_grow() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = statescan_models::Config::bamba(256, 16, 2, &[1], 8);
    (config.attention.kv_heads, config.eos) = (1, Vec::new());
    statescan_models::Model::random(config, statescan::DType::F32, 1).unwrap().save(folder.path()).unwrap();
    let output = chat(&[text(folder.path()), "--tokens", "3", "--temperature", "0"], &["Alice", "was", "/quit"]);
    let said = stderr(&output);
    assert!(status(&output) == 0 && said.lines().count() == 2, "{said}");
    assert!(said.lines().all(|line| line.contains(", 64 bytes more with each; ")), "{said}");
    let size = |line: usize| said.lines().nth(line).unwrap().split(" in ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    assert_ne!(size(0), "0 kB");
}

#[test]
fn options_of_answers_can_be_set() {
    let set = answers(&["--tokens", "20"], &["/set temperature 0", "The Queen"]);
    assert_eq!(set, answers(&GREEDY, &["The Queen"]));
    assert_eq!(answers(&GREEDY, &["/set tokens 5", "The Queen"]).len(), 6);
    let stop = &set[7..9];
    let at = set.find(stop).unwrap();
    assert_eq!(answers(&GREEDY, &[&format!("/set stop {stop}"), "The Queen"]), set[..at].to_owned() + "\n");
    assert_eq!(answers(&["--tokens", "20"], &["/set seed 5", "Alice"]), answers(&["--tokens", "20", "--seed", "5"], &["Alice"]));
    let output = chat(&GREEDY, &["/set", "/set nothing 1", "/set top-k many", "/set temperature -1"]);
    assert!(stdout(&output).contains("temperature T") && stdout(&output).contains("repetition-window N"), "{}", stdout(&output));
    let said = stderr(&output);
    for says in [
        "one of the names that /set lists, got `nothing 1`",
        "of the kind that /set lists, got `top-k many`",
        "`temperature` must be",
    ] {
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn a_backslash_goes_on_in_the_next_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    std::fs::write(&path, "Alice was\nnot a bit\n").unwrap();
    let expected = stdout(&statescan(&["generate", "--file", text(&path), "--temperature", "0", "--tokens", "20"]));
    assert_eq!(answers(&GREEDY, &["Alice was\\", "not a bit\\", ""]), expected);
}

#[test]
fn quiet_says_nothing_but_answers() {
    let output = chat(&[&GREEDY[..], &["--quiet"]].concat(), &["Alice", "/undo", "/memory"]);
    assert_eq!(stdout(&output), answers(&GREEDY, &["Alice"]));
    assert_eq!(stderr(&output).lines().count(), 1, "what was asked for: {}", stderr(&output));
    assert!(stderr(&output).starts_with("[0 tokens in "));
}

#[cfg(feature = "tokenizers")]
#[test]
fn the_system_is_said_before_the_first_line() {
    let folder = model();
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let args = [text(folder.path()), "--tokens", "6", "--temperature", "0"];
    let system = [&args[..], &["--system", "Be kind."]].concat();
    let expected = stdout(&statescan(&[&["generate", "--prompt", "<system>Be kind.<user>hello<assistant>"], &args[..]].concat()));
    assert_eq!(answers(&system, &["hello"]), expected);
    assert_eq!(answers(&system, &["hello", "/reset", "hello"]), expected.repeat(2));
    assert_eq!(stdout(&statescan(&[&["generate", "--chat", "--prompt", "hello"], &system[..]].concat())), expected);
}

#[cfg(feature = "tokenizers")]
#[test]
fn a_template_is_read_without_reading_anything_twice() {
    let (folder, elsewhere) = (model(), tempfile::tempdir().unwrap());
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    std::fs::write(folder.path().join("tokenizer_config.json"), serde_json::json!({"chat_template": template}).to_string())
        .unwrap();
    let path = elsewhere.path().join("state");
    let args = [text(folder.path()), "--tokens", "6", "--temperature", "0"];
    let said = answers(&args, &["hello", "and you", &format!("/save {}", text(&path))]);
    let model = statescan_models::Model::load(folder.path()).unwrap();
    let answer = |i: usize| said.as_bytes()[7 * i..7 * i + 6].iter().map(|&byte| byte as char).collect::<String>();
    let expected = format!("<user>hello<end><assistant>{}<end><user>and you<end><assistant>{}", answer(0), answer(1));
    let expected: Vec<u32> = expected.bytes().map(u32::from).collect();
    let mut state = model.state();
    model.prefill(&statescan::Exec::cpu(1), &expected, &mut state).unwrap();
    assert!(model.load_state(&path).unwrap() == state, "{said:?}");
    let plain = answers(&[&args[..], &["--plain"]].concat(), &["hello"]);
    assert_eq!(plain.as_bytes(), statescan(&[&["generate", "--prompt", "hello"], &args[..]].concat()).stdout);
}

#[test]
fn what_cannot_be_used_is_said_at_once() {
    for (args, says) in [
        (&["none"][..], "none: there is no such folder"),
        (&["--system", "Be kind."], "--system must be left out, as there is no chat template that could say it"),
        (&["--state", "none"], "none: No such file"),
        (&["--temperature=-1"], "`temperature` must be"),
        (&["--stop", ""], "--stop must be a text"),
    ] {
        let output = chat(args, &["Alice"]);
        assert_eq!((status(&output), output.stdout.len()), (2, 0), "{args:?}");
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
}

#[test]
fn a_line_that_is_not_utf8_costs_a_sentence() {
    let mut process = command(&[&["chat"], &GREEDY[..]].concat());
    let process = process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = process.spawn().unwrap();
    process.stdin.take().unwrap().write_all(b"Alice was \n\xff\xfe no text\nand then\n").unwrap();
    let output = process.wait_with_output().unwrap();
    assert_eq!((status(&output), stdout(&output)), (0, answers(&GREEDY, &["Alice was ", "and then"])));
    assert!(stderr(&output).contains("a line that is not UTF-8 was left out\n"), "{}", stderr(&output));
}

#[cfg(target_os = "linux")]
#[test]
fn lines_that_are_pasted_into_a_terminal_are_kept_in_order() {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsRawFd, FromRawFd};
    let (mut ours, mut theirs) = (0, 0);
    let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
    // SAFETY: there is room for two numbers, and the rest may be null.
    assert_eq!(unsafe { libc::openpty(&mut ours, &mut theirs, name, settings, size) }, 0);
    // SAFETY: both have just been opened, and nobody else has them.
    let [mut ours, theirs] = [ours, theirs].map(|number| unsafe { File::from_raw_fd(number) });
    assert!(ours.as_raw_fd() >= 0);
    let mut process = command(&["chat", "--tokens", "1", "--temperature", "0"]);
    process.env("TERM", "xterm").stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
    let mut process = process.spawn().unwrap();
    let (mut said, mut part) = (Vec::new(), [0; 4096]);
    let mut read_until = |text: &str, ours: &mut File| {
        while !String::from_utf8_lossy(&said).contains(text) {
            let count = ours.read(&mut part).unwrap();
            said.extend_from_slice(&part[..count]);
        }
        String::from_utf8_lossy(&said).into_owned()
    };
    read_until("> ", &mut ours);
    // more than a line at once, and more while the first one is answered
    ours.write_all(b"Alice one\rAlice two\rAlice three\rAlice four\r/quit\r").unwrap();
    let all = read_until("/quit", &mut ours);
    drop(process.wait());
    let at: Vec<_> = ["Alice one", "Alice two", "Alice three", "Alice four"].iter().map(|line| all.find(line)).collect();
    assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{at:?}: {all:?}");
    assert!(all.contains("[10 tokens in ") && all.matches(" tokens in ").count() == 4, "{all:?}");
}
