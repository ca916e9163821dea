//! The measurements of `bench` and their print-out, a row for each pass of each case.

use super::args::BenchArgs;
use crate::error::Result;
use crate::output::{note, say};
use crate::text;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use statescan::ops::Operation;
use statescan::{DType, Device, Level};
use statescan_cases::ops;
use statescan_cases::samples;
use statescan_cases::sizes::Sizes;
use statescan_cases::work::Work;
use std::time::Duration;

/// One case of the grid.
pub(super) struct Cell {
    pub op: &'static Operation,
    pub label: &'static str,
    pub sizes: Sizes,
    pub dtype: DType,
}

/// The place of a measurement.
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

    fn json(&self) -> serde_json::Value {
        let shape = self.cell.sizes.iter().map(|(letter, size)| (letter.to_string(), json!(size)));
        let (device, threads, level) = match self.place {
            Place::Cpu { threads, level } => ("cpu".to_string(), Some(threads), Some(level.name())),
            Place::Other(device) => (device.to_string(), None, None),
        };
        json!({
            "op": self.cell.op.signature.name,
            "pass": self.pass,
            "device": device,
            "dtype": self.cell.dtype.to_string(),
            "shape": shape.collect::<serde_json::Map<_, _>>(),
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
        let threads = match self.place {
            Place::Cpu { threads, .. } => threads.to_string(),
            Place::Other(_) => "-".to_string(),
        };
        columns([
            self.cell.label,
            self.pass,
            &self.cell.dtype.to_string(),
            &threads,
            &text::time(self.time),
            &text::figure(self.ns() / self.work.state_steps.max(1.0)),
            &text::figure(self.bytes as f64 / self.ns()),
            &text::figure(self.work.flops / self.ns()),
            &format!("{:.0} %", 100.0 * self.floor_ns / self.ns()),
        ])
    }
}

/// Returns the cases that the command asks for.
pub(super) fn grid(args: &BenchArgs) -> Result<Vec<Cell>> {
    let ops = match &args.op {
        Some(name) => vec![ops::find(name)?],
        None => ops::all().collect(),
    };
    let dtypes: Vec<DType> = match (args.dtype.is_empty(), args.quick) {
        (false, _) => args.dtype.iter().map(|&t| t.into()).collect(),
        (true, true) => vec![DType::F32],
        (true, false) => vec![DType::F32, DType::BF16],
    };
    let mut cells = Vec::new();
    for op in ops {
        let shapes = samples::shapes(op);
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

/// Prints rows as they come, above a bar that says how far the measurement is.
pub(super) struct Report<'a> {
    bar: &'a ProgressBar,
    as_json: bool,
    /// The operation that the rows are under.
    under: Option<&'static str>,
}

impl<'a> Report<'a> {
    pub(super) fn new(bar: &'a ProgressBar, as_json: bool) -> Self {
        Report { bar, as_json, under: None }
    }

    /// Prints the rates of the machine, for people.
    pub(super) fn say(&self, text: &str) -> Result<()> {
        if self.as_json { Ok(()) } else { self.bar.suspend(|| say!("{}", text::wrapped(text))) }
    }

    /// Reports a fault on standard error.
    pub(super) fn note(&self, text: &str) {
        self.bar.suspend(|| note!("{text}"));
    }

    pub(super) fn row(&mut self, row: &Row<'_>) -> Result<()> {
        if self.as_json {
            return self.bar.suspend(|| say!("{}", row.json()));
        }
        let op = row.cell.op.signature.name;
        let is_new = self.under.replace(op) != Some(op);
        self.bar.suspend(|| {
            if is_new {
                let header = ["shape", "pass", "type", "threads", "median", "ns/step", "GB/s", "GFLOP/s", "floor"];
                say!("\n{op}\n{}", columns(header))?;
            }
            say!("{}", row.line())
        })
    }
}

/// A line of 80 columns at most.
fn columns(fields: [&str; 9]) -> String {
    let [shape, pass, dtype, threads, median, step, bytes, flops, floor] = fields;
    format!("{shape:<20} {pass:<8} {dtype:<4} {threads:>7} {median:>9} {step:>7} {bytes:>5} {flops:>7} {floor:>5}")
}
