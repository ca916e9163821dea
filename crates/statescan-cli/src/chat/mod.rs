//! `chat`: a conversation with a language model, whose memory of it has a fixed size.

mod commands;
mod talk;

use crate::error::Result;
use crate::interrupt;
use crate::language::ModelArgs;
use crate::output::{note, say};
use crate::sampling::SamplingArgs;
use crate::text::escaped;
use clap::Args;
use commands::{Command, Completion};
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};
use std::io::IsTerminal;
use std::path::PathBuf;
use talk::Talk;

/// With which model, and how it answers.
///
/// A line that is entered is put into the chat template of the folder. Where there is none, as for the model in the program, it is read as it is,
/// and the model goes on from its end; an empty line lets it go on from where it stopped. /help lists what can be done besides. Ctrl-C ends an
/// answer, Ctrl-D the chat.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// Which model, and where it computes.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub tokens: usize,
    /// End an answer before this text; can be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Leave the chat template of the folder out
    #[arg(long)]
    pub plain: bool,
    /// Go on from a state that /save or `generate --save-state` wrote
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// How tokens are drawn.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Runs the command.
///
/// # Errors
/// A device that there is not, a folder or a state that cannot be used, settings out of range, output that cannot be written.
pub fn chat(args: &ChatArgs) -> Result<u8> {
    let sampler = args.sampling.sampler(0)?;
    let language = args.model.load()?;
    let template = if args.plain { None } else { args.model.template()? };
    let mut talk = Talk::new(args, &language, template, sampler)?;
    let mut editor = editor()?;
    if std::io::stdin().is_terminal() {
        note!("{}", talk.welcome());
    }
    interrupt::watch();
    loop {
        match editor.readline("> ") {
            Ok(line) => {
                if !line.is_empty() {
                    // a line that cannot be remembered can still be said
                    let _ = editor.add_history_entry(&line);
                }
                interrupt::watch();
                match Command::parse(&line) {
                    Ok(Command::Quit) => return Ok(0),
                    Ok(command) => obey(&mut talk, command)?,
                    Err(why) => note!("{why}"),
                }
            }
            Err(ReadlineError::Interrupted) => note!("Ctrl-D or /quit ends the chat"),
            Err(ReadlineError::Eof) => return Ok(0),
            Err(error) => return Err(unreadable(error)),
        }
    }
}

/// Does what a line asks for. What cannot be done is said, and the chat goes on; only output that cannot be written ends it.
fn obey(talk: &mut Talk<'_>, command: Command) -> Result<()> {
    let done = match command {
        Command::Say(text) => talk.say(&text),
        Command::Retry => talk.retry(),
        Command::Undo => talk.undo(),
        Command::Reset => talk.reset(),
        Command::Save { path, force } => talk.save(&path, force),
        Command::Load(path) => talk.load(&path),
        Command::Memory => Ok(()),
        Command::Help => return say!("{}", commands::HELP),
        Command::Quit => return Ok(()),
    };
    match done {
        Err(error @ crate::error::Error::Output(_)) => return Err(error),
        Err(error) => note!("error: {}", escaped(&error.to_string())),
        Ok(()) => {}
    }
    note!("{}", talk.memory());
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
