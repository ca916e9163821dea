//! The targets of the project, which are the rows of `targets.json`, are measured here. The two sides of a ratio take turns in one process, and every call is
//! checked against the oracle before it is timed. On the CPU the list is measured in rounds, and of all turns those count in which the machine
//! was least busy with anything else.

mod work;

use clap::Args;
use serde_json::Value;
use statescan_cases::measure::floors::Floors;
use statescan_cases::measure::significant;
use statescan_cases::measure::turns::{self, Turn};
use statescan_cases::ops;
use std::io::Write;
use work::{Bench, Work};

/// An error that keeps targets from being measured.
pub type Failure = Box<dyn std::error::Error>;

/// Why one target has no figure.
enum Unmeasured {
    /// Results are not within the bounds of the oracle: what is off.
    Wrong(String),
    /// This machine cannot tell.
    NotHere(&'static str),
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Unmeasured {
    fn from(error: E) -> Self {
        Unmeasured::Failed(error.into())
    }
}

/// A row of the file.
struct Target {
    work: Work,
    unit: String,
    /// The work that it is compared with, where its unit says so.
    than: Option<Work>,
    must: f64,
    aim: Option<f64>,
}

impl Target {
    fn new(row: &Value) -> Result<Self, Failure> {
        let word = |name: &str| row[name].as_str();
        Ok(Target {
            work: word("work").ok_or("a row without work")?.parse()?,
            unit: word("unit").ok_or("a row without a unit")?.to_string(),
            than: word("than").map(str::parse).transpose()?,
            must: row["must"].as_f64().ok_or("a row without `must`")?,
            aim: row["aim"].as_f64(),
        })
    }

    fn smaller_is_better(&self) -> bool {
        self.unit.starts_with("x the time") || ["us", "ns per state-step"].contains(&self.unit.as_str())
    }

    fn reached(&self, figure: f64, bound: f64) -> bool {
        if self.smaller_is_better() { figure <= bound } else { figure >= bound }
    }

    /// The line of a figure, and whether it is good enough, or nobody can tell.
    fn line(&self, outcome: &Result<f64, Unmeasured>) -> (String, bool) {
        let bound = |bound: f64| format!("{} {bound}", if self.smaller_is_better() { "<=" } else { ">=" });
        let (verdict, good) = match outcome {
            Ok(figure) if self.aim.is_some_and(|aim| self.reached(*figure, aim)) => ("aim reached".to_string(), true),
            Ok(figure) if self.reached(*figure, self.must) => ("met".to_string(), true),
            Ok(_) => ("MISSED".to_string(), false),
            Err(Unmeasured::Wrong(what)) => (format!("WRONG: {what}"), false),
            Err(Unmeasured::NotHere(why)) => (format!("not measured: {why}"), true),
            Err(Unmeasured::Failed(error)) => (error.to_string(), false),
        };
        let (figure, aim) = (outcome.as_ref().map_or("-".into(), |figure| significant(*figure)), self.aim.map(bound));
        (line([&self.work.text, &self.unit, &figure, &bound(self.must), &aim.unwrap_or_default(), &verdict]), good)
    }
}

fn line([work, unit, measured, must, aim, verdict]: [&str; 6]) -> String {
    format!("{work:<70} {measured:>8} {unit:<28} {must:>8} {aim:>8}  {verdict}").trim_end().to_string()
}

/// Every target.
fn all() -> Result<Vec<Target>, Failure> {
    let rows: Vec<Value> = serde_json::from_str(include_str!("../targets.json"))?;
    rows.iter().map(Target::new).collect()
}

/// Which targets to measure, and where.
#[derive(Debug, Default, Args)]
pub struct TargetArgs {
    /// Only those of this operation
    pub op: Option<String>,
    /// Only lines whose first column has one of these texts
    #[arg(long, value_name = "LIST", value_delimiter = ';')]
    pub rows: Vec<String>,
    /// Measure on a GPU, the first one or that with this number
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "0")]
    pub cuda: Option<usize>,
    /// Measure shorter
    #[arg(long)]
    pub quick: bool,
}

/// Measures the targets and writes a line for each; says whether all of them are met and every result is right.
///
/// # Errors
/// An unknown operation, no GPU, those of the operations, and a line that cannot be written.
pub fn measure_all(args: &TargetArgs, out: &mut impl Write) -> Result<bool, Failure> {
    let only = args.op.as_deref().map(ops::find).transpose()?.map(|op| op.signature.name);
    let (mut bench, mut targets) = (Bench::new(args.cuda, args.quick)?, all()?);
    targets.retain(|Target { work, .. }| {
        let named = args.rows.is_empty() || args.rows.iter().any(|text| work.text.contains(text));
        named && work.has("cuda") == args.cuda.is_some() && only.is_none_or(|op| op == work.op.signature.name)
    });
    // the machine's own rates, measured now, tell a slow machine from a missed target
    match bench.rates() {
        Some(rates) => writeln!(out, "{rates}")?,
        None => [1, 2].iter().try_for_each(|&threads| writeln!(out, "{}", Floors::measure(threads)))?,
    }
    writeln!(out, "{}", line(["work", "unit", "measured", "must", "aim", ""]))?;
    // a GPU has a clock of its own, which nobody disturbs
    let rounds = if args.quick || args.cuda.is_some() { 1 } else { 3 };
    let mut taken: Vec<Vec<Turn>> = targets.iter().map(|_| Vec::new()).collect();
    let mut all_good = true;
    for round in 1..=rounds {
        for (target, taken) in targets.iter().zip(&mut taken) {
            let outcome = match bench.turns(target) {
                Err(Unmeasured::Failed(error)) => return Err(error),
                outcome => outcome.map(|turns| taken.extend(turns)),
            };
            if round == rounds {
                let (line, good) = target.line(&outcome.map(|()| turns::figure(std::mem::take(taken))));
                all_good &= good;
                writeln!(out, "{line}")?;
            }
        }
    }
    Ok(all_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_measured_and_judged() {
        let args = TargetArgs { op: Some("selective_state_update".into()), quick: true, ..TargetArgs::default() };
        let mut out = Vec::new();
        let all_good = measure_all(&args, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        let row = out.lines().find(|line| line.starts_with("selective_state_update B=1 D=5120 N=16 ")).unwrap();
        let figure: f64 = row.split_whitespace().nth(4).unwrap().parse().unwrap();
        assert_eq!((figure <= 0.3, all_good), (row.ends_with("met"), row.ends_with("met")), "{row}");
        let unknown = TargetArgs { op: Some("selective_scam".into()), ..args };
        assert!(measure_all(&unknown, &mut Vec::new()).unwrap_err().to_string().contains("selective_scam"));
    }

    #[test]
    fn bounds_are_on_the_side_of_their_units() {
        for target in all().unwrap() {
            assert!(target.aim.is_none_or(|aim| target.reached(aim, target.must)), "{}", target.work.text);
            assert_eq!(target.unit.starts_with("x "), target.than.is_some(), "{}", target.work.text);
        }
    }
}
