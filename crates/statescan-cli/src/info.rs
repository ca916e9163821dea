//! `info`: what there is, and what a GPU would do.

use crate::error::{Error, Result};
use crate::exec::TypeName;
use crate::output::say;
use crate::text;
use clap::Args;
use serde_json::{Map, Value, json};
use statescan::cuda::{Gpu, PlannedLaunch};
use statescan::ops::Operation;
use statescan::ops::signature::Argument;
use statescan::tensor::Tensor;
use statescan::{DType, Exec, Level};
use statescan_cases::sizes::Sizes;
use statescan_cases::{ops, options, samples};

/// Version of the library and of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

const DTYPES: [&str; 6] = ["f32", "f64", "bf16", "f16", "complex64", "complex128"];

/// The arguments of `info`.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// The kernels that a GPU launches for an operation of sizes by letter, 1 where they are not given: `--plan ssd B=8 L=2048 H=80 P=64 N=128`
    #[arg(long, value_names = ["OP", "SIZES"], num_args = 1..)]
    pub plan: Vec<String>,
    /// With `--plan`: the GPU, a100, rtx4090, h100, b200 or rtx5090, which need not be there; or cuda for the one that is
    #[arg(long, requires = "plan", default_value = "h100")]
    pub gpu: String,
    /// With `--plan`: the storage type of inputs and outputs
    #[arg(long, visible_alias = "type", requires = "plan", value_enum, default_value = "bf16")]
    pub dtype: TypeName,
}

/// Runs the command.
///
/// # Errors
/// Standard output that cannot be written; an operation, a size or a GPU that there is not.
pub fn info(args: &InfoArgs) -> Result<u8> {
    if let Some((op, sizes)) = args.plan.split_first() {
        return print_plan(args, op, sizes);
    }
    let machine = Machine::new();
    if args.json {
        say!("{}", machine.json())?;
        return Ok(0);
    }
    machine.print()?;
    ops::all().try_for_each(print_operation)?;
    Ok(0)
}

/// The launches of a call as models make it, forward with every result and backward with every gradient.
fn print_plan(args: &InfoArgs, op: &str, sizes: &[String]) -> Result<u8> {
    let op = ops::find(op)?;
    let gpu = match args.gpu.as_str() {
        "cuda" => Gpu::of(&Exec::cuda(0)?),
        name => Gpu::named(name),
    };
    let unknown =
        || Error::Usage { option: "--gpu", expected: "a100, rtx4090, h100, b200, rtx5090 or cuda", got: args.gpu.clone() };
    let (gpu, dtype) = (gpu.ok_or_else(unknown)?, DType::from(args.dtype));
    let sizes = sizes.iter().try_fold(Sizes::default(), |sizes, text| -> Result<Sizes> {
        let (letter, size) = size_of(op, text)?;
        Ok(sizes.with(letter, size))
    })?;
    // each argument is one number whose axes repeat it: plans look at types and shapes alone
    let sample = samples::random(op, &Sizes::default(), dtype)?;
    let mut call = sample.bind()?;
    let scalars = call.views.map(|view| view.map(|view| Tensor::host(view.dtype(), &[])).transpose());
    let scalars: Vec<_> = scalars.into_iter().collect::<statescan::Result<_>>()?;
    for ((argument, view), scalar) in op.signature.arguments.iter().zip(&mut call.views).zip(&scalars) {
        let layout = view.and_then(|view| argument.layout(view.rank()));
        if let (Some(layout), Some(scalar)) = (layout, scalar) {
            let axes = layout.chars().enumerate();
            *view = Some(axes.fold(scalar.view(), |view, (axis, letter)| view.expand(axis, sizes.get(letter))));
        }
    }
    let launches = op.plan(&gpu, &call)?;
    if args.json {
        say!("{}", json!({ "gpu": args.gpu, "launches": launches.iter().map(as_json).collect::<Vec<_>>() }))?;
        return Ok(0);
    }
    let row = |launch: &PlannedLaunch| {
        let [x, y, _] = launch.blocks;
        let blocks = if y > 1 { format!("{x} x {y}") } else { x.to_string() };
        vec![launch.pass.into(), launch.kernel.into(), blocks, launch.threads.to_string(), launch.shared.to_string()]
    };
    say!("{}", text::table(&["pass", "kernel", "blocks", "threads", "shared memory"], 2, launches.iter().map(row)))?;
    Ok(0)
}

fn as_json(launch: &PlannedLaunch) -> Value {
    let PlannedLaunch { pass, kernel, blocks, threads, shared } = *launch;
    json!({ "pass": pass, "kernel": kernel, "blocks": blocks, "threads": threads, "shared": shared })
}

/// A size such as `L=2048`.
fn size_of(op: &Operation, text: &str) -> Result<(char, usize)> {
    let usage = || Error::Usage {
        option: "--plan",
        expected: "sizes by the operation's letters, such as B=2 L=2048",
        got: text.to_string(),
    };
    let (name, size) = text.split_once('=').ok_or_else(usage)?;
    let letter = op.signature.sizes.iter().find(|(letter, _)| name == letter.to_string()).ok_or_else(usage)?;
    Ok((letter.0, size.parse().map_err(|_| usage())?))
}

/// The devices that calls can run on.
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
