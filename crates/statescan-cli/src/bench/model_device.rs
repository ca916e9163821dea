//! `bench model` on a GPU: prefill of a batch, as a share of its products by cuBLASLt; decoding of one sequence, with the most likely token found there and
//! with the logits copied to the host, as a share of reading weights and states at the rate of a copy; a step of training with the smaller models, as a
//! share of its products: each of a forward pass, and two gradients of each. Times are those of calls, until their results are on the host.

use super::model_row::{Row, VOCAB, shapes};
use crate::error::Result;
use statescan::cuda::{Ceilings, elapsed};
use statescan::{DType, Exec, Tensor};
use statescan_cases::measure::median::middle;
use statescan_models::kernels::Products;
use statescan_models::kernels::training::AdamW;
use statescan_models::{Array, Config, DeviceModel, DeviceTraining, Model, Tensors};
use std::time::{Duration, Instant};

/// Sequences and tokens of each of the prompt.
const PROMPT: [usize; 2] = [4, 2048];
/// The widest model that is trained: gradients, means and weights in f32 take 16 bytes for each weight, and its activations come to that.
const TRAINED: usize = 1024;

/// A device and what it can do.
pub(super) struct Bench {
    exec: Exec,
    ceilings: Ceilings,
}

impl Bench {
    pub(super) fn new(exec: Exec) -> Result<Self> {
        Ok(Bench { ceilings: Ceilings::measure(&exec)?, exec })
    }

    pub(super) fn measure(&self, size: &str, model: &Model, dtype: DType, quick: bool) -> Result<Vec<Row>> {
        let runs = if quick { 5 } else { 20 };
        let device = DeviceModel::new(&self.exec, model, Some(dtype))?;
        let row = |pass, tokens: usize, floor, ns: f64, least: f64| Row {
            size: size.to_owned(),
            dtype,
            device: self.exec.device(),
            threads: 1,
            pass,
            tokens,
            floor,
            time: Duration::from_nanos(ns as u64),
            share: least / ns,
        };
        let [sequences, steps] = PROMPT;
        let prompt: Vec<u32> = (0..(sequences * steps) as u32).map(|i| i * 7919 % VOCAB as u32).collect();
        let mut state = device.state(sequences)?;
        let prefill = median(runs, 1, || Ok(device.prefill(&prompt, &mut state).map(drop)?))?;
        let products = self.products(model, dtype, prompt.len(), runs)?;
        let reading = device.bytes_per_step() as f64 / self.ceilings.bytes;
        let (mut state, mut token) = (device.state(1)?, 1);
        let greedy = median(runs, 64, || {
            token = device.step_greedy(token, &mut state)?;
            Ok(())
        })?;
        let copied = median(runs, 16, || Ok(device.step(1, &mut state).map(drop)?))?;
        let mut rows = vec![
            row("prefill", prompt.len(), "cuBLASLt", prefill, products),
            row("decode", 1, "reading", greedy, reading),
            row("logits", 1, "reading", copied, reading),
        ];
        if model.config().dim <= TRAINED {
            drop((state, device));
            for (pass, keep) in [("train", false), ("keeping", true)] {
                let time = self.train(model.config(), dtype, &prompt, runs, keep)?;
                rows.push(row(pass, prompt.len(), "cuBLASLt", time, 3.0 * products));
            }
        }
        Ok(rows)
    }

    /// Nanoseconds of a step of training on rows of the prompt, each of which is followed by one more token; blocks keep their activations, or are
    /// computed again.
    fn train(&self, config: &Config, dtype: DType, prompt: &[u32], runs: usize, keep: bool) -> Result<f64> {
        let mut training = DeviceTraining::new(&self.exec, config, &weights(config), dtype)?.keep_activations(keep);
        let rows: Vec<u32> = prompt.chunks(PROMPT[1]).flat_map(|row| row.iter().copied().chain([1])).collect();
        let step = AdamW { rate: 1e-4, weight_decay: 0.1, betas: [0.9, 0.95], eps: 1e-8, taken: 1 };
        median(runs, 1, || Ok(training.step(&rows, PROMPT[1], 1.0, step).map(drop)?))
    }

    /// Nanoseconds of the products of all projections for so many rows.
    fn products(&self, model: &Model, dtype: DType, rows: usize, runs: usize) -> Result<f64> {
        let (exec, library) = (&self.exec, Products::new(&self.exec)?);
        let layer = model.config().layers.len();
        let shapes = shapes(model.config());
        let of_layer = &shapes[..shapes.len() / layer];
        let mut matrices = Vec::new();
        for &[outputs, inputs] in of_layer {
            let results = Tensor::zeros(exec, dtype, &[rows, outputs])?;
            matrices.push([numbers(exec, dtype, rows, inputs)?, numbers(exec, dtype, outputs, inputs)?, results]);
        }
        let mut times = Vec::new();
        for _ in 0..=runs {
            let all = || {
                for _ in 0..layer {
                    for [x, weight, y] in &mut matrices {
                        library.multiply(x.view(), weight.view(), None, &mut y.view_mut(), false)?;
                    }
                }
                Ok::<(), statescan::Error>(())
            };
            times.push(elapsed(exec, all)?.as_nanos() as f64);
        }
        // the first one looks for algorithms
        Ok(middle(times.split_off(1)))
    }
}

/// Weights of a size that leaves activations of the size that they have.
fn weights(config: &Config) -> Tensors {
    let mut state = 1u32;
    let mut random = |name: &str| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let small = (f64::from(state) / f64::from(u32::MAX) - 0.5) * 0.07;
        small as f32
            + if name.ends_with("norm.weight") || name.ends_with("norm_f.weight") || name.ends_with(".D") { 1.0 } else { 0.0 }
    };
    let array = |(name, shape): (String, Vec<usize>)| {
        let data = (0..shape.iter().product()).map(|_| random(&name)).collect();
        (name, Array { shape, data })
    };
    config.tensors().into_iter().map(array).collect()
}

/// The median time of one of `count` calls in nanoseconds, after as many that do not count.
fn median(runs: usize, count: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..=runs {
        let begin = Instant::now();
        (0..count).try_for_each(|_| call())?;
        times.push(begin.elapsed().as_nanos() as f64 / count as f64);
    }
    Ok(middle(times.split_off(1)))
}

/// Numbers between 1/2 and 2, of either sign: a device multiplies zeros faster.
fn numbers(exec: &Exec, dtype: DType, rows: usize, columns: usize) -> Result<Tensor> {
    let (mut host, mut state) = (Tensor::host(dtype, &[rows, columns])?, 1u32);
    for element in host.bytes_mut().chunks_exact_mut(dtype.size()) {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let bytes = state.to_le_bytes();
        element.copy_from_slice(&bytes[4 - dtype.size()..]);
        element[dtype.size() - 1] = 0x3f | (bytes[3] & 0x80);
    }
    Ok(host.to(exec)?)
}
