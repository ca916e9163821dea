//! `bench`: the operations at shapes of real models. Each case is checked against the oracle before it is timed.

mod device;
pub mod floors;
pub mod measured;
mod targets;

use crate::cli::{BenchArgs, cuda_device, level, threads};
use crate::compute;
use crate::error::Result;
use crate::operation::{self, Operation, Work};
use crate::shapes::Sizes;
use crate::text;
use floors::Floors;
use indicatif::{ProgressBar, ProgressStyle};
use measured::Measured;
use serde_json::json;
use statescan::{DType, Device, Exec, Level};
use std::collections::BTreeMap;
use std::time::Duration;

/// One case of the grid.
struct Cell {
    op: &'static dyn Operation,
    label: &'static str,
    sizes: Sizes,
    dtype: DType,
}

/// Where something was measured.
#[derive(Debug, Clone, Copy)]
enum Place {
    Cpu { threads: usize, level: Level },
    Other(Device),
}

/// One measurement.
struct Row<'a> {
    cell: &'a Cell,
    pass: &'static str,
    place: Place,
    time: Duration,
    bytes: usize,
    work: Work,
    floor_ns: f64,
}

impl Row<'_> {
    fn ns(&self) -> f64 {
        self.time.as_nanos().max(1) as f64
    }

    fn json(&self) -> serde_json::Value {
        let letters: Vec<_> = "BDLHPNGWMTSK".chars().filter(|&l| self.cell.sizes.has(l)).collect();
        let (device, threads, level) = match self.place {
            Place::Cpu { threads, level } => ("cpu".to_string(), Some(threads), Some(level.name())),
            Place::Other(device) => (device.to_string(), None, None),
        };
        json!({
            "op": self.cell.op.name(),
            "pass": self.pass,
            "device": device,
            "dtype": self.cell.dtype.to_string(),
            "shape": letters.iter().map(|&l| (l.to_string(), json!(self.cell.sizes.get(l)))).collect::<serde_json::Map<_, _>>(),
            "label": self.cell.label,
            "threads": threads,
            "level": level,
            "median_ns": self.time.as_nanos() as u64,
            "ns_per_state_step": self.ns() / self.work.state_steps.max(1.0),
            "gb_per_s": self.bytes as f64 / self.ns(),
            "gflop_per_s": self.work.flops / self.ns(),
            "floor_ns": self.floor_ns,
            "floor_share": self.floor_ns / self.ns(),
        })
    }

    fn line(&self) -> String {
        format!(
            "{:<24} {:<8} {:<20} {:<5} {:>7} {:>11} {:>9} {:>7} {:>8} {:>6}",
            self.cell.op.name(),
            self.pass,
            self.cell.label,
            self.cell.dtype.to_string(),
            match self.place {
                Place::Cpu { threads, .. } => threads.to_string(),
                Place::Other(_) => "-".to_string(),
            },
            text::time(self.time),
            text::figure(self.ns() / self.work.state_steps.max(1.0)),
            text::figure(self.bytes as f64 / self.ns()),
            text::figure(self.work.flops / self.ns()),
            format!("{:.0} %", 100.0 * self.floor_ns / self.ns()),
        )
    }
}

fn grid(args: &BenchArgs) -> Result<Vec<Cell>> {
    let ops = match &args.op {
        Some(name) => vec![operation::find(name)?],
        None => operation::all().to_vec(),
    };
    let dtypes: Vec<DType> = match (args.dtype.is_empty(), args.quick) {
        (false, _) => args.dtype.iter().map(|&t| t.into()).collect(),
        (true, true) => vec![DType::F32],
        (true, false) => vec![DType::F32, DType::BF16],
    };
    let mut cells = Vec::new();
    for op in ops {
        let shapes = op.bench();
        let count = if args.quick { 1 } else { shapes.len() };
        for (label, sizes) in shapes.into_iter().take(count) {
            cells.extend(dtypes.iter().map(|&dtype| Cell { op, label, sizes: sizes.clone(), dtype }));
        }
    }
    Ok(cells)
}

/// Runs the command: 1 if a check fails or a target is missed.
///
/// # Errors
/// Unknown names; those of the operations.
pub fn bench(args: &BenchArgs) -> Result<u8> {
    if args.targets {
        return targets::run(args);
    }
    if let Some(ordinal) = cuda_device(&args.device)? {
        return device::run(args, &Exec::cuda(ordinal)?);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut counts = match args.threads.is_empty() {
        true => vec![1, cores],
        false => args.threads.iter().map(|&n| threads("--threads", n)).collect::<Result<_>>()?,
    };
    counts.iter_mut().filter(|n| **n == 0).for_each(|n| *n = cores);
    counts.dedup();
    let cells = grid(args)?;
    let bar = progress(cells.len() * counts.len());
    bar.set_message("measuring the machine");
    let floors: BTreeMap<usize, Floors> = counts.iter().map(|&n| (n, Floors::measure(n))).collect();
    let level = args.level.as_deref().map(level).transpose()?.unwrap_or(Level::best());
    let execs: Vec<Exec> = counts.iter().map(|&n| Ok(Exec::cpu(n).with_level(level)?)).collect::<Result<_>>()?;
    if !args.json {
        bar.suspend(|| {
            floors.values().for_each(|floors| println!("{floors}"));
            columns();
        });
    }
    let mut failed = 0;
    for cell in &cells {
        bar.set_message(format!("{} {} {}", cell.op.name(), cell.label, cell.dtype));
        let mut measured = Measured::new(cell.op.random(&cell.sizes, cell.dtype)?)?;
        if let Some(exec) = execs.last() {
            for c in measured.check(exec)? {
                failed += 1;
                let (op, label, dtype) = (cell.op.name(), cell.label, cell.dtype);
                bar.suspend(|| eprintln!("{op} {label} {dtype}: {} is off by {:.1e}", c.name, c.max_abs));
            }
        }
        for exec in &execs {
            for (pass, time, bytes, work) in time(cell, &mut measured, exec, args.quick)? {
                let floor_ns = floors.get(&exec.threads()).map_or(0.0, |f| f.time(&work, bytes, cell.dtype.is_double()));
                let place = Place::Cpu { threads: exec.threads(), level };
                let row = Row { cell, pass, place, time, bytes, work, floor_ns };
                bar.suspend(|| println!("{}", if args.json { row.json().to_string() } else { row.line() }));
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(u8::from(failed > 0))
}

/// How far a measurement is, on a terminal.
fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    match ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn columns() {
    let columns = ["op", "pass", "shape", "type", "threads", "median", "ns/step", "GB/s", "GFLOP/s", "floor"];
    let [op, pass, shape, dtype, threads, median, step, bytes, flops, floor] = columns;
    println!("{op:<24} {pass:<8} {shape:<20} {dtype:<5} {threads:>7} {median:>11} {step:>9} {bytes:>7} {flops:>8} {floor:>6}");
}

/// The passes of a case: name, median, bytes, work.
fn time(cell: &Cell, measured: &mut Measured, exec: &Exec, quick: bool) -> Result<Vec<(&'static str, Duration, usize, Work)>> {
    let (budget, most) = if quick { (Duration::from_millis(200), 40) } else { (Duration::from_millis(600), 200) };
    let timed = compute::median(budget, most, || measured.forward(exec))?;
    let pass = if cell.op.time().is_some() { "forward" } else { "step" };
    let mut all = vec![(pass, timed, measured.forward_bytes(), cell.op.work(&cell.sizes))];
    if cell.op.differentiable() {
        let timed = compute::median(budget, most, || measured.backward(exec))?;
        all.push(("backward", timed, measured.backward_bytes(), cell.op.work_backward(&cell.sizes)));
    }
    Ok(all)
}
