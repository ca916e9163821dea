//! SSD for tensors whose heads come before time: the same memory through permuted views.

use super::{ARGUMENTS, Args, RESULTS, SIGNATURE};
use crate::ops::Signature;
use crate::ops::signature::{Argument, Output};
use crate::tensor::View;

/// SSD as data with heads before time and states transposed, as `statescan.ssd` has it in Python.
pub static HEADS_FIRST: Signature = Signature {
    name: "ssd_heads_first",
    arguments: &FIRST_ARGUMENTS,
    results: &FIRST_RESULTS,
    canonical: Some(&SIGNATURE),
    ..SIGNATURE
}
.resolved();

static FIRST_ARGUMENTS: [Argument; ARGUMENTS.len()] = {
    let (mut all, mut at) = ([ARGUMENTS[0]; ARGUMENTS.len()], 0);
    while at < all.len() {
        all[at] = Argument { layouts: heads_first(ARGUMENTS[at].layouts), ..ARGUMENTS[at] };
        at += 1;
    }
    all
};

static FIRST_RESULTS: [Output; RESULTS.len()] = {
    let (mut all, mut at) = ([RESULTS[0]; RESULTS.len()], 0);
    while at < all.len() {
        all[at] = Output { layouts: heads_first(RESULTS[at].layouts), ..RESULTS[at] };
        at += 1;
    }
    all
};

/// The layouts of a tensor, where those with heads have them before time and columns behind states.
const fn heads_first(layouts: &'static [&'static str]) -> &'static [&'static str] {
    match layouts[0].as_bytes() {
        b"BLHP" => &["BHLP"],
        b"BLH" => &["BHL"],
        b"BHPN" => &["BHNP", "BSHNP"],
        _ => layouts,
    }
}

impl<'a> Args<'a> {
    /// As [`Args::new`] for tensors whose heads come before time: x (B, H, L, P), dt (B, H, L).
    ///
    /// It is the same memory through permuted views, and whatever else has such a layout is permuted by the caller in the same way: `z`,
    /// `y` and the gradients of `x` and `z` by `permute(&[0, 2, 1, 3])`, `dt_a` and the gradients of both steps by `permute(&[0, 2, 1])`, and
    /// states of shape (B, H, N, P) by `permute(&[0, 1, 3, 2])`. Views of other ranks are left as they are, for the checks to refuse.
    pub fn from_heads_first(x: View<'a>, dt: View<'a>, a: View<'a>, b: View<'a>, c: View<'a>) -> Self {
        let x = if x.rank() == 4 { x.permute(&[0, 2, 1, 3]) } else { x };
        let dt = if dt.rank() == 3 { dt.permute(&[0, 2, 1]) } else { dt };
        Self::new(x, dt, a, b, c)
    }
}
