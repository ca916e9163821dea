//! Arguments that choose where and how to compute.

use crate::error::{Error, Result};
use clap::{Args, ValueEnum};
use statescan::{DType, Exec, Level};

/// The device, and how to compute on it.
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

/// A storage type of weights on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum WeightType {
    /// 32-bit
    F32,
    /// bfloat16: the exponents of 32 bits, 8 bits of precision
    Bf16,
    /// 16-bit: 11 bits of precision, up to 65504
    F16,
}

impl From<WeightType> for DType {
    fn from(name: WeightType) -> DType {
        match name {
            WeightType::F32 => DType::F32,
            WeightType::Bf16 => DType::BF16,
            WeightType::F16 => DType::F16,
        }
    }
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
