//! [`Tokenizer`]: text to tokens and back.

use crate::error::{Error, Result};
use crate::files::is_there;
use std::marker::PhantomData;
use std::path::Path;

const FILE: &str = "tokenizer.json";

/// What text is to a model: the tokens of its folder's `tokenizer.json`, or the bytes of the text where there is none.
pub struct Tokenizer {
    #[cfg(feature = "tokenizers")]
    file: Option<(std::path::PathBuf, Box<tokenizers::Tokenizer>)>,
}

impl Tokenizer {
    /// Bytes as tokens.
    pub fn bytes() -> Self {
        Tokenizer {
            #[cfg(feature = "tokenizers")]
            file: None,
        }
    }

    /// Whether tokens are bytes.
    pub fn is_bytes(&self) -> bool {
        #[cfg(feature = "tokenizers")]
        return self.file.is_none();
        #[cfg(not(feature = "tokenizers"))]
        true
    }

    /// The tokenizer of a model's folder.
    ///
    /// # Errors
    /// A `tokenizer.json` that cannot be read, or that this build cannot read because it lacks the feature `tokenizers`.
    pub fn load(folder: impl AsRef<Path>) -> Result<Self> {
        let path = folder.as_ref().join(FILE);
        if !is_there(&path) {
            return Ok(Self::bytes());
        }
        Self::of_file(path)
    }

    #[cfg(feature = "tokenizers")]
    fn of_file(path: std::path::PathBuf) -> Result<Self> {
        match tokenizers::Tokenizer::from_bytes(crate::files::read(&path)?) {
            Ok(tokenizer) => Ok(Tokenizer { file: Some((path, Box::new(tokenizer))) }),
            Err(error) => Err(Error::Tokenizer { path, why: format!("it is not a tokenizer: {error}") }),
        }
    }

    #[cfg(not(feature = "tokenizers"))]
    fn of_file(path: std::path::PathBuf) -> Result<Self> {
        let why = "this build cannot read it, as it lacks the feature `tokenizers` (cargo build --release --features tokenizers)"
            .into();
        Err(Error::Tokenizer { path, why })
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// Text that the tokenizer of the folder refuses, or bytes that are no text where it needs text.
    pub fn encode(&self, text: &[u8]) -> Result<Vec<u32>> {
        #[cfg(feature = "tokenizers")]
        if let Some((path, tokenizer)) = &self.file {
            let bad = |why: String| Error::Tokenizer { path: path.clone(), why };
            let text = std::str::from_utf8(text).map_err(|error| bad(format!("the text is not UTF-8: {error}")))?;
            let encoding = tokenizer.encode_fast(text, false).map_err(|error| bad(error.to_string()))?;
            return Ok(encoding.get_ids().to_vec());
        }
        Ok(text.iter().map(|&byte| u32::from(byte)).collect())
    }

    /// The text of tokens that follow one another, as far as it is certain: a character of several tokens comes with the last one.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder {
            #[cfg(feature = "tokenizers")]
            file: self.file.as_ref().map(|(_, tokenizer)| Words { tokenizer, tokens: Vec::new(), given: 0 }),
            tokenizer: PhantomData,
        }
    }
}

/// Text of tokens, one after the other.
pub struct Decoder<'t> {
    #[cfg(feature = "tokenizers")]
    file: Option<Words<'t>>,
    tokenizer: PhantomData<&'t Tokenizer>,
}

impl Decoder<'_> {
    /// What one more token adds to the text; tokens beyond bytes add nothing where text is bytes.
    pub fn push(&mut self, token: u32) -> Vec<u8> {
        #[cfg(feature = "tokenizers")]
        if let Some(words) = &mut self.file {
            return words.push(token);
        }
        u8::try_from(token).map_or(Vec::new(), |byte| vec![byte])
    }

    /// What is left where the text ends: a character that lacks its last token.
    pub fn rest(&mut self) -> Vec<u8> {
        #[cfg(feature = "tokenizers")]
        if let Some(words) = &mut self.file {
            return words.rest();
        }
        Vec::new()
    }
}

#[cfg(feature = "tokenizers")]
struct Words<'t> {
    tokenizer: &'t tokenizers::Tokenizer,
    /// The tokens of the text that may still change.
    tokens: Vec<u32>,
    /// Bytes of their text that were given out.
    given: usize,
}

#[cfg(feature = "tokenizers")]
impl Words<'_> {
    /// The text of the tokens that are kept; a token that the tokenizer does not know is left out.
    fn text(&self) -> String {
        self.tokenizer.decode(&self.tokens, true).unwrap_or_default()
    }

    fn push(&mut self, token: u32) -> Vec<u8> {
        self.tokens.push(token);
        let all = self.text();
        if all.len() <= self.given || all.ends_with('\u{fffd}') {
            return Vec::new();
        }
        let new = all.as_bytes()[self.given..].to_vec();
        // the text of a token can depend on the one before it, so the last two are kept
        let first = self.tokens.len().saturating_sub(2);
        self.tokens.drain(..first);
        self.given = self.text().len();
        new
    }

    fn rest(&mut self) -> Vec<u8> {
        let rest = self.text().as_bytes().get(self.given..).unwrap_or_default().to_vec();
        self.tokens.clear();
        self.given = 0;
        rest
    }
}
