//! Texts that a model reads and goes on with beside each other.

use super::pace::Pace;
use crate::error::{Error, Result};
use crate::interrupt::interrupted;
use crate::progress;
use crate::reader::Reader;
use crate::writing::Writer;
use indicatif::ProgressBar;
use statescan_models::Sampler;
use std::time::Instant;

/// One text: what is left to read, and how it goes on.
pub(crate) struct Lane<'t> {
    /// The prompt, and after it each token that was drawn.
    input: Vec<u32>,
    read: usize,
    pub(crate) sampler: Sampler,
    pub(crate) writer: Writer<'t>,
    /// Tokens that may still be drawn.
    left: usize,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Prompt,
    Text,
    /// The token that ends the text is read, so that the state is that of all text.
    LastToken,
    Done,
}

impl<'t> Lane<'t> {
    /// A text that begins with a prompt and goes on by so many tokens at most.
    pub(crate) fn new(prompt: Vec<u32>, mut sampler: Sampler, writer: Writer<'t>, tokens: usize) -> Self {
        sampler.see(&prompt);
        Lane { input: prompt, read: 0, sampler, writer, left: tokens, stage: Stage::Prompt }
    }

    /// Writes the prompt.
    pub(crate) fn echo(&mut self, text: &[u8]) -> Result<()> {
        self.writer.echo(text, &self.input)
    }

    fn next(&self, most: usize) -> &[u32] {
        &self.input[self.read..self.input.len().min(self.read + most)]
    }

    /// Draws the next token, if the text does not end.
    fn go_on(&mut self, number: usize, reader: &Reader<'_>, eos: &[u32]) -> Result<()> {
        if self.left == 0 || self.stage == Stage::LastToken {
            self.stage = Stage::Done;
            return Ok(());
        }
        let token = reader.draw(number, &mut self.sampler)?.ok_or(statescan_models::Error::EmptyPrompt)?;
        if eos.contains(&token) {
            self.stage = Stage::Done;
            return Ok(());
        }
        let ends = self.writer.push(token, || reader.log_probability(number, token))?;
        (self.input, self.read, self.left) = (vec![token], 0, self.left - 1);
        self.stage = if ends { Stage::LastToken } else { Stage::Text };
        Ok(())
    }
}

/// How texts ended.
#[derive(Default)]
pub(crate) struct Ended {
    /// Speeds of prefill and of decoding.
    pub(crate) paces: [Pace; 2],
    /// Tokens of prompts that were not read, as somebody interrupted it.
    pub(crate) unread: usize,
}

impl Ended {
    /// Counts other texts too.
    pub(crate) fn add(&mut self, other: Ended) {
        for (pace, other) in self.paces.iter_mut().zip(other.paces) {
            pace.tokens += other.tokens;
            pace.time += other.time;
        }
        self.unread += other.unread;
    }
}

/// Reads the prompts and goes on with the texts until each has ended, or until somebody interrupts it. What was held back of a text is written at
/// its end.
pub(crate) fn run(reader: &mut Reader<'_>, lanes: &mut [Lane<'_>], eos: &[u32], quiet: bool) -> Result<Ended> {
    let bar = bar(lanes, reader, quiet);
    let mut paces = [Pace::default(); 2];
    if reader.texts() < lanes.len() {
        paces[0] = read_once(reader, lanes, &bar)?;
    }
    while lanes.iter().any(|lane| lane.stage != Stage::Done) && !interrupted() {
        let begin = Instant::now();
        let in_prompt = lanes.iter().any(|lane| lane.stage == Stage::Prompt);
        let parts = parts(lanes, in_prompt, reader.rows());
        reader.read(&parts)?;
        let counts: Vec<_> = parts.iter().map(|part| part.map_or(0, <[u32]>::len)).collect();
        for (lane, count) in lanes.iter_mut().zip(&counts) {
            lane.read += count;
            bar.inc(if lane.stage == Stage::Prompt { *count as u64 } else { 0 });
        }
        if in_prompt && lanes.iter().all(|lane| lane.stage != Stage::Prompt || lane.read == lane.input.len()) {
            // the text begins where the bar was
            bar.finish_and_clear();
        }
        for (number, lane) in lanes.iter_mut().enumerate() {
            if lane.read == lane.input.len() && lane.stage != Stage::Done {
                lane.go_on(number, reader, eos)?;
            }
        }
        let pace = &mut paces[usize::from(!in_prompt)];
        pace.tokens += counts.iter().sum::<usize>();
        pace.time += begin.elapsed();
    }
    bar.finish_and_clear();
    // text that was written before an interruption is read, too
    let written = |lane: &Lane<'_>| matches!(lane.stage, Stage::Text | Stage::LastToken);
    let parts: Vec<_> = lanes.iter().map(|lane| written(lane).then(|| lane.next(1))).collect();
    reader.read(&parts)?;
    lanes.iter_mut().try_for_each(|lane| lane.writer.finish())?;
    let unread = |lane: &Lane<'_>| if lane.stage == Stage::Prompt { lane.input.len() - lane.read } else { 0 };
    Ok(Ended { paces, unread: lanes.iter().map(unread).sum() })
}

/// Gives the tokens that each text reads in a pass of so many rows: as long as there are prompts, these one behind the other, for a text takes many tokens
/// in less time than many texts take one, and after them a token of each.
fn parts<'l>(lanes: &'l [Lane<'_>], in_prompt: bool, mut rows: usize) -> Vec<Option<&'l [u32]>> {
    let part = |lane: &'l Lane<'_>| {
        let part = if in_prompt && lane.stage != Stage::Prompt { &[] } else { lane.next(rows) };
        rows -= part.len();
        (lane.stage != Stage::Done).then_some(part)
    };
    lanes.iter().map(part).collect()
}

/// Reads the prompt that all texts begin with, and makes each a text of its own.
fn read_once(reader: &mut Reader<'_>, lanes: &mut [Lane<'_>], bar: &ProgressBar) -> Result<Pace> {
    let (begin, mut read) = (Instant::now(), 0);
    while read < lanes[0].input.len() && !interrupted() {
        let part = lanes[0].input[read..].iter().copied().take(reader.rows()).collect::<Vec<_>>();
        reader.read(&[Some(&part)])?;
        read += part.len();
        bar.inc((part.len() * lanes.len()) as u64);
    }
    reader.branch(lanes.len())?;
    lanes.iter_mut().for_each(|lane| lane.read = read);
    Ok(Pace { tokens: read, time: begin.elapsed() })
}

/// Refuses a prompt with tokens that the model does not have, before anything is read.
pub(crate) fn check(prompt: &[u32], vocab: usize) -> Result<()> {
    match prompt.iter().position(|&token| token as usize >= vocab) {
        None => Ok(()),
        Some(position) => Err(Error::Model(statescan_models::Error::Token { token: prompt[position], position, vocab })),
    }
}

/// How much of long prompts has been read, on a terminal.
fn bar(lanes: &[Lane<'_>], reader: &Reader<'_>, quiet: bool) -> ProgressBar {
    let tokens: usize = lanes.iter().map(|lane| lane.input.len()).sum();
    match quiet || tokens <= reader.rows() {
        true => ProgressBar::hidden(),
        false => progress::reading(reader.model(), "prefill: {pos} of {len} tokens, {rate} tokens/s, {left} left", tokens),
    }
}
