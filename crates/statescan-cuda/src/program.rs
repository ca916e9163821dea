//! Device code: from a text, the headers that it includes and a configuration to a whole program.

#[cfg(feature = "driver")]
use crate::{Config, Declarations, Parameter, Strided};
use core::marker::PhantomData;

/// A text that programs include by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    /// The name in `#include "name"`.
    pub name: &'static str,
    /// Its contents.
    pub text: &'static str,
}

impl Header {
    /// A header of this name.
    pub const fn new(name: &'static str, text: &'static str) -> Self {
        Header { name, text }
    }
}

/// A [`Header`] from the file of its name beside the source file.
#[macro_export]
macro_rules! header {
    ($name:literal) => {
        $crate::Header::new($name, include_str!($name))
    };
}

/// Numbers by their names, the first header of every program.
#[cfg(feature = "driver")]
pub(crate) const TYPES: Header = header!("types.cuh");
/// The part that every kernel is built from.
pub const COMMON: Header = header!("common.cuh");
/// Products on tensor cores.
pub const MMA: Header = header!("mma.cuh");
/// Products in blocks of any type; it comes after the products.
pub const BLOCKS: Header = header!("blocks.cuh");
/// Barriers, copied tiles, products of warpgroups and clusters on Hopper; it comes after the products.
pub const HOPPER: Header = header!("hopper.cuh");

/// A kernel's text and what it takes: one `P` by value.
#[derive(Debug)]
#[cfg_attr(not(feature = "driver"), allow(dead_code))] // only a driver reads it
pub struct Program<P> {
    /// The kernel's name in its text.
    pub kernel: &'static str,
    /// Headers in front of the configuration, which need nothing of it.
    prelude: &'static [Header],
    /// Headers that the text and its headers include.
    headers: &'static [Header],
    /// Text behind the configuration.
    text: &'static str,
    params: PhantomData<fn(P)>,
}

impl<P> Program<P> {
    /// A kernel of this name, with headers in front of the configuration and a text behind it.
    pub const fn new(kernel: &'static str, prelude: &'static [Header], text: &'static str) -> Self {
        Program { kernel, prelude, headers: &[], text, params: PhantomData }
    }

    /// Adds headers that the text includes. They may use the configuration, and include each other.
    #[must_use]
    pub const fn including(self, headers: &'static [Header]) -> Self {
        Program { headers, ..self }
    }
}

/// A whole program, as the compiler takes it.
#[cfg(feature = "driver")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// The text that includes everything else.
    pub text: String,
    /// The headers that are included by name.
    pub headers: Vec<Header>,
}

#[cfg(feature = "driver")]
impl Source {
    /// Everything that tells it from other programs.
    pub(crate) fn key(&self) -> String {
        self.headers.iter().fold(self.text.clone(), |key, header| key + "\n" + header.name + "\n" + header.text)
    }
}

#[cfg(feature = "driver")]
impl<P: Parameter> Program<P> {
    /// Returns the headers that the text includes.
    #[cfg(feature = "testing")]
    pub(crate) fn headers(&self) -> &'static [Header] {
        self.headers
    }

    /// Returns the text behind the configuration.
    #[cfg(feature = "testing")]
    pub(crate) fn text(&self) -> &'static str {
        self.text
    }

    /// The whole program for a configuration.
    pub fn source(&self, config: &Config) -> Source {
        let mut declarations = Declarations::default();
        // the prelude has functions of tensors, whether there are any among the parameters or not
        Strided::declare(&mut declarations);
        P::declare(&mut declarations);
        let include = |header: &Header| format!("#include \"{}\"\n", header.name);
        let prelude: String = self.prelude.iter().map(include).collect();
        let (types, kernel) = (include(&TYPES), self.kernel);
        Source {
            text: format!("{types}{declarations}{prelude}{config}#line 1 \"{kernel}.cu\"\n{}", self.text),
            headers: [&[TYPES], self.prelude, self.headers].concat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCKS, COMMON, HOPPER, MMA};

    /// The functions of a header, by the lines that define them.
    fn functions(text: &str) -> impl Iterator<Item = &str> {
        let defines = |line: &&str| !line.starts_with([' ', '#', '/']) && line.contains("DEVICE ") && !line.contains("operator");
        text.lines().filter(defines).filter_map(|line| {
            let head = line.split_once("DEVICE ")?.1.split_once('(')?.0;
            head.rsplit([' ', '*', '&', '>']).next()
        })
    }

    #[test]
    fn the_table_has_every_device_function() {
        let table = include_str!("device_functions.md");
        let words: Vec<&str> = table.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        for header in [COMMON, MMA, BLOCKS, HOPPER] {
            let missing: Vec<_> = functions(header.text).filter(|name| !words.contains(name)).collect();
            assert!(functions(header.text).count() > 10 && missing.is_empty(), "{}: {missing:?}", header.name);
        }
    }
}
