//! What this project wants to reach, measured. The two sides of a ratio take turns in one process, and every call is
//! checked against the oracle before it is timed. The list is measured in rounds, almost a minute apart if it is the whole list, and of all
//! turns those count in which the machine was least busy with anything else.

mod cuda;
mod list;
mod outcome;
mod variation;

use clap::Args;
use list::{Measure, Run, Target};
use outcome::{Outcome, Round};
use serde_json::json;
use statescan::{Exec, Level};
use statescan_cases::Result;
use statescan_cases::measure::floors::Floors;
use statescan_cases::measure::measured::Measured;
use statescan_cases::measure::{ceilings, significant, turns};
use statescan_cases::ops;
use statescan_cases::samples;
use statescan_cases::work;
use std::io::Write;
use std::time::Duration;
pub(crate) use variation::Variation;

/// What keeps targets from being measured.
pub type Failure = Box<dyn std::error::Error>;

/// Rounds of the list.
const ROUNDS: usize = 3;

/// A run with its memory and executor.
struct Side {
    measured: Measured,
    exec: Exec,
    backward: bool,
    state_steps: f64,
}

impl Side {
    fn new(run: &Run) -> Result<Self> {
        let op = ops::find(run.op)?;
        let mut exec = Exec::cpu(run.threads);
        if let Some(level) = run.level {
            exec = exec.with_level(level)?;
        }
        let measured = Measured::new(run.variation.apply(samples::random(op, &run.sizes, run.dtype)?)?)?;
        Ok(Side { measured, exec, backward: run.backward, state_steps: work::forward(op, &run.sizes).state_steps })
    }

    fn run(&mut self) -> Result<()> {
        if self.backward {
            self.measured.backward(&self.exec)?
        } else {
            self.measured.forward(&self.exec)?
        }
        Ok(())
    }
}

/// Which targets to measure, and where.
#[derive(Debug, Default, Args)]
pub struct TargetArgs {
    /// Only those of this operation
    pub op: Option<String>,
    /// Only lines whose first column has one of these texts
    #[arg(long, value_name = "LIST", value_delimiter = ';')]
    pub rows: Vec<String>,
    /// Those on a GPU, the first one or that with this number
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "0")]
    pub cuda: Option<usize>,
    /// Measure shorter
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Measures the targets and writes a line for each; says whether all of them are met and every result is right.
///
/// # Errors
/// An unknown operation, no GPU, those of the operations, and a line that cannot be written.
pub fn measure_all(args: &TargetArgs, out: &mut impl Write) -> Result<bool, Failure> {
    let only = args.op.as_deref().map(ops::find).transpose()?.map(|op| op.signature.name);
    let mut gpu = args.cuda.map(cuda::Bench::new).transpose()?;
    let listed = if gpu.is_some() { cuda::all() } else { list::all() };
    let of_op = |target: &Target| only.is_none_or(|op| op == target.run.op);
    let of_rows = |target: &Target| {
        let work = target.run.describe();
        args.rows.is_empty() || args.rows.iter().any(|text| work.contains(text))
    };
    let targets: Vec<Target> = listed.into_iter().filter(|target| of_op(target) && of_rows(target)).collect();
    // a GPU has a clock of its own, which nobody disturbs
    let rounds = if args.quick || gpu.is_some() { 1 } else { ROUNDS };
    let mut measured: Vec<Vec<Round>> = targets.iter().map(|_| Vec::new()).collect();
    if !args.json {
        // the machine's own rates, measured now, tell a slow machine from a missed target
        match &gpu {
            Some(gpu) => writeln!(out, "{}", gpu.rates())?,
            None => [1, 2].iter().try_for_each(|&threads| writeln!(out, "{}", Floors::measure(threads)))?,
        }
        writeln!(out, "{}", line("work", "unit", "measured", "must", "aim", ""))?;
    }
    let mut all_met = true;
    for round in 1..=rounds {
        for (target, outcomes) in targets.iter().zip(&mut measured) {
            outcomes.push(match &mut gpu {
                Some(gpu) => gpu.measure(target)?,
                None => measure(target, args.quick)?,
            });
            if round < rounds {
                continue;
            }
            let outcome = Outcome::of_rounds(std::mem::take(outcomes));
            all_met &= match outcome {
                Outcome::Measured(figure) => target.reached(figure, target.must),
                Outcome::Wrong(_) => false,
                Outcome::NotHere(_) => true,
            };
            writeln!(out, "{}", if args.json { as_json(target, &outcome) } else { as_line(target, &outcome) })?;
        }
    }
    Ok(all_met)
}

/// How long a target's turns take in a round.
fn budget(measure: &Measure, quick: bool) -> Duration {
    match measure {
        _ if quick => Duration::from_millis(300),
        // two threads come within a tenth of what is possible, so that turns, which differ by a few percent, must be many
        Measure::Speedup(..) => Duration::from_secs(4),
        _ => Duration::from_secs(1),
    }
}

/// Measures a target.
fn measure(target: &Target, quick: bool) -> Result<Round> {
    let budget = budget(&target.measure, quick);
    let mut side = match prepare(&target.run)? {
        Ok(side) => side,
        Err(outcome) => return Ok(outcome),
    };
    let (bytes, steps, threads) = (side.measured.forward_bytes(), side.state_steps, target.run.threads);
    let mut alone = |unit: f64| turns::take(budget, threads, [&mut || side.run()], |[time]| time / unit);
    let turns = match &target.measure {
        Measure::Time => alone(steps)?,
        Measure::Micros => alone(1e3)?,
        Measure::Ratio(_, other) | Measure::Speedup(_, other) => {
            let threads = threads.max(other.threads);
            let mut other = match prepare(other)? {
                Ok(other) => other,
                Err(outcome) => return Ok(outcome),
            };
            let unit = steps / other.state_steps;
            let speedup = matches!(target.measure, Measure::Speedup(..));
            turns::take(budget, threads, [&mut || side.run(), &mut || other.run()], |[time, other]| {
                let ratio = time / other / unit;
                if speedup { 1.0 / ratio } else { ratio }
            })?
        }
        Measure::ShareOfCopy | Measure::ShareOfProducts => {
            let mut ceiling: Box<dyn FnMut()> = match target.measure {
                Measure::ShareOfCopy => Box::new(ceilings::copy(bytes)),
                _ => Box::new(ceilings::products(&target.run.sizes)),
            };
            let mut least = || {
                ceiling();
                Ok(())
            };
            turns::take(budget, threads, [&mut || side.run(), &mut least], |[time, least]| least / time)?
        }
    };
    Ok(Outcome::Measured(turns))
}

/// Makes a run ready and checks its results; the inner error says why there is nothing to time.
fn prepare(run: &Run) -> Result<std::result::Result<Side, Round>> {
    if !run.level.is_none_or(Level::is_available) {
        return Ok(Err(Outcome::NotHere("this processor lacks the instructions")));
    }
    if run.threads > std::thread::available_parallelism().map_or(1, usize::from) {
        return Ok(Err(Outcome::NotHere("too few cores")));
    }
    let mut side = Side::new(run)?;
    let wrong = side.measured.check(&side.exec)?;
    Ok(match wrong.first() {
        None => Ok(side),
        Some(c) => Err(Outcome::Wrong(format!("{} is off by {:.1e}", c.name, c.max_abs))),
    })
}

fn as_line(target: &Target, outcome: &Outcome<f64>) -> String {
    let sign = if target.measure.smaller_is_better() { "<=" } else { ">=" };
    let bound = |bound: f64| format!("{sign} {bound}");
    let (figure, verdict) = match outcome {
        Outcome::Measured(figure) => (significant(*figure), verdict(target, *figure).to_string()),
        Outcome::Wrong(what) => ("-".to_string(), format!("WRONG: {what}")),
        Outcome::NotHere(why) => ("-".to_string(), format!("not measured: {why}")),
    };
    let aim = target.aim.map(bound).unwrap_or_default();
    line(&target.run.describe(), &target.measure.unit(), &figure, &bound(target.must), &aim, &verdict)
}

fn verdict(target: &Target, figure: f64) -> &'static str {
    match target.aim {
        Some(aim) if target.reached(figure, aim) => "aim reached",
        _ if target.reached(figure, target.must) => "met",
        _ => "MISSED",
    }
}

fn line(work: &str, unit: &str, measured: &str, must: &str, aim: &str, verdict: &str) -> String {
    format!("{work:<70} {measured:>8} {unit:<28} {must:>8} {aim:>8}  {verdict}").trim_end().to_string()
}

fn as_json(target: &Target, outcome: &Outcome<f64>) -> String {
    let (measured, met, note) = match outcome {
        Outcome::Measured(figure) => (Some(*figure), Some(target.reached(*figure, target.must)), None),
        Outcome::Wrong(what) => (None, Some(false), Some(what.as_str())),
        Outcome::NotHere(why) => (None, None, Some(*why)),
    };
    json!({
        "work": target.run.describe(),
        "unit": target.measure.unit(),
        "measured": measured,
        "smaller_is_better": target.measure.smaller_is_better(),
        "must": target.must,
        "aim": target.aim,
        "met": met,
        "note": note,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn targets_are_measured_and_judged() {
        let args = TargetArgs { op: Some("selective_state_update".into()), quick: true, json: true, ..TargetArgs::default() };
        let mut out = Vec::new();
        let all_met = measure_all(&args, &mut out).unwrap();
        let lines: Vec<Value> = out
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        assert!(!lines.is_empty());
        let mut met_by_lines = true;
        for line in &lines {
            let (measured, must) = (line["measured"].as_f64().unwrap(), line["must"].as_f64().unwrap());
            let met = if line["smaller_is_better"].as_bool().unwrap() { measured <= must } else { measured >= must };
            assert_eq!(line["met"].as_bool(), Some(met), "{line}");
            met_by_lines &= met;
        }
        assert_eq!(all_met, met_by_lines);
        let unknown = TargetArgs { op: Some("selective_scam".into()), ..args };
        assert!(measure_all(&unknown, &mut Vec::new()).unwrap_err().to_string().contains("selective_scam"));
    }
}
