//! `train`: a small Mamba that learns the bytes of a text.

mod plot;

use crate::error::{Error, Result};
use crate::exec::{ExecArgs, TypeName};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use plot::plot;
use statescan::Exec;
use statescan_models::{Options, Trainer};
use std::path::{Path, PathBuf};

/// The whole of "Alice's Adventures in Wonderland", which is in the public domain: the text of the Canterbury corpus.
const BOOK: &[u8] = include_bytes!("../../assets/alice29.txt");

/// What to learn, and how long.
///
/// The last tenth of the text is not learned; how well it is guessed is what counts.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// A file to learn; "Alice's Adventures in Wonderland" if none is given
    #[arg(value_name = "TEXT")]
    pub text: Option<PathBuf>,
    /// Steps in all
    #[arg(long, value_name = "N", default_value_t = Options::default().steps, conflicts_with = "resume")]
    pub steps: usize,
    /// Width of the model
    #[arg(long, value_name = "N", default_value_t = Options::default().dim, conflicts_with = "resume")]
    pub dim: usize,
    /// Blocks of the model
    #[arg(long, value_name = "N", default_value_t = Options::default().layers, conflicts_with = "resume")]
    pub layers: usize,
    /// Rows of a step
    #[arg(long, value_name = "N", default_value_t = Options::default().batch, conflicts_with = "resume")]
    pub batch: usize,
    /// Bytes of a row
    #[arg(long, value_name = "N", default_value_t = Options::default().seqlen, conflicts_with = "resume")]
    pub seqlen: usize,
    /// The highest learning rate
    #[arg(long, value_name = "X", default_value_t = Options::default().rate, conflicts_with = "resume")]
    pub rate: f64,
    /// How much of the weights of projections a step takes away, by the learning rate
    #[arg(long, value_name = "X", default_value_t = Options::default().weight_decay, conflicts_with = "resume")]
    pub weight_decay: f64,
    /// Share of random zeros in what blocks add, which keeps a small text from being learned by heart
    #[arg(long, value_name = "X", default_value_t = Options::default().dropout, conflicts_with = "resume")]
    pub dropout: f64,
    /// Weights, rows and zeros are drawn from it
    #[arg(long, value_name = "S", default_value_t = Options::default().seed, conflicts_with = "resume")]
    pub seed: u64,
    /// The type that the weights are written in, f32, bf16 or f16; training has them in f32
    #[arg(long = "type", value_enum, value_name = "TYPE", default_value = "f32", conflicts_with = "resume")]
    pub dtype: TypeName,
    /// Folder to write the model to, with loss.svg and all that --resume needs
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Go on with a folder that --save wrote, with the same text and settings, and save there
    #[arg(long, value_name = "DIR", conflicts_with = "save")]
    pub resume: Option<PathBuf>,
    /// Steps between two looks at the text that is held out, and between two saves
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub every: usize,
    /// Where and how to compute.
    #[command(flatten)]
    pub exec: ExecArgs,
}

/// Runs the command.
///
/// # Errors
/// A device without kernels, settings out of range, a text that is too short, a folder that cannot be written or resumed.
pub fn train(args: &TrainArgs) -> Result<u8> {
    let exec = args.exec.exec()?;
    let text = match &args.text {
        Some(path) => std::fs::read(path).map_err(|source| Error::Io { name: path.display().to_string(), source })?,
        None => BOOK.to_vec(),
    };
    let mut trainer = match &args.resume {
        Some(folder) => Trainer::resume(folder, &text)?,
        None => Trainer::new(args.options(), &text)?,
    };
    let folder = args.resume.as_deref().or(args.save.as_deref());
    println!("{} weights, {} bytes of text, the last tenth of them held out", trainer.count(), text.len());
    run(args, &exec, &mut trainer, folder)?;
    println!("held out: {:.3} bits for a byte after {} steps", trainer.held_out(&exec)?, trainer.losses().len());
    if let Some(folder) = folder {
        println!("saved in {}: statescan generate {} --prompt TEXT", folder.display(), folder.display());
    }
    Ok(0)
}

impl TrainArgs {
    fn options(&self) -> Options {
        let (dim, layers, batch, seqlen) = (self.dim, self.layers, self.batch, self.seqlen);
        let (steps, rate, weight_decay, dropout) = (self.steps, self.rate, self.weight_decay, self.dropout);
        let (clip, seed, dtype) = (Options::default().clip, self.seed, self.dtype.into());
        Options { dim, layers, batch, seqlen, steps, rate, weight_decay, dropout, clip, seed, dtype }
    }
}

/// All steps that are left.
fn run(args: &TrainArgs, exec: &Exec, trainer: &mut Trainer, folder: Option<&Path>) -> Result<()> {
    let (steps, first) = (trainer.options().steps, trainer.losses().len());
    let bar = ProgressBar::new(steps as u64).with_position(first as u64);
    let style = ProgressStyle::with_template("{wide_bar} step {pos} of {len}, {msg}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let tokens = trainer.options().batch * trainer.options().seqlen;
    while trainer.losses().len() < steps {
        let begin = std::time::Instant::now();
        let loss = trainer.step(exec)?;
        bar.inc(1);
        bar.set_message(format!("{loss:.3} bits/byte, {:.0} bytes/s", tokens as f64 / begin.elapsed().as_secs_f64()));
        let done = trainer.losses().len();
        if done < steps && !done.is_multiple_of(args.every.max(1)) {
            continue;
        }
        let held_out = trainer.held_out(exec)?;
        bar.suspend(|| println!("step {done}: {loss:.3} bits for a byte, held out {held_out:.3}"));
        if let Some(folder) = folder {
            trainer.save(folder)?;
            let path = folder.join("loss.svg");
            let plot = plot(trainer.losses());
            std::fs::write(&path, plot).map_err(|source| Error::Io { name: path.display().to_string(), source })?;
        }
    }
    bar.finish_and_clear();
    if let (Some(start), Some(end)) = (trainer.losses().first(), trainer.losses().last()) {
        println!("loss: {start:.3} bits for a byte at first, {end:.3} at last");
    }
    Ok(())
}
