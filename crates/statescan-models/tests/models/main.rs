//! Language models: against `transformers`, cut anywhere, and from every folder that is one or is none.

mod chat;
mod common;
mod device;
mod folders;
mod gradients;
mod layers;
mod sampler;
mod states;
mod tokenizer;
mod training;
mod vectors;
