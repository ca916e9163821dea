//! Jinja as `transformers` sets it up for chat templates.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use std::fmt::Write;

/// Steps that a template may take.
const FUEL: u64 = 10_000_000;

/// An environment with what templates of `transformers` may call.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("delimiters are the usual ones"));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |why: String| -> Result<String, Error> { Err(refusal(why)) });
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    // none can be iterated over there, and texts are no sequences
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String));
    // a template that never ends is refused, too
    environment.set_fuel(Some(FUEL));
    environment
}

fn refusal(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

/// A template whose blocks of `{% generation %}`, which mark what a model said for trainers, are blocks that only have a scope of their own.
pub(super) fn without_generation(template: &str) -> String {
    let mut text = String::with_capacity(template.len());
    for (number, part) in template.split("{%").enumerate() {
        if number > 0 {
            text.push_str("{%");
        }
        let inner = part.trim_start_matches(['-', '+']).trim_start();
        let word: String = inner.chars().take_while(char::is_ascii_alphabetic).collect();
        let rest = &inner[word.len()..];
        let ends = rest.trim_start().trim_start_matches(['-', '+']).starts_with("%}");
        match (&word[..], ends) {
            ("generation", true) => text += &format!("{}with{rest}", &part[..part.len() - inner.len()]),
            ("endgeneration", true) => text += &format!("{}endwith{rest}", &part[..part.len() - inner.len()]),
            _ => text.push_str(part),
        }
    }
    text
}

/// The time now and here, as C's `strftime` writes it.
fn strftime_now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now()).map_err(|error| refusal(error.to_string()))
}

/// JSON as Python's `json.dumps` writes it with `ensure_ascii=False`: keys in the order that they have, no escapes but those that JSON needs.
fn tojson(state: &State<'_, '_>, value: &Value, indent: Option<Value>, options: Kwargs) -> Result<String, Error> {
    let indent = indent.or(options.get("indent")?).filter(|indent| !indent.is_none());
    let [ascii, sorted] = ["ensure_ascii", "sort_keys"].map(|name| options.get::<Option<bool>>(name));
    let (ascii, sorted) = (ascii?.unwrap_or(false), sorted?.unwrap_or(false));
    let separators: Option<[String; 2]> = match options.get::<Option<Vec<String>>>("separators")? {
        None => None,
        Some(two) => Some(two.try_into().map_err(|_| refusal("`separators` of tojson must be two texts"))?),
    };
    options.assert_all_used()?;
    let indent = indent.map(usize::try_from).transpose()?;
    let [item, key] = separators.unwrap_or_else(|| [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned));
    let mut json = Json { text: String::new(), indent, item, key, ascii, sorted };
    json.value(value, 0)?;
    // as for all text that a template makes, 64 bytes of which are a step
    state.consume_fuel((json.text.len() / 64) as u64)?;
    Ok(json.text)
}

/// Lists and dictionaries in one another that are written at most.
const DEEPEST: usize = 200;

struct Json {
    text: String,
    /// Spaces by which a level is indented; one line if none.
    indent: Option<usize>,
    item: String,
    key: String,
    ascii: bool,
    sorted: bool,
}

impl Json {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEEPEST {
            return Err(refusal(format!("tojson writes {DEEPEST} levels at most")));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => write!(self.text, "{value}").map_err(|error| refusal(error.to_string()))?,
            ValueKind::String => self.string(value),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                self.all('[', ']', &items, depth, |json, item| json.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                if self.sorted {
                    keys.sort();
                }
                self.all('{', '}', &keys, depth, |json, key| {
                    json.string(key);
                    json.text.push_str(&json.key.clone());
                    json.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            kind => return Err(refusal(format!("tojson cannot write what is {kind}"))),
        }
        Ok(())
    }

    /// Writes the items between brackets.
    fn all(
        &mut self,
        begin: char,
        end: char,
        items: &[Value],
        depth: usize,
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.text.push(begin);
        for (number, item) in items.iter().enumerate() {
            if number > 0 {
                self.text.push_str(&self.item.clone());
            }
            self.line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.text.push(end);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(' ', indent.saturating_mul(depth).min(1 << 10)));
        }
    }

    fn string(&mut self, value: &Value) {
        let text = serde_json::Value::String(value.to_string()).to_string();
        match self.ascii {
            false => self.text.push_str(&text),
            true => self.text.extend(text.chars().map(escaped_beyond_ascii)),
        }
    }
}

/// A character, or the UTF-16 of one beyond ASCII as JSON escapes it.
fn escaped_beyond_ascii(character: char) -> String {
    match character.is_ascii() {
        true => character.to_string(),
        false => character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
    }
}
