//! From tokens to what is printed: text that ends at stop strings and cannot command a terminal, or JSON.

use crate::error::{Error, Result};
use crate::output::{self, say};
use crate::text::escaped;
use serde_json::json;
use statescan_models::{Decoder, Tokenizer};
use std::io::{IsTerminal, stdout};

/// The destination of text.
pub(crate) enum Sink {
    /// Standard output; to a terminal as Unicode without commands.
    Output(Option<Unicode>),
    /// Standard output, as [`Sink::Output`], and the text is kept too.
    Both(Option<Unicode>, Vec<u8>),
    /// Kept.
    Kept(Vec<u8>),
    /// A JSON object for each token, with the number of the text, and what it is a number of, where there are several.
    Json(Option<(&'static str, usize)>, Unicode),
}

impl Sink {
    pub(crate) fn output() -> Self {
        Sink::Output(stdout().is_terminal().then(Unicode::default))
    }

    pub(crate) fn both() -> Self {
        Sink::Both(stdout().is_terminal().then(Unicode::default), Vec::new())
    }

    fn write(&mut self, text: &[u8]) -> Result<()> {
        match self {
            Sink::Output(None) => output::bytes(text),
            Sink::Output(Some(unicode)) => output::bytes(harmless(&unicode.push(text)).as_bytes()),
            Sink::Both(unicode, kept) => {
                kept.extend_from_slice(text);
                match unicode {
                    None => output::bytes(text),
                    Some(unicode) => output::bytes(harmless(&unicode.push(text)).as_bytes()),
                }
            }
            Sink::Kept(kept) => {
                kept.extend_from_slice(text);
                Ok(())
            }
            Sink::Json(..) => Ok(()),
        }
    }
}

/// Writes one text.
pub(crate) struct Writer<'t> {
    tokenizer: &'t Tokenizer,
    decoder: Decoder<'t>,
    stops: Stops,
    pub(crate) sink: Sink,
}

impl<'t> Writer<'t> {
    /// Text of a tokenizer that ends before any of the stop strings.
    pub(crate) fn new(tokenizer: &'t Tokenizer, stops: &[String], sink: Sink) -> Result<Self> {
        Ok(Writer { tokenizer, decoder: tokenizer.decoder(), stops: Stops::new(stops)?, sink })
    }

    /// A prompt, in which no stop string counts: its text, or its tokens in JSON.
    pub(crate) fn echo(&mut self, text: &[u8], tokens: &[u32]) -> Result<()> {
        let mut decoder = self.tokenizer.decoder();
        tokens.iter().try_for_each(|&token| self.json(token, &decoder.push(token), || None))?;
        self.sink.write(text)
    }

    /// A JSON object, where that is what is written.
    fn json(&mut self, token: u32, text: &[u8], logprob: impl FnOnce() -> Option<f64>) -> Result<()> {
        let Sink::Json(number, unicode) = &mut self.sink else { return Ok(()) };
        let mut object = json!({"token": token, "text": unicode.push(text), "logprob": logprob()});
        if let Some((of, number)) = number {
            object[*of] = json!(number);
        }
        say!("{object}")
    }

    /// One more token and the logarithm of its probability, which JSON asks for; whether the text ends with it.
    pub(crate) fn push(&mut self, token: u32, logprob: impl FnOnce() -> Option<f64>) -> Result<bool> {
        let text = self.decoder.push(token);
        self.json(token, &text, logprob)?;
        // a token that is no text to a reader, such as <|im_end|>, ends it all the same
        let (text, ends) = match self.tokenizer.special(token) {
            Some(name) => self.stops.push(name.as_bytes(), false),
            None => self.stops.push(&text, true),
        };
        self.sink.write(&text)?;
        Ok(ends)
    }

    /// Writes the text that was held back, where it ends otherwise.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let (mut rest, ends) = self.stops.push(&self.decoder.rest(), true);
        if !ends {
            rest.append(&mut self.stops.take(self.stops.held.len()));
        }
        self.sink.write(&rest)?;
        match &mut self.sink {
            Sink::Output(Some(unicode)) | Sink::Both(Some(unicode), _) => output::bytes(unicode.finish().as_bytes()),
            _ => Ok(()),
        }
    }
}

/// Strings that end a text.
struct Stops {
    strings: Vec<Vec<u8>>,
    /// Text that one of them may begin with.
    held: Vec<u8>,
    /// Which bytes of it are written: those of special tokens are not.
    shown: Vec<bool>,
}

impl Stops {
    fn new(strings: &[String]) -> Result<Self> {
        match strings.iter().any(String::is_empty) {
            true => Err(Error::Usage { option: "--stop", expected: "a text", got: String::new() }),
            false => {
                let strings = strings.iter().map(|stop| stop.clone().into_bytes()).collect();
                Ok(Stops { strings, held: Vec::new(), shown: Vec::new() })
            }
        }
    }

    /// Returns the text that is certain to be before any stop string, and whether one came.
    fn push(&mut self, text: &[u8], shown: bool) -> (Vec<u8>, bool) {
        self.held.extend_from_slice(text);
        self.shown.resize(self.held.len(), shown);
        let find = |stop: &Vec<u8>| self.held.windows(stop.len()).position(|part| part == stop);
        if let Some(at) = self.strings.iter().filter_map(find).min() {
            let before = self.take(at);
            self.take(self.held.len());
            return (before, true);
        }
        let begins = |from: &usize| self.strings.iter().any(|stop| stop.starts_with(&self.held[*from..]));
        let certain = (0..self.held.len()).find(begins).unwrap_or(self.held.len());
        (self.take(certain), false)
    }

    /// Takes so many bytes away, and gives those that are written.
    fn take(&mut self, count: usize) -> Vec<u8> {
        let shown = self.shown.drain(..count);
        self.held.drain(..count).zip(shown).filter_map(|(byte, shown)| shown.then_some(byte)).collect()
    }
}

/// Bytes as they come, as Unicode.
#[derive(Default)]
pub(crate) struct Unicode {
    /// A character that is not whole yet.
    held: Vec<u8>,
}

impl Unicode {
    /// Whole characters; what can be none is U+FFFD.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.held) {
                Ok(all) => {
                    text.push_str(all);
                    self.held.clear();
                    return text;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.held[..valid]));
                    let Some(length) = error.error_len() else {
                        self.held.drain(..valid);
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.held.drain(..valid + length);
                }
            }
        }
    }

    /// Returns the rest, which is no character.
    fn finish(&mut self) -> String {
        let rest = if self.held.is_empty() { String::new() } else { char::REPLACEMENT_CHARACTER.to_string() };
        self.held.clear();
        rest
    }
}

/// Text without characters that a terminal would obey, but for ends of lines and tabs.
pub(crate) fn harmless(text: &str) -> String {
    let kept = ['\n', '\t'];
    text.split_inclusive(kept)
        .map(|part| escaped(part.trim_end_matches(kept)) + &part[part.trim_end_matches(kept).len()..])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops(strings: &[&str]) -> Stops {
        Stops::new(&strings.iter().map(|stop| stop.to_string()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn text_ends_before_the_first_stop_string_however_it_comes() {
        let text = b"one\n\ntwo. three";
        for (strings, expected) in
            [(&["two."][..], "one\n\n"), (&["three", "\n\n"], "one"), (&["e\n", "\n\n"], "on"), (&["x"], "")]
        {
            for size in 1..text.len() {
                let (mut stops, mut got) = (stops(strings), Vec::new());
                let ended = text.chunks(size).any(|part| {
                    let (text, ends) = stops.push(part, true);
                    got.extend(text);
                    ends
                });
                assert_eq!(ended, !expected.is_empty());
                let expected = if ended { expected.as_bytes() } else { &text[..] };
                assert_eq!(got, expected, "{strings:?} in parts of {size}");
            }
        }
        assert!(Stops::new(&[String::new()]).is_err());
    }

    #[test]
    fn special_tokens_end_a_text_and_are_not_written() {
        let mut stops = stops(&["<end>", "x<sep>y"]);
        let parts = [("a", true), ("<sep>", false), ("x", true), ("<sep>", false), ("z", true), ("<end>", false)];
        let written: Vec<_> = parts.iter().map(|(text, shown)| stops.push(text.as_bytes(), *shown)).collect();
        let said = |text: &str, ends| (text.as_bytes().to_vec(), ends);
        assert_eq!(
            written,
            [said("a", false), said("", false), said("", false), said("", false), said("xz", false), said("", true)]
        );
    }

    #[test]
    fn characters_come_whole() {
        let mut unicode = Unicode::default();
        let parts = ["é€".as_bytes(), b"\xff", b"\xe2\x82"].concat();
        let text: String = parts.iter().map(|&byte| unicode.push(&[byte])).collect();
        assert_eq!((text.as_str(), unicode.finish().as_str()), ("é€\u{fffd}", "\u{fffd}"));
        assert_eq!(unicode.finish(), "");
    }

    #[test]
    fn terminals_get_no_commands() {
        assert_eq!(harmless("a\u{1b}[2J\n\tb\r\u{9b}\u{7f}é"), "a\\u{1b}[2J\n\tb\\r\\u{9b}\\u{7f}é");
    }
}
