//! What `bench` measures and prints, a row for each pass of each case.

use super::args::BenchArgs;
use crate::error::Result;
use crate::text;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use statescan::{DType, Device, Level};
use statescan_cases::call::Operation;
use statescan_cases::ops;
use statescan_cases::sizes::Sizes;
use statescan_cases::work::Work;
use std::time::Duration;

/// One case of the grid.
pub(super) struct Cell {
    pub op: &'static dyn Operation,
    pub label: &'static str,
    pub sizes: Sizes,
    pub dtype: DType,
}

/// Where something was measured.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Cpu { threads: usize, level: Level },
    Other(Device),
}

/// One measurement.
pub(super) struct Row<'a> {
    pub cell: &'a Cell,
    pub pass: &'static str,
    pub place: Place,
    pub time: Duration,
    pub bytes: usize,
    pub work: Work,
    pub floor_ns: f64,
}

impl Row<'_> {
    fn ns(&self) -> f64 {
        self.time.as_nanos().max(1) as f64
    }

    pub fn json(&self) -> serde_json::Value {
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

    pub fn line(&self) -> String {
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

/// What the command asks for.
pub(super) fn grid(args: &BenchArgs) -> Result<Vec<Cell>> {
    let ops = match &args.op {
        Some(name) => vec![ops::find(name)?],
        None => ops::all().to_vec(),
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

/// How far a measurement is, on a terminal.
pub(super) fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    match ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Prints the header of the rows.
pub(super) fn columns() {
    let columns = ["op", "pass", "shape", "type", "threads", "median", "ns/step", "GB/s", "GFLOP/s", "floor"];
    let [op, pass, shape, dtype, threads, median, step, bytes, flops, floor] = columns;
    println!("{op:<24} {pass:<8} {shape:<20} {dtype:<5} {threads:>7} {median:>11} {step:>9} {bytes:>7} {flops:>8} {floor:>6}");
}
