//! The tests of the program share this: running it, and files made by hand.
#![allow(dead_code)] // each test binary uses its own part

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// The program.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_statescan"));
    command.args(args);
    #[cfg(unix)]
    heed_signals(&mut command);
    command
}

/// Whoever runs the tests may ignore signals, as shells make what runs in the background ignore Ctrl-C: the program would go on ignoring them.
#[cfg(unix)]
fn heed_signals(command: &mut Command) {
    let heed = || {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the default is an action that every signal has.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between the fork and the program nothing is called but `signal`, which may be called there.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, heed) };
}

/// Runs the program.
pub fn statescan(args: &[&str]) -> Output {
    command(args).output().expect("the program runs")
}

/// Its exit status.
pub fn status(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

/// Its standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Its standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// The vectors that ship with the program.
pub fn own_vectors() -> Vec<PathBuf> {
    list(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors"))
}

/// Other projects' vectors, where a checkout has them.
pub fn shared_vectors() -> Vec<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors");
    list(&std::env::var_os("STATESCAN_VECTORS").map_or(beside, PathBuf::from))
}

fn list(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).collect();
    files.sort();
    files
}

/// A file from a header and data.
pub fn raw(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// A file of f32 tensors: names, shapes, elements.
pub fn file(case: Option<&str>, tensors: &[(&str, &[usize], Vec<f32>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    if let Some(case) = case {
        header.insert("__metadata__".into(), serde_json::json!({ "case": case }));
    }
    let mut data = Vec::new();
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        header.insert((*name).into(), serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]}));
    }
    raw(&serde_json::Value::Object(header).to_string(), &data)
}

/// A small selective scan: x and dt (1, 2, 3), A (2, 4), B and C (1, 4, 3).
pub fn small_scan<'a>() -> Vec<(&'a str, &'a [usize], Vec<f32>)> {
    let ramp = |n: usize| (0..n).map(|i| 0.1 + i as f32 * 0.05).collect::<Vec<_>>();
    vec![
        ("x", &[1, 2, 3], ramp(6)),
        ("dt", &[1, 2, 3], ramp(6)),
        ("A", &[2, 4], ramp(8).into_iter().map(|v| -v).collect()),
        ("B", &[1, 4, 3], ramp(12)),
        ("C", &[1, 4, 3], ramp(12)),
    ]
}

/// A tiny model over bytes with made-up weights, each a function of its place.
pub fn model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"model_type": "mamba", "vocab_size": 128, "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4, "conv_kernel": 2,
        "eos_token_id": null});
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
