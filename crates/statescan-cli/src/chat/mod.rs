//! `chat`: a conversation with a language model.

mod commands;
mod set;
mod talk;

use crate::error::Result;
use crate::interrupt;
use crate::language::ModelArgs;
use crate::output::{note, say};
use crate::sampling::SamplingArgs;
use crate::text::escaped;
use clap::Args;
use commands::{Command, Completion, joined};
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};
use std::io::{ErrorKind, IsTerminal};
use std::path::PathBuf;
use talk::Talk;

/// With which model, and how it answers.
///
/// A line that is entered is put into the chat template of the folder. Where there is none, as for the model in the program, it is read as it is,
/// and the model goes on from its end; an empty line lets it go on from where it stopped. A line that ends with a backslash goes on in the next one.
/// /help lists what can be done besides. Ctrl-C ends an answer, Ctrl-D the chat.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// Which model, and where it computes.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Let the template say this before the first line
    #[arg(long, value_name = "TEXT", conflicts_with = "plain", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// Leave the chat template of the folder out
    #[arg(long)]
    pub plain: bool,
    /// Go on from a state that /save or `generate --save-state` wrote
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Say nothing but the answers
    #[arg(short, long)]
    pub quiet: bool,
    /// How answers are made.
    #[command(flatten)]
    pub answers: AnswerArgs,
}

/// How answers are made, which `/set` changes.
#[derive(Debug, Clone, Args)]
pub struct AnswerArgs {
    /// Tokens of an answer at most [default: 200]
    #[arg(long, value_name = "N")]
    pub tokens: Option<usize>,
    /// End an answer before this text, or before a special token of this name; can be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// How tokens are drawn.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Runs the command.
///
/// # Errors
/// A device that there is not, a folder or a state that cannot be used, settings out of range, output that cannot be written.
pub fn chat(args: &ChatArgs) -> Result<u8> {
    args.answers.sampling.check()?;
    let language = args.model.load()?;
    let template = if args.plain { None } else { args.model.template()? };
    let mut talk = Talk::new(args, &language, template)?;
    let mut editor = editor()?;
    if std::io::stdin().is_terminal() && !args.quiet {
        note!("{}", talk.welcome());
    }
    interrupt::watch_ctrl_c();
    loop {
        match editor.readline("> ") {
            Ok(line) => {
                if !line.is_empty() {
                    // a line that cannot be remembered can still be said
                    let _ = editor.add_history_entry(&line);
                }
                interrupt::watch_ctrl_c();
                match Command::parse(&joined(&line)) {
                    Ok(Command::Quit) => return Ok(0),
                    Ok(command) => obey(&mut talk, command, args.quiet)?,
                    Err(why) => note!("{why}"),
                }
            }
            Err(ReadlineError::Interrupted) => note!("Ctrl-D or /quit ends the chat"),
            Err(ReadlineError::Eof) => return Ok(0),
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                note!("a line that is not UTF-8 was left out");
            }
            Err(error) => return Err(unreadable(error)),
        }
    }
}

/// Does what a line asks for. What cannot be done is said, and the chat goes on; only output that cannot be written ends it.
fn obey(talk: &mut Talk<'_>, command: Command, quiet: bool) -> Result<()> {
    let memory = matches!(command, Command::Memory);
    let done = match command {
        Command::Say(text) => talk.say(&text),
        Command::Retry => talk.retry(),
        Command::Undo(lines) => talk.undo(lines),
        Command::Reset => talk.reset(),
        Command::Save { path, force } => talk.save(&path, force),
        Command::Load(path) => talk.load(&path),
        Command::Set(setting) if setting.is_empty() => return say!("{}", set::settings()),
        Command::Set(setting) => talk.set(&setting),
        Command::Memory => Ok(()),
        Command::Help => return say!("{}", commands::HELP),
        Command::Quit => return Ok(()),
    };
    match done {
        Err(error @ crate::error::Error::Output(_)) => return Err(error),
        Err(error) => note!("error: {}", escaped(&error.to_string())),
        Ok(()) => {}
    }
    if !quiet || memory {
        note!("{}", talk.memory());
    }
    Ok(())
}

/// A line editor that completes commands and remembers the lines of this chat alone.
fn editor() -> Result<Editor<Completion, MemHistory>> {
    let config = Config::builder().auto_add_history(false).build();
    let mut editor = Editor::with_history(config, MemHistory::new()).map_err(unreadable)?;
    editor.set_helper(Some(Completion));
    Ok(editor)
}

fn unreadable(error: ReadlineError) -> crate::error::Error {
    let source = match error {
        ReadlineError::Io(source) => source,
        other => std::io::Error::other(other.to_string()),
    };
    crate::error::Error::Io { name: "standard input".into(), source }
}
