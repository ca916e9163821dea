//! [`Tokenizer`]: text to tokens and back.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::files::is_there;
use std::marker::PhantomData;
use std::path::Path;

const FILE: &str = "tokenizer.json";

/// Tokens that bytes are.
const BYTES: usize = 256;

/// The map between text and tokens: the tokens of a folder's `tokenizer.json`, or the bytes of the text where there is none.
pub struct Tokenizer {
    #[cfg(feature = "tokenizers")]
    file: Option<Box<file::File>>,
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

    /// The tokenizer of a folder, as `transformers` uses it: truncation and padding in `tokenizer.json` are ignored. Without such
    /// a file text is bytes, if the model of the folder has a vocabulary of no more than those.
    ///
    /// # Errors
    /// A `tokenizer.json` that cannot be read, or that this build cannot read because it lacks the feature `tokenizers`; none beside a larger vocabulary,
    /// or in a folder without a model.
    pub fn load(folder: impl AsRef<Path>) -> Result<Self> {
        let (folder, path) = (folder.as_ref(), folder.as_ref().join(FILE));
        if is_there(&path) {
            return Self::of_file(folder, path);
        }
        if !is_there(folder) {
            return Err(Error::NoFolder { path: folder.to_owned() });
        }
        let vocab = if is_there(&folder.join(crate::config::FILE)) { Some(Config::load(folder)?.vocab) } else { None };
        match vocab {
            Some(..=BYTES) => Ok(Self::bytes()),
            Some(vocab) => Err(Error::NoTokenizer {
                path: folder.to_owned(),
                beside: format!(", and the {vocab} tokens of its model are not bytes"),
            }),
            None => Err(Error::NoTokenizer { path: folder.to_owned(), beside: String::new() }),
        }
    }

    #[cfg(feature = "tokenizers")]
    fn of_file(folder: &Path, path: std::path::PathBuf) -> Result<Self> {
        Ok(Tokenizer { file: Some(Box::new(file::File::open(folder, path)?)) })
    }

    #[cfg(not(feature = "tokenizers"))]
    fn of_file(_: &Path, path: std::path::PathBuf) -> Result<Self> {
        let why = "this build cannot read it, as it lacks the feature `tokenizers` (cargo build --release --features tokenizers)"
            .into();
        Err(Error::Tokenizer { path, why })
    }

    /// The tokens of a text and no others, as of a part of a longer one.
    ///
    /// # Errors
    /// Text that the tokenizer of the folder refuses, or bytes that are no text where it needs text.
    pub fn encode(&self, text: &[u8]) -> Result<Vec<u32>> {
        self.tokens(text, false)
    }

    /// The tokens of a whole text with those that the tokenizer of the folder adds to it, such as one that says where it begins: what `transformers` gives for it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_whole(&self, text: &[u8]) -> Result<Vec<u32>> {
        self.tokens(text, true)
    }

    #[cfg_attr(not(feature = "tokenizers"), allow(unused_variables))]
    fn tokens(&self, text: &[u8], whole: bool) -> Result<Vec<u32>> {
        #[cfg(feature = "tokenizers")]
        if let Some(file) = &self.file {
            return file.encode(text, whole);
        }
        crate::memory::check("the tokens of this text", text.len().saturating_mul(4))?;
        Ok(text.iter().map(|&byte| u32::from(byte)).collect())
    }

    /// Returns the name of a token that is part of no text, such as `<|im_end|>`.
    #[cfg_attr(not(feature = "tokenizers"), allow(unused_variables))]
    pub fn special(&self, token: u32) -> Option<&str> {
        #[cfg(feature = "tokenizers")]
        return self.file.as_ref()?.special.get(&token).map(String::as_str);
        #[cfg(not(feature = "tokenizers"))]
        None
    }

    /// The text of tokens that follow one another, as far as it is certain: a character of several tokens comes with the last one.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder {
            #[cfg(feature = "tokenizers")]
            file: self.file.as_ref().map(|file| file::Words::new(&file.tokenizer)),
            tokenizer: PhantomData,
        }
    }
}

/// Text of tokens, one after the other.
pub struct Decoder<'t> {
    #[cfg(feature = "tokenizers")]
    file: Option<file::Words<'t>>,
    tokenizer: PhantomData<&'t Tokenizer>,
}

impl Decoder<'_> {
    /// Returns the bytes that one more token adds to the text; tokens beyond bytes add nothing where text is bytes.
    pub fn push(&mut self, token: u32) -> Vec<u8> {
        #[cfg(feature = "tokenizers")]
        if let Some(words) = &mut self.file {
            return words.push(token);
        }
        u8::try_from(token).map_or(Vec::new(), |byte| vec![byte])
    }

    /// Returns the bytes that are left where the text ends: a character that lacks its last token.
    pub fn rest(&mut self) -> Vec<u8> {
        #[cfg(feature = "tokenizers")]
        if let Some(words) = &mut self.file {
            return words.rest();
        }
        Vec::new()
    }
}

#[cfg(feature = "tokenizers")]
mod file {
    use crate::chat::settings;
    use crate::error::{Error, Result};
    use crate::guard::guarded;
    use std::collections::HashMap;
    use std::path::{Path, PathBuf};
    use tokenizers::Tokenizer;

    /// Classes of `transformers` that make a tokenizer of their own from the vocabulary, which adds nothing to a text.
    const ADD_NOTHING: [&str; 2] = ["GPTNeoXTokenizer", "GPTNeoXTokenizerFast"];

    /// A `tokenizer.json`.
    pub(super) struct File {
        path: PathBuf,
        pub(super) tokenizer: Tokenizer,
        /// Tokens that are part of no text, and what they are called.
        pub(super) special: HashMap<u32, String>,
        /// Whether the post-processor's tokens belong to a text.
        adds: bool,
    }

    impl File {
        pub(super) fn open(folder: &Path, path: PathBuf) -> Result<Self> {
            let bad = |error: tokenizers::Error| Error::Tokenizer {
                path: path.clone(),
                why: format!("it is not a tokenizer: {error}"),
            };
            let bytes = crate::files::read(&path)?;
            let failed = |why: String| Error::Tokenizer { path: path.clone(), why };
            let mut tokenizer = guarded(|| Tokenizer::from_bytes(bytes)).map_err(failed)?.map_err(bad)?;
            // whoever saved it may have left there what was right for one call
            tokenizer.with_truncation(None).map_err(bad)?.with_padding(None);
            let special = tokenizer.get_added_tokens_decoder().into_iter().filter(|(_, token)| token.special);
            let special = special.map(|(number, token)| (number, token.content)).collect();
            let adds = settings(folder)?["tokenizer_class"].as_str().is_none_or(|class| !ADD_NOTHING.contains(&class));
            Ok(File { path, tokenizer, special, adds })
        }

        pub(super) fn encode(&self, text: &[u8], whole: bool) -> Result<Vec<u32>> {
            let text = std::str::from_utf8(text).map_err(|error| Error::NotText { at: error.valid_up_to() })?;
            let bad = |error: tokenizers::Error| Error::Tokenizer { path: self.path.clone(), why: error.to_string() };
            let failed = |why: String| Error::Tokenizer { path: self.path.clone(), why };
            let encoding = guarded(|| self.tokenizer.encode_fast(text, whole && self.adds)).map_err(failed)?.map_err(bad)?;
            Ok(encoding.get_ids().to_vec())
        }
    }

    /// Text of tokens as it becomes certain.
    pub(super) struct Words<'t> {
        tokenizer: &'t Tokenizer,
        /// The tokens of the text that may still change.
        tokens: Vec<u32>,
        /// Bytes of their text that were given out.
        given: usize,
    }

    impl<'t> Words<'t> {
        pub(super) fn new(tokenizer: &'t Tokenizer) -> Self {
            Words { tokenizer, tokens: Vec::new(), given: 0 }
        }

        /// The text of the tokens that are kept; a token that the tokenizer does not know is left out.
        fn text(&self) -> String {
            guarded(|| self.tokenizer.decode(&self.tokens, true)).ok().and_then(Result::ok).unwrap_or_default()
        }

        pub(super) fn push(&mut self, token: u32) -> Vec<u8> {
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

        pub(super) fn rest(&mut self) -> Vec<u8> {
            let rest = self.text().as_bytes().get(self.given..).unwrap_or_default().to_vec();
            self.tokens.clear();
            self.given = 0;
            rest
        }
    }
}
