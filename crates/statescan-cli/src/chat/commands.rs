//! The commands of a chat's lines.

use rustyline::completion::Completer;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper, Highlighter, Hinter};
use std::path::PathBuf;

pub(super) const HELP: &str = "\
/undo [N]     take back the last line and its answer, or the last N
/retry        take back the last answer and draw another one
/reset        forget everything
/save FILE    save what the model remembers; /save! FILE replaces a file
/load FILE    go on from what was saved
/memory       say how much is remembered
/set          list what can be set; /set NAME VALUE sets it
/quit         end the chat, as Ctrl-D does
//TEXT        say TEXT with one slash before it
Ctrl-C ends an answer. An empty line lets the model go on.
A line that ends with a backslash goes on in the next one.";

const NAMES: [&str; 10] = ["/help", "/load", "/memory", "/quit", "/reset", "/retry", "/save", "/save!", "/set", "/undo"];

/// A line that was understood.
#[derive(Debug, PartialEq)]
pub(super) enum Command {
    Say(String),
    Undo(usize),
    Retry,
    Reset,
    Save {
        path: PathBuf,
        force: bool,
    },
    Load(PathBuf),
    /// A name and a value, or nothing.
    Set(String),
    Memory,
    Help,
    Quit,
}

impl Command {
    /// Understands a line, or says why not.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let Some(rest) = line.strip_prefix('/') else { return Ok(Command::Say(line.to_owned())) };
        if rest.starts_with('/') {
            return Ok(Command::Say(rest.to_owned()));
        }
        let (name, argument) = rest.split_once(char::is_whitespace).map_or((rest, ""), |(name, rest)| (name, rest.trim()));
        let path = || match argument {
            "" => Err(format!("/{name} needs the name of a file")),
            _ => Ok(PathBuf::from(argument)),
        };
        match name {
            "save" => return Ok(Command::Save { path: path()?, force: false }),
            "save!" => return Ok(Command::Save { path: path()?, force: true }),
            "load" => return Ok(Command::Load(path()?)),
            "set" => return Ok(Command::Set(argument.to_owned())),
            "undo" => {
                let lines = if argument.is_empty() { Some(1) } else { argument.parse().ok().filter(|&lines| lines > 0) };
                let wrong = || format!("/undo takes a number of lines, 1 or more, got `{}`", argument.escape_debug());
                return lines.map(Command::Undo).ok_or_else(wrong);
            }
            _ => {}
        }
        let command = match name {
            "retry" => Command::Retry,
            "reset" => Command::Reset,
            "memory" => Command::Memory,
            "help" => Command::Help,
            "quit" => Command::Quit,
            _ => return Err(format!("there is no /{}, /help lists what there is", name.escape_debug())),
        };
        match argument {
            "" => Ok(command),
            _ => Err(format!("/{name} stands alone, got `{}`", argument.escape_debug())),
        }
    }
}

/// Joins the lines of one entry: each line but the last one ends with a backslash, which is not part of it.
pub(super) fn joined(lines: &str) -> String {
    lines.replace("\\\n", "\n")
}

/// Completes the names of commands, and waits for the line after one that ends with a backslash.
#[derive(Helper, Highlighter, Hinter)]
pub(super) struct Completion;

impl Completer for Completion {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let names = NAMES.iter().filter(|name| at > 0 && name.starts_with(&line[..at]));
        Ok((0, names.map(|name| name.to_string()).collect()))
    }
}

impl Validator for Completion {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if context.input().ends_with('\\') { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_text_or_commands() {
        let said = |text: &str| Ok(Command::Say(text.to_owned()));
        for (line, expected) in [
            ("", said("")),
            (" Alice was ", said(" Alice was ")),
            ("//save it", said("/save it")),
            ("/undo", Ok(Command::Undo(1))),
            ("/undo ", Ok(Command::Undo(1))),
            ("/undo 3", Ok(Command::Undo(3))),
            ("/save a b", Ok(Command::Save { path: "a b".into(), force: false })),
            ("/save! a", Ok(Command::Save { path: "a".into(), force: true })),
            ("/load  a", Ok(Command::Load("a".into()))),
            ("/set", Ok(Command::Set(String::new()))),
            ("/set top-p  0.5", Ok(Command::Set("top-p  0.5".into()))),
            ("/load", Err("/load needs the name of a file".to_owned())),
            ("/undo 0", Err("/undo takes a number of lines, 1 or more, got `0`".to_owned())),
            ("/reset 3", Err("/reset stands alone, got `3`".to_owned())),
            ("/nothing", Err("there is no /nothing, /help lists what there is".to_owned())),
            ("/", Err("there is no /, /help lists what there is".to_owned())),
        ] {
            assert_eq!(Command::parse(line), expected, "{line:?}");
        }
    }

    #[test]
    fn every_command_is_in_the_help_and_can_be_completed() {
        for name in NAMES {
            assert!(name == "/help" || HELP.contains(name), "{name}");
            assert!(!matches!(Command::parse(&format!("{name} a")), Err(why) if why.contains("there is no")), "{name}");
        }
    }
}
