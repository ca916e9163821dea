//! `generate`: a text continued by a language model.

use crate::error::{Error, Result};
use crate::exec::{ExecArgs, TypeName};
use crate::reader::Reader;
use clap::Args;
use statescan::Exec;
use statescan::cuda::Ceilings;
use statescan::tensor::Device;
use statescan_cases::measure::floors::Floors;
use statescan_models::{ChatTemplate, Message, Model, Sampler, Tokenizer};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The configuration and the weights of the model in the program, which `statescan train` made (docs/models.md).
const OWN: (&str, &[u8]) = (include_str!("../assets/alice/config.json"), include_bytes!("../assets/alice/model.safetensors"));

/// What to continue, with which model.
///
/// The text goes to standard output, as it comes; how fast it came goes to standard error.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Folder of a mamba, falcon_mamba or mamba2 model of `transformers` or `mamba_ssm`, with safetensors files; a small model of the bytes of
    /// "Alice's Adventures in Wonderland" if none is given
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// The text to continue
    #[arg(long, value_name = "TEXT", required_unless_present = "file")]
    pub prompt: Option<String>,
    /// A file with the text to continue
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,
    /// Put the prompt, as what a user says, into the chat template of the folder
    #[arg(long)]
    pub chat: bool,
    /// Tokens to generate at most; fewer if the text ends before
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub tokens: usize,
    /// 0 takes the most likely token; more than 0 draws, the higher the less likely ones too
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f64,
    /// Draw from the fewest tokens whose probabilities sum to this
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f64,
    /// Draw from so many of the most likely tokens; 0 means all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// The same seed draws the same text
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Go on from a state that --save-state wrote: the prompt follows the text that it has read
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Save what the model remembers of all text, the generated one too
    #[arg(long, value_name = "FILE")]
    pub save_state: Option<PathBuf>,
    /// The type of weights on a GPU, f32, bf16 or f16; the one that they have if not given
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    pub dtype: Option<TypeName>,
    /// Where and how to compute.
    #[command(flatten)]
    pub exec: ExecArgs,
}

/// Runs the command.
///
/// # Errors
/// A device that there is not, a folder, a state or a file that cannot be used, settings out of range, an empty prompt, tokens that the
/// model does not have.
pub fn generate(args: &GenerateArgs) -> Result<u8> {
    let exec = args.exec.exec()?;
    if args.dtype.is_some() && exec.device() == Device::Cpu {
        return Err(Error::Usage { option: "the device of --type", expected: "a GPU", got: args.exec.device.clone() });
    }
    let mut sampler = Sampler::new(args.temperature, args.top_k, args.top_p, args.seed)?;
    let prompt = match &args.file {
        Some(path) => std::fs::read(path).map_err(io(path))?,
        None => args.prompt.clone().unwrap_or_default().into_bytes(),
    };
    let (model, tokenizer) = match &args.folder {
        Some(folder) => (Model::load(folder)?, Tokenizer::load(folder)?),
        None => (Model::from_bytes(OWN.0, OWN.1)?, Tokenizer::bytes()),
    };
    let state = match &args.state {
        Some(path) => model.load_state(path)?,
        None => model.state(),
    };
    let prompt = if args.chat { in_template(args, prompt)? } else { prompt };
    let tokens = tokenizer.encode(&prompt)?;
    let mut reader = Reader::new(&exec, &model, state, args.dtype.map(Into::into))?;
    let begin = Instant::now();
    let token = reader.prefill(&tokens, &mut sampler)?;
    let prefill = Pace { tokens: tokens.len(), time: begin.elapsed() };
    let decode = continue_text(args, &model, &tokenizer, &mut sampler, token, &mut reader)?;
    if let Some(path) = &args.save_state {
        model.save_state(&reader.state()?, path)?;
    }
    report(&exec, &model, &reader, &prefill, &decode)?;
    Ok(0)
}

/// A prompt in the chat template of the folder.
fn in_template(args: &GenerateArgs, prompt: Vec<u8>) -> Result<Vec<u8>> {
    let expected = "one with a chat template";
    let none = |got: String| Error::Usage { option: "the folder of --chat", expected, got };
    let folder = args.folder.as_ref().ok_or_else(|| none("none".into()))?;
    let template = ChatTemplate::load(folder)?.ok_or_else(|| none(folder.display().to_string()))?;
    let not_text = |_| Error::Usage { option: "the prompt of --chat", expected: "UTF-8", got: "other bytes".into() };
    let prompt = String::from_utf8(prompt).map_err(not_text)?;
    Ok(template.render(&[Message { role: "user", content: &prompt }])?.into_bytes())
}

/// Writes what the model generates; every token is read by the model, so that the state is that of the whole text.
fn continue_text(
    args: &GenerateArgs,
    model: &Model,
    tokenizer: &Tokenizer,
    sampler: &mut Sampler,
    mut token: u32,
    reader: &mut Reader<'_>,
) -> Result<Pace> {
    let (mut decoder, mut out, mut tokens) = (tokenizer.decoder(), std::io::stdout(), 0);
    let begin = Instant::now();
    while tokens < args.tokens && !model.config().eos.contains(&token) {
        let text = decoder.push(token);
        out.write_all(&text).and_then(|()| out.flush()).map_err(io(Path::new("standard output")))?;
        token = reader.step(token, sampler)?;
        tokens += 1;
    }
    let pace = Pace { tokens, time: begin.elapsed() };
    out.write_all(b"\n").map_err(io(Path::new("standard output")))?;
    Ok(pace)
}

/// Tokens, and how long they took.
struct Pace {
    tokens: usize,
    time: Duration,
}

impl Pace {
    fn print(&self, what: &str, floor: Option<(f64, &str)>) {
        let each = self.time.as_nanos() as f64 / self.tokens.max(1) as f64;
        let rate = 1e9 / each.max(1.0);
        let share = |(ns, of)| format!(", {:.0} % of what {of} alone would allow", 100.0 * ns / each.max(1.0));
        eprintln!("{what}  {} tokens, {rate:.1} tokens/s{}", self.tokens, floor.map_or(String::new(), share));
    }
}

/// Prints the pace of both parts beside what this machine could do at most; products of GPUs have no figure of their own here.
fn report(exec: &Exec, model: &Model, reader: &Reader<'_>, prefill: &Pace, decode: &Pace) -> Result<()> {
    let step = reader.bytes_per_step() as f64;
    let (bytes, products) = match exec.device() {
        Device::Cpu => {
            let floors = Floors::measure(exec.threads());
            (step / floors.bytes, Some(2.0 * model.products_per_token() as f64 / floors.flops))
        }
        _ => (step / Ceilings::measure(exec)?.bytes, None),
    };
    if prefill.tokens > 0 {
        let floor = products.map(|products| (products.max(bytes / prefill.tokens as f64), "its products"));
        prefill.print("prefill", floor);
    }
    if decode.tokens > 0 {
        decode.print("decode ", Some((bytes.max(products.unwrap_or(0.0)), "reading weights and states")));
    }
    Ok(())
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let name = path.display().to_string();
    |source| Error::Io { name, source }
}
