//! `Debug` of types whose content is large: their names, and what tells one from another.

use crate::chat::ChatTemplate;
use crate::device::{DeviceModel, DeviceState, DeviceTraining};
use crate::layers::{Mixer, S5};
use crate::model::{Model, Turn};
use crate::tokenizer::{Decoder, Tokenizer};
use crate::train::Trainer;
use crate::weight::Weight;
use std::fmt;

/// Prints what methods without arguments say.
macro_rules! debug {
    ($($name:ident: $type:ty { $($method:ident),* };)*) => {
        $(impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($method), &self.$method()))*.finish_non_exhaustive()
            }
        })*
    };
}

debug! {
    ChatTemplate: ChatTemplate {};
    Decoder: Decoder<'_> {};
    DeviceModel: DeviceModel { config, dtype };
    DeviceState: DeviceState { position };
    DeviceTraining: DeviceTraining {};
    Mixer: Mixer { config };
    Model: Model { config };
    S5: S5 { config };
    Tokenizer: Tokenizer { is_bytes };
    Trainer: Trainer { options, config };
    Weight: Weight { dtype, shape };
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("tokens", &self.tokens).field("position", &self.state.position()).finish_non_exhaustive()
    }
}
