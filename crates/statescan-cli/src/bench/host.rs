//! The measurements on the CPU, against what its memory and arithmetic can do.

use super::args::BenchArgs;
use super::row::{Cell, Place, Report, Row, grid, progress};
use crate::error::Result;
use crate::exec::{level, threads};
use statescan::{Exec, Level};
use statescan_cases::measure::floors::Floors;
use statescan_cases::measure::measured::Measured;
use statescan_cases::measure::median::median;
use statescan_cases::ops;
use statescan_cases::samples;
use statescan_cases::work::{self, Work};
use std::collections::BTreeMap;
use std::time::Duration;

/// Runs the command.
pub(super) fn run(args: &BenchArgs) -> Result<u8> {
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
    let mut report = Report::new(&bar, args.json);
    floors.values().try_for_each(|floors| report.say(&floors.to_string()))?;
    let mut failed = 0;
    for cell in &cells {
        bar.set_message(format!("{} {} {}", cell.op.signature.name, cell.label, cell.dtype));
        let mut measured = Measured::new(samples::random(cell.op, &cell.sizes, cell.dtype)?)?;
        if let Some(exec) = execs.last() {
            for c in measured.check(exec)? {
                failed += 1;
                let (op, label, dtype) = (cell.op.signature.name, cell.label, cell.dtype);
                report.note(&format!("{op} {label} {dtype}: {} is off by {:.1e}", c.name, c.max_abs));
            }
        }
        for exec in &execs {
            for (pass, time, bytes, work) in time(cell, &mut measured, exec, args.quick)? {
                let floor_ns = floors.get(&exec.threads()).map_or(0.0, |f| f.time(&work, bytes, cell.dtype.is_double()));
                let place = Place::Cpu { threads: exec.threads(), level };
                report.row(&Row { cell, pass, place, time, bytes, work, floor_ns })?;
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(u8::from(failed > 0))
}

/// The passes of a case: name, median, bytes, work.
fn time(cell: &Cell, measured: &mut Measured, exec: &Exec, quick: bool) -> Result<Vec<(&'static str, Duration, usize, Work)>> {
    let (budget, most) = if quick { (Duration::from_millis(200), 40) } else { (Duration::from_millis(600), 200) };
    let timed = median(budget, most, || measured.forward(exec))?;
    let mut all = vec![(ops::pass_name(cell.op), timed, measured.forward_bytes(), work::forward(cell.op, &cell.sizes))];
    if cell.op.signature.differentiable {
        let timed = median(budget, most, || measured.backward(exec))?;
        all.push(("backward", timed, measured.backward_bytes(), work::backward(cell.op, &cell.sizes)));
    }
    Ok(all)
}
