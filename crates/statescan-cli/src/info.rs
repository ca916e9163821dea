//! `info`: what there is.

use crate::error::Result;
use crate::text;
use serde_json::json;
use statescan::Level;
use statescan_cases::call::Operation;
use statescan_cases::ops;
use statescan_cases::table::Argument;

/// Version of the library and of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the command.
///
/// # Errors
/// None.
pub fn info(as_json: bool) -> Result<u8> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let levels: Vec<_> = Level::available().map(Level::name).collect();
    let gpus = statescan::cuda::devices();
    let mut devices = vec!["cpu".to_string()];
    devices.extend(gpus.iter().flatten().enumerate().map(|(i, _)| format!("cuda:{i}")));
    if as_json {
        let argument = |a: &Argument| json!({"name": a.name, "aliases": a.aliases, "layouts": a.layouts, "required": a.required, "complex": a.complex});
        let describe = |op: &&dyn Operation| {
            json!({
                "name": op.name(),
                "about": op.about(),
                "differentiable": op.differentiable(),
                "arguments": op.arguments().iter().map(argument).collect::<Vec<_>>(),
                "results": op.results().iter().map(|r| r.name).collect::<Vec<_>>(),
                "options": op.settings().iter().map(|s| s.name).collect::<Vec<_>>(),
            })
        };
        let all = json!({
            "version": VERSION,
            "arch": std::env::consts::ARCH,
            "os": std::env::consts::OS,
            "cores": cores,
            "level": Level::best().name(),
            "levels": levels,
            "devices": devices,
            "cuda": match &gpus {
                Ok(names) => json!(names),
                Err(error) => json!(error.to_string()),
            },
            "dtypes": ["f32", "f64", "bf16", "f16", "complex64", "complex128"],
            "operations": ops::all().iter().map(describe).collect::<Vec<_>>(),
        });
        println!("{all}");
        return Ok(0);
    }
    println!("statescan {VERSION}");
    println!("processor     {} ({}), {cores} cores for this process", std::env::consts::ARCH, std::env::consts::OS);
    println!("instructions  {} of {}", Level::best().name(), levels.join(", "));
    println!("devices       {}", devices.join(", "));
    match &gpus {
        Ok(names) => println!("gpus          {}", names.join(", ")),
        Err(error) => println!("gpus          none: {error}"),
    }
    println!("types         f32, f64, bf16, f16, complex64, complex128");
    for op in ops::all() {
        println!("\n{}: {}", op.name(), op.about());
        let row = |a: &Argument| {
            let kind = match (a.required, a.complex) {
                (true, true) => "required, may be complex",
                (true, false) => "required",
                (false, true) => "may be complex",
                (false, false) => "",
            };
            vec![a.name.to_string(), a.shapes(), kind.to_string(), a.aliases.join(", ")]
        };
        println!("{}", text::table(&["argument", "shape", "", "also called"], 9, op.arguments().iter().map(row)));
        let names: Vec<_> = op.results().iter().map(|r| r.name).collect();
        println!("results: {}", names.join(", "));
        let options: Vec<_> = op.settings().iter().map(|s| s.name).collect();
        println!("options: {}", options.join(", "));
    }
    Ok(0)
}
