//! Writes the test vectors that ship with the program: small cases of every operation with every option, results and gradients from the
//! float64 oracle.
//!
//! `cargo run -p statescan-cli --example make_vectors` writes them where the tests look for them; `-- DIR` somewhere else.

use num_complex::Complex64;
use serde_json::json;
use statescan::DType;
use statescan::ops::operation::Exact;
use statescan::tensor::Tensor;
use statescan_cases::call::Call;
use statescan_cases::files::write_case;
use statescan_cases::memory::{CotangentKind, Limits, cotangents};
use statescan_cases::ops::find;
use statescan_cases::packing::Packing;
use statescan_cases::pass;
use statescan_cases::rng::Rng;
use statescan_cases::tensors::Tensors;
use statescan_cases::{Error, Result};
use std::path::{Path, PathBuf};

/// Draws tensors.
struct Draw(Rng);

impl Draw {
    fn uniform(&mut self, shape: &[usize], low: f64, high: f64) -> Result<Tensor> {
        self.typed(DType::F32, shape, |rng| rng.uniform(low, high).into())
    }
    fn normal(&mut self, shape: &[usize]) -> Result<Tensor> {
        self.typed(DType::F32, shape, |rng| rng.normal().into())
    }
    fn complex(&mut self, shape: &[usize]) -> Result<Tensor> {
        self.typed(DType::Complex64, shape, |rng| Complex64::new(rng.normal(), rng.normal()))
    }
    /// Decaying and turning.
    fn poles(&mut self, shape: &[usize]) -> Result<Tensor> {
        self.typed(DType::Complex64, shape, |rng| Complex64::new(rng.uniform(-1.0, -0.1), rng.uniform(-3.0, 3.0)))
    }
    fn typed(&mut self, dtype: DType, shape: &[usize], mut value: impl FnMut(&mut Rng) -> Complex64) -> Result<Tensor> {
        let mut buffer = Tensor::host(dtype, shape)?;
        buffer.fill_with(|| value(&mut self.0));
        Ok(buffer)
    }
}

fn indices(dtype: DType, shape: &[usize], values: &[i64]) -> Result<Tensor> {
    let mut buffer = Tensor::host(dtype, shape)?;
    let mut values = values.iter();
    buffer.fill_with(|| (*values.next().unwrap_or(&0) as f64).into());
    Ok(buffer)
}

fn selective_scan(r: &mut Draw) -> Result<Vec<(&'static str, Call)>> {
    let op = find("selective_scan")?;
    let (b, d, l, n) = (2, 6, 67, 5);
    let all = Call::new(op)
        .with("x", r.normal(&[b, d, l])?)
        .with("dt", r.normal(&[b, d, l])?)
        .with("A", r.uniform(&[d, n], -2.0, -0.2)?)
        .with("B", r.normal(&[b, 2, n, l])?)
        .with("C", r.normal(&[b, 2, n, l])?)
        .with("D", r.normal(&[d])?)
        .with("z", r.normal(&[b, d, l])?)
        .with("dt_bias", r.uniform(&[d], -1.0, 0.0)?)
        .with("deltaA", r.uniform(&[b, d, l], 0.05, 0.5)?)
        .with("initial_state", r.normal(&[b, d, n])?)
        .set("dt_softplus", true)
        .set("dt_limit", json!([0.05, "inf"]))
        .set("discretization", "zoh")
        .set("reverse", true);
    let mut complex = Call::new(op)
        .with("x", r.normal(&[1, 3, 20])?)
        .with("dt", r.uniform(&[1, 3, 20], 0.1, 0.6)?)
        .with("A", r.poles(&[3, 4])?)
        .with("B", r.complex(&[1, 4, 20])?)
        .with("C", r.complex(&[3, 4])?)
        .with("D", r.normal(&[3])?)
        .with("initial_state", r.complex(&[1, 3, 4])?)
        .set("discretization", "bilinear");
    for (input, name) in complex.inputs.iter_mut().zip(["u", "delta"]) {
        input.given = name.to_string();
    }
    complex.inputs[3].packing = Packing::Interleaved;
    let packed = Call::new(op)
        .with("x", r.normal(&[1, 4, 41])?)
        .with("dt", r.uniform(&[1, 4, 41], 0.1, 0.6)?)
        .with("A", r.uniform(&[4, 3], -2.0, -0.2)?)
        .with("B", r.normal(&[1, 3, 41])?)
        .with("C", r.normal(&[1, 3, 41])?)
        .with("initial_state", r.normal(&[4, 4, 3])?)
        .with("cu_seqlens", indices(DType::I32, &[5], &[0, 7, 7, 24, 41])?);
    let index: Vec<i64> = (0..2 * 30).map(|i| [0, 0, 0, 1, 1, 2][(i % 30) / 5]).collect();
    let seq_idx = Call::new(op)
        .with("x", r.normal(&[2, 3, 30])?)
        .with("dt", r.uniform(&[2, 3, 30], 0.1, 0.6)?)
        .with("A", r.uniform(&[3, 4], -2.0, -0.2)?)
        .with("B", r.normal(&[3, 4])?)
        .with("C", r.normal(&[2, 3, 4, 30])?)
        .with("seq_idx", indices(DType::I64, &[2, 30], &index)?)
        .set("discretization", "dirac");
    Ok(vec![
        ("selective_scan_all", all),
        ("selective_scan_complex", complex),
        ("selective_scan_packed", packed),
        ("selective_scan_seq_idx", seq_idx),
    ])
}

fn ssd(r: &mut Draw) -> Result<Vec<(&'static str, Call)>> {
    let op = find("ssd")?;
    let (b, l, h, p, g, n) = (2, 50, 4, 3, 2, 5);
    let index: Vec<i64> = (0..b * l).map(|i| ((i % l) / 20) as i64).collect();
    let all = Call::new(op)
        .with("x", r.normal(&[b, l, h, p])?)
        .with("dt", r.normal(&[b, l, h])?)
        .with("A", r.uniform(&[h], -2.0, -0.2)?)
        .with("B", r.normal(&[b, l, g, n])?)
        .with("C", r.normal(&[b, l, g, n])?)
        .with("D", r.normal(&[h, p])?)
        .with("z", r.normal(&[b, l, h, p])?)
        .with("dt_bias", r.uniform(&[h], -1.0, 0.0)?)
        .with("initial_state", r.normal(&[b, h, p, n])?)
        .with("seq_idx", indices(DType::I32, &[b, l], &index)?)
        .set("dt_softplus", true)
        .set("dt_limit", json!([0.0, 1.5]))
        .set("chunk_size", 16)
        .set("reverse", true);
    Ok(vec![("ssd_all", all)])
}

fn linear_scan(r: &mut Draw) -> Result<Vec<(&'static str, Call)>> {
    let op = find("linear_scan")?;
    let complex = Call::new(op)
        .with(
            "a",
            r.typed(DType::Complex64, &[2, 3, 45], |rng| Complex64::from_polar(rng.uniform(0.5, 1.0), rng.uniform(-1.0, 1.0)))?,
        )
        .with("b", r.complex(&[2, 3, 45])?)
        .with("initial_state", r.complex(&[2, 3])?)
        .set("reverse", true);
    let double = Call::new(op)
        .with("a", r.typed(DType::F64, &[5, 70], |rng| rng.uniform(0.5, 1.0).into())?)
        .with("b", r.typed(DType::F64, &[5, 70], |rng| rng.normal().into())?);
    Ok(vec![("linear_scan_complex", complex), ("linear_scan_f64", double)])
}

fn conv(r: &mut Draw) -> Result<Vec<(&'static str, Call)>> {
    let all = Call::new(find("causal_conv1d")?)
        .with("x", r.normal(&[2, 5, 33])?)
        .with("weight", r.normal(&[5, 4])?)
        .with("bias", r.normal(&[5])?)
        .with("initial_states", r.normal(&[2, 5, 3])?)
        .set("activation", "silu")
        .set("reverse", true);
    let packed = Call::new(find("causal_conv1d")?)
        .with("x", r.normal(&[1, 4, 30])?)
        .with("weight", r.normal(&[4, 3])?)
        .with("initial_states", r.normal(&[3, 4, 2])?)
        .with("cu_seqlens", indices(DType::I64, &[4], &[0, 1, 12, 30])?);
    let step = Call::new(find("causal_conv1d_update")?)
        .with("x", r.normal(&[3, 4])?)
        .with("conv_state", r.normal(&[5, 4, 4])?)
        .with("weight", r.normal(&[4, 4])?)
        .with("bias", r.normal(&[4])?)
        .with("cache_seqlens", indices(DType::I32, &[3], &[0, 7, 2])?)
        .with("conv_state_indices", indices(DType::I32, &[3], &[4, -1, 1])?)
        .set("activation", "silu");
    Ok(vec![("causal_conv1d_all", all), ("causal_conv1d_packed", packed), ("causal_conv1d_update", step)])
}

fn s5(r: &mut Draw) -> Result<Vec<(&'static str, Call)>> {
    let (b, h, p, l) = (2, 3, 4, 37);
    let asynchronous = Call::new(find("simplified_scan")?)
        .with("u", r.complex(&[b, h, l])?)
        .with("delta", r.uniform(&[b, p, l], 0.1, 0.6)?)
        .with("A", r.poles(&[p])?)
        .with("B", r.complex(&[p, h])?)
        .with("C", r.complex(&[h, p])?)
        .with("deltaA", r.uniform(&[b, p, l], 0.1, 0.6)?)
        .with("initial_state", r.complex(&[b, p])?)
        .set("discretization", "zoh")
        .set("reverse", true);
    let packed = Call::new(find("simplified_scan")?)
        .with("u", r.complex(&[1, h, l])?)
        .with("delta", r.uniform(&[p], 0.1, 0.6)?)
        .with("A", r.poles(&[p, 1])?)
        .with("B", r.complex(&[p, h])?)
        .with("C", r.complex(&[h, p])?)
        .with("initial_state", r.complex(&[3, p])?)
        .with("cu_seqlens", indices(DType::I32, &[4], &[0, 10, 11, 37])?)
        .set("discretization", "dirac");
    let inner = Call::new(find("s5_inner")?)
        .with("u", r.normal(&[b, h, l])?)
        .with("delta", r.uniform(&[b, p, l], 0.1, 0.6)?)
        .with("A", r.poles(&[p])?)
        .with("B", r.complex(&[p, h])?)
        .with("C", r.complex(&[h, p])?)
        .with("D", r.normal(&[h])?)
        .set("conj_sym", false);
    Ok(vec![("simplified_scan_async", asynchronous), ("simplified_scan_packed", packed), ("s5_inner_real_u", inner)])
}

fn steps(r: &mut Draw) -> Result<Vec<(&'static str, Call)>> {
    let op = find("selective_state_update")?;
    let (b, h, p, g, n) = (3, 4, 5, 2, 6);
    let heads = Call::new(op)
        .with("state", r.normal(&[6, h, p, n])?)
        .with("x", r.normal(&[b, h, p])?)
        .with("dt", r.normal(&[b, h, p])?)
        .with("A", r.uniform(&[h, p, n], -2.0, -0.2)?)
        .with("B", r.normal(&[b, g, n])?)
        .with("C", r.normal(&[b, g, n])?)
        .with("D", r.normal(&[h, p])?)
        .with("z", r.normal(&[b, h, p])?)
        .with("dt_bias", r.uniform(&[h, p], -1.0, 0.0)?)
        .with("state_batch_indices", indices(DType::I64, &[b], &[5, -1, 0])?)
        .set("dt_softplus", true);
    let complex = Call::new(op)
        .with("state", r.complex(&[2, 3, 4])?)
        .with("x", r.normal(&[2, 3])?)
        .with("dt", r.uniform(&[2, 3], 0.1, 0.6)?)
        .with("A", r.poles(&[3, 4])?)
        .with("B", r.complex(&[2, 4])?)
        .with("C", r.complex(&[2, 4])?)
        .with("deltaA", r.uniform(&[2, 3], 0.1, 0.6)?)
        .set("discretization", "bilinear");
    let simplified = Call::new(find("simplified_state_update")?)
        .with("state", r.complex(&[4, 5])?)
        .with("u", r.complex(&[3, 2])?)
        .with("delta", r.uniform(&[5], 0.1, 0.6)?)
        .with("A", r.poles(&[5])?)
        .with("B", r.complex(&[5, 2])?)
        .with("C", r.complex(&[2, 5])?)
        .with("deltaA", r.uniform(&[3, 5], 0.1, 0.6)?)
        .with("state_batch_indices", indices(DType::I32, &[3], &[2, 0, -1])?)
        .set("discretization", "zoh");
    Ok(vec![
        ("selective_state_update_heads", heads),
        ("selective_state_update_complex", complex),
        ("simplified_state_update", simplified),
    ])
}

fn own_decay_step(r: &mut Draw) -> Result<Vec<(&'static str, Call)>> {
    let (b, l, h, p, g, n) = (2, 40, 4, 3, 1, 5);
    let mut call = Call::new(find("ssd")?)
        .with("x", r.normal(&[b, l, h, p])?)
        .with("dt", r.uniform(&[b, l, h], 0.1, 0.6)?)
        .with("A", r.uniform(&[h], -2.0, -0.2)?)
        .with("B", r.normal(&[b, l, g, n])?)
        .with("C", r.normal(&[b, l, g, n])?)
        .with("dt_a", r.uniform(&[b, l, h], 0.0, 0.9)?);
    call.inputs[5].given = "deltaA".to_string();
    Ok(vec![("ssd_own_decay_step", call)])
}

fn delta(r: &mut Draw) -> Result<Vec<(&'static str, Call)>> {
    let (b, t, h, hv, k, v) = (1, 70, 2, 4, 5, 3);
    let packed = Call::new(find("gated_delta_rule")?)
        .with("q", r.normal(&[b, t, h, k])?)
        .with("k", r.normal(&[b, t, h, k])?)
        .with("v", r.normal(&[b, t, hv, v])?)
        .with("g", r.normal(&[b, t, hv, k])?)
        .with("beta", r.normal(&[b, t, hv])?)
        .with("A_log", r.uniform(&[hv], -1.0, 0.5)?)
        .with("dt_bias", r.uniform(&[hv, k], -1.0, 0.0)?)
        .with("initial_state", r.normal(&[3, hv, k, v])?)
        .with("cu_seqlens", indices(DType::I32, &[4], &[0, 66, 66, 70])?)
        .set("qk_l2norm", true)
        .set("beta_sigmoid", true)
        .set("allow_neg_eigval", true);
    let step = Call::new(find("gated_delta_rule_update")?)
        .with("state", r.normal(&[4, hv, k, v])?)
        .with("q", r.normal(&[2, h, k])?)
        .with("k", r.normal(&[2, h, k])?)
        .with("v", r.normal(&[2, hv, v])?)
        .with("g", r.uniform(&[2, hv], -0.5, 0.0)?)
        .with("beta", r.uniform(&[2, hv], 0.0, 1.0)?)
        .with("state_batch_indices", indices(DType::I64, &[2], &[3, 1])?)
        .set("qk_l2norm", true);
    Ok(vec![("gated_delta_rule_packed", packed), ("gated_delta_rule_update", step)])
}

fn named(all: Exact, like: impl Fn(&str) -> Option<DType>) -> Tensors {
    let mut tensors = Tensors::default();
    for (name, dense) in all {
        if let Some(dtype) = like(name) {
            tensors.push(name, Tensor::from_dense(&dense, dtype));
        }
    }
    tensors
}

fn write(directory: &Path, name: &str, call: &Call) -> Result<()> {
    let planned = pass::plan(call, false)?;
    let results = named(pass::reference(call)?, |name| planned.iter().find(|p| p.name == name).map(|p| p.dtype));
    let (mut by, mut gradients) = (Tensors::default(), Tensors::default());
    if call.op.signature.differentiable {
        by = cotangents(call, CotangentKind::Random, Limits::default())?;
        gradients = named(pass::reference_backward(call, &by)?, |name| call.input(name).map(|i| i.buffer.dtype()));
    }
    write_case(&directory.join(format!("{name}.safetensors")), call, &results, &by, &gradients, true)
}

fn main() -> Result<()> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from);
    let directory = directory.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors"));
    std::fs::create_dir_all(&directory).map_err(|error| Error::Io { path: directory.clone(), verb: "written", error })?;
    let mut draw = Draw(Rng::new(2026));
    for make in [selective_scan, ssd, linear_scan, conv, s5, steps, own_decay_step, delta] {
        for (name, call) in make(&mut draw)? {
            write(&directory, name, &call)?;
        }
    }
    Ok(())
}
