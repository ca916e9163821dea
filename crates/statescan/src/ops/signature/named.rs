//! Which arguments the results of an operation name, found while the crate is compiled.

use super::{Argument, Complex, Output, ResultType};

/// The numbers of the arguments that a result names.
#[derive(Clone, Copy)]
pub(crate) struct Named {
    /// The argument whose shape it has.
    pub(crate) like: Option<usize>,
    /// The two arguments of its type; the same one twice where it has one.
    pub(crate) dtype: [usize; 2],
    /// The arguments that say whether it is complex.
    pub(crate) complex: [Option<usize>; 2],
}

/// Whether two words are the same, also while the compiler runs.
const fn same(a: &str, b: &str) -> bool {
    let (a, b, mut at) = (a.as_bytes(), b.as_bytes(), 0);
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// The number of the argument of a name. There is one, or the program does not compile.
const fn number(arguments: &[Argument], name: &str) -> usize {
    let mut at = 0;
    while !same(arguments[at].name, name) {
        at += 1;
    }
    at
}

impl Named {
    pub(super) const NOTHING: Named = Named { like: None, dtype: [0; 2], complex: [None; 2] };

    pub(super) const fn of(output: &Output, arguments: &[Argument]) -> Named {
        let mut named = Self::NOTHING;
        if let Some(like) = output.like {
            named.like = Some(number(arguments, like));
        }
        named.dtype = match output.dtype {
            ResultType::Of(name) | ResultType::Carried(name) => [number(arguments, name); 2],
            ResultType::OfFirst(a, b) | ResultType::Promoted(a, b) | ResultType::CarriedByBoth(a, b) => {
                [number(arguments, a), number(arguments, b)]
            }
        };
        match output.complex {
            Complex::As(names) => {
                let mut at = 0;
                while at < names.len() {
                    named.complex[at] = Some(number(arguments, names[at]));
                    at += 1;
                }
            }
            Complex::Without(name) => named.complex[0] = Some(number(arguments, name)),
            Complex::Never | Complex::Always => {}
        }
        named
    }
}
