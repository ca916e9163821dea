//! `convert`: a language model's folder in another form.

use crate::destination::{OutputFolder, check_apart, check_folder};
use crate::error::Result;
use crate::exec::WeightType;
use crate::language::folder_help;
use crate::output::say;
use clap::{Args, ValueEnum};
use statescan_models::{Model, Package, SaveOptions};
use std::path::PathBuf;

/// The folder to read, and how to write it.
///
/// Names, types and a tied head are left as they are unless they are asked for. Tokenizer, chat template and defaults of generation are copied.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Folder of a model.
    #[arg(value_name = "IN", help = format!("{}; with safetensors files or pytorch_model.bin", folder_help()))]
    pub from: PathBuf,
    /// Folder to write
    #[arg(value_name = "OUT")]
    pub to: PathBuf,
    /// Type of all weights
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    pub dtype: Option<WeightType>,
    /// Package whose names of tensors and settings to write
    #[arg(long, value_enum, value_name = "PACKAGE")]
    pub names: Option<PackageName>,
    /// Whether the head is the embedding, which is stored once then
    #[arg(long, value_name = "true|false")]
    pub tied: Option<bool>,
    /// Most bytes of a file; a larger model becomes several files and an index
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "5G")]
    pub shard_size: u64,
    /// Folder whose tokenizer and chat template to copy, where IN has none
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// Overwrite what OUT has
    #[arg(long)]
    pub force: bool,
}

/// A package on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum PackageName {
    /// backbone.embeddings.weight, hidden_size
    Transformers,
    /// backbone.embedding.weight, d_model
    #[value(name = "mamba_ssm")]
    MambaSsm,
}

impl From<PackageName> for Package {
    fn from(name: PackageName) -> Package {
        match name {
            PackageName::Transformers => Package::Transformers,
            PackageName::MambaSsm => Package::MambaSsm,
        }
    }
}

/// A number of bytes, in units of a thousand.
fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.trim_end_matches(['B', 'b']) {
        text if text.ends_with(['K', 'k']) => (&text[..text.len() - 1], 1_000),
        text if text.ends_with(['M', 'm']) => (&text[..text.len() - 1], 1_000_000),
        text if text.ends_with(['G', 'g']) => (&text[..text.len() - 1], 1_000_000_000),
        text => (text, 1),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "it must be a number of bytes above 0, as 500000, 500M or 5G".into())
}

/// Runs the command.
///
/// # Errors
/// A folder that cannot be read or written, that has another model, a form that the model cannot have.
pub fn convert(args: &ConvertArgs) -> Result<u8> {
    const INSTEAD: &str = "--force overwrites it";
    check_folder(&args.to, args.force, INSTEAD)?;
    check_apart(&args.to, &args.from, "OUT", "another folder than IN")?;
    let model = Model::load(&args.from)?;
    let mut options = SaveOptions::default();
    options.dtype = args.dtype.map(Into::into);
    options.package = args.names.map(Into::into);
    options.tied = args.tied;
    options.shard_bytes = args.shard_size;
    let folder = OutputFolder::create(&args.to, args.force, INSTEAD)?;
    if let Err(error) = model.save_with(folder.path(), &options) {
        // a folder that was made for nothing
        let _ = std::fs::remove_dir(folder.path());
        return Err(error.into());
    }
    let from = [Some(args.from.as_path()), args.tokenizer.as_deref()];
    let copied = folder.replace(&from.into_iter().flatten().collect::<Vec<_>>())?;
    let beside = if copied.is_empty() { String::new() } else { format!(", with {}", copied.join(", ")) };
    say!("{} weights in {}{beside}", model.config().weights(), folder.path().display())?;
    Ok(0)
}
