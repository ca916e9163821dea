//! Instructions of every pass on AVX2 and one thread, counted by callgrind and compared with `instructions.txt`:
//!
//!     cargo bench --bench instructions               # fails where a pass takes over 3 % more than it did
//!     cargo bench --bench instructions -- --update   # writes the file
//!
//! Passes with strong decays or large inputs are compared with the same passes of usual numbers too: what the work of some depends
//! on them is bounded, and that of others does not.
//!
//! Counts repeat to the instruction on a busy machine, and belong to one version of the compiler: another one's are printed and not
//! compared. AVX2, because callgrind does not know AVX-512; the matrix products follow what it shows them of the processor.

use statescan::{Exec, Level};
use statescan_benches::{Case, OtherNumbers, Prepared};
use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How much more than before is a regression.
const MORE: f64 = 0.03;

/// Says which case to run, to the process that callgrind watches.
const CASE: &str = "--case";

const EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt");

fn main() -> Result<ExitCode, Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().position(|arg| arg == CASE) {
        Some(at) => run(args.get(at + 1).ok_or("a case after --case")?),
        None => compare(args.iter().any(|arg| arg == "--update")),
    }
}

fn name(case: &Case) -> String {
    format!("{} {}", case.op(), case.pass())
}

/// Every case, of usual numbers and of others.
fn cases() -> Vec<Case> {
    let others = statescan_benches::of_other_numbers().into_iter().map(|other| other.case);
    statescan_benches::all().into_iter().chain(others).collect()
}

fn cpu() -> Result<Exec, statescan::Error> {
    Exec::cpu(1).with_level(Level::Avx2)
}

fn run(wanted: &str) -> Result<ExitCode, Failure> {
    let exec = cpu()?;
    let case = cases().into_iter().find(|case| name(case) == wanted).ok_or("no such case")?;
    counted_call(&mut case.prepare(&exec)?, &exec)?;
    Ok(ExitCode::SUCCESS)
}

/// Callgrind counts this function, by its name.
#[inline(never)]
fn counted_call(case: &mut Prepared, exec: &Exec) -> Result<(), Failure> {
    Ok(case.run(exec)?)
}

fn compare(update: bool) -> Result<ExitCode, Failure> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return Ok(ExitCode::SUCCESS);
    }
    if !Level::Avx2.is_available() {
        println!("skipped: this processor has no AVX2");
        return Ok(ExitCode::SUCCESS);
    }
    let compiler = Command::new("rustc").arg("--version").output()?.stdout;
    let compiler = String::from_utf8(compiler)?.trim().to_string();
    let expected = Expected::read()?;
    let comparable = expected.compiler == compiler;
    println!("{:<40} {:>14} {:>14} {:>8} {:>15}", "pass", "instructions", "before", "change", "a state-step");
    let cases = cases();
    let counts = count_all(&cases)?;
    let regressions = cases.iter().filter(|case| !within(case, &counts, &expected) && comparable && !update).count();
    let depending = statescan_benches::of_other_numbers().iter().filter(|other| !bounded(other, &counts)).count();
    if update {
        Expected { compiler, counts }.write()?;
        println!("written to {EXPECTED}");
    } else if !comparable {
        println!("not compared: the counts before are of {}, and this is {compiler}", expected.compiler);
    } else if regressions > 0 {
        println!(
            "{regressions} passes take over 3 % more than before, or have no count yet; if that is meant, run with `-- --update`"
        );
    } else {
        println!("no pass takes over 3 % more than before; where it takes less, `-- --update` keeps the gain");
    }
    if depending > 0 {
        println!("{depending} passes depend more on their numbers than they may");
    }
    Ok(if regressions + depending > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Prints the count of a case beside the one before; says whether it is no regression.
fn within(case: &Case, counts: &BTreeMap<String, u64>, expected: &Expected) -> bool {
    let name = name(case);
    let (count, before) = (counts[&name], expected.counts.get(&name).copied());
    let change = before.map(|before| count as f64 / before as f64 - 1.0);
    let within = change.is_some_and(|change| change <= MORE);
    println!(
        "{name:<40} {count:>14} {:>14} {:>8} {:>15.2} {}",
        before.map_or("none".to_string(), |before| before.to_string()),
        change.map_or(String::new(), |change| format!("{:+.2} %", 100.0 * change)),
        count as f64 / case.state_steps() as f64,
        if within { "" } else { "MORE" },
    );
    within
}

/// Prints the count of a case beside that with usual numbers; says whether it depends on its numbers as little as it may.
fn bounded(other: &OtherNumbers, counts: &BTreeMap<String, u64>) -> bool {
    let name = name(&other.case);
    let times = counts[&name] as f64 / counts[&crate::name(&other.usual)] as f64;
    let bounded = times <= other.most;
    println!(
        "{name:<40} {times:>6.3} times the count of usual numbers, at most {} {}",
        other.most,
        if bounded { "" } else { "MORE" }
    );
    bounded
}

/// The counts of all cases by name: each is a process of its own, and there are as many at once as there are cores.
fn count_all(cases: &[Case]) -> Result<BTreeMap<String, u64>, Failure> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(String, u64)>, Failure> {
        let mut found = Vec::new();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            // here, where it takes a moment, and not in the process that callgrind watches
            case.verify(&cpu()?)?;
            found.push((name(case), count(&name(case))?));
        }
        Ok(found)
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let found: Result<Vec<_>, _> =
            threads.into_iter().map(|thread| thread.join().expect("counting does not panic")).collect();
        Ok(found?.into_iter().flatten().collect())
    })
}

/// Runs a case under callgrind.
fn count(name: &str) -> Result<u64, Failure> {
    let out = std::env::temp_dir().join(format!("statescan-callgrind.{}.{}", std::process::id(), name.replace([' ', ','], "-")));
    let output = Command::new("valgrind")
        // zeros come from the system: whether memory of the heap must be cleared is a matter of what ran before
        .env("MALLOC_MMAP_THRESHOLD_", "4096")
        .args(["--tool=callgrind", "--toggle-collect=*counted_call*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .args([CASE, name])
        .output()?;
    if !output.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let text = std::fs::read_to_string(&out)?;
    std::fs::remove_file(&out)?;
    let total = text.lines().find_map(|line| line.strip_prefix("summary: ")).ok_or("callgrind gave no summary")?;
    match total.trim().parse()? {
        0 => Err(format!("{name}: callgrind did not see the call").into()),
        count => Ok(count),
    }
}

/// The committed counts: a line for the compiler, then operation, pass and count a line.
struct Expected {
    compiler: String,
    counts: BTreeMap<String, u64>,
}

impl Expected {
    fn read() -> Result<Self, Failure> {
        let text = std::fs::read_to_string(EXPECTED)?;
        let mut lines = text.lines();
        let compiler = lines.next().unwrap_or_default().to_string();
        let count = |line: &str| -> Result<(String, u64), Failure> {
            let (name, count) = line.rsplit_once(' ').ok_or("a line without a count")?;
            Ok((name.to_string(), count.parse()?))
        };
        Ok(Expected { compiler, counts: lines.map(count).collect::<Result<_, _>>()? })
    }

    fn write(&self) -> Result<(), Failure> {
        let lines: String = self.counts.iter().map(|(name, count)| format!("{name} {count}\n")).collect();
        Ok(std::fs::write(EXPECTED, format!("{}\n{lines}", self.compiler))?)
    }
}
