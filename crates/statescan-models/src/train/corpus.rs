//! [`Corpus`]: what is learned from, and what is held out.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::score::Tokens;
use std::ops::Range;

/// Tokens, of which those that are bytes take one.
#[derive(Debug, Clone, PartialEq)]
enum Text {
    Bytes(Vec<u8>),
    Tokens(Vec<u32>),
}

/// A text, as bytes or as tokens, to be learned but for its last tenth, which is held out; or to be learned whole, where another text is held out.
#[derive(Debug, Clone, PartialEq)]
pub struct Corpus {
    text: Text,
    validation: Option<Text>,
}

impl From<Vec<u8>> for Corpus {
    fn from(bytes: Vec<u8>) -> Self {
        Corpus { text: Text::Bytes(bytes), validation: None }
    }
}

impl From<&[u8]> for Corpus {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl From<Vec<u32>> for Corpus {
    fn from(tokens: Vec<u32>) -> Self {
        Corpus { text: Text::Tokens(tokens), validation: None }
    }
}

impl Corpus {
    /// Returns this text as one that is learned whole, with another corpus as the held-out set.
    #[must_use]
    pub fn validated_by(self, validation: impl Into<Corpus>) -> Self {
        Corpus { validation: Some(validation.into().text), ..self }
    }

    /// As bytes where a vocabulary is that of bytes, and as tokens where it is not.
    pub(super) fn of(self, vocab: usize) -> Self {
        Corpus { text: self.text.of(vocab), validation: self.validation.map(|text| text.of(vocab)) }
    }

    /// Returns the range that is learned: all but the last tenth, where that is held out.
    pub(super) fn learned(&self) -> Range<usize> {
        match &self.validation {
            None => 0..self.text.len() - self.text.len() / 10,
            Some(_) => 0..self.text.len(),
        }
    }

    /// Returns the text that has the held-out set, and the range of it.
    pub(super) fn held_out(&self) -> (&dyn Tokens, Range<usize>) {
        match &self.validation {
            None => (&self.text, self.learned().end..self.text.len()),
            Some(text) => (text, 0..text.len()),
        }
    }

    /// Whether the last tenth of the text is held out.
    pub(super) fn is_divided(&self) -> bool {
        self.validation.is_none()
    }

    /// Tokens of the text that is learned.
    pub(super) fn part(&self, range: Range<usize>) -> Vec<u32> {
        self.text.part(range)
    }

    /// Returns the name of its elements.
    pub(super) fn unit(&self) -> &'static str {
        self.text.unit()
    }

    /// Returns a text that tells one corpus from another.
    pub(super) fn mark(&self) -> String {
        let validation = self.validation.iter().map(|text| format!(", held out {}", text.mark()));
        self.text.mark() + &validation.collect::<String>()
    }

    /// Refuses texts that are too short for rows of a length, and tokens that a vocabulary does not have.
    pub(super) fn check(&self, config: &Config, seqlen: usize) -> Result<()> {
        let (least, got) = (10 * (seqlen + 2), self.text.len());
        if self.is_divided() && got < least {
            return Err(Error::TooShort { least, unit: self.unit(), got });
        }
        if got < seqlen + 2 {
            return Err(Error::Training { setting: "text", expected: "longer than a row", got: got as f64 });
        }
        if let Some(text) = self.validation.as_ref().filter(|text| text.len() < 2) {
            let (expected, got) = ("at least two tokens long", text.len() as f64);
            return Err(Error::Training { setting: "validation", expected, got });
        }
        [&self.text].into_iter().chain(&self.validation).try_for_each(|text| text.check(config))
    }
}

impl Text {
    fn of(self, vocab: usize) -> Self {
        match self {
            Text::Tokens(tokens) if vocab == 256 && tokens.iter().all(|&token| token < 256) => {
                Text::Bytes(tokens.into_iter().map(|token| token as u8).collect())
            }
            Text::Bytes(bytes) if vocab != 256 => Text::Tokens(bytes.into_iter().map(u32::from).collect()),
            other => other,
        }
    }

    fn unit(&self) -> &'static str {
        match self {
            Text::Bytes(_) => "byte",
            Text::Tokens(_) => "token",
        }
    }

    /// Its length, and a sum of its elements that depends on their order (FNV-1a).
    fn mark(&self) -> String {
        let add = |sum: u64, element: u64| (sum ^ element).wrapping_mul(0x100_0000_01b3);
        let start = 0xcbf2_9ce4_8422_2325u64;
        let sum = match self {
            Text::Bytes(bytes) => bytes.iter().fold(start, |sum, &byte| add(sum, u64::from(byte))),
            Text::Tokens(tokens) => tokens.iter().fold(start, |sum, &token| add(sum, u64::from(token))),
        };
        format!("{} {}s, {sum:016x}", self.len(), self.unit())
    }

    fn check(&self, config: &Config) -> Result<()> {
        match self {
            Text::Tokens(tokens) => config.check_tokens(tokens),
            // a vocabulary of 256 is that of bytes
            Text::Bytes(_) => Ok(()),
        }
    }
}

impl Tokens for Text {
    fn len(&self) -> usize {
        match self {
            Text::Bytes(bytes) => bytes.len(),
            Text::Tokens(tokens) => tokens.len(),
        }
    }

    fn part(&self, range: Range<usize>) -> Vec<u32> {
        match self {
            Text::Bytes(bytes) => bytes[range].iter().map(|&byte| u32::from(byte)).collect(),
            Text::Tokens(tokens) => tokens[range].to_vec(),
        }
    }
}
