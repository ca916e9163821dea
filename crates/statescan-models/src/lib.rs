//! Language models on statescan: `mamba`, `falcon_mamba` and `mamba2` from folders of `transformers` or `mamba_ssm`, and hybrids of Mamba-2 or of
//! the gated delta rule with layers of attention, on the CPU and on NVIDIA GPUs.
//!
//! ```no_run
//! use statescan::Exec;
//! use statescan_models::{Model, Sampler, Tokenizer};
//!
//! let (exec, folder) = (Exec::cpu(0), "mamba-130m-hf");
//! let (model, tokenizer) = (Model::load(folder)?, Tokenizer::load(folder)?);
//! let (mut state, mut sampler) = (model.state(), Sampler::new(0.8, 40, 0.95, 1)?);
//! let mut logits = model.prefill(&exec, &tokenizer.encode_whole(b"Once upon a time")?, &mut state)?;
//! let mut decoder = tokenizer.decoder();
//! for _ in 0..100 {
//!     let token = sampler.draw(&logits)?;
//!     print!("{}", String::from_utf8_lossy(&decoder.push(token)));
//!     logits = model.step(&exec, token, &mut state)?;
//! }
//! # Ok::<(), statescan_models::Error>(())
//! ```
//!
//! # Weights
//!
//! They are used in the type that they have, f32, bf16 or f16; activations and states are f32. A file is read, or mapped where nobody may write it or where it is large. The names are those of
//! `transformers` (`backbone.layers.{i}.mixer.in_proj.weight`, in hybrids `model.layers.{i}.mamba.in_proj.weight`); `mamba_ssm`'s differ in the embedding's only. A folder whose tensors are not
//! exactly those that its `config.json` says is refused with a sentence that names the tensor.
//!
//! # States
//!
//! A [`State`] is a value, of fixed size but in layers of attention, which keep keys and values of every token: clone it to branch, save it with [`Model::save_state`] and load it in another process; a
//! [`Session`] takes steps back. [`Model::save_snapshot`] keeps the logits after the last token too, so that a text goes on without another
//! one. Its bits, and those of logits, depend on the sequence's tokens alone, not on how they were divided among calls,
//! on other sequences of the same call or on the number of threads, for every kind of model. That decides how a model is computed: products
//! are [`statescan::linear`], which sums every row in the same order, as [`with_exact_products`](statescan::Exec::with_exact_products) says, and the scan of Mamba-2 goes step by step as Mamba's does, as the
//! chunks of [`ssd`](statescan::ops::ssd) would begin where a call begins. Attention is products and a softmax of whole rows: it is for the few layers that a
//! hybrid has of it, and not for long contexts.
//!
//! # On a GPU
//!
//! [`DeviceModel`] has the weights of a model on an NVIDIA GPU, and a [`DeviceState`] is a state there. Products are cuBLASLt's, which is
//! opened at run time; a token is decoded by one launch of a recorded graph, whose kernels read each weight once.
//!
//! ```no_run
//! use statescan::Exec;
//! use statescan_models::{DeviceModel, Model, Sampler, Tokenizer};
//!
//! let (exec, folder) = (Exec::cuda(0)?, "mamba-130m-hf");
//! let (model, tokenizer) = (Model::load(folder)?, Tokenizer::load(folder)?);
//! let model = DeviceModel::new(&exec, &model, None)?; // weights in the type that they have; Some(DType::BF16) rounds them
//! let (mut state, mut sampler) = (model.state(1)?, Sampler::new(0.8, 40, 0.95, 1)?);
//! let mut logits = model.prefill(&tokenizer.encode_whole(b"Once upon a time")?, &mut state)?;
//! let mut decoder = tokenizer.decoder();
//! for _ in 0..100 {
//!     let token = sampler.draw(&logits)?;
//!     print!("{}", String::from_utf8_lossy(&decoder.push(token)));
//!     logits = model.step(token, &mut state)?;
//! }
//! # Ok::<(), statescan_models::Error>(())
//! ```
//!
//! There a state's bits do depend on how its tokens were divided among calls: the order of a product's sums is chosen for the number of its rows. The same
//! calls give the same bits. [`DeviceTraining`] trains there; the single [`layers`] are on the CPU only.
//!
//! [`kernels`] has what a model needs of a GPU beside the operations of `statescan`: products, embeddings, the steps of a token and those of training.
//!
//! # Training
//!
//! [`Model::loss_and_gradients`] gives the gradient by every weight, for every kind of model; of the forward pass it keeps the inputs of
//! blocks only. A [`Trainer`] trains with AdamW, on the CPU or on a GPU ([`DeviceTraining`]): a small Mamba on the bytes of a text, a model of any
//! [`Config`] on tokens, or one that exists on more of them. It goes on with the same bits after it was saved and resumed. [`mod@reference`] is the oracle
//! of both: a whole model in plain `f64` loops.
//!
//! # Writing
//!
//! [`Model::save`] writes a folder as it was read, [`Model::save_with`] in another form. Files are written aside and renamed, so that whoever looks
//! finds a whole one.
//!
//! ```
//! use statescan::DType;
//! use statescan_models::{Config, Model, Package, SaveOptions};
//!
//! let folder = std::env::temp_dir().join("a-small-mamba");
//! let mut config = Config::mamba(256, 16, 2);
//! config.dstate = 8;
//! let model = Model::random(config, DType::F32, 1)?;
//! let mut form = SaveOptions::default();
//! (form.package, form.dtype) = (Some(Package::MambaSsm), Some(DType::BF16));
//! model.save_with(&folder, &form)?;
//! assert_eq!(Model::load(&folder)?.config().dstate, 8);
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # Ok::<(), statescan_models::Error>(())
//! ```
//!
//! # Layers
//!
//! [`layers`] has the layers of Mamba, FalconMamba, Mamba-2, the gated delta rule and S5 on their own, on CPUs and GPUs, with every gradient, those by initial states too.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `cuda` | [`DeviceModel`]: without it models answer that CUDA is not available |
//! | `pytorch` | reading `pytorch_model.bin`: without it a folder has safetensors files |
//! | `templates` | reading chat templates |
//! | `tokenizers` | reading `tokenizer.json`; without it text is bytes |

#![deny(missing_debug_implementations, missing_docs)]

mod chat;
mod checkpoint;
mod config;
mod debug;
mod device;
mod error;
mod fields;
mod files;
#[cfg(any(feature = "pytorch", feature = "templates", feature = "tokenizers"))]
mod guard;
mod initial;
pub mod kernels;
pub mod layers;
mod memory;
mod mixer;
mod model;
mod norms;
mod pickled;
mod random;
pub mod reference;
mod sampler;
mod session;
mod state;
mod tensors;
mod tokenizer;
mod train;
mod weight;

pub use chat::{ChatTemplate, Message};
pub use config::{Attention, Config, Family, FeedForward, HeadNorms, Kind, Package, Scales};
pub use device::{DeviceModel, DeviceState, DeviceTraining};
pub use error::{Error, Result};
pub use files::write_file;
pub use model::{Logits, Model, SaveOptions, Turn};
pub use sampler::{Sampler, log_probability};
pub use session::Session;
pub use state::{Snapshot, State};
pub use tensors::{Array, Tensors};
pub use tokenizer::{Decoder, Tokenizer};
pub use train::{Corpus, Lora, Options, Trainer};
pub use weight::Weight;
