//! Which arguments the results of an operation name, found while the crate is compiled.

use super::sound::number;
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

impl Named {
    pub(super) const NOTHING: Named = Named { like: None, dtype: [0; 2], complex: [None; 2] };

    /// A name that means no argument ends the compilation.
    pub(super) const fn of(table: &str, output: &Output, arguments: &[Argument]) -> Named {
        let (mut named, line) = (Self::NOTHING, output.name);
        if let Some(like) = output.like {
            named.like = Some(number(table, arguments, line, like));
        }
        named.dtype = match output.dtype {
            ResultType::Of(name) | ResultType::Carried(name) => [number(table, arguments, line, name); 2],
            ResultType::OfFirst(a, b) | ResultType::Promoted(a, b) | ResultType::CarriedByBoth(a, b) => {
                [number(table, arguments, line, a), number(table, arguments, line, b)]
            }
        };
        match output.complex {
            Complex::As(names) => {
                let mut at = 0;
                while at < names.len() {
                    named.complex[at] = Some(number(table, arguments, line, names[at]));
                    at += 1;
                }
            }
            Complex::Without(name) => named.complex[0] = Some(number(table, arguments, line, name)),
            Complex::Never | Complex::Always => {}
        }
        named
    }
}
