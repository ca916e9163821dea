//! `eval`: how well a language model guesses texts.

use crate::destination::read_text;
use crate::error::{Error, Result};
use crate::language::{Language, LanguageArgs, folder_help};
use crate::output::say;
use crate::progress;
use clap::Args;
use serde_json::{Value, json};
use statescan::tensor::Device;
use statescan_models::DeviceModel;
use std::path::{Path, PathBuf};

/// The texts to read, and the model.
///
/// Every token but the first is guessed from all before it; none is generated. A byte counts if a token that is guessed has it.
#[derive(Debug, Args)]
#[command(override_usage = "statescan eval [OPTIONS] [DIR] <TEXT>...")]
pub struct EvalArgs {
    /// Folder of a model, and texts.
    #[arg(value_name = "TEXT", required = true, num_args = 1.., help = texts_help())]
    pub paths: Vec<PathBuf>,
    /// Print one JSON object for each text, and for all of several
    #[arg(long)]
    pub json: bool,
    /// How the model is used.
    #[command(flatten)]
    pub with: LanguageArgs,
}

fn texts_help() -> String {
    format!(
        "{}, or nothing for the model in the program; then files with texts, each of which is read from its beginning, - for standard input",
        folder_help()
    )
}

/// The score of a text, or of several.
#[derive(Default)]
struct Score {
    bytes: usize,
    tokens: usize,
    /// Bytes and tokens that were guessed, and what they took.
    covered: usize,
    guessed: usize,
    bits: f64,
}

/// Runs the command.
///
/// # Errors
/// A device that there is not, a folder or a text that cannot be used, a text of fewer than two tokens.
pub fn eval(args: &EvalArgs) -> Result<u8> {
    let (folder, texts) = match &args.paths[..] {
        [folder, texts @ ..] if folder.is_dir() || !texts.is_empty() && !folder.exists() && folder != Path::new("-") => {
            (Some(folder), texts)
        }
        texts => (None, texts),
    };
    if texts.is_empty() {
        return Err(Error::Usage { option: "TEXT", expected: "given", got: "a folder alone".into() });
    }
    let language = args.with.load(folder.map(PathBuf::as_path))?;
    let device = match language.exec.device() {
        Device::Cpu => None,
        _ => Some(DeviceModel::new(&language.exec, &language.model, language.dtype)?),
    };
    let mut all = Score::default();
    for path in texts {
        let score = score(&language, device.as_ref(), path)?;
        let name = path.display().to_string();
        let json = json!({"model": folder, "text": path});
        say!("{}", if args.json { score.json(json) } else { score.lines((texts.len() > 1).then_some(&name)) })?;
        all = all.and(score);
    }
    if texts.len() > 1 {
        let json = json!({"model": folder, "texts": texts.len()});
        say!("{}", if args.json { all.json(json) } else { all.lines(Some(&format!("{} texts", texts.len()))) })?;
    }
    Ok(0)
}

/// Reads a text.
fn score(language: &Language, device: Option<&DeviceModel>, path: &Path) -> Result<Score> {
    let of_text = |source| Error::Text { name: path.display().to_string(), source };
    let text = read_text(path)?;
    let tokens = match language.tokens(&text, true) {
        Ok(tokens) if tokens.len() < 2 => return Err(of_text(statescan_models::Error::NothingToGuess { got: tokens.len() })),
        Err(Error::Model(source)) => return Err(of_text(source)),
        tokens => tokens?,
    };
    let bar = progress::reading(&language.model, "token {pos} of {len}, {rate} tokens/s, {left} left", tokens.len());
    let progress = |read: usize| bar.set_position(read as u64);
    let bits = match device {
        None => language.model.score(&language.exec, &tokens, progress),
        Some(model) => model.score(&tokens, progress),
    };
    bar.finish_and_clear();
    let (guessed, mut decoder) = (tokens.len() - 1, language.tokenizer.decoder());
    // the first token is not guessed
    decoder.push(tokens[0]);
    let of_tokens: usize = tokens[1..].iter().map(|&token| decoder.push(token).len()).sum();
    let covered = (of_tokens + decoder.rest().len()).min(text.len());
    Ok(Score { bytes: text.len(), tokens: tokens.len(), covered, guessed, bits: bits.map_err(of_text)? * guessed as f64 })
}

impl Score {
    fn and(self, other: Score) -> Score {
        Score {
            bytes: self.bytes + other.bytes,
            tokens: self.tokens + other.tokens,
            covered: self.covered + other.covered,
            guessed: self.guessed + other.guessed,
            bits: self.bits + other.bits,
        }
    }

    /// Bits for a byte and for a token.
    fn rates(&self) -> [f64; 2] {
        [self.covered, self.guessed].map(|count| self.bits / count.max(1) as f64)
    }

    fn json(&self, mut json: Value) -> String {
        let ([bits_per_byte, bits_per_token], Score { bytes, tokens, covered, guessed, .. }) = (self.rates(), self);
        let found = json!({"bytes": bytes, "tokens": tokens, "bytes_guessed": covered, "tokens_guessed": guessed,
            "bits_per_byte": bits_per_byte, "bits_per_token": bits_per_token, "perplexity": bits_per_token.exp2()});
        if let (Some(json), Value::Object(found)) = (json.as_object_mut(), found) {
            json.extend(found);
        }
        json.to_string()
    }

    fn lines(&self, name: Option<&String>) -> String {
        let ([bits_per_byte, bits], Score { bytes, tokens, covered, guessed, .. }) = (self.rates(), self);
        let name = name.map_or(String::new(), |name| format!("{}\n", crate::text::escaped(name)));
        format!(
            "{name}{bytes} bytes, {tokens} tokens; {covered} bytes in {guessed} tokens guessed\n{bits_per_byte:.4} bits/byte, {bits:.4} bits/token, perplexity {:.3}",
            bits.exp2()
        )
    }
}
