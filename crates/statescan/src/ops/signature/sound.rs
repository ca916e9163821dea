//! A table that contradicts itself does not compile: the error has its name, and that of the line that is wrong.

use super::{Argument, Complex, MAX_ARGUMENTS, MAX_OPTIONS, MAX_RESULTS, Output, Saved, Signature};

/// The most bytes of a sentence.
const MOST: usize = 256;

/// Ends the compilation with a sentence that begins with the table's name.
pub(super) const fn wrong(table: &str, parts: &[&str]) -> ! {
    let (mut sentence, mut len, mut part) = ([0; MOST], 0, 0);
    while part < parts.len() + 2 {
        let bytes = match part {
            0 => table.as_bytes(),
            1 => ": ".as_bytes(),
            part => parts[part - 2].as_bytes(),
        };
        let mut at = 0;
        while at < bytes.len() && len < MOST {
            sentence[len] = bytes[at];
            (at, len) = (at + 1, len + 1);
        }
        part += 1;
    }
    match core::str::from_utf8(sentence.split_at(len).0) {
        Ok(sentence) => panic!("{}", sentence),
        Err(_) => panic!("a table's names are too long for a sentence"),
    }
}

/// Whether two words are the same.
pub(crate) const fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && begins(a, b)
}

/// Whether a word begins with another one.
const fn begins(word: &str, with: &str) -> bool {
    let (word, with, mut at) = (word.as_bytes(), with.as_bytes(), 0);
    while at < word.len() && at < with.len() && word[at] == with[at] {
        at += 1;
    }
    at == with.len()
}

/// The number of the argument of a name, which a line of a table gives.
pub(super) const fn number(table: &str, arguments: &[Argument], line: &str, name: &str) -> usize {
    let mut at = 0;
    while at < arguments.len() {
        if same(arguments[at].name, name) {
            return at;
        }
        at += 1;
    }
    wrong(table, &["`", line, "` names `", name, "`, which is no argument"])
}

/// Looks at all that a table can get wrong.
pub(super) const fn check(of: &Signature) {
    let Signature { arguments, options, results, .. } = *of;
    if arguments.len() > MAX_ARGUMENTS || options.len() > MAX_OPTIONS || results.len() > MAX_RESULTS {
        wrong(of.name, &["more arguments, options or results than calls by position have places"]);
    }
    // sizes multiply to 2^52, and an allocation has 2^62 bytes at most
    if of.limit.bytes >= 62 - 52 {
        wrong(of.name, &["`limit` allows more bytes than an allocation can have"]);
    }
    let mut at = 0;
    while at < of.leaders.len() {
        if of.leaders[at] >= arguments.len() {
            wrong(of.name, &["`leaders` has the number of no argument"]);
        }
        at += 1;
    }
    at = 0;
    while at < arguments.len() {
        check_names(of.name, arguments, at);
        check_argument(of, &arguments[at]);
        at += 1;
    }
    if let Some(state) = of.in_place {
        check_argument(of, state);
    }
    at = 0;
    while at < results.len() {
        check_layouts(of, results[at].name, results[at].layouts);
        if let Some(name) = results[at].beside {
            number(of.name, arguments, results[at].name, name);
        }
        at += 1;
    }
    check_letters(of, "facts", of.facts.state_steps);
    check_saved(of);
    check_decay(of);
}

/// The names of an argument, by number.
const fn name_of(argument: &Argument, at: usize) -> &'static str {
    match at {
        0 => argument.name,
        1 => argument.field,
        at => argument.aliases[at - 2],
    }
}

/// No name means two arguments.
const fn check_names(table: &str, arguments: &[Argument], at: usize) {
    let (argument, mut number) = (&arguments[at], 0);
    while number < 2 + argument.aliases.len() {
        let (name, mut before) = (name_of(argument, number), 0);
        while before < at {
            let (other, mut its) = (&arguments[before], 0);
            while its < 2 + other.aliases.len() {
                if same(name_of(other, its), name) {
                    wrong(table, &["`", argument.field, "` and `", other.field, "` are both called `", name, "`"]);
                }
                its += 1;
            }
            before += 1;
        }
        number += 1;
    }
}

const fn check_argument(of: &Signature, argument: &Argument) {
    check_layouts(of, argument.field, argument.layouts);
    match argument.complex {
        Complex::As(names) => {
            let mut at = 0;
            while at < names.len() {
                number(of.name, of.arguments, argument.field, names[at]);
                at += 1;
            }
        }
        Complex::Without(name) => _ = number(of.name, of.arguments, argument.field, name),
        Complex::Never | Complex::Always => {}
    }
}

/// The letters of a word are sizes, or digits.
const fn check_letters(of: &Signature, line: &str, word: &str) {
    let (bytes, mut at) = (word.as_bytes(), 0);
    while at < bytes.len() {
        let (letter, mut size) = (bytes[at], 0);
        while size < of.sizes.len() && of.sizes[size].0 as u32 != letter as u32 {
            size += 1;
        }
        if size == of.sizes.len() && !letter.is_ascii_digit() {
            wrong(of.name, &["`", word, "` of `", line, "` has a letter that is not among `sizes`"]);
        }
        at += 1;
    }
}

/// Layouts are words of sizes, and differ in rank within a form.
const fn check_layouts(of: &Signature, line: &str, layouts: &[&str]) {
    let mut at = 0;
    while at < layouts.len() {
        check_letters(of, line, layouts[at]);
        at += 1;
    }
    let mut form = 0;
    while form < of.forms.len() {
        check_ranks(of.name, line, layouts, Some(of.forms[form]));
        form += 1;
    }
    if of.forms.is_empty() {
        check_ranks(of.name, line, layouts, None);
    }
}

const fn check_ranks(table: &str, line: &str, layouts: &[&str], form: Option<&str>) {
    let (mut at, mut fitting) = (0, 0);
    while at < layouts.len() {
        if fits(layouts[at], form) {
            let mut before = 0;
            while before < at {
                if fits(layouts[before], form) && layouts[before].len() == layouts[at].len() {
                    wrong(table, &["`", line, "` has two layouts of one rank, `", layouts[before], "` and `", layouts[at], "`"]);
                }
                before += 1;
            }
            fitting += 1;
        }
        at += 1;
    }
    if fitting == 0 {
        wrong(table, &["`", line, "` has no layout in one of the forms"]);
    }
}

/// Whether a layout has letters of a form only, if there are forms.
const fn fits(layout: &str, form: Option<&str>) -> bool {
    let Some(form) = form else { return true };
    let (layout, form, mut at) = (layout.as_bytes(), form.as_bytes(), 0);
    while at < layout.len() {
        let mut letter = 0;
        while letter < form.len() && form[letter] != layout[at] {
            letter += 1;
        }
        if letter == form.len() && !layout[at].is_ascii_digit() {
            return false;
        }
        at += 1;
    }
    true
}

const fn check_saved(of: &Signature) {
    match of.saved {
        Saved::Nothing => {}
        Saved::Result(at) => {
            if at >= of.results.len() {
                wrong(of.name, &["`saved` has the number of no result"]);
            }
        }
        Saved::States { layout, each_step, .. } => {
            check_letters(of, "saved", layout);
            check_letters(of, "saved", each_step);
        }
    }
}

/// A decay has the first axes of its state.
const fn check_decay(of: &Signature) {
    let Some(decay) = of.decay else { return };
    let Some(state) = state_of(of.results) else { wrong(of.name, &["there is a `decay`, and no result is a state"]) };
    let mut at = 0;
    while at < decay.layouts.len() || at < state.layouts.len() {
        if at >= decay.layouts.len() || at >= state.layouts.len() || !begins(state.layouts[at], decay.layouts[at]) {
            wrong(of.name, &["the layouts of `decay` are not the first axes of those of `", state.name, "`"]);
        }
        at += 1;
    }
}

/// The first result that is a state.
const fn state_of(results: &'static [Output]) -> Option<&'static Output> {
    let mut at = 0;
    while at < results.len() {
        if results[at].like.is_none() {
            return Some(&results[at]);
        }
        at += 1;
    }
    None
}
