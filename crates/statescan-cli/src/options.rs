//! Options of the operations, on the command line: a flag for each that a signature has.

use crate::error::{Error, Result};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Value, json};
use statescan::ops::signature::{Choice, OptionSpec};
use statescan_cases::ops::{self, Options};

/// Options of the operations; they override those in a file.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Options of the operation")]
pub struct OptionArgs {
    #[command(flatten)]
    flags: Flags,
    /// Arguments that are complex, stored with a trailing axis of 2
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub complex: Vec<String>,
    /// Any option by its name in the metadata
    #[arg(long = "set", value_name = "NAME=JSON")]
    set: Vec<String>,
}

impl OptionArgs {
    /// As they would stand in a file.
    ///
    /// # Errors
    /// A value that is not what the option takes.
    pub fn options(&self) -> Result<Options> {
        let mut options = self.flags.0.clone();
        for text in &self.set {
            let bad = || Error::Usage { option: "--set", expected: "NAME=JSON", got: text.clone() };
            let (name, value) = text.split_once('=').ok_or_else(bad)?;
            options.insert(name.to_string(), serde_json::from_str(value).map_err(|_| bad())?);
        }
        Ok(options)
    }
}

/// The options that have flags.
#[derive(Debug, Clone, Default)]
struct Flags(Options);

/// The options of all operations, each once.
fn specs() -> Vec<&'static OptionSpec> {
    let mut all: Vec<&OptionSpec> = Vec::new();
    for spec in ops::all().flat_map(|op| op.signature.options) {
        if !all.iter().any(|known| known.name == spec.name) {
            all.push(spec);
        }
    }
    all
}

/// The flag of an option; what it is given is looked at where options of files are.
fn flag(spec: &'static OptionSpec) -> Arg {
    let of: Vec<_> = ops::all().filter(|op| op.signature.option(spec.name).is_some()).map(|op| op.signature.name).collect();
    let arg = Arg::new(spec.name).long(spec.name.replace('_', "-")).help(format!("Of {}", of.join(", ")));
    match spec.choice {
        Choice::Flag(false) => arg.action(ArgAction::SetTrue),
        Choice::Flag(true) => arg.value_name("true|false"),
        Choice::Number(_) | Choice::Count(_) => arg.value_name("N").allow_hyphen_values(true),
        Choice::Interval => arg.value_name("LOW,HIGH").allow_hyphen_values(true),
        Choice::Word(words, _) => arg.value_name(words.join("|")),
    }
}

/// Returns the value of an option as a file would have it: JSON, or a word.
fn value(spec: &OptionSpec, text: &str) -> Value {
    match spec.choice {
        Choice::Interval => json!(text.split(',').map(str::trim).collect::<Vec<_>>()),
        _ => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
    }
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        command.args(specs().into_iter().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |spec: &OptionSpec| {
            let value = match spec.choice {
                Choice::Flag(false) => matches.get_flag(spec.name).then_some(json!(true)),
                _ => matches.get_one::<String>(spec.name).map(|text| value(spec, text)),
            };
            Some((spec.name.to_string(), value?))
        };
        Ok(Flags(specs().into_iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
