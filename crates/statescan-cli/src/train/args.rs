//! Arguments of `train`, and the trainer that they ask for.

use crate::destination::read_text;
use crate::error::{Error, Result};
use crate::exec::{ExecArgs, WeightType};
use clap::{Args, ValueEnum};
use statescan_models::{Config, Corpus, Lora, Model, Options, Tokenizer, Trainer};
use std::path::PathBuf;

/// The whole of "Alice's Adventures in Wonderland", which is in the public domain: the text of the Canterbury corpus.
const BOOK: &[u8] = include_bytes!("../../assets/alice29.txt");

/// Settings of fine-tuning where none are given: it starts from weights that are to stay what they are for the most part.
const FINE_TUNING: (f64, f64, f64) = (2e-4, 0.1, 0.0);

/// A kind of blocks on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FamilyName {
    /// Selective scan
    Mamba,
    /// Selective scan with norms on step sizes, input and output maps
    #[value(name = "falcon_mamba")]
    FalconMamba,
    /// One decay for each head
    Mamba2,
}

/// The text to learn, and how long.
///
/// The last 10 % of the text are the held-out set: not learned, but evaluated; with --validation another text is. What the model was when an evaluation
/// between steps took least is in the folder `best` of the one of --save. Ctrl-C, SIGTERM and SIGHUP save the training before they end it.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// A file to learn, - for standard input; "Alice's Adventures in Wonderland" if none is given
    #[arg(value_name = "TEXT")]
    pub text: Option<PathBuf>,
    /// Steps in all; with --resume more than before prolong a training [default: 1300]
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// Kind of blocks of a model that begins with random weights
    #[arg(long, value_enum, value_name = "KIND", default_value = "mamba", conflicts_with_all = ["resume", "from"])]
    pub family: FamilyName,
    /// Width of the model
    #[arg(long, value_name = "N", default_value_t = Options::default().dim, conflicts_with_all = ["resume", "from"])]
    pub dim: usize,
    /// Blocks of the model
    #[arg(long, value_name = "N", default_value_t = Options::default().layers, conflicts_with_all = ["resume", "from"])]
    pub layers: usize,
    /// States of a channel [default: 16, of Mamba-2 128]
    #[arg(long, value_name = "N", conflicts_with_all = ["resume", "from"])]
    pub dstate: Option<usize>,
    /// Channels of a head of Mamba-2, a divisor of twice the width
    #[arg(long, value_name = "N", default_value_t = 64, conflicts_with_all = ["resume", "from"])]
    pub headdim: usize,
    /// Rows of a batch
    #[arg(long, value_name = "N", default_value_t = Options::default().batch, conflicts_with = "resume")]
    pub batch: usize,
    /// Tokens of a row; without --from they are bytes
    #[arg(long, value_name = "N", default_value_t = Options::default().seqlen, conflicts_with = "resume")]
    pub seqlen: usize,
    /// Batches of a step, whose gradients are added up
    #[arg(long, value_name = "N", default_value_t = Options::default().accumulate, conflicts_with = "resume")]
    pub accumulate: usize,
    /// The highest learning rate [default: 0.004, with --from 0.0002]
    #[arg(long, value_name = "X", conflicts_with = "resume")]
    pub rate: Option<f64>,
    /// Steps over which the learning rate rises [default: a twentieth of all]
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    pub warmup: Option<usize>,
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
    /// With --from: projections move by a product of two matrices of this rank alone, and are written with it
    #[arg(long, value_name = "RANK", requires = "from")]
    pub lora: Option<usize>,
    /// Their product is added alpha / RANK times [default: twice the rank]
    #[arg(long, value_name = "ALPHA", requires = "lora")]
    pub lora_alpha: Option<f64>,
    /// A file that is held out instead of the end of the text, all of which is learned then
    #[arg(long, value_name = "FILE")]
    pub validation: Option<PathBuf>,
    /// Print a JSON object for each step (step, loss, rate, tokens_per_second) and each evaluation (step, held_out, tokens)
    #[arg(long)]
    pub json: bool,
    /// Steps between two evaluations on the held-out set, and between two saves
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub every: usize,
    /// The device, and how to compute on it.
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
            (Some(folder), _) => {
                let corpus = self.corpus(&Tokenizer::load(folder)?, &text)?;
                let mut trainer = Trainer::resume(folder, corpus)?;
                self.steps.map_or(Ok(()), |steps| trainer.prolong(steps))?;
                trainer
            }
            (None, Some(folder)) => {
                let corpus = self.corpus(&Tokenizer::load(folder)?, &text)?;
                Trainer::from_model(self.options(), &Model::load(folder)?, corpus)?
            }
            (None, None) => Trainer::of_config(self.options(), self.config()?, self.corpus(&Tokenizer::bytes(), &text)?)?,
        };
        Ok((trainer, text.len()))
    }

    /// The text, and the one that is held out, as a tokenizer has them.
    fn corpus(&self, tokenizer: &Tokenizer, text: &[u8]) -> Result<Corpus> {
        let corpus = |text: &[u8]| -> Result<Corpus> {
            Ok(if tokenizer.is_bytes() { text.into() } else { tokenizer.encode(text)?.into() })
        };
        let learned = corpus(text)?;
        Ok(match &self.validation {
            Some(path) => learned.validated_by(corpus(&read_text(path)?)?),
            None => learned,
        })
    }

    /// Returns the configuration of a model of bytes that begins with random weights.
    fn config(&self) -> Result<Config> {
        self.options().check()?;
        let (vocab, dim, layers) = (256, self.dim, self.layers);
        let mut config = match self.family {
            FamilyName::Mamba => Config::mamba(vocab, dim, layers),
            FamilyName::FalconMamba => Config::falcon_mamba(vocab, dim, layers),
            FamilyName::Mamba2 => Config::mamba2(vocab, dim, layers, self.headdim),
        };
        if self.family == FamilyName::Mamba2 && !config.inner.is_multiple_of(self.headdim.max(1)) {
            let (expected, got) = ("a divisor of twice the width", self.headdim.to_string());
            return Err(Error::Usage { option: "--headdim", expected, got });
        }
        config.dstate = self.dstate.unwrap_or(config.dstate);
        Ok(config)
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
            accumulate: self.accumulate,
            rate: self.rate.unwrap_or(rate),
            warmup: self.warmup,
            weight_decay: self.weight_decay.unwrap_or(weight_decay),
            dropout: self.dropout.unwrap_or(dropout),
            seed: self.seed,
            dtype: self.dtype.into(),
            lora: self.lora.map(|rank| Lora { rank, alpha: self.lora_alpha.unwrap_or(2.0 * rank as f64) }),
            ..like
        }
    }
}
