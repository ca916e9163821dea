//! The program from outside: exit status, messages, output files.

use crate::common::*;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn put(directory: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The command must end with 2, and say these things in one line.
#[track_caller]
fn refused(args: &[&str], says: &[&str]) {
    let output = statescan(args);
    let message = stderr(&output);
    assert_eq!(status(&output), 2, "{args:?}: {message}");
    for part in says {
        assert!(message.contains(part), "{args:?} should mention {part:?}: {message}");
    }
    assert!(!message.contains("panicked"), "{message}");
}

#[test]
fn no_command_runs_the_main_job() {
    let output = statescan(&[]);
    assert_eq!(status(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    for part in ["selective_scan", "forward", "backward", "out.y", "grad.A", "statescan bench"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[cfg(unix)]
#[test]
fn a_reader_that_has_left_is_no_error() {
    use std::os::unix::process::ExitStatusExt;
    const SIGPIPE: i32 = 13;
    for args in [&["info"][..], &[]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(args).stdout(writer).output().unwrap();
        assert_eq!((output.status.signal(), stderr(&output).as_str()), (Some(SIGPIPE), ""), "{args:?}");
    }
}

#[test]
fn every_operation_runs_on_the_embedded_text() {
    let info: Value = serde_json::from_slice(&statescan(&["info", "--json"]).stdout).unwrap();
    let operations = info["operations"].as_array().unwrap();
    assert!(!operations.is_empty());
    for op in operations {
        let mut args = vec!["run", op["name"].as_str().unwrap(), "--json", "--threads", "2"];
        if op["differentiable"] == true {
            args.push("--grad");
        }
        let output = statescan(&args);
        assert_eq!(status(&output), 0, "{args:?}: {} {}", stdout(&output), stderr(&output));
        let line: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(line["errors"].as_array().unwrap().iter().all(|e| e["ok"] == true), "{line}");
        let passes = if op["differentiable"] == true { 2 } else { 1 };
        assert_eq!(line["passes"].as_array().unwrap().len(), passes);
    }
}

#[test]
fn types_and_levels_run() {
    for args in [
        &["run", "causal_conv1d", "--dtype", "bf16", "--grad", "--level", "scalar"][..],
        &["run", "selective_scan", "--dtype", "f64", "--reverse", "--discretization", "zoh"],
        &["run", "selective_scan", "--dt-limit", "0.01,inf", "--grad", "--cotangents", "random"],
        &["run", "ssd", "--chunk-size", "32", "--grad"],
        &["run", "causal_conv1d", "--activation", "none", "--dtype", "f16"],
        &["run", "norm", "--kind", "layer", "--eps", "1e-3", "--norm-before-gate"],
        &["run", "ssd", "--set", "dt_softplus=true", "--threads", "1"],
    ] {
        let output = statescan(args);
        assert_eq!(status(&output), 0, "{args:?}: {} {}", stdout(&output), stderr(&output));
    }
}

#[test]
fn own_vectors_verify() {
    let files = own_vectors();
    assert!(files.len() >= 10, "the vectors ship with the program");
    for oracle in [false, true] {
        let mut args = vec!["verify"];
        args.extend(files.iter().map(|f| text(f)));
        args.extend(oracle.then_some("--oracle"));
        let output = statescan(&args);
        assert_eq!(status(&output), 0, "{}{}", stdout(&output), stderr(&output));
        let lines = stdout(&output).lines().filter(|l| l.contains(" ok")).count();
        assert!(lines > files.len(), "a line for each result and gradient");
    }
}

#[test]
fn vectors_of_other_projects_verify() {
    let files = shared_vectors();
    if files.is_empty() {
        eprintln!("skipped: no ../shared/vectors beside the workspace, and STATESCAN_VECTORS is not set");
        return;
    }
    let info = stdout(&statescan(&["info", "--json"]));
    for path in files {
        let output = statescan(&["verify", text(&path)]);
        // a file of an operation that is not there yet is refused, and everything else has to agree
        let known = !stderr(&output).contains("unknown operation");
        assert_eq!(status(&output), if known { 0 } else { 2 }, "{info}: {}{}", stdout(&output), stderr(&output));
    }
}

#[test]
fn verify_reports_in_json_and_by_its_status() {
    let directory = directory();
    let vectors = own_vectors();
    let output = statescan(&["verify", "--json", text(&vectors[0])]);
    assert_eq!(status(&output), 0);
    for line in stdout(&output).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        for key in ["file", "op", "tensor", "max_abs", "relative", "bound_absolute", "bound_relative", "skipped", "ok"] {
            assert!(line.get(key).is_some(), "{key}: {line}");
        }
    }
    // a wrong result
    let mut tensors = small_scan();
    tensors.push(("out.y", &[1, 2, 3], vec![9.0; 6]));
    let case = r#"{"op": "selective_scan"}"#;
    let wrong = put(&directory, "wrong.safetensors", &file(Some(case), &tensors));
    let output = statescan(&["verify", text(&wrong)]);
    assert_eq!(status(&output), 1, "{}", stderr(&output));
    assert!(stdout(&output).contains("FAIL"));
    // not a number where there should be one
    tensors[0].2[0] = f32::NAN;
    let nan = put(&directory, "nan.safetensors", &file(Some(case), &tensors));
    assert_eq!(status(&statescan(&["verify", text(&nan)])), 1);
    // one bad file does not hide the others
    let broken = put(&directory, "broken.safetensors", b"no");
    let output = statescan(&["verify", text(&broken), text(&vectors[0])]);
    assert_eq!(status(&output), 2);
    assert!(stdout(&output).contains("ok") && stderr(&output).contains("broken.safetensors"));
    let empty = put(&directory, "empty.safetensors", &file(Some(case), &small_scan()));
    refused(&["verify", text(&empty)], &["out.NAME", "empty.safetensors"]);
}

#[test]
fn a_written_file_verifies() {
    let directory = directory();
    let out = directory.path().join("out.safetensors");
    for op in ["selective_scan", "ssd", "causal_conv1d", "linear_scan", "simplified_scan", "s5_inner"] {
        let output = statescan(&["run", op, "--grad", "-o", text(&out), "--with-inputs", "--cotangents", "random"]);
        assert_eq!(status(&output), 0, "{}", stderr(&output));
        let output = statescan(&["verify", "--threads", "1", text(&out)]);
        assert_eq!(status(&output), 0, "{}", stdout(&output));
    }
    assert_eq!(names(directory.path()), ["out.safetensors"], "nothing is left beside it");
}

#[test]
fn files_keep_the_names_they_came_with() {
    let directory = directory();
    let mut tensors = small_scan();
    (tensors[0].0, tensors[1].0) = ("u", "in.delta");
    let input = put(&directory, "in.safetensors", &file(None, &tensors));
    let out = directory.path().join("out.safetensors");
    let output = statescan(&["run", "selective_scan", text(&input), "--grad", "-o", text(&out), "--with-inputs"]);
    assert_eq!(status(&output), 0, "{}", stderr(&output));
    let written = statescan_cases::format::read(&std::fs::read(&out).unwrap()).unwrap();
    for key in ["in.u", "in.delta", "grad.u", "grad.delta", "grad.A", "out.y", "out.last_state", "cot.y"] {
        assert!(written.tensors.contains_key(key), "{key} in {:?}", written.tensors.keys());
    }
    for name in ["out.last_state", "grad.u", "grad.delta"] {
        assert!(stdout(&output).contains(name), "what is printed is called as it is written: {}", stdout(&output));
    }
    assert_eq!(status(&statescan(&["verify", text(&out)])), 0);
}

#[test]
fn refused_arguments_are_named_and_nothing_is_written() {
    let directory = directory();
    let out = directory.path().join("out.safetensors");
    std::fs::write(&out, b"as it was").unwrap();
    let good = small_scan();
    type Parts = Vec<(&'static str, &'static [usize], Vec<f32>)>;
    type Change<'a> = (&'a str, &'a dyn Fn(&mut Parts), &'a [&'a str]);
    let with = |name: &str, change: &dyn Fn(&mut Parts)| {
        let mut tensors = good.clone();
        change(&mut tensors);
        put(&directory, name, &file(None, &tensors))
    };
    let changes: [Change<'_>; 6] = [
        ("missing", &|t| drop(t.remove(3)), &["selective_scan: `B` is missing", "(B, N, L)"]),
        ("rank", &|t| t[0].1 = &[2, 3], &["selective_scan: `x`", "(batch, dim, seqlen)", "(2, 3)"]),
        ("size", &|t| t[1].1 = &[1, 3, 2], &["selective_scan: `dt`", "(1, 2, 3)", "(1, 3, 2)"]),
        ("alias", &|t| (t[1].0, t[1].1) = ("delta", &[1, 3, 2]), &["`dt`", "`delta`", "(1, 3, 2)"]),
        ("unknown", &|t| t[4].0 = "see", &["unknown argument `see`", "initial_state"]),
        ("twice", &|t| t.push(("u", &[1, 2, 3], vec![0.0; 6])), &["`x` is given twice", "`u`"]),
    ];
    for (name, change, says) in changes {
        let input = with(name, change);
        refused(&["run", "selective_scan", text(&input), "-o", text(&out)], says);
        assert_eq!(std::fs::read(&out).unwrap(), b"as it was", "{name}");
    }
    let input = with("good", &|_| ());
    let nowhere = directory.path().join("no/such/place.safetensors");
    refused(&["run", "selective_scan", text(&input), "-o", text(&nowhere)], &["place.safetensors", "cannot be written"]);
    refused(&["run", "selective_scan", text(&input), "-o", text(directory.path())], &["not a regular file"]);
    // the place is tried before the work, which would refuse these shapes
    let wrong = with("wrong", &|t| t[1].1 = &[1, 3, 2]);
    refused(&["run", "selective_scan", text(&wrong), "-o", text(&nowhere)], &["place.safetensors", "cannot be written"]);
    assert!(names(directory.path()).iter().all(|n| !n.contains(".part")));
}

#[test]
fn refused_options_are_named() {
    refused(&["run", "selective_scam"], &["unknown operation `selective_scam`", "selective_scan"]);
    refused(&["run", "selective_scan", "--chunk-size", "4"], &["selective_scan: unknown option `chunk_size`", "dt_limit"]);
    refused(&["run", "selective_scan", "--discretization", "euler"], &["`discretization`", "zoh", "euler"]);
    refused(&["run", "selective_scan", "--dt-limit", "3"], &["`dt_limit`", "two numbers", "3"]);
    refused(&["run", "selective_scan", "--dt-limit", "3,1"], &["`dt_limit`", "the second not below the first"]);
    refused(&["run", "selective_scan", "--set", "dt_softplus=1"], &["`dt_softplus`", "true or false", "1"]);
    refused(&["run", "selective_scan", "--set", "dt_softplus"], &["--set", "NAME=JSON"]);
    refused(&["run", "selective_scan", "--level", "mmx"], &["--level", "mmx"]);
    refused(&["run", "selective_scan", "--threads", "100000"], &["--threads", "1024"]);
    refused(&["run", "selective_scan", "--dtype", "f8"], &["f8", "bf16"]);
    refused(&["run", "ssd", "--chunk-size", "0"], &["ssd: `chunk_size` must be at least 1, got 0"]);
    refused(&["run", "causal_conv1d_update", "--grad"], &["causal_conv1d_update", "--grad"]);
    refused(&["verify", "no-such-file.safetensors"], &["no-such-file.safetensors", "cannot be read"]);
    refused(&["verify", "/dev/null"], &["not a regular file"]);
    refused(&["verify"], &["FILES"]);
    refused(&["bench", "nothing"], &["unknown operation `nothing`"]);
    refused(&["bench", "ssd", "--level", "mmx"], &["--level", "mmx"]);
    refused(&["frobnicate"], &["frobnicate"]);
}

#[test]
fn metadata_is_judged() {
    let directory = directory();
    let mut tensors = small_scan();
    tensors.push(("out.y", &[1, 2, 3], vec![0.0; 6]));
    for (name, case, says) in [
        ("none", None, "`case` is missing"),
        ("no-json", Some("{"), "must be JSON"),
        ("list", Some("[1]"), "must be a JSON object"),
        ("op", Some(r#"{"op": 3}"#), "`op`"),
        ("args", Some(r#"{"op": "selective_scan", "args": 3}"#), "`args`"),
        ("complex", Some(r#"{"op": "selective_scan", "complex": "x"}"#), "`complex`"),
        ("pairs", Some(r#"{"op": "selective_scan", "complex": ["B"]}"#), "trailing axis of 2"),
        ("real", Some(r#"{"op": "selective_scan", "complex": ["x"]}"#), "trailing axis of 2"),
        ("option", Some(r#"{"op": "selective_scan", "args": {"speed": 9}}"#), "unknown option `speed`"),
        ("kind", Some(r#"{"op": "selective_scan", "args": {"reverse": "yes"}}"#), "true or false"),
        ("other", Some(r#"{"op": "fft"}"#), "unknown operation `fft`"),
    ] {
        let path = put(&directory, name, &file(case, &tensors));
        refused(&["verify", text(&path)], &[says, name]);
    }
    let case = r#"{"op": "causal_conv1d"}"#;
    let path = put(&directory, "wrong-op", &file(Some(case), &tensors));
    refused(&["run", "selective_scan", text(&path)], &["causal_conv1d", "selective_scan"]);
    // expectations that do not belong to the arguments
    let mut shape = small_scan();
    shape.push(("out.y", &[1, 2, 2], vec![0.0; 4]));
    let path = put(&directory, "shape", &file(Some(r#"{"op": "selective_scan"}"#), &shape));
    refused(&["verify", text(&path)], &["out.y", "[1, 2, 3]", "[1, 2, 2]"]);
    let mut grad = small_scan();
    grad.push(("grad.z", &[1, 2, 3], vec![0.0; 6]));
    let path = put(&directory, "grad", &file(Some(r#"{"op": "selective_scan"}"#), &grad));
    refused(&["verify", text(&path)], &["`z` is missing", "grad.z"]);
    let mut grad = small_scan();
    grad.push(("grad.x", &[1, 2, 3], vec![0.0; 6]));
    let path = put(&directory, "cot", &file(Some(r#"{"op": "selective_scan"}"#), &grad));
    refused(&["verify", text(&path)], &["cot.NAME"]);
}

#[test]
fn bench_prints_json_lines() {
    let output = statescan(&["bench", "causal_conv1d_update", "--quick", "--json", "--threads", "1"]);
    assert_eq!(status(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(!text.is_empty());
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        for key in
            ["op", "pass", "device", "dtype", "shape", "threads", "median_ns", "ns_per_state_step", "floor_ns", "floor_share"]
        {
            assert!(line.get(key).is_some(), "{key}: {line}");
        }
        assert!(line["median_ns"].as_u64().unwrap() > 0 && line["floor_share"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn info_tells_the_kernels_of_a_call() {
    let sizes = ["B=8", "L=2048", "H=80", "P=64", "N=128"];
    let told = |more: &[&str]| {
        let output = statescan(&[&["info", "--plan", "ssd"], &sizes[..], more].concat());
        assert_eq!(status(&output), 0, "{}", stderr(&output));
        stdout(&output)
    };
    let kernels = |text: &str, name: &str| text.lines().filter(|line| line.split_whitespace().any(|word| word == name)).count();
    let h100 = told(&[]);
    assert_eq!([kernels(&h100, "ssd_hopper"), kernels(&h100, "ssd_fused"), kernels(&h100, "ssd_walk")], [3, 1, 0], "{h100}");
    let a100 = told(&["--gpu", "a100", "--dtype", "f32"]);
    assert_eq!([kernels(&a100, "ssd_hopper"), kernels(&a100, "ssd_walk"), kernels(&a100, "ssd_maps")], [0, 3, 2], "{a100}");
    let output = statescan(&["info", "--json", "--plan", "simplified_scan", "B=2", "H=64", "P=32", "L=1000"]);
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let launches = plan["launches"].as_array().unwrap();
    assert!(launches.iter().all(|launch| launch["threads"].as_u64().unwrap() > 0), "{plan}");
    assert!(launches.iter().any(|launch| launch["kernel"] == "simplified_scan_gradients"), "{plan}");
    refused(&["info", "--plan", "ssd", "X=3"], &["--plan", "X=3"]);
    refused(&["info", "--plan", "ssd", "--gpu", "voodoo"], &["--gpu", "voodoo", "h100"]);
    refused(&["info", "--plan", "nothing"], &["nothing", "ssd"]);
    refused(&["info", "--gpu", "h100"], &["--plan"]);
}

#[test]
fn info_says_what_there_is() {
    let line: Value = serde_json::from_slice(&statescan(&["info", "--json"]).stdout).unwrap();
    for key in ["version", "cores", "level", "levels", "devices", "dtypes", "operations"] {
        assert!(line.get(key).is_some(), "{key}");
    }
    assert!(stdout(&statescan(&["info"])).contains("also called"));
    assert_eq!(status(&statescan(&["--version"])), 0);
    assert_eq!(status(&statescan(&["--help"])), 0);
}
