//! `eval`: how well a language model guesses a text.

use crate::destination::read_text;
use crate::error::{Error, Result};
use crate::exec::{ExecArgs, TypeName};
use crate::output::say;
use crate::progress;
use clap::Args;
use serde_json::json;
use statescan::tensor::Device;
use statescan_models::{DeviceModel, Model, Tokenizer};
use std::path::PathBuf;

/// What to read, with which model.
///
/// Every token but the first is guessed from all before it; none is generated.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// Folder of a mamba, falcon_mamba or mamba2 model of `transformers` or `mamba_ssm`
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The text, - for standard input
    #[arg(value_name = "TEXT")]
    pub text: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Type of weights on a GPU, f32, bf16 or f16; the one that they have if not given
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    pub dtype: Option<TypeName>,
    /// Where and how to compute.
    #[command(flatten)]
    pub exec: ExecArgs,
}

/// Runs the command.
///
/// # Errors
/// A device that there is not, a folder or a text that cannot be used, a text of fewer than two tokens.
pub fn eval(args: &EvalArgs) -> Result<u8> {
    let exec = args.exec.exec()?;
    if args.dtype.is_some() && exec.device() == Device::Cpu {
        return Err(Error::Usage { option: "the device of --type", expected: "a GPU", got: args.exec.device.clone() });
    }
    let (model, tokenizer) = (Model::load(&args.folder)?, Tokenizer::load(&args.folder)?);
    let text = read_text(&args.text)?;
    let tokens = tokenizer.encode(&text)?;
    let bar = progress::bar("token {pos} of {len}, {per_sec}, {eta} left", tokens.len(), 0);
    let progress = |read: usize| bar.set_position(read as u64);
    let bits = match exec.device() {
        Device::Cpu => model.score(&exec, &tokens, progress)?,
        _ => DeviceModel::new(&exec, &model, args.dtype.map(Into::into))?.score(&tokens, progress)?,
    };
    bar.finish_and_clear();
    let first = tokens.first().map_or(0, |&token| tokenizer.decoder().push(token).len());
    // the first token is not guessed
    let (guessed, bytes) = (tokens.len() - 1, text.len().saturating_sub(first).max(1));
    let bits_per_byte = bits * guessed as f64 / bytes as f64;
    if args.json {
        let found = json!({"model": args.folder, "text": args.text, "bytes": text.len(), "tokens": tokens.len(),
            "bits_per_byte": bits_per_byte, "bits_per_token": bits, "perplexity": bits.exp2()});
        say!("{found}")?;
    } else {
        say!("{} bytes, {} tokens", text.len(), tokens.len())?;
        say!("{bits_per_byte:.4} bits/byte, {bits:.4} bits/token, perplexity {:.3}", bits.exp2())?;
    }
    Ok(0)
}
