//! A wrong table ends the compilation with a sentence at its place: files of `tests/tables` have one mistake of each kind, and behind it what the compiler
//! says. They include the library's own sources, which compile by themselves, so that it takes a moment.

use std::path::Path;
use std::process::Command;

/// The errors of a file, as (line, sentence), also those of macros that it calls.
fn errors(file: &Path) -> Vec<(usize, String)> {
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let out = std::env::temp_dir().join(format!("statescan-tables-{}", std::process::id()));
    let mut compiler = Command::new(rustc);
    compiler.args(["--edition=2024", "--emit=metadata", "--cap-lints=allow", "-o"]).arg(&out).arg(file);
    let said = compiler.output().expect("there is a compiler where there are tests");
    assert!(!said.status.success() && !out.exists(), "{file:?} compiles");
    let (mut errors, mut sentence) = (Vec::new(), String::new());
    for line in String::from_utf8(said.stderr).unwrap().lines() {
        if line.starts_with("error") {
            sentence = line.to_string();
        }
        let place = line.trim_start().strip_prefix("--> ").or_else(|| line.trim_start().strip_prefix("::: "));
        let Some(at) = place.and_then(|place| place.strip_prefix(file.to_str()?)?.strip_prefix(':')) else { continue };
        errors.push((at.split(':').next().unwrap().parse().unwrap(), sentence.clone()));
    }
    errors
}

fn check(name: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tables").join(name);
    let text = std::fs::read_to_string(&file).unwrap();
    let (errors, mut mistakes) = (errors(&file), 0);
    for (at, line) in text.lines().enumerate() {
        let Some((_, expected)) = line.split_once("//~ ") else { continue };
        let of_line: Vec<_> = errors.iter().filter(|(place, _)| *place == at + 1).map(|(_, sentence)| sentence).collect();
        assert!(of_line.iter().any(|sentence| sentence.contains(expected)), "line {} of {name}: {of_line:?}", at + 1);
        mistakes += 1;
    }
    assert!(mistakes > 0);
    let right = text.lines().position(|line| line.contains("RIGHT_TABLE")).map(|at| at + 1);
    assert!(!errors.iter().any(|(line, _)| Some(*line) == right), "a right table is refused: {errors:?}");
}

#[test]
fn a_wrong_table_does_not_compile() {
    check("wrong.rs");
}

#[test]
fn wrong_sections_do_not_compile() {
    check("sections.rs");
}
