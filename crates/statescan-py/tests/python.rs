//! The Python package's tests, with the module that cargo has just built. They run where `python3`, or the interpreter that
//! `STATESCAN_PYTHON` names, has pytest and NumPy; those of a framework where it has the framework.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package as it is installed: its sources and the module.
fn package() -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let package = root.join("statescan");
    // a file that was removed from the sources must not be found
    let _ = fs::remove_dir_all(&package);
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/statescan"), &package);
    let test = env::current_exe().expect("a running test has a path");
    let file = format!("{}statescan_native{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    let suffix = if cfg!(windows) { "pyd" } else { "abi3.so" };
    fs::copy(test.with_file_name(file), package.join(format!("_native.{suffix}"))).expect("cargo has built the module");
    root
}

/// Copies a folder of sources.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the target folder is writable");
    for entry in fs::read_dir(from).expect("the sources are there") {
        let path = entry.expect("the sources are readable").path();
        let name = path.file_name().expect("an entry has a name");
        match path.is_dir() {
            true => copy(&path, &to.join(name)),
            false if ["py", "pyi", "typed"].iter().any(|suffix| path.extension().is_some_and(|e| e == *suffix)) => {
                fs::copy(&path, to.join(name)).expect("the target folder is writable");
            }
            false => {}
        }
    }
}

#[test]
fn python() {
    let interpreter = env::var_os("STATESCAN_PYTHON").unwrap_or("python3".into());
    let probe = Command::new(&interpreter).args(["-c", "import hypothesis, numpy, pytest"]).output();
    if !probe.as_ref().is_ok_and(|output| output.status.success()) {
        let why = probe.map_or_else(|error| error.to_string(), |output| String::from_utf8_lossy(&output.stderr).into_owned());
        let why = why.trim().lines().last().unwrap_or_default();
        println!("skipped: {} cannot run the tests of the Python package: {why}", interpreter.display());
        return;
    }
    let status = Command::new(&interpreter)
        .args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python"))
        .env("PYTHONPATH", package())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .status();
    assert!(status.expect("the interpreter has just run").success(), "the tests of the Python package failed");
}
