//! [`Config`]: sizes and options of a model, from the `config.json` of `transformers` or of `mamba_ssm`.

mod bytes;
mod delta;
mod generation;
mod hybrid;
mod mamba_ssm;
mod names;
mod shapes;
mod transformers;

use crate::error::{Error, Result};
use crate::fields::{Fields, standard_json};
use crate::files::{make_folder, read_text, write_aside};
pub use hybrid::{Attention, FeedForward, HeadNorms, Scales};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A package: `config.json` has its settings, and a checkpoint its names.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Package {
    /// `transformers`: `hidden_size`, `backbone.embeddings.weight`.
    Transformers,
    /// `mamba_ssm`: `d_model`, `backbone.embedding.weight`.
    MambaSsm,
}

impl Package {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Package::Transformers => "transformers",
            Package::MambaSsm => "mamba_ssm",
        }
    }
}

/// The work of a layer between its norm and the residual stream.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Selective scan; step sizes, input and output maps are projections of the convolution's result.
    Mamba,
    /// [`Kind::Mamba`] with norms on step sizes, input and output maps.
    FalconMamba,
    /// One decay for each head; everything comes from one projection, and a gated norm follows the scan.
    Mamba2,
    /// The gated delta rule: one decay for each head of values, queries and keys of length 1, and a gated norm of each head.
    GatedDelta,
    /// Grouped-query attention with rotary positions.
    Attention,
    /// A gated feed-forward layer.
    Mlp,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Mamba => "mamba",
            Kind::FalconMamba => "falcon_mamba",
            Kind::Mamba2 => "mamba2",
            Kind::GatedDelta => "gated_delta",
            Kind::Attention => "attention",
            Kind::Mlp => "mlp",
        }
    }
}

/// A family of models: which settings and names they have, and of which kinds their layers are.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Layers of [`Kind::Mamba`].
    Mamba,
    /// Layers of [`Kind::FalconMamba`].
    FalconMamba,
    /// Layers of [`Kind::Mamba2`].
    Mamba2,
    /// Pairs of a mixer, [`Kind::Mamba2`] or [`Kind::Attention`], and a layer of [`Kind::Mlp`].
    Bamba,
    /// [`Family::Bamba`] with other names, with factors of the stream and of scores, and with positions or without, as Granite's
    /// hybrids without experts have it.
    GraniteHybrid,
    /// Pairs of a mixer, [`Kind::GatedDelta`] or [`Kind::Attention`], and a layer of [`Kind::Mlp`], as the text models of Qwen 3.5 without experts have
    /// it: norms store what their weights are beyond 1, and attention has gates.
    Qwen35,
    /// Pairs of [`Family::Qwen35`]'s kinds, as OLMo Hybrid has them: pairs with attention have their norms behind their layers.
    OlmoHybrid,
}

impl Family {
    /// All of them.
    pub const ALL: &[Family] = &[
        Family::Mamba,
        Family::FalconMamba,
        Family::Mamba2,
        Family::Bamba,
        Family::GraniteHybrid,
        Family::Qwen35,
        Family::OlmoHybrid,
    ];

    /// The word of `model_type`.
    pub fn name(self) -> &'static str {
        match self {
            Family::Mamba => "mamba",
            Family::FalconMamba => "falcon_mamba",
            Family::Mamba2 => "mamba2",
            Family::Bamba => "bamba",
            Family::GraniteHybrid => "granitemoehybrid",
            Family::Qwen35 => "qwen3_5_text",
            Family::OlmoHybrid => "olmo_hybrid",
        }
    }

    /// The words of all, as a sentence has them.
    pub fn names() -> &'static str {
        static NAMES: LazyLock<String> = LazyLock::new(|| {
            let names: Vec<_> = Family::ALL.iter().map(|family| family.name()).collect();
            let (last, others) = names.split_last().expect("there are families");
            format!("{} or {last}", others.join(", "))
        });
        &NAMES
    }

    /// The kind of its layers that scan.
    pub fn scan(self) -> Kind {
        match self {
            Family::Mamba => Kind::Mamba,
            Family::FalconMamba => Kind::FalconMamba,
            Family::Mamba2 | Family::Bamba | Family::GraniteHybrid => Kind::Mamba2,
            Family::Qwen35 | Family::OlmoHybrid => Kind::GatedDelta,
        }
    }

    /// Whether its layers are pairs of a mixer and a feed-forward layer.
    pub(crate) fn is_hybrid(self) -> bool {
        matches!(self, Family::Bamba | Family::GraniteHybrid) || self.scan() == Kind::GatedDelta
    }
}

/// Sizes and options of a model. [`Config::mamba`], [`Config::falcon_mamba`] and [`Config::mamba2`] make one, whose fields can then be set;
/// [`Model::random`](crate::Model::random) and all else that takes one refuses sizes that do not fit together.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The family that `model_type` names.
    pub family: Family,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Width of the stream between layers.
    pub dim: usize,
    /// The layers, each of which adds to the stream what it makes of it.
    pub layers: Vec<Kind>,
    /// Channels of the scan; with the delta rule those of all heads of values.
    pub inner: usize,
    /// States of a channel; with the delta rule the numbers of a key.
    pub dstate: usize,
    /// Taps of the convolution.
    pub width: usize,
    /// Rank of the projection to step sizes; 0 in Mamba-2 and with the delta rule.
    pub dt_rank: usize,
    /// Heads of the scan, with the delta rule those of values; as many as channels in Mamba.
    pub nheads: usize,
    /// Groups of heads that share input and output maps, or keys and queries.
    pub ngroups: usize,
    /// Whether the projections into and out of a block have a bias.
    pub bias: bool,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Added to the mean square in norms between blocks.
    pub eps: f32,
    /// Added to the mean square in norms within a block.
    pub mixer_eps: f32,
    /// Layers of attention, in a hybrid.
    pub attention: Attention,
    /// Feed-forward layers, in a hybrid.
    pub feed_forward: FeedForward,
    /// Factors of the stream, 1 but in Granite's hybrids.
    pub scales: Scales,
    /// Whether the delta rule writes up to twice a value, so that a state's eigenvalues may be negative.
    pub allow_neg_eigval: bool,
    /// Lowest and highest step.
    pub dt_limit: (f64, f64),
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// The package whose settings and names are written.
    pub package: Package,
}

impl Config {
    /// Reads the `config.json` of a folder, and the tokens that end a text from its `generation_config.json`, if that has some.
    /// Settings have the meaning and the defaults of the package that wrote them.
    ///
    /// # Errors
    /// A file that cannot be read or is no JSON, settings that no model here has.
    pub fn load(folder: impl AsRef<Path>) -> Result<Self> {
        let (path, text) = Self::text(folder.as_ref())?;
        Self::parse(&path, &text, None)?.with_generation(folder.as_ref())
    }

    /// The path and the text of a folder's `config.json`.
    pub(crate) fn text(folder: &Path) -> Result<(PathBuf, String)> {
        if !folder.exists() {
            return Err(Error::NoFolder { path: folder.to_owned() });
        }
        let path = folder.join(FILE);
        let text = read_text(&path)?;
        Ok((path, text))
    }

    /// The configuration of the text of a `config.json`, which errors call `path`. `channels` are those of the weights, if it is known: they
    /// decide between settings that contradict each other.
    pub(crate) fn parse(path: &Path, text: &str, channels: Option<usize>) -> Result<Self> {
        let format = |why: String| Error::Format { path: path.to_owned(), expected: "a model's configuration", why };
        let json: Value = serde_json::from_str(&standard_json(text)).map_err(|error| format(error.to_string()))?;
        let map = json.as_object().ok_or_else(|| format("it is no object".into()))?;
        let map = text_settings(map);
        let fields = Fields::new(path, &map);
        if !fields.has("model_type") && fields.has("d_model") {
            return mamba_ssm::read(&fields);
        }
        let word = fields.get("model_type").and_then(Value::as_str);
        match Family::ALL.iter().copied().find(|family| word == Some(family.name())) {
            Some(family) if family.scan() == Kind::GatedDelta => delta::read(family, &fields),
            Some(family) if family.is_hybrid() => hybrid::read(family, &fields),
            Some(family) => transformers::read(family, &fields, channels),
            None => Err(fields.bad("model_type", Family::names())),
        }
    }

    /// The settings as its package writes them into a `config.json`.
    ///
    /// # Errors
    /// Sizes that do not fit together, and those that the package has no setting for.
    pub fn to_json(&self) -> Result<Map<String, Value>> {
        self.check()?;
        match self.package {
            Package::Transformers if self.family.scan() == Kind::GatedDelta => delta::write(self),
            Package::Transformers if self.family.is_hybrid() => hybrid::write(self),
            Package::Transformers => transformers::write(self),
            Package::MambaSsm => mamba_ssm::write(self),
        }
    }

    /// Writes a folder's `config.json`, aside first and then renamed; the folder is made if there is none.
    ///
    /// # Errors
    /// As [`Config::to_json`]; a file that cannot be written.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        save_json(folder.as_ref(), self.to_json()?)
    }

    /// A Mamba with a tied head and everything else as its paper has it.
    pub fn mamba(vocab: usize, dim: usize, layers: usize) -> Self {
        Config {
            family: Family::Mamba,
            vocab,
            dim,
            layers: vec![Kind::Mamba; layers],
            inner: dim.saturating_mul(2),
            dstate: 16,
            width: 4,
            dt_rank: dim.div_ceil(16),
            nheads: dim.saturating_mul(2),
            ngroups: 1,
            bias: false,
            conv_bias: true,
            eps: 1e-5,
            mixer_eps: 1e-5,
            attention: Attention::default(),
            feed_forward: FeedForward::default(),
            scales: Scales::default(),
            allow_neg_eigval: false,
            dt_limit: (0.0, f64::INFINITY),
            tied: true,
            eos: Vec::new(),
            package: Package::Transformers,
        }
    }

    /// A FalconMamba: [`Config::mamba`] with norms on step sizes, input and output maps.
    pub fn falcon_mamba(vocab: usize, dim: usize, layers: usize) -> Self {
        let layers = vec![Kind::FalconMamba; layers];
        Config { family: Family::FalconMamba, layers, mixer_eps: 1e-6, ..Self::mamba(vocab, dim, 0) }
    }

    /// A Mamba-2 with a tied head, heads of so many channels and everything else as its paper has it.
    pub fn mamba2(vocab: usize, dim: usize, layers: usize, headdim: usize) -> Self {
        let (like, layers) = (Self::mamba(vocab, dim, 0), vec![Kind::Mamba2; layers]);
        let nheads = like.inner.checked_div(headdim).unwrap_or(0);
        Config { family: Family::Mamba2, layers, dstate: 128, dt_rank: 0, nheads, ..like }
    }
}

pub(crate) use names::HEAD;

/// The file of a configuration in its folder.
pub(crate) const FILE: &str = "config.json";

/// The settings of the part of a model that reads and writes text, of one that also sees; other settings as they are.
pub(crate) fn text_settings(settings: &Map<String, Value>) -> Cow<'_, Map<String, Value>> {
    const WITH_PICTURES: &str = "qwen3_5";
    let Some(text) = settings.get("text_config").and_then(Value::as_object) else { return Cow::Borrowed(settings) };
    if settings.get("model_type").and_then(Value::as_str) != Some(WITH_PICTURES) {
        return Cow::Borrowed(settings);
    }
    let mut text = text.clone();
    // settings of the whole model go before those of a part of it
    for key in ["tie_word_embeddings", "quantization_config"] {
        text.extend(settings.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    Cow::Owned(text)
}

/// Writes settings as the `config.json` of a folder.
pub(crate) fn save_json(folder: &Path, json: Map<String, Value>) -> Result<()> {
    make_folder(folder)?;
    write_aside(&folder.join(FILE), format!("{:#}\n", Value::Object(json)).as_bytes())
}

/// Refuses what a package has no setting for.
fn expressible(config: &Config, holds: bool, key: &'static str, expected: &'static str, got: impl ToString) -> Result<()> {
    let package = config.package.name();
    if holds { Ok(()) } else { Err(Error::Inexpressible { package, key, expected, got: got.to_string() }) }
}

fn width(fields: &Fields<'_>, key: &'static str) -> Result<usize> {
    let width = fields.size_or(key, 4)?;
    if (2..=8).contains(&width) { Ok(width) } else { Err(fields.bad(key, "an integer from 2 to 8")) }
}

fn check_groups(fields: &Fields<'_>, key: &'static str, nheads: usize, ngroups: usize) -> Result<()> {
    if nheads.is_multiple_of(ngroups) { Ok(()) } else { Err(fields.bad(key, "a divisor of the number of heads")) }
}
