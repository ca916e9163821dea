//! Device code: from parts of text and a configuration to a whole program.

#[cfg(feature = "driver")]
use crate::{Config, Declarations, Parameter, Strided};
use core::marker::PhantomData;

/// Numbers by their names, the first text of every program.
#[cfg(feature = "driver")]
pub const TYPES: &str = include_str!("types.cuh");
/// What every kernel is built from.
pub const COMMON: &str = include_str!("common.cuh");
/// Products on tensor cores.
pub const MMA: &str = include_str!("mma.cuh");
/// Products in blocks of any type; it comes after the products.
pub const BLOCKS: &str = include_str!("blocks.cuh");
/// Barriers, copied tiles, products of warpgroups and clusters on Hopper; it comes after the products.
pub const HOPPER: &str = include_str!("hopper.cuh");

/// A kernel's text and what it takes: one `P` by value.
#[derive(Debug)]
#[cfg_attr(not(feature = "driver"), allow(dead_code))] // only a driver reads it
pub struct Program<P> {
    /// The kernel's name in its text.
    pub kernel: &'static str,
    /// Text before the configuration.
    prelude: &'static [&'static str],
    /// Text after it.
    text: &'static str,
    params: PhantomData<fn(P)>,
}

impl<P> Program<P> {
    /// A kernel of this name, with text before the configuration and after it.
    pub const fn new(kernel: &'static str, prelude: &'static [&'static str], text: &'static str) -> Self {
        Program { kernel, prelude, text, params: PhantomData }
    }
}

#[cfg(feature = "driver")]
impl<P: Parameter> Program<P> {
    /// The whole text for a configuration.
    pub fn source(&self, config: &Config) -> String {
        let mut declarations = Declarations::default();
        // the prelude has functions of tensors, whether there are any among the parameters or not
        Strided::declare(&mut declarations);
        P::declare(&mut declarations);
        let mut source = [TYPES, &declarations.to_string()].concat();
        source.extend(self.prelude.iter().copied());
        source.push_str(&config.to_string());
        source.push_str(self.text);
        source
    }
}
