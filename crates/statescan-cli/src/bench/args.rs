//! The arguments of `bench`.

use crate::exec::TypeName;
use clap::{Args, ValueEnum};

/// Sizes of Mamba and Mamba-2 that were published, and of models like others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Size {
    /// 768 wide, 24 blocks.
    #[value(name = "130m")]
    Of130m,
    /// 1024 wide, 48 blocks.
    #[value(name = "370m")]
    Of370m,
    /// 2048 wide, 48 blocks.
    #[value(name = "1.4b")]
    Of1400m,
    /// 2560 wide, 64 blocks.
    #[value(name = "2.8b")]
    Of2800m,
    /// Mamba-2, 768 wide, 24 blocks.
    #[value(name = "mamba2-130m")]
    Mamba2Of130m,
    /// In the form of Qwen 3.5, 1024 wide, 24 pairs of layers, every fourth of which has attention
    #[value(name = "qwen3_5-1024")]
    Qwen35Of1024,
}

/// The arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The operation, all of them if not given; or `model`: language models with random weights, prefill and decoding
    pub op: Option<String>,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
    /// One shape for each operation and shorter measurements
    #[arg(long)]
    pub quick: bool,
    /// Numbers of threads to time; 1 and one for each core if not given
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// With `model`: the published sizes to time; all of them if not given
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub size: Vec<Size>,
    /// Storage types to time; of models those of their weights
    #[arg(long, visible_alias = "type", value_enum, value_name = "LIST", value_delimiter = ',')]
    pub dtype: Vec<TypeName>,
    /// Instruction set: scalar, neon, avx2 or avx512; the widest one if not given
    #[arg(long, value_name = "L")]
    pub level: Option<String>,
    /// With `model`: multiply in 32 bits, where processors with AMX would round to bf16
    #[arg(long, conflicts_with = "device")]
    pub exact: bool,
    /// cpu, cuda, or cuda:N for the device with this number
    #[arg(long, value_name = "DEVICE", default_value = "cpu", conflicts_with_all = ["threads", "level"])]
    pub device: String,
}
