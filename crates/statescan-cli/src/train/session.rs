//! The steps of a training, and what is said of them.

use super::TrainArgs;
use super::output::Output;
use crate::error::Result;
use crate::interrupt::interrupted;
use crate::output::say;
use crate::progress;
use indicatif::ProgressBar;
use serde_json::json;
use statescan::Exec;
use statescan_models::{Error, Trainer};
use std::time::Instant;

/// A training on its way.
pub(super) struct Session<'a> {
    pub(super) args: &'a TrainArgs,
    pub(super) exec: Exec,
    pub(super) trainer: Trainer,
    pub(super) output: Option<Output<'a>>,
}

impl Session<'_> {
    /// All steps that are left, with an evaluation and a save now and then. One evaluation is before the first step where a model begins that exists.
    pub(super) fn run(&mut self) -> Result<()> {
        let (steps, unit) = (self.trainer.options().steps, self.trainer.unit());
        let bar = progress::bar("step {pos} of {len}, {msg}{left} left", steps, self.trainer.losses().len());
        if self.args.from.is_some() {
            self.evaluate(&bar, None)?;
        }
        let options = self.trainer.options();
        let tokens = options.batch * options.accumulate * options.seqlen;
        while self.trainer.losses().len() < steps {
            if interrupted() {
                return Err(Error::Interrupted.into());
            }
            let (begin, rate) = (Instant::now(), self.trainer.rate());
            let loss = self.trainer.step(&self.exec)?;
            let per_second = tokens as f64 / begin.elapsed().as_secs_f64();
            bar.set_message(format!("{loss:.3} bits/{unit}, {per_second:.0} {unit}s/s, "));
            bar.inc(1);
            let done = self.trainer.losses().len();
            if self.args.json {
                let found = json!({"step": done, "loss": loss, "rate": rate, "tokens_per_second": per_second});
                bar.suspend(|| say!("{found}"))?;
            }
            if done < steps && done.is_multiple_of(self.args.every.max(1)) {
                self.evaluate(&bar, Some(loss))?;
                self.save()?;
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// An evaluation on a sample, after a step of this loss if there was one.
    fn evaluate(&mut self, bar: &ProgressBar, loss: Option<f64>) -> Result<()> {
        let held_out = self.trainer.evaluate_with(&self.exec, |_| !interrupted())?;
        let (done, unit, tokens) = (self.trainer.losses().len(), self.trainer.unit(), self.trainer.sample_len());
        let loss = loss.map_or(String::new(), |loss| format!("{loss:.3} bits/{unit}, "));
        bar.suspend(|| match self.args.json {
            true => say!("{}", json!({"step": done, "held_out": held_out, "tokens": tokens})),
            false => say!("step {done}: {loss}held-out set {held_out:.3}"),
        })
    }

    /// The evaluation after the last step, once; what was learned is saved before it begins.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.save()?;
        let (done, unit, last) = (self.trainer.losses().len(), self.trainer.unit(), self.trainer.last_len());
        if let (Some(start), Some(end), false) = (self.trainer.losses().first(), self.trainer.losses().last(), self.args.json) {
            say!("loss: {start:.3} bits/{unit} at first, {end:.3} at last")?;
        }
        let bar = progress::bar("evaluation {pos} of {len}, {left} left", self.trainer.sample_len() + last, 0);
        let go_on = |read: usize| {
            bar.set_position(read as u64);
            !interrupted()
        };
        let mut held_out = self.trainer.evaluate_with(&self.exec, go_on)?;
        self.save()?;
        if last > self.trainer.sample_len() {
            held_out = self.trainer.evaluate_last(&self.exec, go_on)?;
            self.save()?;
        }
        bar.finish_and_clear();
        let best = self.trainer.best().filter(|(step, _)| *step < done);
        let folder = self.output.as_ref().map(|output| output.path().display().to_string());
        if self.args.json {
            let best = best.map(|(step, held_out)| json!({"step": step, "held_out": held_out}));
            return say!("{}", json!({"step": done, "held_out": held_out, "tokens": last, "best": best, "folder": folder}));
        }
        say!("held-out set: {held_out:.3} bits/{unit} after {done} steps")?;
        if let Some((step, held_out)) = best {
            say!("best: {held_out:.3} bits/{unit} of the sample after {step} steps")?;
        }
        if let (Some(output), Some(folder)) = (&self.output, folder) {
            say!("saved in {folder}")?;
            if best.is_some_and(|(step, _)| step > 0) {
                say!("the best one in {}", output.best().display())?;
            }
            say!("statescan generate {folder} --prompt TEXT")?;
        }
        Ok(())
    }

    pub(super) fn save(&mut self) -> Result<()> {
        self.output.as_mut().map_or(Ok(()), |output| output.save(&self.trainer))
    }
}
