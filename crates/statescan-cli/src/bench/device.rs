//! Measurements on another device than the CPU, by its own clock.

use super::args::BenchArgs;
use super::row::{Place, Report, Row, grid, progress};
use crate::error::Result;
use statescan::Exec;
use statescan::cuda::Ceilings;
use statescan_cases::call::Call;
use statescan_cases::measure::device::{missing, rates, time, wrong};
use statescan_cases::ops;
use statescan_cases::samples;
use statescan_cases::work::{self, Work};
use std::time::Duration;

/// The least time in nanoseconds that so much work can take: memory, multiply-adds and exponentials go on beside each other.
fn floor(ceilings: &Ceilings, work: &Work, bytes: usize) -> f64 {
    (bytes as f64 / ceilings.bytes).max(work.flops / ceilings.flops).max(work.exps / ceilings.exps)
}

/// Runs the command.
pub(super) fn run(args: &BenchArgs, exec: &Exec) -> Result<u8> {
    let cells = grid(args)?;
    let bar = progress(cells.len());
    bar.set_message("measuring the device");
    let ceilings = Ceilings::measure(exec)?;
    let mut report = Report::new(&bar, args.json);
    report.say(&rates(exec, &ceilings))?;
    let mut failed = 0;
    for cell in &cells {
        bar.set_message(format!("{} {} {}", cell.op.signature.name, cell.label, cell.dtype));
        let call = samples::random(cell.op, &cell.sizes, cell.dtype)?;
        let passes: &[bool] = if cell.op.signature.differentiable { &[false, true] } else { &[false] };
        let (op, label, dtype) = (cell.op.signature.name, cell.label, cell.dtype);
        for &backward in passes {
            let pass = if backward { "backward" } else { ops::pass_name(cell.op) };
            match checked_time(exec, &call, backward) {
                Ok((wrong, time, bytes)) => {
                    for what in wrong {
                        failed += 1;
                        report.note(&format!("{op} {label} {dtype}: {what}"));
                    }
                    let work = if backward { work::backward(cell.op, &cell.sizes) } else { work::forward(cell.op, &cell.sizes) };
                    let (place, floor_ns) = (Place::Other(exec.device()), floor(&ceilings, &work, bytes));
                    report.row(&Row { cell, pass, place, time, bytes, work, floor_ns })?;
                }
                Err(error) => {
                    let why = missing(&error).ok_or(error)?;
                    report.note(&format!("{op} {pass}: {why}"));
                }
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(u8::from(failed > 0))
}

/// A pass of a call: what is off, its time, its bytes.
fn checked_time(exec: &Exec, call: &Call, backward: bool) -> statescan_cases::Result<(Vec<String>, Duration, usize)> {
    let wrong = wrong(exec, call, backward)?;
    let (time, bytes) = time(exec, call, backward, None)?;
    Ok((wrong, time, bytes))
}
