//! The command line.

use crate::bench::{BenchArgs, bench};
use crate::chat::{ChatArgs, chat};
use crate::convert::{ConvertArgs, convert};
use crate::error::{Error, Result};
use crate::eval::{EvalArgs, eval};
use crate::generate::{GenerateArgs, generate};
use crate::info::{InfoArgs, info};
use crate::output::{self, end_if_closed, note, say};
use crate::run::{RunArgs, demonstration, run};
use crate::text::escaped;
use crate::train::{TrainArgs, train};
use crate::verify::{VerifyArgs, verify};
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use std::ffi::OsString;
use std::io::IsTerminal;

/// Linear recurrences (selective scan, SSD, S5, gated delta rule) as fast, differentiable operations: run, verify and time them.
///
/// Without a command it runs the selective scan, forward and backward, on what a Mamba layer sees for a passage of text.
#[derive(Debug, Parser)]
#[command(name = "statescan", version, propagate_version = true, max_term_width = 80)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run one operation on a file, or on the embedded sample
    Run(RunArgs),
    /// Compare results and gradients with those in files of test vectors
    Verify(VerifyArgs),
    /// Time the operations at shapes of real models
    Bench(BenchArgs),
    /// Continue a text with a language model
    Generate(GenerateArgs),
    /// Talk with a language model
    Chat(ChatArgs),
    /// Train a language model on a text
    Train(TrainArgs),
    /// Say how well a language model guesses texts
    Eval(EvalArgs),
    /// Write a language model's folder in another form
    Convert(ConvertArgs),
    /// Show the processor, the versions and the operations, or the kernels that a GPU would launch
    Info(InfoArgs),
    /// Print what a shell needs to complete commands and options
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// The whole program: reads its arguments, does what they say, and gives the exit status.
pub fn run_program(args: impl Iterator<Item = OsString>) -> u8 {
    match parse(args).map_err(said).and_then(|cli| main(cli).map_err(failed)) {
        Ok(status) | Err(status) => status,
    }
}

/// Reads arguments. A number below 0 is the value of an option, and no option: whoever gets it says what it must be.
fn parse(args: impl Iterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let takes = |arg: &Arg| arg.get_action().takes_values() && !arg.is_positional();
    let negative = |arg: Arg| if takes(&arg) { arg.allow_negative_numbers(true) } else { arg };
    let mut command = Cli::command().mut_subcommands(|command| command.mut_args(negative));
    let matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Prints what the parser says, help or a complaint.
fn said(message: clap::Error) -> u8 {
    let text = message.render();
    if message.use_stderr() {
        let _ = message.print();
        return u8::try_from(message.exit_code()).unwrap_or(2);
    }
    let text = if std::io::stdout().is_terminal() { text.ansi().to_string() } else { text.to_string() };
    // wrapped paragraphs have empty lines of spaces
    let lines = text.trim_end().lines().map(str::trim_end).collect::<Vec<_>>();
    say!("{}", lines.join("\n")).map_or_else(failed, |()| 0)
}

fn failed(error: Error) -> u8 {
    end_if_closed(&error);
    note!("error: {}", escaped(&error.to_string()));
    2
}

/// Runs a command; the number is the exit status.
///
/// # Errors
/// Whatever keeps it from being done.
pub fn main(cli: Cli) -> Result<u8> {
    // a reader that has seen enough (`statescan info | head`) ends the program at once, but where a state may have to be saved first
    if !matches!(cli.command, Some(Command::Generate(_) | Command::Chat(_) | Command::Train(_))) {
        sigpipe::reset();
    }
    match cli.command {
        None => demonstration(),
        Some(Command::Run(args)) => run(&args),
        Some(Command::Verify(args)) => verify(&args),
        Some(Command::Bench(args)) => bench(&args),
        Some(Command::Generate(args)) => generate(&args),
        Some(Command::Chat(args)) => chat(&args),
        Some(Command::Train(args)) => train(&args),
        Some(Command::Eval(args)) => eval(&args),
        Some(Command::Convert(args)) => convert(&args),
        Some(Command::Info(args)) => info(&args),
        Some(Command::Completions { shell }) => completions(shell),
    }
}

/// Prints the completions of a shell.
fn completions(shell: Shell) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "statescan", &mut script);
    output::bytes(&script)?;
    Ok(0)
}
