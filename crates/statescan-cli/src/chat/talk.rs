//! [`Talk`]: what was said, as a state, and the states to which it can be taken back.

use super::{AnswerArgs, ChatArgs, set};
use crate::error::{Error, Result};
use crate::generate::lane::{self, Lane};
use crate::language::Language;
use crate::output::say;
use crate::reader::Reader;
use crate::text::{bytes, wrapped};
use crate::writing::{Sink, Writer};
use statescan_models::{ChatTemplate, Message, Sampler, Snapshot};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Bytes of states that are kept to take lines back; one is always kept.
const KEPT: usize = 64 << 20;
/// The most lines that can be taken back.
const MOST: usize = 100;

/// Tokens of an answer at most, if nothing else is said.
const TOKENS: usize = 200;

/// A conversation.
pub(super) struct Talk<'m> {
    args: &'m ChatArgs,
    /// The arguments about answers, with all changes since.
    answers: AnswerArgs,
    language: &'m Language,
    template: Option<ChatTemplate>,
    sampler: Sampler,
    reader: Reader<'m>,
    /// The latest line and its answer, which a template may need to go on.
    last: Option<Exchange>,
    /// The states before each of the latest lines.
    before: VecDeque<Before>,
    /// Files that this chat has read or written, which it may write again.
    files: Vec<PathBuf>,
}

#[derive(Clone)]
struct Exchange {
    said: String,
    answer: String,
}

/// A conversation before a line.
struct Before {
    snapshot: Snapshot,
    last: Option<Exchange>,
    /// The line; none where the state was replaced by another one.
    said: Option<String>,
}

impl<'m> Talk<'m> {
    pub(super) fn new(args: &'m ChatArgs, language: &'m Language, template: Option<ChatTemplate>) -> Result<Self> {
        if template.is_none()
            && let Some(system) = &args.system
        {
            let expected = "left out, as there is no chat template that could say it";
            return Err(Error::Usage { option: "--system", expected, got: system.clone() });
        }
        let sampler = args.answers.sampling.sampler(0)?;
        let reader = language.reader(vec![language.snapshot(args.state.as_deref())?])?;
        let (before, files) = (VecDeque::new(), args.state.iter().cloned().collect());
        // options that cannot be used are refused before anybody enters a line
        Writer::new(&language.tokenizer, &args.answers.stop, Sink::both())?;
        Ok(Talk { args, answers: args.answers.clone(), language, template, sampler, reader, last: None, before, files })
    }

    /// Returns the text that a chat begins with.
    pub(super) fn welcome(&self) -> String {
        let config = self.language.model.config();
        let name =
            self.args.model.folder.as_ref().map_or("the model in the program".into(), |folder| folder.display().to_string());
        let how = match self.template {
            Some(_) => "answers what you enter",
            None => "goes on from what you enter",
        };
        wrapped(&format!(
            "{name} ({} of {} blocks) {how}; /help lists commands, Ctrl-D ends the chat",
            config.family.name(),
            config.layers.len()
        ))
    }

    /// How much is remembered, and in how many bytes.
    pub(super) fn memory(&self) -> String {
        let grows = match self.language.model.config().bytes_per_token() {
            0 => "a constant size".to_owned(),
            each => format!("{} more with each", bytes(each)),
        };
        let kept = self.before.iter().map(|before| size(&before.snapshot)).sum();
        let undo = match self.before.len() {
            0 => "nothing to undo".to_owned(),
            n => format!("{n} to undo ({})", bytes(kept)),
        };
        format!("[{} tokens in {}, {grows}; {undo}]", self.reader.position(0), bytes(self.reader.size(0)))
    }

    /// Reads a line, and writes the answer.
    pub(super) fn say(&mut self, said: &str) -> Result<()> {
        let before = Before { snapshot: self.reader.snapshot(0)?, last: self.last.clone(), said: Some(said.to_owned()) };
        let answered = self.answer(said);
        match &answered {
            // nothing was read, or nothing that can be gone on from
            Err(error) if !matches!(error, Error::Output(_)) => {
                self.reader.restore(0, before.snapshot)?;
            }
            _ => self.keep(before),
        }
        answered
    }

    fn answer(&mut self, said: &str) -> Result<()> {
        let text = match (&self.template, &self.last) {
            (None, _) => said.to_owned(),
            // the answer goes on
            (Some(_), Some(_)) if said.is_empty() => String::new(),
            (Some(template), None) => template.render(&Message::first(self.args.system.as_deref(), said))?,
            (Some(template), Some(last)) => template.render_next(&last.said, &last.answer, said)?,
        };
        let writer = Writer::new(&self.language.tokenizer, &self.answers.stop, Sink::both())?;
        let tokens = self.language.tokens(text.as_bytes(), self.template.is_none() && self.reader.position(0) == 0)?;
        lane::check(&tokens, self.language.model.config().vocab)?;
        let mut lanes = [Lane::new(tokens, self.sampler.clone(), writer, self.answers.tokens.unwrap_or(TOKENS))];
        let ended = lane::run(&mut self.reader, &mut lanes, &self.language.model.config().eos, false);
        let [lane] = lanes;
        self.sampler = lane.sampler;
        ended?;
        if let Sink::Both(_, answer) = lane.writer.sink {
            let answer = String::from_utf8_lossy(&answer);
            self.last = match self.last.take() {
                Some(last) if said.is_empty() => Some(Exchange { answer: last.answer + &answer, ..last }),
                _ => Some(Exchange { said: said.to_owned(), answer: answer.into_owned() }),
            };
        }
        say!("")
    }

    /// Keeps the state before a line, and as many of those before as there is room for.
    fn keep(&mut self, before: Before) {
        self.before.push_back(before);
        let each = self.before.iter().map(|before| size(&before.snapshot)).max().unwrap_or(0);
        let room = (KEPT / each.max(1)).clamp(1, MOST);
        let surplus = self.before.len().saturating_sub(room);
        self.before.drain(..surplus);
    }

    /// Goes back to what was before so many of the last lines, where replacing the state counts as one.
    pub(super) fn undo(&mut self, lines: usize) -> Result<()> {
        let first = self.before.len().checked_sub(lines).ok_or_else(|| nothing(self.before.len()))?;
        let before = self.before.drain(first..).next().ok_or_else(|| nothing(0))?;
        self.reader.restore(0, before.snapshot)?;
        self.last = before.last;
        Ok(())
    }

    /// Answers the last line again, otherwise if tokens are drawn.
    pub(super) fn retry(&mut self) -> Result<()> {
        let said = self.before.back().and_then(|before| before.said.clone()).ok_or_else(|| nothing(0))?;
        self.undo(1)?;
        self.say(&said)
    }

    pub(super) fn reset(&mut self) -> Result<()> {
        self.restore(Snapshot { state: self.language.model.state(), logits: None })
    }

    pub(super) fn save(&mut self, path: &Path, force: bool) -> Result<()> {
        let own: Vec<_> = self.files.iter().map(PathBuf::as_path).collect();
        self.language.check_place(path, &own, force, "/save! FILE replaces it")?;
        self.language.save(&self.reader.snapshot(0)?, path)?;
        self.files.push(path.to_owned());
        Ok(())
    }

    pub(super) fn load(&mut self, path: &Path) -> Result<()> {
        let snapshot = self.language.snapshot(Some(path))?;
        self.files.push(path.to_owned());
        self.restore(snapshot)
    }

    /// Sets how answers are made from now on.
    pub(super) fn set(&mut self, setting: &str) -> Result<()> {
        let answers = set::changed(&self.answers, setting)?;
        self.sampler = answers.sampling.sampler(0)?.after(&self.sampler);
        Writer::new(&self.language.tokenizer, &answers.stop, Sink::both())?;
        self.answers = answers;
        Ok(())
    }

    /// Goes on from another state, which can be taken back as a line can.
    fn restore(&mut self, snapshot: Snapshot) -> Result<()> {
        let before = Before { snapshot: self.reader.snapshot(0)?, last: self.last.take(), said: None };
        self.reader.restore(0, snapshot)?;
        self.keep(before);
        Ok(())
    }
}

/// The refusal to take back what was not said, or is not kept, beside so many lines that are.
fn nothing(kept: usize) -> Error {
    let got = if kept == 0 { "none".into() } else { format!("more than the {kept} that are kept") };
    Error::Usage { option: "what is taken back", expected: "a line of this chat", got }
}

/// Bytes of a state and its logits.
fn size(snapshot: &Snapshot) -> usize {
    snapshot.state.size() + snapshot.logits.as_ref().map_or(0, |logits| size_of_val(&logits[..]))
}
