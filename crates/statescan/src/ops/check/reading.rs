//! The sizes and layouts that the shapes of a call say.

use super::sizes::Sizes;
use crate::ops::signature::{self, Role, Signature, fits};
use crate::tensor::Shape;

/// How the shapes of a call are read: the sizes by their letters, and the layout of each argument.
pub(in crate::ops) struct Reading {
    pub sizes: Sizes,
    pub layouts: [&'static str; signature::MAX_ARGUMENTS],
}

/// An argument of a rank that no layout has, beside what was read before it.
pub(in crate::ops) struct Unread {
    pub at: usize,
    pub form: Option<&'static str>,
    pub sizes: Sizes,
}

impl Reading {
    /// The arguments whose shapes say how large a call is, those that count where others disagree first.
    pub fn order(signature: &'static Signature) -> impl Iterator<Item = usize> {
        let all = 0..signature.arguments.len();
        signature.leaders.iter().copied().chain(all).filter(|&at| signature.arguments[at].role != Role::State)
    }

    /// Reads the shapes of the arguments that are there.
    pub fn of(signature: &'static Signature, shape: impl Fn(usize) -> Option<Shape>) -> core::result::Result<Self, Unread> {
        let mut sizes = Sizes::default();
        let mut layouts = [""; signature::MAX_ARGUMENTS];
        let mut form = None;
        for at in Self::order(signature) {
            let Some(shape) = shape(at) else { continue };
            let mut of_rank = signature.arguments[at].layouts.iter().copied().filter(|layout| layout.len() == shape.len());
            let Some(layout) = of_rank.find(|layout| form.is_none_or(|form| fits(layout, form))) else {
                return Err(Unread { at, form, sizes });
            };
            form = form.or_else(|| signature.form(layout));
            layouts[at] = layout;
            sizes.add(layout, &shape, signature.free);
        }
        Ok(Reading { sizes, layouts })
    }
}
