//! `train`: a language model that learns a text.

mod args;
mod output;
mod plot;
mod session;

use crate::destination::{OutputFolder, check_apart, check_folder};
use crate::error::Result;
use crate::interrupt;
use crate::output::{note, say};
pub use args::{FamilyName, TrainArgs};
use output::{BEST, Output};
use serde_json::json;
use session::Session;
use statescan_models::Trainer;

/// The other things to do with a folder that has a training.
const INSTEAD: &str = "--resume DIR goes on with it, --force overwrites it";

/// Runs the command: 130, 143 or 129 if Ctrl-C, SIGTERM or SIGHUP ended it, which save what was learned.
///
/// # Errors
/// A device without kernels, settings out of range, a text that is too short, more memory than there is, a folder that cannot be written or resumed, that
/// has another model, or that another process writes.
pub fn train(args: &TrainArgs) -> Result<u8> {
    let exec = args.exec.exec()?;
    if let Some(folder) = &args.save {
        check_folder(folder, args.force, INSTEAD)?;
        if let Some(from) = &args.from {
            for folder in [folder.clone(), folder.join(BEST)] {
                check_apart(&folder, from, "--save", "another folder than --from")?;
            }
        }
    }
    // nobody else may go on from what is read here
    let resumed = args.resume.as_deref().map(OutputFolder::open).transpose()?;
    let (trainer, bytes) = args.trainer()?;
    let saved = args.save.as_deref().map(|folder| OutputFolder::create(folder, args.force, INSTEAD)).transpose()?;
    if let (Some(folder), Some(held_out)) = (&args.resume, finished(&trainer)) {
        let (steps, unit, folder) = (trainer.losses().len(), trainer.unit(), folder.display());
        say!("{folder}: all {steps} steps are done, held-out set {held_out:.3} bits/{unit}; --steps N with more goes on")?;
        return Ok(0);
    }
    let replaces = saved.is_some().then_some(args.from.as_deref());
    let output = resumed.or(saved).map(|folder| Output::new(folder, replaces));
    if output.is_some() {
        // without a folder there is nothing to save
        interrupt::watch();
    }
    let mut session = Session { args, exec, trainer, output };
    let done = introduce(&session.trainer, bytes, args.json).and_then(|()| session.run()).and_then(|()| session.finish());
    match done {
        Err(crate::Error::Model(statescan_models::Error::Interrupted)) => {
            session.save()?;
            let folder = session.output.as_ref().map_or(String::new(), |output| output.path().display().to_string());
            note!("interrupted after {} steps; --resume {folder} goes on", session.trainer.losses().len());
            Ok(interrupt::status())
        }
        // a reader that has left takes nothing with it
        Err(error @ crate::Error::Output(_)) => session.save().and(Err(error)),
        done => done.map(|()| 0),
    }
}

/// Returns the loss on the held-out set at the end, if this is a training that has ended.
fn finished(trainer: &Trainer) -> Option<f32> {
    let (at, held_out) = *trainer.evaluations().last()?;
    (at >= trainer.options().steps).then_some(held_out)
}

/// Says what is trained on what.
fn introduce(trainer: &Trainer, bytes: usize, as_json: bool) -> Result<()> {
    let (held_out, sample, last, unit) = (trainer.held_out_len(), trainer.sample_len(), trainer.last_len(), trainer.unit());
    let (count, learned) = (trainer.count(), trainer.learned_count());
    if as_json {
        return say!(
            "{}",
            json!({"weights": count, "learned": learned, "bytes": bytes, "unit": unit, "steps": trainer.options().steps,
                "held_out": held_out, "sample": sample, "last": last})
        );
    }
    say!("{count} weights, {bytes} bytes of text")?;
    if learned != count {
        say!("{learned} numbers of LoRA's matrices are learned")?;
    }
    match trainer.is_divided() {
        true => say!("held-out set: the last 10 % of the text, {held_out} {unit}s")?,
        false => say!("held-out set: the text of --validation, {held_out} {unit}s")?,
    }
    match last {
        _ if sample == held_out => Ok(()),
        last if last == held_out => say!("evaluations read a sample of {sample} of them, the last one reads all"),
        last if last == sample => say!("evaluations read a sample of {sample} of them"),
        last => say!("evaluations read a sample of {sample} of them, the last one {last}"),
    }
}
