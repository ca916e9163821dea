//! [`ChatTemplate`]: how what people and models say becomes the text that a model was trained on.

#[cfg(feature = "templates")]
mod jinja;

use crate::error::{Error, Result};
use crate::files::{is_there, read_text};
#[cfg(feature = "templates")]
use crate::guard::guarded;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The settings of a folder's tokenizer.
const SETTINGS: &str = "tokenizer_config.json";

/// One message of a conversation.
#[derive(Debug, Clone, Copy)]
pub struct Message<'m> {
    /// Who: `system`, `user` or `assistant`, as most templates have it.
    pub role: &'m str,
    /// The text.
    pub content: &'m str,
}

impl<'m> Message<'m> {
    /// Returns the beginning of a conversation: the system's message, if there is one, and the user's first message.
    pub fn first(system: Option<&'m str>, said: &'m str) -> Vec<Self> {
        let system = system.map(|content| Message { role: "system", content });
        system.into_iter().chain([Message { role: "user", content: said }]).collect()
    }
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
        let folder = folder.as_ref();
        let [alone, config] = ["chat_template.jinja", SETTINGS].map(|name| folder.join(name));
        let settings = settings(folder)?;
        if is_there(&alone) {
            let text = read_text(&alone)?;
            return Self::parse(text, alone, tokens(folder, &settings)?).map(Some);
        }
        let named = |list: &Vec<Value>| list.iter().find(|one| one["name"] == "default").map(|one| one["template"].clone());
        let text = match &settings["chat_template"] {
            Value::Null => return Ok(None),
            Value::Array(list) => named(list).unwrap_or_default(),
            one => one.clone(),
        };
        match text.as_str() {
            Some(text) => Self::parse(text.to_owned(), config, tokens(folder, &settings)?).map(Some),
            None => Err(Error::Tokenizer { path: config, why: "its `chat_template` is no text and has no `default`".into() }),
        }
    }

    #[cfg(feature = "templates")]
    fn parse(text: String, path: PathBuf, tokens: Vec<(String, String)>) -> Result<Self> {
        let mut environment = jinja::environment();
        let bad = |error: minijinja::Error| Error::Tokenizer { path: path.clone(), why: one_line(&error) };
        let failed = |why| Error::Tokenizer { path: path.clone(), why };
        let text = jinja::without_generation(&text);
        guarded(|| environment.add_template_owned(NAME, text)).map_err(failed)?.map_err(bad)?;
        Ok(ChatTemplate { environment, tokens, path })
    }

    #[cfg(not(feature = "templates"))]
    fn parse(_: String, path: PathBuf, _: Vec<(String, String)>) -> Result<Self> {
        Err(Error::Tokenizer {
            path,
            why: "this build cannot read it, as it lacks the feature `templates` (cargo build --release --features templates)"
                .into(),
        })
    }

    /// The text of a conversation, up to where the model is to go on.
    ///
    /// # Errors
    /// A conversation that the template refuses, a template that fails.
    #[cfg(feature = "templates")]
    pub fn render(&self, messages: &[Message<'_>]) -> Result<String> {
        self.text(messages, true)
    }

    /// Returns the text between an answer and the next one: the model has read all text up to the answer's end, and goes on after
    /// the text of the user's next message. Only the latest question and its answer are needed for it.
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
        // templates ask whether they are none, not whether they are there
        let own = own.into_iter().chain(["tools", "documents"].map(|name| (name, Value::from(()))));
        let tokens = self.tokens.iter().map(|(name, token)| (&name[..], Value::from(&token[..])));
        let context = Value::from_pairs(tokens.chain(own));
        let template = self.environment.get_template(NAME);
        let text = guarded(|| template.and_then(|template| template.render(context)).map_err(|error| one_line(&error)));
        text.flatten().map_err(|why| Error::Tokenizer { path: self.path.clone(), why })
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

/// Returns the fault of a template as one line.
#[cfg(feature = "templates")]
fn one_line(error: &minijinja::Error) -> String {
    format!("the chat template: {error}").replace('\n', " ")
}

/// `tokenizer_config.json` of a folder, null where there is none.
pub(crate) fn settings(folder: &Path) -> Result<Value> {
    read_json(&folder.join(SETTINGS))
}

fn read_json(path: &Path) -> Result<Value> {
    if !is_there(path) {
        return Ok(Value::Null);
    }
    let bad = |error: serde_json::Error| Error::Tokenizer { path: path.to_owned(), why: format!("it is no JSON: {error}") };
    serde_json::from_str(&read_text(path)?).map_err(bad)
}

/// The special tokens that a template may name: those of the settings, and of older folders those of `special_tokens_map.json` before them.
fn tokens(folder: &Path, settings: &Value) -> Result<Vec<(String, String)>> {
    let older = match settings.get("added_tokens_decoder") {
        Some(_) => Value::Null,
        None => read_json(&folder.join("special_tokens_map.json"))?,
    };
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    let named = |kind: &str| {
        let name = format!("{kind}_token");
        let token = [&older, settings].into_iter().find_map(|tokens| text(&tokens[&name]))?;
        Some((name, token))
    };
    Ok(["bos", "eos", "unk", "sep", "pad", "cls", "mask"].into_iter().filter_map(named).collect())
}
