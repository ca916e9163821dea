//! `generate`: a text continued by a language model, or several beside each other.

pub(crate) mod lane;
pub(crate) mod pace;

use crate::destination::read_text;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::language::{Language, ModelArgs};
use crate::output::{note, say};
use crate::reader::{Reader, at_once};
use crate::sampling::SamplingArgs;
use crate::writing::{Sink, Unicode, Writer, harmless};
use clap::Args;
use lane::{Ended, Lane};
use statescan_models::{ChatTemplate, Message};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The text to continue, and the model.
///
/// The text goes to standard output, as it comes; how fast it came goes to standard error. Tokens are drawn with temperature 0.8 from the likely
/// ones that have 95 % of the probability: the most likely token, again and again, makes small models repeat themselves within a line or two.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Which model, and where it computes.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The text to continue
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["file", "prompts", "state"], allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// A file with the text to continue; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,
    /// A file with a text to continue in every line, all at once; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "file", "save_state"])]
    pub prompts: Option<PathBuf>,
    /// Put the prompt, as what a user says, into the chat template of the folder
    #[arg(long)]
    pub chat: bool,
    /// Let the template say this before the user
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// Go on with the prompt several times, each with the seed after the one before
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), conflicts_with_all = ["prompts", "save_state"])]
    pub samples: u16,
    /// Tokens to generate at most; fewer if the text ends before
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub tokens: usize,
    /// End the text before this one, or before a special token of this name; can be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Write the prompt before its continuation; with --json its tokens, whose logprob is null
    #[arg(long)]
    pub echo: bool,
    /// Print one JSON object for each token: token, text, logprob (natural logarithm), prompt or sample if there are several
    #[arg(long)]
    pub json: bool,
    /// Say nothing but the text
    #[arg(short, long)]
    pub quiet: bool,
    /// Say how fast it was as a share of what this machine can do, which takes a second to measure
    #[arg(long, conflicts_with = "quiet")]
    pub floors: bool,
    /// Go on from a state that --save-state or a chat's /save wrote: the prompt, if there is one, or each of several follows the text that it has read
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Save what the model remembers of all text, the generated one too, even if Ctrl-C, SIGTERM or SIGHUP ends it
    #[arg(long, value_name = "FILE")]
    pub save_state: Option<PathBuf>,
    /// Replace a file that --save-state finds
    #[arg(long, requires = "save_state")]
    pub force: bool,
    /// How tokens are drawn.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Runs the command: 130 if Ctrl-C ended it, 143 and 129 if SIGTERM and SIGHUP did.
///
/// # Errors
/// A device that there is not, a folder, a state or a file that cannot be used, settings out of range, an empty prompt, tokens that the
/// model does not have, numbers that are not finite, output that cannot be written.
pub fn generate(args: &GenerateArgs) -> Result<u8> {
    args.sampling.check()?;
    args.sampling.sampler(0)?;
    let prompts = args.prompts()?;
    let language = args.model.load()?;
    if let Some(path) = &args.save_state {
        language.check_place(
            path,
            &args.state.iter().map(PathBuf::as_path).collect::<Vec<_>>(),
            args.force,
            "--force replaces it",
        )?;
    }
    let from = language.snapshot(args.state.as_deref())?;
    if args.state.is_some() && from.logits.is_none() && prompts == [[0; 0]] {
        return Err(Error::Usage {
            option: "--prompt",
            expected: "given, as the state has no logits to go on from",
            got: "nothing".into(),
        });
    }
    let tokens = args.encode(&language, &prompts)?;
    let (samples, texts) = (usize::from(args.samples), prompts.len() * usize::from(args.samples));
    let count = at_once(&language.model, &from, texts)?;
    let mut reader = language.reader(Vec::new())?;
    interrupt::watch();
    let mut ended = Ended::default();
    for first in (0..texts).step_by(count) {
        let group = first..texts.min(first + count);
        // a prompt of several samples is read once
        reader.begin(vec![from.clone(); if samples > 1 { 1 } else { group.len() }])?;
        let later = tokens.iter().skip(group.end.div_ceil(samples));
        let mut lanes = args.lanes(&language, group, &tokens)?;
        reader.tokens_only = !args.json && args.save_state.is_none() && lanes.iter().all(|lane| lane.sampler.is_greedy());
        let written = write(args, &language, &mut reader, &mut lanes, (first, &prompts));
        // the state is saved even where the text could not be written
        if let (Some(path), Ok(_) | Err(Error::Output(_))) = (&args.save_state, &written) {
            language.save(&reader.snapshot(0)?, path)?;
        }
        ended.add(written?);
        if interrupt::interrupted() {
            ended.unread += later.map(Vec::len).sum::<usize>();
            break;
        }
    }
    if !args.quiet {
        pace::report(&language, &reader, ended.paces, args.floors)?;
        if ended.unread > 0 {
            note!("interrupted: the last {} tokens of the prompt were not read", ended.unread);
        }
    }
    Ok(interrupt::status())
}

impl GenerateArgs {
    /// The texts to continue; an empty one where there is only a state.
    fn prompts(&self) -> Result<Vec<Vec<u8>>> {
        if let Some(path) = &self.prompts {
            let text = read_text(path)?;
            let lines = text.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
            let prompts: Vec<_> =
                lines.filter(|line| !line.is_empty()).map(|line| self.in_template(line.to_vec())).collect::<Result<_>>()?;
            return match prompts.is_empty() {
                true => Err(Error::Usage { option: "--prompts", expected: "a file with lines", got: path.display().to_string() }),
                false => Ok(prompts),
            };
        }
        let prompt = match &self.file {
            Some(path) => read_text(path)?,
            None => self.prompt.clone().unwrap_or_default().into_bytes(),
        };
        Ok(vec![self.in_template(prompt)?])
    }

    /// A prompt in the chat template of the folder, if that is asked for.
    fn in_template(&self, prompt: Vec<u8>) -> Result<Vec<u8>> {
        if !self.chat {
            return Ok(prompt);
        }
        let template = self.model.template()?.ok_or_else(|| no_template(self.model.folder.as_deref()))?;
        render(&template, self.system.as_deref(), prompt)
    }

    /// The tokens of all prompts, which the model has.
    fn encode(&self, language: &Language, prompts: &[Vec<u8>]) -> Result<Vec<Vec<u32>>> {
        // a template says itself how a text begins
        let whole = !self.chat && self.state.is_none();
        let tokens = prompts.iter().map(|prompt| language.tokens(prompt, whole)).collect::<Result<Vec<_>>>()?;
        tokens.iter().try_for_each(|tokens| lane::check(tokens, language.model.config().vocab))?;
        Ok(tokens)
    }

    /// Texts of some numbers; each prompt is that of as many as there are samples.
    fn lanes<'t>(&self, language: &'t Language, group: Range<usize>, prompts: &[Vec<u32>]) -> Result<Vec<Lane<'t>>> {
        let several = if self.prompts.is_some() { Some("prompt") } else { (self.samples > 1).then_some("sample") };
        let lane = |number: usize| {
            let sink = match (self.json, several) {
                (true, _) => Sink::Json(several.map(|of| (of, number)), Unicode::default()),
                (false, Some(_)) => Sink::Kept(Vec::new()),
                (false, None) => Sink::output(),
            };
            let writer = Writer::new(&language.tokenizer, &self.stop, sink)?;
            let prompt = prompts[number / usize::from(self.samples)].clone();
            Ok(Lane::new(prompt, self.sampling.sampler(number as u64)?, writer, self.tokens))
        };
        group.map(lane).collect()
    }
}

/// The refusal of a chat without a template.
fn no_template(folder: Option<&Path>) -> Error {
    let got = folder.map_or("none".into(), |folder| folder.display().to_string());
    Error::Usage { option: "the folder of --chat", expected: "one with a chat template", got }
}

/// Renders a user's message in a template.
fn render(template: &ChatTemplate, system: Option<&str>, said: Vec<u8>) -> Result<Vec<u8>> {
    let not_text = |_| Error::Usage { option: "the prompt of --chat", expected: "UTF-8", got: "other bytes".into() };
    let said = String::from_utf8(said).map_err(not_text)?;
    Ok(template.render(&Message::first(system, &said))?.into_bytes())
}

/// Writes the texts.
fn write(
    args: &GenerateArgs,
    language: &Language,
    reader: &mut Reader<'_>,
    lanes: &mut [Lane<'_>],
    (first, prompts): (usize, &[Vec<u8>]),
) -> Result<Ended> {
    let prompt = |number: usize| &prompts[(first + number) / usize::from(args.samples)];
    if args.echo {
        lanes.iter_mut().enumerate().try_for_each(|(number, lane)| lane.echo(prompt(number)))?;
    }
    let ended = lane::run(reader, lanes, &language.model.config().eos, args.quiet)?;
    for (number, lane) in lanes.iter().enumerate() {
        match &lane.writer.sink {
            Sink::Json(..) => {}
            Sink::Kept(text) => {
                let line = String::from_utf8_lossy(prompt(number));
                let begin: String = match args.samples {
                    1 => harmless(line.lines().next().unwrap_or_default()).chars().take(72).collect(),
                    _ => format!("sample {}", first + number),
                };
                say!("{}== {begin}", if first + number == 0 { "" } else { "\n" })?;
                crate::output::bytes(&[text, &b"\n"[..]].concat())?;
            }
            Sink::Output(_) | Sink::Both(..) => say!("")?,
        }
    }
    Ok(ended)
}
