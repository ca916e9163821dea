//! A checked call.

use super::{Args, OP, SIGNATURE};
use crate::error::{Error, Result};
use crate::ops::check::{Checker, check_groups, limit_sizes};
use crate::ops::states::States;
use crate::tensor::{Device, Shape, View};

#[derive(Debug, Clone)]
pub struct Problem<'a> {
    pub batch: usize,
    pub seqlen: usize,
    pub ngroups: usize,
    pub nheads: usize,
    pub dstate: usize,
    pub angles: usize,
    pub double: bool,
    pub maps: View<'a>,
    pub bias: View<'a>,
    pub rate: View<'a>,
    pub dt: View<'a>,
}

impl<'a> Problem<'a> {
    /// Checks the arguments.
    pub(super) fn new(args: &Args<'a>, device: Device, _states: States<'a>) -> Result<Self> {
        let sizes = Checker::new(OP, device).bind(&SIGNATURE, &args.views())?;
        let [batch, seqlen, ngroups, nheads, dstate, angles] = ['B', 'L', 'G', 'H', 'N', 'A'].map(|letter| sizes.get(letter));
        check_groups(OP, "maps", ngroups, nheads)?;
        if angles > dstate / 2 {
            return Err(Error::Value {
                op: OP,
                argument: "rate",
                expected: "of at most half as many angles as maps have columns",
                got: angles as f64,
            });
        }
        limit_sizes(OP, SIGNATURE.limit.names, [batch, seqlen, nheads.max(ngroups), dstate])?;
        let Args { maps, bias, rate, dt, .. } = *args;
        let double = maps.dtype().is_double();
        Ok(Problem { batch, seqlen, ngroups, nheads, dstate, angles, double, maps, bias, rate, dt })
    }

    /// The shape of the maps of heads.
    pub(super) fn turned(&self) -> Shape {
        Shape::of(&[self.batch, self.seqlen, 2, self.nheads, self.dstate])
    }

    /// Heads of a group.
    pub(super) fn heads_per_group(&self) -> usize {
        self.nheads / self.ngroups.max(1)
    }
}
