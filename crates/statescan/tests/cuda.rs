//! The CUDA machinery seen from outside: recorded calls, the cache over processes, and what there is to say where there is no GPU.

mod common;

use common::device::{gpu, home, on};
use common::{Layout, Rng, normal, poisoned};
use statescan::cuda::{Graph, devices, elapsed};
use statescan::ops::causal_conv1d::{self, Activation, Args, Cotangents, Gradients, Outputs};
use statescan::tensor::Workspace;
use statescan::{DType, Device, Error, Exec, Tensor, View};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

/// How a call is made.
#[derive(PartialEq)]
enum Way {
    Direct,
    Recorded,
    /// Only its kernel of this name runs.
    Alone(&'static str),
}

/// `y` and the gradients by `x` and `weight` of one convolution.
fn convolution(exec: &Exec, way: Way) -> [Tensor; 3] {
    let (rng, mut workspace) = (&mut Rng::new(1), Workspace::default());
    let [x, dy] = [0; 2].map(|_| on(exec, &normal(rng, DType::F32, &[2, 20, 300], Layout::Dense, 1.0)));
    let weight = on(exec, &normal(rng, DType::F32, &[20, 4], Layout::Dense, 0.5));
    let args = Args::new(x.view(), weight.view()).activation(Activation::Silu);
    let [mut y, mut dx, mut dweight] =
        [&x, &x, &weight].map(|like| on(exec, &poisoned(rng, DType::F32, &like.shape(), Layout::Dense)));
    let len = causal_conv1d::backward_workspace_len(exec, &args).unwrap();
    let mut workspace = workspace.view_mut(exec, len).unwrap();
    let mut calls = || {
        let mut out = Outputs::default().y(y.view_mut());
        causal_conv1d::forward(exec, &args, &mut out)?;
        let (x, weight, workspace) = (Some(dx.view_mut()), Some(dweight.view_mut()), Some(workspace.reborrow()));
        let mut grads = Gradients::default().x(x).weight(weight).workspace(workspace);
        causal_conv1d::backward(exec, &args, &Cotangents::default().y(dy.view()), &mut grads)
    };
    // the first call of a kernel may be recorded as well as any other
    let graph = match way {
        Way::Direct => None,
        Way::Recorded => Some(Graph::record(exec, &mut calls).unwrap()),
        Way::Alone(kernel) => Some(Graph::record_kernel(exec, kernel, &mut calls).unwrap()),
    };
    if let Some(graph) = graph {
        // SAFETY: the tensors are alive, and nothing looks at them before `home` has waited.
        let time = elapsed(exec, || unsafe { graph.launch().and_then(|()| graph.launch()) }).unwrap();
        assert!(!time.is_zero());
    } else {
        calls().unwrap();
    }
    [&y, &dx, &dweight].map(home)
}

#[test]
fn recorded_calls_give_the_same_bits() {
    let Some(exec) = gpu() else { return };
    let (recorded, direct) = (convolution(&exec, Way::Recorded), convolution(&exec, Way::Direct));
    for (a, b) in recorded.iter().zip(&direct) {
        assert!(a.bytes() == b.bytes() && a.to_dense().data().iter().all(|v| v.re.is_finite()));
    }
}

#[test]
fn failed_calls_end_the_recording() {
    let Some(exec) = gpu() else { return };
    let failed = Graph::record(&exec, || Err(Error::Unavailable { what: "this", why: "on purpose" }));
    assert!(matches!(failed, Err(Error::Unavailable { why: "on purpose", .. })));
    convolution(&exec, Way::Recorded);
}

#[test]
fn one_kernel_of_recorded_calls_runs_alone() {
    let Some(exec) = gpu() else { return };
    let poison = || convolution(&exec, Way::Alone("causal_conv1d_backward"))[0].bytes().to_vec();
    let [alone, direct] = [Way::Alone("causal_conv1d_forward"), Way::Direct].map(|way| convolution(&exec, way));
    assert!(alone[0].bytes() == direct[0].bytes() && alone[0].bytes() != poison());
    assert!(alone[1].bytes() != direct[1].bytes(), "the backward pass has run too");
    let unknown = Graph::record_kernel::<Error>(&exec, "no_such_kernel", || Ok(()));
    assert!(matches!(unknown, Err(Error::Unavailable { what: "a kernel alone", .. })));
}

#[test]
fn without_a_gpu_everything_says_so() {
    let cpu = Exec::cpu(1);
    assert!(matches!(elapsed::<Error, _>(&cpu, || Ok(())), Err(Error::Unavailable { .. })));
    assert!(matches!(Graph::record::<Error>(&cpu, || Ok(())), Err(Error::Unavailable { .. })));
    match Exec::cuda(0) {
        Ok(_) => assert!(matches!(Exec::cuda(4096), Err(Error::Unavailable { .. }))),
        Err(error) => {
            assert!(matches!(error, Error::Unavailable { what: "CUDA", .. }), "{error}");
            // once more: an answer, not a panic, and the CPU goes on
            assert_eq!(Exec::cuda(0).err(), Some(error));
            convolution(&cpu, Way::Direct);
        }
    }
}

/// The variable that makes `child_process` do some work, by its name.
const CHILD: &str = "STATESCAN_TEST_CHILD";

/// Tests start this as a process of its own.
#[test]
fn child_process() {
    match std::env::var(CHILD).as_deref() {
        Ok("compute") => compute(),
        Ok("fault") => fault(),
        _ => {}
    }
}

fn child(work: &str, cache: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_process", "--nocapture"]).env(CHILD, work).env("STATESCAN_CACHE_DIR", cache);
    command
}

/// One convolution, its time and its bits; the time of a scan with its gradient.
fn compute() {
    let exec = Exec::cuda(0).unwrap();
    let begin = Instant::now();
    let results = convolution(&exec, Way::Direct);
    println!("took {:?}", begin.elapsed());
    let bits = results
        .iter()
        .flat_map(|buffer| buffer.bytes())
        .fold(7u64, |hash, &byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    println!("bits {bits}");
    let begin = Instant::now();
    scan(&exec);
    println!("scan took {:?}", begin.elapsed());
}

/// A selective scan and its gradient by `x`.
fn scan(exec: &Exec) {
    use statescan::ops::selective_scan::{self, Args, Cotangents, Gradients, Outputs, backward, forward};
    let rng = &mut Rng::new(2);
    let mut numbers = |shape: &[usize]| on(exec, &normal(rng, DType::BF16, shape, Layout::Dense, 0.1));
    let (time, maps, a) = (numbers(&[2, 64, 256]), numbers(&[2, 16, 256]), numbers(&[64, 16]));
    let args = Args::new(time.view(), time.view(), a.view(), maps.view(), maps.view()).dt_softplus(true);
    let mut saved = Tensor::empty(exec, DType::F32, &[selective_scan::checkpoints_len(&args).unwrap()]).unwrap();
    let [mut y, mut dx] = [(); 2].map(|()| on(exec, &poisoned(&mut Rng::new(3), DType::BF16, &time.shape(), Layout::Dense)));
    let mut out = Outputs::default().y(y.view_mut()).checkpoints(saved.view_mut());
    forward(exec, &args, &mut out).unwrap();
    let mut workspace = Workspace::default();
    let len = selective_scan::backward_workspace_len(exec, &args, true).unwrap();
    let workspace = Some(workspace.view_mut(exec, len).unwrap());
    let mut grads = Gradients::default().x(dx.view_mut()).workspace(workspace);
    let cotangents = Cotangents::default().y(time.view());
    backward(exec, &args, Some(saved.view()), &cotangents, &mut grads).unwrap();
    assert!([&y, &dx].iter().all(|tensor| home(tensor).to_dense().data().iter().all(|v| v.re.is_finite())));
}

/// A convolution of memory that does not exist. The context is lost, as CUDA has it; calls say so, and the CPU goes on.
fn fault() {
    let exec = Exec::cuda(0).unwrap();
    let shape = [2, 20, 300];
    // SAFETY: a lie, for once: the address belongs to nothing. Only the device follows it.
    let nowhere = unsafe {
        View::from_raw_parts(core::ptr::without_provenance(1 << 20), DType::F32, exec.device(), &shape, &[6000, 300, 1])
    };
    let [weight, mut y] = [&[20, 4][..], &shape].map(|shape| Tensor::zeros(&exec, DType::F32, shape).unwrap());
    let args = Args::new(nowhere.unwrap(), weight.view());
    let mut call = || causal_conv1d::forward(&exec, &args, &mut Outputs::default().y(y.view_mut()));
    assert_eq!(call(), Ok(()), "nothing is known of it yet");
    let lost = |result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Cuda { name: "CUDA_ERROR_ILLEGAL_ADDRESS", .. }), "{error}");
        println!("said {error}");
    };
    lost(exec.synchronize());
    lost(call());
    let here = convolution(&Exec::cpu(1), Way::Direct);
    assert!(here.iter().all(|buffer| buffer.to_dense().data().iter().all(|v| v.re.is_finite())));
    println!("went on");
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
fn memory_that_does_not_exist_is_reported_and_the_cpu_goes_on() {
    if gpu().is_none() {
        return;
    }
    let output = child("fault", &std::env::temp_dir().join("statescan-cuda-fault")).output().unwrap();
    said(&output, "went on");
    println!("{}", said(&output, "said"));
}

#[test]
fn too_little_memory_is_an_error_and_the_device_goes_on() {
    let Some(exec) = gpu() else { return };
    let error = Tensor::zeros(&exec, DType::F32, &[1 << 40]).err();
    assert_eq!(error, Some(Error::OutOfMemory { device: 0, bytes: 4 << 40 }));
    convolution(&exec, Way::Direct);
}

#[test]
fn every_device_computes_the_same() {
    let Some(first) = gpu() else { return };
    let expected = convolution(&first, Way::Direct);
    for ordinal in 1..devices().unwrap().len() {
        let exec = Exec::cuda(ordinal).unwrap();
        let tensors = expected.each_ref().map(|tensor| tensor.to(&first).unwrap().to(&exec).unwrap());
        for (tensor, expected) in tensors.iter().zip(&expected) {
            assert!(tensor.device() == Device::Cuda(ordinal) && home(tensor).bytes() == expected.bytes());
        }
        for (got, expected) in convolution(&exec, Way::Direct).iter().zip(&expected) {
            assert!(got.bytes() == expected.bytes(), "device {ordinal}");
        }
    }
}

#[test]
fn kernels_are_kept_over_processes_and_damage_is_repaired() {
    if gpu().is_none() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("statescan-cuda-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    // at the same time, each with nothing to begin with
    let begun: Vec<_> = (0..4).map(|_| child("compute", &folder).stdout(std::process::Stdio::piped()).spawn().unwrap()).collect();
    let first: Vec<Output> = begun.into_iter().map(|process| process.wait_with_output().unwrap()).collect();
    let bits = said(&first[0], "bits");
    assert!(first.iter().all(|output| said(output, "bits") == bits));
    println!("compiled: {}, scan {}", said(&first[0], "took"), said(&first[0], "scan took"));
    let kept = files(&folder);
    assert!(!kept.is_empty() && kept.iter().all(|path| path.extension().is_some_and(|e| e == "cubin")));
    let again = child("compute", &folder).output().unwrap();
    assert_eq!(said(&again, "bits"), bits);
    println!("from the cache: {}, scan {}", said(&again, "took"), said(&again, "scan took"));
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
    assert_eq!(said(&child("compute", &folder).output().unwrap(), "bits"), bits);
    std::fs::remove_dir_all(&folder).unwrap();
}
