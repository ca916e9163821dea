//! The options of a call, read by kind.

use crate::call::Call;
use crate::error::{Error, Result};
use serde_json::Value;

impl Call {
    fn bad(&self, option: &str, expected: &'static str, got: &Value) -> Error {
        Error::OptionValue { op: self.op.name(), option: option.to_string(), expected, got: got.to_string() }
    }

    fn option(&self, name: &str) -> Option<&Value> {
        self.options.get(name).filter(|v| !v.is_null())
    }

    /// A flag; false where it is not given.
    ///
    /// # Errors
    /// [`Error::OptionValue`].
    pub fn flag(&self, name: &str) -> Result<bool> {
        self.flag_or(name, false)
    }

    /// A flag with another default.
    ///
    /// # Errors
    /// [`Error::OptionValue`].
    pub fn flag_or(&self, name: &str, default: bool) -> Result<bool> {
        self.option(name).map_or(Ok(default), |v| v.as_bool().ok_or_else(|| self.bad(name, "true or false", v)))
    }

    /// A count.
    ///
    /// # Errors
    /// [`Error::OptionValue`].
    pub fn count(&self, name: &str) -> Result<Option<usize>> {
        let read = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
        self.option(name).map(|v| read(v).ok_or_else(|| self.bad(name, "a whole number", v))).transpose()
    }

    /// An interval; `"inf"` and `"-inf"` are its infinite ends.
    ///
    /// # Errors
    /// [`Error::OptionValue`].
    pub fn interval(&self, name: &str) -> Result<Option<(f64, f64)>> {
        let end = |v: &Value| match v {
            Value::String(word) => word.parse().ok(),
            other => other.as_f64(),
        };
        let read = |v: &Value| match v.as_array().map(Vec::as_slice) {
            Some([low, high]) => end(low).zip(end(high)),
            _ => None,
        };
        self.option(name).map(|v| read(v).ok_or_else(|| self.bad(name, "two numbers, low and high", v))).transpose()
    }

    /// A word.
    ///
    /// # Errors
    /// [`Error::OptionValue`].
    pub fn word(&self, name: &str) -> Result<Option<&str>> {
        self.option(name).map(|v| v.as_str().ok_or_else(|| self.bad(name, "a word", v))).transpose()
    }

    /// A word that means a value.
    ///
    /// # Errors
    /// [`Error::OptionValue`].
    pub fn parsed<T: std::str::FromStr>(&self, name: &str, expected: &'static str, default: T) -> Result<T> {
        match (self.word(name)?, self.option(name)) {
            (Some(word), Some(value)) => word.parse().map_err(|_| self.bad(name, expected, value)),
            _ => Ok(default),
        }
    }
}
