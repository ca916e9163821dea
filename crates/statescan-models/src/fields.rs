//! Settings of a `config.json`, with errors that name the file and the setting.

use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::LazyLock;

/// The largest size that a setting may give.
pub(crate) const LARGEST: u64 = 1 << 24;

/// Characters of a value that an error shows.
const SHOWN: usize = 60;

/// The settings of one object of a file.
pub(crate) struct Fields<'f> {
    pub(crate) path: &'f Path,
    map: &'f Map<String, Value>,
}

impl<'f> Fields<'f> {
    pub(crate) fn new(path: &'f Path, map: &'f Map<String, Value>) -> Self {
        Fields { path, map }
    }

    /// A setting; null counts as none.
    pub(crate) fn get(&self, key: &str) -> Option<&'f Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Whether there is such a setting, though it may be null.
    pub(crate) fn says(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The settings of an object among these, none where there is none.
    pub(crate) fn object(&self, key: &str) -> Fields<'f> {
        static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        Fields::new(self.path, self.get(key).and_then(Value::as_object).unwrap_or(&NONE))
    }

    /// The names of all settings.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'f str> {
        self.map.keys().map(String::as_str)
    }

    /// Refuses a setting that nothing here has.
    pub(crate) fn absent(&self, key: &'static str, expected: &'static str) -> Result<()> {
        if self.has(key) { Err(self.bad(key, expected)) } else { Ok(()) }
    }

    pub(crate) fn bad(&self, key: &'static str, expected: &'static str) -> Error {
        self.error(key, expected, "nothing".to_owned())
    }

    /// A value that does not fit, which may be that of a setting that is missing.
    pub(crate) fn unfit(&self, key: &'static str, expected: &'static str, value: usize) -> Error {
        self.error(key, expected, format!("nothing, which stands for {value}"))
    }

    fn error(&self, key: &'static str, expected: &'static str, missing: String) -> Error {
        let mut got = self.get(key).map_or(missing, Value::to_string);
        if let Some((end, _)) = got.char_indices().nth(SHOWN) {
            got.truncate(end);
            got.push_str("..");
        }
        Error::Config { path: self.path.to_owned(), key, expected, got }
    }

    /// A size, at least 1.
    pub(crate) fn size(&self, key: &'static str) -> Result<usize> {
        let size = self.get(key).and_then(Value::as_u64).filter(|size| (1..=LARGEST).contains(size));
        Ok(size.ok_or_else(|| self.bad(key, "an integer from 1 to 16777216"))? as usize)
    }

    pub(crate) fn size_or(&self, key: &'static str, default: usize) -> Result<usize> {
        if self.has(key) { self.size(key) } else { Ok(default) }
    }

    /// A width and a factor, 2 where none is given, which need not be whole; what they make is rounded down.
    pub(crate) fn expanded(&self, key: &'static str, width: usize) -> Result<usize> {
        let factor = self.get(key).map_or(Some(2.0), Value::as_f64);
        let expanded = factor.map(|factor| (factor * width as f64).floor()).filter(|size| (1.0..=LARGEST as f64).contains(size));
        Ok(expanded.ok_or_else(|| self.bad(key, "a factor that makes 1 to 16777216 channels of the width"))? as usize)
    }

    /// The rank of step sizes: a sixteenth of the width where it is `auto`.
    pub(crate) fn rank(&self, key: &'static str, dim: usize) -> Result<usize> {
        match self.get(key) {
            None => Ok(dim.div_ceil(16)),
            Some(value) if value == "auto" => Ok(dim.div_ceil(16)),
            Some(_) => self.size(key),
        }
    }

    pub(crate) fn flag(&self, key: &'static str, default: bool) -> Result<bool> {
        let read = |value: &Value| value.as_bool().ok_or_else(|| self.bad(key, "true or false"));
        self.get(key).map_or(Ok(default), read)
    }

    /// A flag that must have the one value that is implemented, which it has where nothing is said.
    pub(crate) fn only(&self, key: &'static str, value: bool) -> Result<()> {
        let expected = if value { "true" } else { "false" };
        if self.flag(key, value)? == value { Ok(()) } else { Err(self.bad(key, expected)) }
    }

    /// A small positive number.
    pub(crate) fn epsilon(&self, key: &'static str, default: f32) -> Result<f32> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let number = value.as_f64().filter(|x| *x >= 0.0 && *x < 1.0);
        number.map(|x| x as f32).ok_or_else(|| self.bad(key, "a number from 0 to 1"))
    }

    /// A number above zero.
    pub(crate) fn positive(&self, key: &'static str, default: f64) -> Result<f64> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_f64().filter(|x| *x > 0.0).ok_or_else(|| self.bad(key, "a number above zero"))
    }

    /// The lowest and the highest step.
    pub(crate) fn limits(&self, key: &'static str) -> Result<(f64, f64)> {
        let Some(value) = self.get(key) else { return Ok((0.0, f64::INFINITY)) };
        let ends = value.as_array().map(|ends| ends.iter().map(number).collect::<Vec<_>>());
        match ends.as_deref() {
            Some(&[Some(low), Some(high)]) if low <= high => Ok((low, high)),
            _ => Err(self.bad(key, "two numbers, the lowest and the highest step")),
        }
    }

    /// Tokens: one, several or none.
    pub(crate) fn tokens(&self, key: &'static str) -> Result<Vec<u32>> {
        let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
        let tokens = match self.get(key) {
            None => Some(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(token).collect(),
            Some(value) => token(value).map(|token| vec![token]),
        };
        tokens.ok_or_else(|| self.bad(key, "a token or a list of tokens"))
    }

    /// A word, which must be one of those.
    pub(crate) fn word(
        &self,
        key: &'static str,
        default: &'static str,
        words: &[&'static str],
        expected: &'static str,
    ) -> Result<&'static str> {
        let Some(value) = self.get(key) else { return Ok(default) };
        words.iter().find(|word| value == **word).copied().ok_or_else(|| self.bad(key, expected))
    }
}

/// A number, or one of those that JSON has no way to write.
fn number(value: &Value) -> Option<f64> {
    let named = value.get("__float__").and_then(Value::as_str);
    value.as_f64().or_else(|| named?.parse().ok()).filter(|x| !x.is_nan())
}

/// JSON with the numbers that Python writes and JSON does not have, `Infinity` and `NaN`, in the form that [`number`] reads.
pub(crate) fn standard_json(text: &str) -> String {
    let (mut out, mut rest, mut quoted) = (String::with_capacity(text.len()), text, false);
    while let Some(c) = rest.chars().next() {
        let name = ["-Infinity", "Infinity", "NaN"].into_iter().find(|name| !quoted && rest.starts_with(name));
        let taken = match name {
            Some(name) => {
                out.push_str(&format!("{{\"__float__\":\"{name}\"}}"));
                name.len()
            }
            None => {
                // an escaped character does not end a string
                let escaped = if quoted && c == '\\' { rest[1..].chars().next().map_or(0, char::len_utf8) } else { 0 };
                quoted ^= c == '"';
                out.push_str(&rest[..c.len_utf8() + escaped]);
                c.len_utf8() + escaped
            }
        };
        rest = &rest[taken..];
    }
    out
}
