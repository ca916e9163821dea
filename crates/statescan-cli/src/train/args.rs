//! Arguments of `train`, and the trainer that they ask for.

use crate::destination::read_text;
use crate::error::Result;
use crate::exec::{ExecArgs, WeightType};
use clap::Args;
use statescan_models::{Model, Options, Tokenizer, Trainer};
use std::path::PathBuf;

/// The whole of "Alice's Adventures in Wonderland", which is in the public domain: the text of the Canterbury corpus.
const BOOK: &[u8] = include_bytes!("../../assets/alice29.txt");

/// Settings of fine-tuning where none are given: it starts from weights that are to stay what they are for the most part.
const FINE_TUNING: (f64, f64, f64) = (2e-4, 0.1, 0.0);

/// What to learn, and how long.
///
/// The last 10 % of the text are the held-out set: not learned, but evaluated.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// A file to learn, - for standard input; "Alice's Adventures in Wonderland" if none is given
    #[arg(value_name = "TEXT")]
    pub text: Option<PathBuf>,
    /// Steps in all; with --resume more than before prolong a training [default: 1300]
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// Width of the model
    #[arg(long, value_name = "N", default_value_t = Options::default().dim, conflicts_with_all = ["resume", "from"])]
    pub dim: usize,
    /// Blocks of the model
    #[arg(long, value_name = "N", default_value_t = Options::default().layers, conflicts_with_all = ["resume", "from"])]
    pub layers: usize,
    /// Rows of a step
    #[arg(long, value_name = "N", default_value_t = Options::default().batch, conflicts_with = "resume")]
    pub batch: usize,
    /// Tokens of a row; without --from they are bytes
    #[arg(long, value_name = "N", default_value_t = Options::default().seqlen, conflicts_with = "resume")]
    pub seqlen: usize,
    /// The highest learning rate [default: 0.004, with --from 0.0002]
    #[arg(long, value_name = "X", conflicts_with = "resume")]
    pub rate: Option<f64>,
    /// Weight decay of projections, by the learning rate [default: 1, with --from 0.1]
    #[arg(long, value_name = "X", conflicts_with = "resume")]
    pub weight_decay: Option<f64>,
    /// Dropout of what blocks add, which keeps a small text from being learned by heart [default: 0.3, with --from 0]
    #[arg(long, value_name = "X", conflicts_with = "resume")]
    pub dropout: Option<f64>,
    /// Weights, rows and dropout are drawn from it
    #[arg(long, value_name = "S", default_value_t = Options::default().seed, conflicts_with = "resume")]
    pub seed: u64,
    /// Type that weights are written in; training has them in f32
    #[arg(long = "type", value_enum, value_name = "TYPE", default_value = "f32", conflicts_with = "resume")]
    pub dtype: WeightType,
    /// Folder to write the model to, with loss.svg and all that --resume needs
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Overwrite what the folder of --save has
    #[arg(long, requires = "save")]
    pub force: bool,
    /// Go on with a folder that --save wrote, with the same text, and save there
    #[arg(long, value_name = "DIR", conflicts_with = "save")]
    pub resume: Option<PathBuf>,
    /// Begin with the model and the tokenizer of a folder: fine-tuning
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub from: Option<PathBuf>,
    /// Steps between two evaluations on the held-out set, and between two saves
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub every: usize,
    /// Where and how to compute.
    #[command(flatten)]
    pub exec: ExecArgs,
}

impl TrainArgs {
    /// The trainer, and the length of its text in bytes.
    pub(super) fn trainer(&self) -> Result<(Trainer, usize)> {
        let text = match &self.text {
            Some(path) => read_text(path)?,
            None => BOOK.to_vec(),
        };
        let trainer = match (&self.resume, &self.from) {
            (Some(folder), _) => self.resumed(folder, &text)?,
            (None, Some(folder)) => {
                let tokens = Tokenizer::load(folder)?.encode(&text)?;
                Trainer::from_model(self.options(), &Model::load(folder)?, tokens)?
            }
            (None, None) => Trainer::new(self.options(), &text)?,
        };
        Ok((trainer, text.len()))
    }

    fn resumed(&self, folder: &PathBuf, text: &[u8]) -> Result<Trainer> {
        let tokenizer = Tokenizer::load(folder)?;
        let mut trainer = match tokenizer.is_bytes() {
            true => Trainer::resume(folder, text)?,
            false => Trainer::resume_tokens(folder, tokenizer.encode(text)?)?,
        };
        if let Some(steps) = self.steps {
            trainer.prolong(steps)?;
        }
        Ok(trainer)
    }

    fn options(&self) -> Options {
        let like = Options::default();
        let (rate, weight_decay, dropout) = match self.from {
            Some(_) => FINE_TUNING,
            None => (like.rate, like.weight_decay, like.dropout),
        };
        Options {
            dim: self.dim,
            layers: self.layers,
            batch: self.batch,
            seqlen: self.seqlen,
            steps: self.steps.unwrap_or(like.steps),
            rate: self.rate.unwrap_or(rate),
            weight_decay: self.weight_decay.unwrap_or(weight_decay),
            dropout: self.dropout.unwrap_or(dropout),
            seed: self.seed,
            dtype: self.dtype.into(),
            ..like
        }
    }
}
