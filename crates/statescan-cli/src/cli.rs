//! The command line.

use crate::call::Options;
use crate::error::{Error, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::{Value, json};
use statescan::{DType, Exec, Level};
use std::path::PathBuf;

/// State-space scans (selective scan, SSD, S5) as fast, differentiable operations: run, verify and time them.
///
/// Without a command it runs the selective scan, forward and backward, on what a Mamba layer sees for a passage of text.
#[derive(Debug, Parser)]
#[command(name = "statescan", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
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
    /// Show the processor, the versions and the operations
    Info {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Where and how to compute.
#[derive(Debug, Clone, Default, Args)]
pub struct ExecArgs {
    /// Number of threads; 0 means one for each core
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// Instruction set: scalar, neon, avx2 or avx512; the widest one if not given
    #[arg(long, value_name = "L")]
    pub level: Option<String>,
    /// cpu, cuda, or cuda:N for the device with this number
    #[arg(long, value_name = "DEVICE", default_value = "cpu", conflicts_with_all = ["threads", "level"])]
    pub device: String,
}

impl ExecArgs {
    /// The executor.
    ///
    /// # Errors
    /// A device or a level that does not exist, or that this machine lacks.
    pub fn exec(&self) -> Result<Exec> {
        if let Some(ordinal) = cuda_device(&self.device)? {
            return Ok(Exec::cuda(ordinal)?);
        }
        let exec = Exec::cpu(threads("--threads", self.threads)?);
        let Some(name) = &self.level else { return Ok(exec) };
        Ok(exec.with_level(level(name)?)?)
    }
}

/// The number of a CUDA device; none for the CPU.
pub(crate) fn cuda_device(name: &str) -> Result<Option<usize>> {
    let unknown = || Error::Usage { option: "--device", expected: "cpu, cuda or cuda:N", got: name.to_string() };
    match name.split_once(':') {
        None if name == "cpu" => Ok(None),
        None if name == "cuda" => Ok(Some(0)),
        Some(("cuda", number)) => number.parse().map(Some).map_err(|_| unknown()),
        _ => Err(unknown()),
    }
}

/// The instruction set of a name.
pub(crate) fn level(name: &str) -> Result<Level> {
    let unknown = || Error::Usage { option: "--level", expected: "scalar, neon, avx2 or avx512", got: name.to_string() };
    Level::ALL.into_iter().find(|level| level.name() == name).ok_or_else(unknown)
}

/// A number of threads that a process may have.
pub(crate) fn threads(option: &'static str, n: usize) -> Result<usize> {
    match n {
        0..=1024 => Ok(n),
        _ => Err(Error::Usage { option, expected: "at most 1024", got: n.to_string() }),
    }
}

/// A storage type on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum TypeName {
    /// 32-bit.
    F32,
    /// 64-bit.
    F64,
    /// bfloat16 for what varies along the sequence.
    Bf16,
    /// 16-bit for what varies along the sequence.
    F16,
}

impl From<TypeName> for DType {
    fn from(name: TypeName) -> DType {
        match name {
            TypeName::F32 => DType::F32,
            TypeName::F64 => DType::F64,
            TypeName::Bf16 => DType::BF16,
            TypeName::F16 => DType::F16,
        }
    }
}

/// Which cotangents to use where the file has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CotangentName {
    /// All ones: the gradients of the sum of all results.
    Ones,
    /// Normal numbers from a fixed seed.
    Random,
}

/// The arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The operation (`statescan info` lists them)
    pub op: String,
    /// Arguments by name: `x` or `in.x`, with the names of this project or of the original one; the embedded sample if not given
    pub file: Option<PathBuf>,
    /// Write results as `out.NAME`, gradients as `grad.NAME`
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write the arguments too, which makes the file one for `verify`
    #[arg(long, requires = "output")]
    pub with_inputs: bool,
    /// Compute gradients too, from the file's `cot.NAME`
    #[arg(long)]
    pub grad: bool,
    /// Cotangents where the file has none
    #[arg(long, value_enum, default_value = "ones", value_name = "KIND")]
    pub cotangents: CotangentName,
    /// Store the arguments in this type first
    #[arg(long, value_enum, value_name = "T")]
    pub dtype: Option<TypeName>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Where and how to compute.
    #[command(flatten)]
    pub exec: ExecArgs,
    /// Options of the operation.
    #[command(flatten)]
    pub options: OptionArgs,
}

/// Options of the operations; they override those in a file.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Options of the operation")]
pub struct OptionArgs {
    /// Send dt through softplus after the bias
    #[arg(long)]
    pub dt_softplus: bool,
    /// Lowest and highest step
    #[arg(long, value_name = "LOW,HIGH", allow_hyphen_values = true)]
    pub dt_limit: Option<String>,
    /// mamba, zoh, bilinear or dirac
    #[arg(long, value_name = "NAME")]
    pub discretization: Option<String>,
    /// Scan from the last step to the first
    #[arg(long)]
    pub reverse: bool,
    /// Steps in a chunk (a hint)
    #[arg(long, value_name = "N")]
    pub chunk_size: Option<u64>,
    /// Whether the states stand for conjugate pairs
    #[arg(long, value_name = "true|false")]
    pub conj_sym: Option<bool>,
    /// none or silu
    #[arg(long, value_name = "NAME")]
    pub activation: Option<String>,
    /// time-first (B, L, H, P) or heads-first (B, H, L, P)
    #[arg(long, value_name = "NAME")]
    pub layout: Option<String>,
    /// Arguments that are complex, stored with a trailing axis of 2
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub complex: Vec<String>,
    /// Any option by its name in the metadata
    #[arg(long = "set", value_name = "NAME=JSON")]
    pub set: Vec<String>,
}

impl OptionArgs {
    /// As they would stand in a file.
    ///
    /// # Errors
    /// A value that is not what the option takes.
    pub fn options(&self) -> Result<Options> {
        let mut options = Options::new();
        let mut put = |name: &str, value: Value| options.insert(name.to_string(), value);
        if self.dt_softplus {
            put("dt_softplus", json!(true));
        }
        if self.reverse {
            put("reverse", json!(true));
        }
        if let Some(text) = &self.dt_limit {
            let ends: Vec<&str> = text.split(',').map(str::trim).collect();
            if ends.len() != 2 || ends.iter().any(|end| end.parse::<f64>().is_err()) {
                return Err(Error::Usage { option: "--dt-limit", expected: "two numbers, LOW,HIGH", got: text.clone() });
            }
            put("dt_limit", json!(ends));
        }
        let words = [("discretization", &self.discretization), ("activation", &self.activation), ("layout", &self.layout)];
        for (name, word) in words {
            if let Some(word) = word {
                put(name, json!(word));
            }
        }
        if let Some(n) = self.chunk_size {
            put("chunk_size", json!(n));
        }
        if let Some(flag) = self.conj_sym {
            put("conj_sym", json!(flag));
        }
        for text in &self.set {
            let bad = || Error::Usage { option: "--set", expected: "NAME=JSON", got: text.clone() };
            let (name, value) = text.split_once('=').ok_or_else(bad)?;
            put(name, serde_json::from_str(value).map_err(|_| bad())?);
        }
        Ok(options)
    }
}

/// The arguments of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Files of test vectors
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Check the float64 oracle instead of the kernels
    #[arg(long)]
    pub oracle: bool,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Where and how to compute.
    #[command(flatten)]
    pub exec: ExecArgs,
}

/// The arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The operation; all of them if not given
    pub op: Option<String>,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
    /// One shape for each operation and shorter measurements
    #[arg(long)]
    pub quick: bool,
    /// Measure what this project wants to reach, one line each; the exit status is 1 if something is missed
    #[arg(long, conflicts_with_all = ["threads", "dtype", "level"])]
    pub targets: bool,
    /// Numbers of threads to time; 1 and one for each core if not given
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// Storage types to time
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub dtype: Vec<TypeName>,
    /// Instruction set: scalar, neon, avx2 or avx512; the widest one if not given
    #[arg(long, value_name = "L")]
    pub level: Option<String>,
    /// cpu, cuda, or cuda:N for the device with this number
    #[arg(long, value_name = "DEVICE", default_value = "cpu", conflicts_with_all = ["threads", "level"])]
    pub device: String,
}

/// Runs a command; the number is the exit status.
///
/// # Errors
/// Whatever keeps it from being done.
pub fn main(cli: Cli) -> Result<u8> {
    match cli.command {
        None => crate::run::demonstration(),
        Some(Command::Run(args)) => crate::run::run(&args),
        Some(Command::Verify(args)) => crate::verify::verify(&args),
        Some(Command::Bench(args)) => crate::bench::bench(&args),
        Some(Command::Info { json }) => crate::info::info(json),
    }
}
