//! [`ChatTemplate`]: how what people and models say becomes the text that a model was trained on.

use crate::error::{Error, Result};
use crate::files::{is_there, read_text};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What somebody says.
#[derive(Debug, Clone, Copy)]
pub struct Message<'m> {
    /// Who: `system`, `user` or `assistant`, as most templates have it.
    pub role: &'m str,
    /// What.
    pub content: &'m str,
}

/// The template of a model's folder, in Jinja's language: `chat_template.jinja`, or the `chat_template` of `tokenizer_config.json`.
pub struct ChatTemplate {
    #[cfg(feature = "templates")]
    environment: minijinja::Environment<'static>,
    /// Special tokens by their names, such as `bos_token`.
    #[cfg(feature = "templates")]
    tokens: Vec<(String, String)>,
    path: PathBuf,
}

impl ChatTemplate {
    /// The template of a folder, or none where it has none.
    ///
    /// # Errors
    /// Files that cannot be read, a template that is none, or that this build cannot read because it lacks the feature `templates`.
    pub fn load(folder: impl AsRef<Path>) -> Result<Option<Self>> {
        let [alone, config] = ["chat_template.jinja", "tokenizer_config.json"].map(|name| folder.as_ref().join(name));
        let mut settings = Value::Null;
        if is_there(&config) {
            let text = read_text(&config)?;
            let bad =
                |error: serde_json::Error| Error::Tokenizer { path: config.clone(), why: format!("it is no JSON: {error}") };
            settings = serde_json::from_str(&text).map_err(bad)?;
        }
        if is_there(&alone) {
            let text = read_text(&alone)?;
            return Self::parse(text, alone, &settings).map(Some);
        }
        let named = |list: &Vec<Value>| list.iter().find(|one| one["name"] == "default").map(|one| one["template"].clone());
        let text = match &settings["chat_template"] {
            Value::Null => return Ok(None),
            Value::Array(list) => named(list).unwrap_or_default(),
            one => one.clone(),
        };
        match text.as_str() {
            Some(text) => Self::parse(text.to_owned(), config, &settings).map(Some),
            None => Err(Error::Tokenizer { path: config, why: "its `chat_template` is no text and has no `default`".into() }),
        }
    }

    #[cfg(feature = "templates")]
    fn parse(text: String, path: PathBuf, settings: &Value) -> Result<Self> {
        use minijinja::{Environment, ErrorKind, syntax::SyntaxConfig};
        let mut environment = Environment::new();
        // as `transformers` sets Jinja up
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("delimiters are the usual ones"));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |why: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, why))
        });
        // a template that never ends is refused, too
        environment.set_fuel(Some(FUEL));
        let bad = |error: minijinja::Error| Error::Tokenizer { path: path.clone(), why: one_line(&error) };
        environment.add_template_owned(NAME, text).map_err(bad)?;
        let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
        let named = settings.as_object().into_iter().flatten().filter(|(name, _)| name.ends_with("_token"));
        let tokens = named.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect();
        Ok(ChatTemplate { environment, tokens, path })
    }

    #[cfg(not(feature = "templates"))]
    fn parse(_: String, path: PathBuf, _: &Value) -> Result<Self> {
        Err(Error::Tokenizer {
            path,
            why: "this build cannot read it, as it lacks the feature `templates` (cargo build --release --features templates)"
                .into(),
        })
    }

    /// The text of a conversation, up to where the model is to go on.
    ///
    /// # Errors
    /// What the template refuses, and what it cannot do.
    #[cfg(feature = "templates")]
    pub fn render(&self, messages: &[Message<'_>]) -> Result<String> {
        self.text(messages, true)
    }

    /// What follows an answer in a conversation: the text between it and where the model is to go on after what a user says then. The model has
    /// read the rest, and only the latest question and its answer are needed to tell.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and a template whose text of a conversation does not begin with that of its beginning.
    #[cfg(feature = "templates")]
    pub fn render_next(&self, question: &str, answer: &str, next: &str) -> Result<String> {
        let user = |content| Message { role: "user", content };
        let past = [user(question), Message { role: "assistant", content: answer }];
        let (asked, answered) = (self.text(&past[..1], true)?, self.text(&past, false)?);
        let whole = self.text(&[past[0], past[1], user(next)], true)?;
        // templates may take spaces from both ends of what is said
        let after = |answer: &str| answered.strip_prefix(asked.as_str())?.trim_start().strip_prefix(answer.trim());
        let between = after(answer).map(|closing| closing.strip_prefix(&answer[answer.trim_end().len()..]).unwrap_or(closing));
        match (between, whole.strip_prefix(answered.as_str())) {
            (Some(closing), Some(rest)) => Ok(format!("{closing}{rest}")),
            _ => {
                let why = "the chat template: what comes later changes the text of what was said before".to_owned();
                Err(Error::Tokenizer { path: self.path.clone(), why })
            }
        }
    }

    #[cfg(feature = "templates")]
    fn text(&self, messages: &[Message<'_>], add_generation_prompt: bool) -> Result<String> {
        use minijinja::Value;
        let said = messages.iter().map(|said| Value::from_pairs([("role", said.role), ("content", said.content)]));
        let own = [("messages", said.collect::<Value>()), ("add_generation_prompt", add_generation_prompt.into())];
        let tokens = self.tokens.iter().map(|(name, token)| (&name[..], Value::from(&token[..])));
        let context = Value::from_pairs(tokens.chain(own));
        let template = self.environment.get_template(NAME);
        let text = template.and_then(|template| template.render(context));
        text.map_err(|error| Error::Tokenizer { path: self.path.clone(), why: one_line(&error) })
    }

    /// There is no template in a build without the feature `templates`.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(feature = "templates"))]
    pub fn render(&self, _: &[Message<'_>]) -> Result<String> {
        Err(Error::Tokenizer { path: self.path.clone(), why: "it needs the feature `templates`".into() })
    }

    /// There is no template in a build without the feature `templates`.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(feature = "templates"))]
    pub fn render_next(&self, _: &str, _: &str, _: &str) -> Result<String> {
        self.render(&[])
    }
}

#[cfg(feature = "templates")]
const NAME: &str = "chat";

/// Steps that a template may take.
#[cfg(feature = "templates")]
const FUEL: u64 = 10_000_000;

/// What is wrong with a template, as one line.
#[cfg(feature = "templates")]
fn one_line(error: &minijinja::Error) -> String {
    format!("the chat template: {error}").replace('\n', " ")
}
