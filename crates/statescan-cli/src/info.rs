//! `info`: what there is.

use crate::error::Result;
use crate::output::say;
use crate::text;
use serde_json::{Map, Value, json};
use statescan::Level;
use statescan::ops::Operation;
use statescan::ops::signature::Argument;
use statescan_cases::{ops, options};

/// Version of the library and of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

const DTYPES: [&str; 6] = ["f32", "f64", "bf16", "f16", "complex64", "complex128"];

/// Runs the command.
///
/// # Errors
/// Standard output that cannot be written.
pub fn info(as_json: bool) -> Result<u8> {
    let machine = Machine::new();
    if as_json {
        say!("{}", machine.json())?;
        return Ok(0);
    }
    machine.print()?;
    ops::all().try_for_each(print_operation)?;
    Ok(0)
}

/// Where calls can run.
struct Machine {
    cores: usize,
    levels: Vec<&'static str>,
    gpus: statescan::Result<Vec<String>>,
    devices: Vec<String>,
}

impl Machine {
    fn new() -> Self {
        let gpus = statescan::cuda::devices();
        let mut devices = vec!["cpu".to_string()];
        devices.extend(gpus.iter().flatten().enumerate().map(|(i, _)| format!("cuda:{i}")));
        Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            levels: Level::available().map(Level::name).collect(),
            gpus,
            devices,
        }
    }

    fn json(&self) -> Value {
        json!({
            "version": VERSION,
            "arch": std::env::consts::ARCH,
            "os": std::env::consts::OS,
            "cores": self.cores,
            "level": Level::best().name(),
            "levels": self.levels,
            "devices": self.devices,
            "cuda": match &self.gpus {
                Ok(names) => json!(names),
                Err(error) => json!(error.to_string()),
            },
            "dtypes": DTYPES,
            "operations": ops::all().map(describe).collect::<Vec<_>>(),
        })
    }

    fn print(&self) -> Result<()> {
        let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
        let gpus = match &self.gpus {
            Ok(names) => names.join(", "),
            Err(error) => format!("none: {error}"),
        };
        say!("statescan {VERSION}")?;
        for (label, what) in [
            ("processor     ", format!("{arch} ({os}), {} cores for this process", self.cores)),
            ("instructions  ", format!("{} of {}", Level::best().name(), self.levels.join(", "))),
            ("devices       ", self.devices.join(", ")),
            ("gpus          ", gpus),
            ("types         ", DTYPES.join(", ")),
        ] {
            say!("{}", text::labelled(label, &what))?;
        }
        Ok(())
    }
}

/// An operation as a JSON object.
fn describe(op: &'static Operation) -> Value {
    let signature = op.signature;
    let argument = |a: &Argument| {
        json!({
            "name": a.name,
            "aliases": ops::aliases(a),
            "layouts": a.layouts,
            "required": ops::is_required(op, a),
            "complex": ops::may_be_complex(a),
        })
    };
    json!({
        "name": signature.name,
        "about": signature.about,
        "differentiable": signature.differentiable,
        "sizes": signature.sizes.iter().map(|(letter, name)| (letter.to_string(), json!(name))).collect::<Map<_, _>>(),
        "limit": signature.limit.names,
        "arguments": ops::arguments(op).map(argument).collect::<Vec<_>>(),
        "results": ops::results(op).map(|r| r.name).collect::<Vec<_>>(),
        "options": options::names(op),
    })
}

/// An operation as a table.
fn print_operation(op: &'static Operation) -> Result<()> {
    let signature = op.signature;
    say!("\n{}", text::wrapped(&format!("{}: {}", signature.name, signature.about)))?;
    let row = |a: &Argument| {
        let kind = match (ops::is_required(op, a), ops::may_be_complex(a)) {
            (true, true) => "required, may be complex",
            (true, false) => "required",
            (false, true) => "may be complex",
            (false, false) => "",
        };
        vec![a.name.to_string(), ops::shapes(a), kind.to_string(), ops::aliases(a).join(", ")]
    };
    say!("{}", text::table(&["argument", "shape", "", "also called"], 9, ops::arguments(op).map(row)))?;
    let sizes: Vec<_> = signature.sizes.iter().map(|(letter, name)| format!("{letter} {name}")).collect();
    for (label, what) in [
        ("sizes: ", sizes.join(", ")),
        ("results: ", ops::results(op).map(|r| r.name).collect::<Vec<_>>().join(", ")),
        ("options: ", options::names(op).join(", ")),
        ("limit: ", format!("{} at most 2^52, each size counted as at least 16", signature.limit.names)),
    ] {
        say!("{}", text::labelled(label, &what))?;
    }
    Ok(())
}
