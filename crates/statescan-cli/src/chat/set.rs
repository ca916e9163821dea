//! `/set`: options of answers by their names on the command line.

use super::AnswerArgs;
use crate::error::{Error, Result};
use clap::{Arg, Args, Command, FromArgMatches};

/// The options, as the command line knows them.
fn options() -> Command {
    let negative = |arg: Arg| arg.allow_negative_numbers(true);
    AnswerArgs::augment_args(Command::new("set")).disable_help_flag(true).mut_args(negative)
}

/// Returns the settings that can be changed, a line each.
pub(super) fn settings() -> String {
    let line = |arg: &Arg| {
        let value = arg.get_value_names().and_then(|names| names.first()).map_or("VALUE".to_owned(), ToString::to_string);
        let help = arg.get_help().map_or(String::new(), ToString::to_string);
        crate::text::labelled(&format!("{:<24}", format!("{} {value}", arg.get_id().as_str().replace('_', "-"))), &help)
    };
    options().get_arguments().map(line).collect::<Vec<_>>().join("\n")
}

/// The options with another value of one of them.
///
/// # Errors
/// A name that there is not, a value that is none.
pub(super) fn changed(answers: &AnswerArgs, setting: &str) -> Result<AnswerArgs> {
    let (name, value) = setting.split_once(char::is_whitespace).unwrap_or((setting, ""));
    let bad = |expected| Error::Usage { option: "/set", expected, got: setting.to_owned() };
    let option = name.replace('-', "_");
    if !options().get_arguments().any(|arg| arg.get_id().as_str() == option) {
        return Err(bad("NAME VALUE with one of the names that /set lists"));
    }
    let found = options().try_get_matches_from(["set".to_owned(), format!("--{}={}", name.replace('_', "-"), value.trim())]);
    let mut changed = answers.clone();
    let set = found.and_then(|found| changed.update_from_arg_matches(&found));
    set.map(|()| changed).map_err(|_| bad("NAME VALUE with a value of the kind that /set lists"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers() -> AnswerArgs {
        AnswerArgs::from_arg_matches(&options().try_get_matches_from(["set", "--top-k", "3", "--stop", "a"]).unwrap()).unwrap()
    }

    #[test]
    fn one_option_changes_and_the_others_stay() {
        let changed = changed(&answers(), "temperature 0.5").unwrap();
        let sampling = &changed.sampling;
        assert_eq!((sampling.temperature, sampling.top_k, &changed.stop[..]), (Some(0.5), Some(3), &["a".to_owned()][..]));
        assert_eq!(super::changed(&changed, "stop  two words ").unwrap().stop, ["two words"]);
        assert_eq!(super::changed(&changed, "min-p -1").unwrap().sampling.min_p, Some(-1.0), "whoever uses it refuses it");
        for (setting, says) in [("none 1", "one of the names"), ("top-k x", "of the kind"), ("top-k", "of the kind")] {
            let error = super::changed(&changed, setting).unwrap_err().to_string();
            assert!(error.starts_with("/set must be NAME VALUE with ") && error.contains(says), "{error}");
        }
    }

    #[test]
    fn every_option_is_listed() {
        let listed = settings();
        assert!(
            ["tokens N", "stop TEXT", "temperature T", "repetition-window N"].iter().all(|name| listed.contains(name)),
            "{listed}"
        );
    }
}
