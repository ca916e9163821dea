//! The CUDA machinery seen from outside: recorded calls, the cache over processes, and what there is to say where there is no GPU.

mod common;

use common::device::{Placed, PlacedMut, gpu};
use common::{Layout, Rng, normal, poisoned};
use statescan::cuda::{Graph, elapsed};
use statescan::ops::causal_conv1d::{self, Activation, Args, Cotangents, Gradients, Outputs};
use statescan::tensor::Buffer;
use statescan::{DType, Error, Exec};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

/// `y` and the gradients by `x` and `weight` of one convolution, by direct calls or by a recorded graph.
fn convolution(exec: &Exec, recorded: bool) -> [Buffer; 3] {
    let rng = &mut Rng::new(1);
    let [x, dy] = [0; 2].map(|_| normal(rng, DType::F32, &[2, 20, 300], Layout::Dense, 1.0));
    let weight = normal(rng, DType::F32, &[20, 4], Layout::Dense, 0.5);
    let (on_x, on_dy, on_weight) = (Placed::new(exec, &x), Placed::new(exec, &dy), Placed::new(exec, &weight));
    let args = Args { activation: Activation::Silu, ..Args::new(on_x.view(), on_weight.view()) };
    let mut results = [&x, &x, &weight].map(|like| poisoned(rng, DType::F32, &like.shape(), Layout::Dense));
    let mut scratch = poisoned(rng, DType::F32, &[causal_conv1d::backward_workspace_len(exec, &args).unwrap()], Layout::Dense);
    let mut workspace = PlacedMut::new(exec, &mut scratch);
    let [mut y, mut dx, mut dweight] = results.each_mut().map(|buffer| PlacedMut::new(exec, buffer));
    let mut calls = || {
        let mut out = Outputs { y: Some(y.view_mut()), final_states: None };
        causal_conv1d::forward(exec, &args, &mut out)?;
        let (x, weight, workspace) = (Some(dx.view_mut()), Some(dweight.view_mut()), Some(workspace.view_mut()));
        let mut grads = Gradients { x, weight, workspace, ..Default::default() };
        causal_conv1d::backward(exec, &args, &Cotangents { y: Some(on_dy.view()), final_states: None }, &mut grads)
    };
    if recorded {
        // the first call of a kernel may be recorded as well as any other
        let graph = Graph::record(exec, calls).unwrap();
        // SAFETY: the tensors are alive, and nothing looks at them before `finish` has waited.
        let time = elapsed(exec, || unsafe { graph.launch().and_then(|()| graph.launch()) }).unwrap();
        assert!(!time.is_zero());
    } else {
        calls().unwrap();
    }
    [y, dx, dweight].into_iter().for_each(PlacedMut::finish);
    results
}

#[test]
fn recorded_calls_give_the_same_bits() {
    let Some(exec) = gpu() else { return };
    let (recorded, direct) = (convolution(&exec, true), convolution(&exec, false));
    for (a, b) in recorded.iter().zip(&direct) {
        assert!(a.bytes() == b.bytes() && a.to_dense().data().iter().all(|v| v.re.is_finite()));
    }
}

#[test]
fn failed_calls_end_the_recording() {
    let Some(exec) = gpu() else { return };
    let failed = Graph::record(&exec, || Err(Error::Unavailable { what: "this", why: "on purpose" }));
    assert!(matches!(failed, Err(Error::Unavailable { why: "on purpose", .. })));
    convolution(&exec, true);
}

#[test]
fn without_a_gpu_everything_says_so() {
    let cpu = Exec::cpu(1);
    assert!(matches!(elapsed::<Error>(&cpu, || Ok(())), Err(Error::Unavailable { .. })));
    assert!(matches!(Graph::record::<Error>(&cpu, || Ok(())), Err(Error::Unavailable { .. })));
    match Exec::cuda(0) {
        Ok(_) => assert!(matches!(Exec::cuda(4096), Err(Error::Unavailable { .. }))),
        Err(error) => {
            assert!(matches!(error, Error::Unavailable { what: "CUDA", .. }), "{error}");
            // once more: an answer, not a panic, and the CPU goes on
            assert_eq!(Exec::cuda(0).err(), Some(error));
            convolution(&cpu, false);
        }
    }
}

/// The variable that makes `child_process` do its work.
const CHILD: &str = "STATESCAN_TEST_CHILD";

/// What the tests of the cache start: one convolution, its time and its bits.
#[test]
fn child_process() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let exec = Exec::cuda(0).unwrap();
    let begin = Instant::now();
    let results = convolution(&exec, false);
    println!("took {:?}", begin.elapsed());
    let bits = results
        .iter()
        .flat_map(|buffer| buffer.bytes())
        .fold(7u64, |hash, &byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    println!("bits {bits}");
}

fn child(cache: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_process", "--nocapture"]).env(CHILD, "1").env("STATESCAN_CACHE_DIR", cache);
    command
}

/// A line of a child's output.
fn said(output: &Output, what: &str) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().find_map(|line| line.strip_prefix(what)).expect("the child says it").trim().to_string()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn kernels_are_kept_over_processes_and_damage_is_repaired() {
    if gpu().is_none() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("statescan-cuda-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    // at the same time, each with nothing to begin with
    let begun: Vec<_> = (0..4).map(|_| child(&folder).stdout(std::process::Stdio::piped()).spawn().unwrap()).collect();
    let first: Vec<Output> = begun.into_iter().map(|process| process.wait_with_output().unwrap()).collect();
    let bits = said(&first[0], "bits");
    assert!(first.iter().all(|output| said(output, "bits") == bits));
    println!("compiled: {}", said(&first[0], "took"));
    let kept = files(&folder);
    assert!(!kept.is_empty() && kept.iter().all(|path| path.extension().is_some_and(|e| e == "cubin")));
    let again = child(&folder).output().unwrap();
    assert_eq!(said(&again, "bits"), bits);
    println!("from the cache: {}", said(&again, "took"));
    for (i, path) in kept.iter().enumerate() {
        let mut bytes = std::fs::read(path).unwrap();
        // cut short, or changed in the machine code
        if i % 2 == 0 {
            bytes.truncate(bytes.len() / 2)
        } else {
            *bytes.last_mut().unwrap() ^= 0xff
        }
        std::fs::write(path, bytes).unwrap();
    }
    assert_eq!(said(&child(&folder).output().unwrap(), "bits"), bits);
    std::fs::remove_dir_all(&folder).unwrap();
}
