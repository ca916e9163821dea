//! `train`: a language model that learns a text.

mod args;
mod plot;

use crate::destination::{OutputFolder, check_apart, check_folder};
use crate::error::Result;
use crate::output::say;
use crate::progress;
pub use args::TrainArgs;
use plot::plot;
use statescan::Exec;
use statescan_models::{Trainer, write_file};
use std::time::Instant;

/// What else there is to do with a folder that has a training.
const INSTEAD: &str = "--resume DIR goes on with it, --force overwrites it";

/// Runs the command.
///
/// # Errors
/// A device without kernels, settings out of range, a text that is too short, more memory than there is, a folder that cannot be written or resumed, that
/// has another model, or that another process writes.
pub fn train(args: &TrainArgs) -> Result<u8> {
    let exec = args.exec.exec()?;
    if let Some(folder) = &args.save {
        check_folder(folder, args.force, INSTEAD)?;
        if let Some(from) = &args.from {
            check_apart(folder, from, "--save", "another folder than --from")?;
        }
    }
    // nobody else may go on from what is read here
    let resumed = args.resume.as_deref().map(OutputFolder::open).transpose()?;
    let (mut trainer, bytes) = args.trainer()?;
    let saved = args.save.as_deref().map(|folder| OutputFolder::create(folder, args.force, INSTEAD)).transpose()?;
    if let (Some(folder), Some(from)) = (&saved, &args.from) {
        folder.copy_companions(from)?;
    }
    let folder = resumed.or(saved);
    if let (Some(folder), Some(held_out)) = (&args.resume, finished(&trainer)) {
        let (steps, unit, folder) = (trainer.losses().len(), trainer.unit(), folder.display());
        say!("{folder}: all {steps} steps are done, held-out set {held_out:.3} bits/{unit}; --steps N with more goes on")?;
        return Ok(0);
    }
    introduce(&trainer, bytes)?;
    run(args, &exec, &mut trainer, folder.as_ref())?;
    finish(&exec, &mut trainer, folder.as_ref())?;
    Ok(0)
}

/// What the held-out set took at the end, if this is a training that has ended.
fn finished(trainer: &Trainer) -> Option<f32> {
    let (at, held_out) = *trainer.evaluations().last()?;
    (at >= trainer.options().steps).then_some(held_out)
}

/// Says what is trained on what.
fn introduce(trainer: &Trainer, bytes: usize) -> Result<()> {
    say!("{} weights, {bytes} bytes of text", trainer.count())?;
    let (held_out, sample, unit) = (trainer.held_out_len(), trainer.sample_len(), trainer.unit());
    say!("held-out set: the last 10 % of the text, {held_out} {unit}s")?;
    if sample < held_out {
        say!("evaluations read a sample of {sample} of them, the last one reads all")?;
    }
    Ok(())
}

/// All steps that are left, with an evaluation and a save now and then.
fn run(args: &TrainArgs, exec: &Exec, trainer: &mut Trainer, folder: Option<&OutputFolder>) -> Result<()> {
    let (steps, unit) = (trainer.options().steps, trainer.unit());
    let bar = progress::bar("step {pos} of {len}, {msg}{left} left", steps, trainer.losses().len());
    let tokens = trainer.options().batch * trainer.options().seqlen;
    while trainer.losses().len() < steps {
        let begin = Instant::now();
        let loss = trainer.step(exec)?;
        let rate = tokens as f64 / begin.elapsed().as_secs_f64();
        bar.set_message(format!("{loss:.3} bits/{unit}, {rate:.0} {unit}s/s, "));
        bar.inc(1);
        let done = trainer.losses().len();
        if done < steps && done.is_multiple_of(args.every.max(1)) {
            let held_out = trainer.evaluate(exec)?;
            bar.suspend(|| say!("step {done}: {loss:.3} bits/{unit}, held-out set {held_out:.3}"))?;
            save(trainer, folder)?;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// The evaluation on the whole held-out set, once; what was learned is saved before it begins.
fn finish(exec: &Exec, trainer: &mut Trainer, folder: Option<&OutputFolder>) -> Result<()> {
    save(trainer, folder)?;
    let (done, unit) = (trainer.losses().len(), trainer.unit());
    if let (Some(start), Some(end)) = (trainer.losses().first(), trainer.losses().last()) {
        say!("loss: {start:.3} bits/{unit} at first, {end:.3} at last")?;
    }
    let bar = progress::bar("evaluation {pos} of {len}, {left} left", trainer.held_out_len(), 0);
    let held_out = trainer.held_out_with(exec, |read| bar.set_position(read as u64))?;
    bar.finish_and_clear();
    trainer.note(held_out);
    say!("held-out set: {held_out:.3} bits/{unit} after {done} steps")?;
    save(trainer, folder)?;
    if let Some(folder) = folder {
        let folder = folder.path().display();
        say!("saved in {folder}")?;
        say!("statescan generate {folder} --prompt TEXT")?;
    }
    Ok(())
}

fn save(trainer: &Trainer, folder: Option<&OutputFolder>) -> Result<()> {
    let Some(folder) = folder.map(OutputFolder::path) else { return Ok(()) };
    trainer.save(folder)?;
    let picture = folder.join("loss.svg");
    let plot = plot(trainer.losses(), trainer.evaluations(), trainer.unit());
    write_file(&picture, plot.as_bytes()).map_err(Into::into)
}
