//! One pass of one operation somewhere, by its words, and how it is measured there.

use super::{Failure, Target, Unmeasured};
use crate::varied::{LAYOUTS, WORDS, laid_out, varied};
use statescan::cuda::Ceilings;
use statescan::ops::Operation;
use statescan::{DType, Exec, Level};
use statescan_cases::measure::measured::Measured;
use statescan_cases::measure::turns::{self, Turn};
use statescan_cases::measure::{ceilings, device};
use statescan_cases::sizes::Sizes;
use statescan_cases::{Error, Result, call::Call, ops, samples, work};
use std::collections::HashMap;
use std::str::FromStr;
use std::time::Duration;

/// The work of a target, `ssd backward B=8 L=2048 .. strong bf16 cuda`: passes and types other than f32, what changes the call, on what it runs,
/// `tf32` where products may round their factors to it, and of a GPU the `kernel=` that is timed, if it is not the whole pass.
pub(super) struct Work {
    pub text: String,
    pub op: &'static Operation,
    sizes: Sizes,
}

const OTHERS: [&str; 7] = ["forward", "backward", "bf16", "f16", "2-threads", "cuda", "tf32"];

impl FromStr for Work {
    type Err = Failure;
    fn from_str(text: &str) -> std::result::Result<Self, Failure> {
        let (name, words) = text.split_once(' ').ok_or("work without sizes")?;
        let mut work = Work { text: text.to_string(), op: ops::find(name)?, sizes: Sizes::default() };
        for word in words.split(' ') {
            match word.split_once('=') {
                Some(("kernel", _)) => {}
                Some((letter, size)) => work.sizes = work.sizes.with(letter.parse()?, size.parse()?),
                None if [&OTHERS[..], &WORDS, &LAYOUTS].concat().contains(&word) => {}
                None if Level::ALL.iter().any(|level| level.name() == word) => {}
                None => return Err(format!("{text}: unknown word {word}").into()),
            }
        }
        Ok(work)
    }
}

impl Work {
    pub fn has(&self, word: &str) -> bool {
        self.text.split(' ').any(|own| own == word)
    }

    /// The call, dense, of some rows.
    fn call(&self, rows: usize) -> Result<Call> {
        let dtype = [DType::BF16, DType::F16].into_iter().find(|dtype| self.has(&dtype.to_string())).unwrap_or(DType::F32);
        let usual = samples::random(self.op, &self.sizes.clone().with('B', rows), dtype)?;
        WORDS.iter().filter(|word| self.has(word)).try_fold(usual, |call, word| varied(call, word))
    }

    fn state_steps(&self) -> f64 {
        work::forward(self.op, &self.sizes).state_steps
    }

    fn threads(&self) -> usize {
        if self.has("2-threads") { 2 } else { 1 }
    }

    /// The bytes of the call, and a run of it on the CPU; its results were checked.
    fn prepare(&self) -> std::result::Result<(usize, impl FnMut() -> Result<()> + 'static), Unmeasured> {
        let level = Level::ALL.into_iter().find(|level| self.has(level.name())).unwrap_or(Level::best());
        if !level.is_available() {
            return Err(Unmeasured::NotHere("this processor lacks the instructions"));
        }
        if self.threads() > std::thread::available_parallelism().map_or(1, usize::from) {
            return Err(Unmeasured::NotHere("too few cores"));
        }
        let (exec, backward) = (Exec::cpu(self.threads()).with_level(level)?, self.has("backward"));
        let mut measured = Measured::new(self.call(self.sizes.get('B'))?)?;
        if let Some(off) = measured.check(&exec)?.first() {
            return Err(Unmeasured::Wrong(format!("{} is off by {:.1e}", off.name, off.max_abs)));
        }
        Ok((measured.forward_bytes(), move || if backward { measured.backward(&exec) } else { measured.forward(&exec) }))
    }
}

/// The devices that targets are measured on.
pub(super) struct Bench {
    quick: bool,
    gpu: Option<(Exec, Ceilings)>,
    /// Nanoseconds and bytes of what was measured on the GPU before: targets have work in common.
    known: HashMap<String, (f64, usize)>,
}

impl Bench {
    pub fn new(gpu: Option<usize>, quick: bool) -> Result<Self> {
        let exec = gpu.map(Exec::cuda).transpose()?;
        let ceilings = exec.as_ref().map(Ceilings::measure).transpose()?;
        Ok(Bench { quick, gpu: exec.zip(ceilings), known: HashMap::new() })
    }

    /// The largest rates of the GPU, in words.
    pub fn rates(&self) -> Option<String> {
        self.gpu.as_ref().map(|(exec, ceilings)| device::rates(exec, ceilings))
    }

    /// Figures of a target, in its unit.
    pub fn turns(&mut self, target: &Target) -> std::result::Result<Vec<Turn>, Unmeasured> {
        let (Target { work, than, .. }, unit) = (target, target.unit.as_str());
        let steps = work.state_steps() / than.as_ref().map_or(1.0, Work::state_steps);
        let figure = |[time, other]: [f64; 2]| match unit {
            "us" => time / 1e3,
            "ns per state-step" => time / steps,
            _ if unit.starts_with("x the time") => time / other / steps,
            _ if unit.starts_with("x as fast") => other / time * steps,
            _ => other / time,
        };
        if let Some(rate) = self.gpu.as_ref().map(|(_, ceilings)| ceilings.bytes) {
            let (time, bytes) = self.on_gpu(work)?;
            let other = than.as_ref().map(|than| self.on_gpu(than)).transpose()?;
            return Ok(vec![Turn::alone(figure([time, other.map_or(bytes as f64 / rate, |(time, _)| time)]))]);
        }
        // two threads come within a tenth of what is possible, so that turns, which differ by a few percent, must be many
        let usual = if unit.starts_with("x as fast") { 4000 } else { 1000 };
        let budget = Duration::from_millis(if self.quick { 300 } else { usual });
        let (bytes, mut run) = work.prepare()?;
        let running = |mut ceiling: Box<dyn FnMut()>| -> Box<dyn FnMut() -> Result<()>> {
            Box::new(move || {
                ceiling();
                Ok(())
            })
        };
        let mut beside: Box<dyn FnMut() -> Result<()>> = match (than, unit) {
            (Some(than), _) => Box::new(than.prepare()?.1),
            (None, "of a copy's rate") => running(Box::new(ceilings::copy(bytes))),
            (None, "of its products' rate") => running(Box::new(ceilings::products(&work.sizes))),
            _ => return Ok(turns::take(budget, work.threads(), [&mut run], |[time]| figure([time, 1.0]))?),
        };
        Ok(turns::take(budget, work.threads(), [&mut run, &mut beside], figure)?)
    }

    /// Nanoseconds and bytes of a pass whose results are right. Numbers are drawn for one row of the batch.
    fn on_gpu(&mut self, work: &Work) -> std::result::Result<(f64, usize), Unmeasured> {
        if let Some(&known) = self.known.get(&work.text) {
            return Ok(known);
        }
        let missing = |error: Error| device::missing(&error).map_or_else(|| error.into(), Unmeasured::NotHere);
        let (exec, _) = self.gpu.as_ref().ok_or("no GPU")?;
        let (exec, row, backward) = (exec.clone().with_tf32(work.has("tf32")), work.call(1)?, work.has("backward"));
        let layout = LAYOUTS.into_iter().find(|layout| work.has(layout));
        if let Some(wrong) = device::wrong(&exec, &laid_out(row.clone(), layout)?, backward).map_err(missing)?.into_iter().next()
        {
            return Err(Unmeasured::Wrong(wrong));
        }
        let call = laid_out(device::repeated(&row, work.sizes.get('B'))?, layout)?;
        let kernel = work.text.split(' ').find_map(|word| word.strip_prefix("kernel="));
        let (time, bytes) = device::time(&exec, &call, backward, kernel).map_err(missing)?;
        self.known.insert(work.text.clone(), (time.as_nanos() as f64, bytes));
        Ok((time.as_nanos() as f64, bytes))
    }
}
