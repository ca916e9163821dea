//! `bench model`: whole language models at the published sizes, with random weights. Decoding takes turns with reading as many bytes as it has
//! to read, prefill with the products of its projections by the `gemm` crate; on a GPU see `model_device.rs`.

use super::args::{BenchArgs, Size};
use super::model_device::Bench;
use super::model_row::{Row, VOCAB, columns, shapes};
use super::row::progress;
use crate::error::Result;
use crate::exec::{cuda_device, level, threads};
use crate::output::say;
use clap::ValueEnum;
use statescan::linear::{forward, rounds_rows};
use statescan::tensor::Device;
use statescan::{DType, Exec, Level, Tensor};
use statescan_cases::measure::ceilings::{projections, read};
use statescan_cases::measure::median::middle;
use statescan_cases::measure::turns::{fastest, take};
use statescan_models::{Config, Model};
use std::collections::BTreeMap;
use std::time::Duration;

/// The command's name for models.
pub(super) const NAME: &str = "model";

/// Tokens of a prompt.
const PROMPT: usize = 1024;
impl Size {
    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }

    fn config(self) -> Config {
        let (dim, layers) = match self {
            Size::Of130m | Size::Mamba2Of130m => (768, 24),
            Size::Qwen35Of1024 => (1024, 24),
            Size::Of370m => (1024, 48),
            Size::Of1400m => (2048, 48),
            Size::Of2800m => (2560, 64),
        };
        match self {
            Size::Mamba2Of130m => Config::mamba2(VOCAB, dim, layers, 64),
            Size::Qwen35Of1024 => Config::qwen3_5(VOCAB, dim, layers, &[3, 7, 11, 15, 19, 23], 128),
            _ => Config::mamba(VOCAB, dim, layers),
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &BenchArgs) -> Result<u8> {
    let sizes = if args.size.is_empty() { Size::value_variants() } else { &args.size };
    let sizes = if args.quick && args.size.is_empty() { &sizes[..1] } else { sizes };
    let dtypes: Vec<DType> = match args.dtype.is_empty() {
        true => vec![DType::F32, DType::BF16],
        false => args.dtype.iter().map(|&name| name.into()).collect(),
    };
    let on_device = cuda_device(&args.device)?.map(Exec::cuda).transpose()?.map(Bench::new).transpose()?;
    let counts = if args.threads.is_empty() { &[0][..] } else { &args.threads };
    let level = args.level.as_deref().map(level).transpose()?.unwrap_or(Level::best());
    let exec = |&n| Ok(Exec::cpu(threads("--threads", n)?).with_level(level)?.with_exact_products(args.exact));
    let execs = counts.iter().map(exec).collect::<Result<Vec<_>>>()?;
    let bar = progress(sizes.len() * dtypes.len() * execs.len());
    if !args.json {
        let header = ["size", "type", "threads", "pass", "tokens", "median", "tokens/s", "share of"];
        bar.suspend(|| say!("{}", columns(&header)))?;
    }
    for size in sizes {
        for &dtype in &dtypes {
            bar.set_message(format!("{} {dtype}", size.name()));
            let model = Model::random(size.config(), dtype, 1)?;
            let print = |row: &Row| bar.suspend(|| say!("{}", if args.json { row.json() } else { row.line() }));
            if let Some(bench) = &on_device {
                bench.measure(&size.name(), &model, dtype, args.quick)?.iter().try_for_each(print)?;
                bar.inc(1);
                continue;
            }
            for exec in &execs {
                measure(*size, dtype, &model, exec, args.quick)?.iter().try_for_each(print)?;
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(0)
}

/// Prefill and decoding of one model.
fn measure(size: Size, dtype: DType, model: &Model, exec: &Exec, quick: bool) -> Result<[Row; 2]> {
    let (threads, budget) = (exec.threads(), Duration::from_secs(if quick { 2 } else { 12 }));
    let row = |pass, tokens, floor, times: Vec<[f64; 2]>| {
        let time = Duration::from_nanos(middle(times.iter().map(|[time, _]| *time).collect()) as u64);
        let share = middle(times.iter().map(|[time, least]| least / time).collect());
        Row { size: size.name(), dtype, device: Device::Cpu, threads, pass, tokens, floor, time, share }
    };
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| i * 7919 % VOCAB as u32).collect();
    let mut prefill = || -> Result<()> {
        model.prefill(exec, &prompt, &mut model.state())?;
        Ok(())
    };
    // products that round rows are faster than those of f32: the least time is that of the same products
    let (name, mut floor): (_, Box<dyn FnMut() -> Result<()>>) = match rounds_rows(exec, dtype) {
        true => ("products", Box::new(rounded(exec, &shapes(model.config()))?)),
        false => {
            let mut least = projections(PROMPT, &shapes(model.config()), threads);
            let floor = move || {
                least();
                Ok(())
            };
            ("gemm", Box::new(floor))
        }
    };
    let prefill = fastest(take(budget, threads, [&mut prefill, &mut floor], |times| times)?).collect();

    let mut state = model.state();
    let mut decode = || -> Result<()> {
        model.step(exec, 1, &mut state)?;
        Ok(())
    };
    let mut least = read(model.bytes_per_step(), threads);
    let mut floor = || -> Result<()> {
        least();
        Ok(())
    };
    let decode = fastest(take(budget, threads, [&mut decode, &mut floor], |times| times)?).collect();
    Ok([row("prefill", PROMPT, name, prefill), row("decode", 1, "reading", decode)])
}

/// The products of a prompt with weights in bf16 of these shapes.
fn rounded<'e>(exec: &'e Exec, shapes: &[[usize; 2]]) -> Result<impl FnMut() -> Result<()> + use<'e>> {
    let room = |dtype, shape: [usize; 2]| Tensor::zeros(exec, dtype, &shape);
    let weights = shapes.iter().map(|&shape| Ok((shape, room(DType::BF16, shape)?))).collect::<Result<Vec<_>>>()?;
    // weights of one shape share their rows
    let mut rows = BTreeMap::new();
    for &[outputs, inputs] in shapes {
        rows.insert([outputs, inputs], [room(DType::F32, [PROMPT, inputs])?, room(DType::F32, [PROMPT, outputs])?]);
    }
    Ok(move || {
        for (shape, weight) in &weights {
            let [x, y] = rows.get_mut(shape).expect("each shape has rows");
            forward(exec, x.view(), weight.view(), None, y.view_mut())?;
        }
        Ok(())
    })
}
