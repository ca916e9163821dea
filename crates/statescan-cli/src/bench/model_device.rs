//! `bench model` on a GPU: prefill of a batch, as a share of its products by cuBLASLt; decoding of one sequence, with the most likely token found there and
//! with the logits copied to the host, as a share of reading weights and states at the rate of a copy. Times are those of calls, until their results are
//! on the host.

use super::model::{Row, VOCAB, shapes};
use crate::error::Result;
use statescan::cuda::layers::Products;
use statescan::cuda::{Ceilings, elapsed};
use statescan::{DType, Exec, Tensor};
use statescan_cases::measure::median::middle;
use statescan_models::{DeviceModel, Model};
use std::time::{Duration, Instant};

/// Sequences and tokens of each of the prompt.
const PROMPT: [usize; 2] = [4, 2048];

/// A device and what it can do.
pub(super) struct Bench {
    exec: Exec,
    ceilings: Ceilings,
}

impl Bench {
    pub(super) fn new(exec: Exec) -> Result<Self> {
        Ok(Bench { ceilings: Ceilings::measure(&exec)?, exec })
    }

    pub(super) fn measure(&self, size: &str, model: &Model, dtype: DType, quick: bool) -> Result<[Row; 3]> {
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
        Ok([
            row("prefill", prompt.len(), "cuBLASLt", prefill, products),
            row("decode", 1, "reading", greedy, reading),
            row("logits", 1, "reading", copied, reading),
        ])
    }

    /// Nanoseconds of the products of all projections for so many rows.
    fn products(&self, model: &Model, dtype: DType, rows: usize, runs: usize) -> Result<f64> {
        let (exec, library) = (&self.exec, Products::new(&self.exec)?);
        let layer = model.config().layers;
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
