//! Device code: from parts of text and a configuration to a whole program.

#[cfg(feature = "cuda")]
use super::{Config, Declarations, Parameter, Strided};
use core::marker::PhantomData;

/// Numbers by their names, the first text of every program.
#[cfg(feature = "cuda")]
pub(crate) const TYPES: &str = include_str!("types.cuh");
/// What every kernel is built from.
pub(crate) const COMMON: &str = include_str!("common.cuh");
/// Step sizes and gates.
pub(crate) const STEP_SIZE: &str = include_str!("step_size.cuh");
/// The discretizations.
pub(crate) const DISCRETIZATION: &str = include_str!("discretization.cuh");
/// Products on tensor cores.
pub(crate) const MMA: &str = include_str!("mma.cuh");
/// Products in blocks of any type; it comes after the products.
pub(crate) const BLOCKS: &str = include_str!("blocks.cuh");
/// Barriers, copied tiles, products of warpgroups and clusters on Hopper; it comes after the products.
pub(crate) const HOPPER: &str = include_str!("hopper.cuh");

/// A kernel's text and what it takes: one `P` by value.
#[derive(Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // only a driver reads it
pub(crate) struct Program<P> {
    /// The kernel's name in its text.
    pub kernel: &'static str,
    /// Text before the configuration.
    prelude: &'static [&'static str],
    /// Text after it.
    text: &'static str,
    params: PhantomData<fn(P)>,
}

impl<P> Program<P> {
    pub(crate) const fn new(kernel: &'static str, prelude: &'static [&'static str], text: &'static str) -> Self {
        Program { kernel, prelude, text, params: PhantomData }
    }
}

#[cfg(feature = "cuda")]
impl<P: Parameter> Program<P> {
    /// The whole text for a configuration.
    pub(crate) fn source(&self, config: &Config) -> String {
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
