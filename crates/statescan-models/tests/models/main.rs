//! Language models: against `transformers`, cut anywhere, and from every folder that is one or is none.

mod chat;
mod common;
mod configs;
mod device;
mod files;
mod folders;
mod gradients;
mod layers;
mod pickled;
mod sampler;
mod saving;
mod states;
mod tokenizer;
mod training;
mod vectors;
