//! The arguments of `bench`.

use crate::exec::TypeName;
use clap::Args;

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
