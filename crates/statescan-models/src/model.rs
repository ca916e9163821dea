//! [`Model`]: a language model from a folder.

pub(crate) mod backward;
mod gradients;
mod host;
pub(crate) mod rows;
pub(crate) mod save;
pub(crate) mod score;
mod states;
pub(crate) mod whole;

pub(crate) use score::surprise;

use crate::checkpoint::Checkpoint;
use crate::config::{Config, Family, HEAD, Package, text_settings};
use crate::error::{Error, Result};
use crate::fields::standard_json;
use crate::memory;
use crate::mixer::{Carried, Host, Mixer, Role, Steps};
use crate::state::State;
use crate::tensors::Tensors;
use crate::weight::{Weight, first_not_finite, first_too_large};
pub use save::SaveOptions;
use serde_json::{Map, Value};
use statescan::tensor::Device;
use statescan::{DType, Exec, ViewMut};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use whole::{BlockRooms, PassRooms, Whole};

/// Rows that go through the blocks at once: what bounds the memory of a long prompt.
const ROWS: usize = 512;

/// A language model: embedding, blocks, norm, head.
///
/// Weights have the type that they have in the files of the folder, which are read, or mapped and used in place where nobody may write them or where they
/// are large; everything else is `f32`.
pub struct Model {
    pub(crate) config: Config,
    /// The settings of `config.json`, also those that mean nothing here.
    pub(crate) settings: Map<String, Value>,
    /// The files that settings and weights are from.
    files: Vec<PathBuf>,
    /// All of them as they are stored, for whoever writes the model; tensors are shared with what is used.
    weights: BTreeMap<String, Weight>,
    pub(crate) embedding: Weight,
    pub(crate) blocks: Vec<Block>,
    pub(crate) norm: Vec<f32>,
    pub(crate) head: Weight,
}

/// `x + mixer(norm(x))`, or `x + norm(mixer(x))`.
pub(crate) struct Block {
    pub(crate) norm: Vec<f32>,
    pub(crate) mixer: Mixer,
}

/// Some tokens of one sequence, and what came before them.
pub struct Turn<'t> {
    /// The tokens.
    pub tokens: &'t [u32],
    /// The state after the tokens before; after the call, after these too.
    pub state: &'t mut State,
}

/// Which logits are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logits {
    /// After every token.
    All,
    /// After the last token of each sequence that has one.
    Last,
}

impl Model {
    /// Loads a model of `transformers` or of `mamba_ssm`: a folder with `config.json` and `model.safetensors`, or several files and
    /// `model.safetensors.index.json`.
    ///
    /// # Errors
    /// Files that cannot be read or are not what they say, settings, tensors, shapes and types that are not those of a model here, weights
    /// that are NaN or infinite.
    pub fn load(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let (path, text) = Config::text(folder)?;
        // faults of the settings are reported before those of weights
        Config::parse(&path, &text, None)?;
        let weights = Checkpoint::open(folder)?;
        let files = [vec![path.clone()], weights.files.clone()].concat();
        let model = Self::of_files(&path, &text, weights)?;
        Ok(Model { config: model.config.with_generation(folder)?, files, ..model })
    }

    /// A model whose files the process has in memory: the text of `config.json` and the bytes of `model.safetensors`, which are used where
    /// they lie if that is aligned.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_bytes(config: &str, weights: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self> {
        let [of_config, of_weights] = ["config.json", "model.safetensors"].map(|name| Path::new("memory").join(name));
        let weights = Checkpoint::of_bytes(&of_weights, Arc::new(weights))?;
        Self::of_files(&of_config, config, weights)
    }

    fn of_files(path: &Path, text: &str, weights: Checkpoint) -> Result<Self> {
        let config = Config::parse(path, text, weights.channels())?;
        let settings: Map<String, Value> = serde_json::from_str(&standard_json(text)).unwrap_or_default();
        let settings = text_settings(&settings).into_owned();
        Ok(Model { settings, ..Self::take(config, weights)? })
    }

    /// A model of weights that the process has; they are copied.
    ///
    /// # Errors
    /// Tensors or shapes that are not those of the configuration, weights that are NaN or infinite.
    pub fn from_tensors(config: Config, tensors: &Tensors) -> Result<Self> {
        Self::take(config, Checkpoint::of(tensors)?)
    }

    /// A model of random weights of a type (f32, bf16 or f16), as training begins with.
    ///
    /// # Errors
    /// Sizes of a configuration that do not fit together.
    pub fn random(config: Config, dtype: DType, seed: u64) -> Result<Self> {
        config.check()?;
        memory::check("a model of these sizes", config.weights().saturating_mul(dtype.size()))?;
        let weights = Checkpoint::random(&config, config.tensors(), dtype, seed)?;
        Self::take(config, weights)
    }

    fn take(mut config: Config, mut from: Checkpoint) -> Result<Self> {
        config.check()?;
        memory::check("a state of this model", config.state_bytes())?;
        if config.family == Family::Qwen35 {
            // other parts of a model that also sees, and layers that guess further tokens
            from.leave_out(&["model.visual.", "mtp."]);
            from.rename_all("model.language_model.", "model.");
        }
        for (parts, name) in config.stored_otherwise() {
            from.join(&parts, &[1, config.width], &name)?;
        }
        let (embedding, head) = take_tables(&mut config, &mut from)?;
        let mut blocks = Vec::new();
        for (i, &kind) in config.layers.iter().enumerate() {
            let norm = take_norm(&config, &mut from, &config.norm(i))?;
            blocks.push(Block { norm, mixer: Mixer::take(&config, kind, &mut from, &config.prefix(i))? });
        }
        let norm = take_norm(&config, &mut from, config.last_norm())?;
        let weights = from.finish(config.family.name())?;
        Ok(Model { config, settings: Map::new(), files: Vec::new(), weights, embedding, blocks, norm, head })
    }

    /// The weights by their names in checkpoints, as they are stored.
    pub fn weights(&self) -> &BTreeMap<String, Weight> {
        &self.weights
    }

    /// Sizes and options.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The files of settings and weights that [`Model::load`] has read; none of other models. Weights may still be used where they lie in them.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Bytes that a step has to read, the floor of decoding: the weights of projections and head, and the states.
    pub fn bytes_per_step(&self) -> usize {
        let blocks = self.blocks.iter().flat_map(|block| block.mixer.products(&self.config));
        blocks.chain([&self.head]).map(Weight::size).sum::<usize>() + self.state().size()
    }

    /// Multiply-adds of the products that every token goes through; the head's come on top where logits are asked for.
    pub fn products_per_token(&self) -> usize {
        self.blocks.iter().flat_map(|block| block.mixer.products(&self.config)).map(Weight::len).sum()
    }

    /// The logits after every token of a text, (tokens, vocab).
    ///
    /// # Errors
    /// As [`Model::advance`].
    pub fn forward(&self, exec: &Exec, tokens: &[u32]) -> Result<Vec<f32>> {
        self.forward_from(exec, tokens, &mut self.state())
    }

    /// The logits of [`Model::forward`] for tokens that follow others.
    ///
    /// # Errors
    /// As [`Model::advance`].
    pub fn forward_from(&self, exec: &Exec, tokens: &[u32], state: &mut State) -> Result<Vec<f32>> {
        self.advance(exec, &mut [Turn { tokens, state }], Logits::All)
    }

    /// The logits after the last one of at least one token, (vocab).
    ///
    /// # Errors
    /// As [`Model::advance`], and if there is no token.
    pub fn prefill(&self, exec: &Exec, tokens: &[u32], state: &mut State) -> Result<Vec<f32>> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        self.advance(exec, &mut [Turn { tokens, state }], Logits::Last)
    }

    /// The logits after one more token, (vocab).
    ///
    /// # Errors
    /// As [`Model::advance`].
    pub fn step(&self, exec: &Exec, token: u32, state: &mut State) -> Result<Vec<f32>> {
        self.prefill(exec, &[token], state)
    }

    /// Carries several sequences on at once, each from its own state and by its own number of tokens, and gives the logits that are asked
    /// for, (rows, vocab), in the order of the turns.
    ///
    /// The bits of logits and states depend on a sequence's tokens alone: not on how they were divided among calls, not on the other
    /// sequences, not on the number of threads.
    ///
    /// # Errors
    /// Tokens beyond the vocabulary, states of another model, an executor on a GPU: no state has changed then. Results that are NaN, infinite
    /// or too large for the norm behind them, which say the layer and the step: states have no use then.
    pub fn advance(&self, exec: &Exec, turns: &mut [Turn<'_>], logits: Logits) -> Result<Vec<f32>> {
        self.check(exec, turns)?;
        let rows = turns.iter().map(|turn| turn.tokens.len()).sum::<usize>();
        let numbers = if logits == Logits::All { rows } else { turns.len() }.saturating_mul(self.config.vocab);
        memory::check("this call", self.config.pass_bytes(rows.min(ROWS)).saturating_add(numbers.saturating_mul(4)))?;
        let (mut out, mut rooms, host) = (Vec::new(), PassRooms::default(), Host(exec));
        let whole = self.whole(&host);
        let mut taken = vec![0; turns.len()];
        loop {
            let (mut rows, mut sequences) = (0, Vec::new());
            for (turn, taken) in turns.iter().zip(&taken) {
                let count = (turn.tokens.len() - taken).min(ROWS - rows);
                sequences.push(rows..rows + count);
                rows += count;
            }
            if rows == 0 {
                return Ok(out);
            }
            self.blocks(&whole, turns, (&taken, &sequences), &mut rooms)?;
            // rows of logits that are asked for, and their steps
            let mut wanted = Vec::new();
            for ((turn, taken), rows) in turns.iter_mut().zip(&mut taken).zip(&sequences) {
                *taken += rows.len();
                let ends = !rows.is_empty() && *taken == turn.tokens.len();
                let first = match logits {
                    Logits::All => rows.start,
                    Logits::Last => {
                        if ends {
                            rows.end - 1
                        } else {
                            rows.end
                        }
                    }
                };
                wanted.extend((first..rows.end).map(|row| (row, turn.state.position + (row - rows.start) as u64)));
                turn.state.position += rows.len() as u64;
            }
            self.logits(&whole, &wanted, &mut rooms, &mut out)?;
        }
    }

    fn check(&self, exec: &Exec, turns: &[Turn<'_>]) -> Result<()> {
        for turn in turns {
            turn.state.check(&self.config)?;
            self.check_tokens(exec, turn.tokens)?;
        }
        Ok(())
    }

    fn check_tokens(&self, exec: &Exec, tokens: &[u32]) -> Result<()> {
        if exec.device() != Device::Cpu {
            return Err(statescan::Error::Unavailable {
                what: "a language model",
                why: "this one is on the CPU: DeviceModel has its weights on a GPU",
            }
            .into());
        }
        self.config.check_tokens(tokens)
    }

    /// Rows of the embedding.
    fn embed(&self, tokens: &[u32], stream: &mut [f32]) {
        let dim = self.config.dim;
        for (row, &token) in stream.chunks_exact_mut(dim).zip(tokens) {
            self.embedding.widen(token as usize * dim..(token as usize + 1) * dim, row);
            row.iter_mut().for_each(|x| *x *= self.config.scales.embedding);
        }
    }

    /// The stream after the last block, for rows of tokens from `taken` on.
    fn blocks(
        &self,
        whole: &Whole<'_>,
        turns: &mut [Turn<'_>],
        (taken, sequences): (&[usize], &[Range<usize>]),
        PassRooms { stream, block, added }: &mut PassRooms,
    ) -> Result<()> {
        let (exec, dim, count) = (whole.device.exec(), self.config.dim, sequences.last().map_or(0, |rows| rows.end));
        stream.grow(exec, DType::F32, count, dim)?;
        for ((turn, &taken), rows) in turns.iter().zip(taken).zip(sequences) {
            let to = &mut stream.numbers_mut()[rows.start * dim..rows.end * dim];
            self.embed(&turn.tokens[taken..taken + rows.len()], to);
        }
        for i in 0..whole.mixers.len() {
            let some = turns.iter_mut().zip(sequences).filter(|(_, rows)| !rows.is_empty());
            let states = some.map(|(turn, rows)| {
                let steps = Steps { sequences: 1, steps: rows.len() };
                let position = turn.state.position as usize;
                Carried { state: &mut turn.state.layers[i], rows: rows.clone(), steps, position }
            });
            let states = states.collect();
            let last = whole.mix(i, stream.of(count), block, |run, x, rooms| run.carry_on(x, states, rooms))?;
            whole.add((i, last), block, None, (None, &mut stream.of_mut(count)), added)?;
            let stream = &stream.numbers()[..count * dim];
            if let Some(at) = first_too_large(stream, dim) {
                let of_row = |(turn, rows): (&Turn<'_>, &Range<usize>)| {
                    rows.contains(&(at / dim)).then(|| turn.state.position + (at / dim - rows.start) as u64)
                };
                let step = turns.iter().zip(sequences).find_map(of_row).unwrap_or_default();
                return Err(Error::Overflow { part: format!("layer {i}"), step, got: stream[at] });
            }
        }
        Ok(())
    }

    /// Appends the logits of some rows of the stream, which are those of some steps.
    fn logits(&self, whole: &Whole<'_>, wanted: &[(usize, u64)], rooms: &mut PassRooms, out: &mut Vec<f32>) -> Result<()> {
        let (&Config { dim, vocab, .. }, PassRooms { stream, block: BlockRooms { normed, .. }, added }) = (&self.config, rooms);
        let (count, before) = (wanted.len(), out.len());
        if count == 0 {
            return Ok(());
        }
        added.grow(whole.device.exec(), DType::F32, count, dim)?;
        for (row, &(from, _)) in added.numbers_mut().chunks_exact_mut(dim).zip(wanted) {
            row.copy_from_slice(&stream.numbers()[from * dim..(from + 1) * dim]);
        }
        out.resize(before + count * vocab, 0.0);
        let logits = &mut ViewMut::new(&mut out[before..], &[count, vocab])?;
        whole.head(added.of(count), normed.of_mut(count), logits)?;
        out[before..].iter_mut().for_each(|x| *x /= self.config.scales.logits);
        match first_not_finite(&out[before..]) {
            None => Ok(()),
            Some(at) => Err(Error::Overflow { part: "the head".into(), step: wanted[at / vocab].1, got: out[before + at] }),
        }
    }
}

/// The weight of a norm of the stream.
fn take_norm(config: &Config, from: &mut Checkpoint, name: &str) -> Result<Vec<f32>> {
    let weight = Role::Norm.used(config, from.take(name, &[config.dim])?)?;
    Ok(weight.to_f32())
}

/// Embedding and head. Where a tied head is stored as well, it must be the embedding in models of `mamba_ssm`; in those of `transformers` one that differs
/// is the head, and the only table that is stored is both, as there.
fn take_tables(config: &mut Config, from: &mut Checkpoint) -> Result<(Weight, Weight)> {
    let (name, shape) = (config.embedding(), [config.vocab, config.dim]);
    if !config.tied {
        return Ok((from.take(name, &shape)?, from.take(HEAD, &shape)?));
    }
    let path = from.path(HEAD);
    if !from.has(HEAD) {
        let embedding = from.take(name, &shape)?;
        return Ok((embedding.clone(), embedding));
    }
    if !from.has(name) && config.package == Package::Transformers {
        from.rename(HEAD, name);
        let embedding = from.take(name, &shape)?;
        return Ok((embedding.clone(), embedding));
    }
    let (embedding, head) = (from.take(name, &shape)?, from.take(HEAD, &shape)?);
    if head.bytes() == embedding.bytes() {
        from.forget(HEAD);
        return Ok((embedding.clone(), embedding));
    }
    if config.package == Package::MambaSsm {
        return Err(Error::Untied { path });
    }
    config.tied = false;
    Ok((embedding, head))
}
