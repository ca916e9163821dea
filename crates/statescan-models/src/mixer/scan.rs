//! The scan of a block: step by step, for one model as for the other, so that a state is what its tokens make it however they were cut.
//! A head's one decay is the decay of each of its channels and states.

pub(super) mod backward;

use crate::error::Result;
use crate::rows::{Columns, Pass, channels_mut};
use crate::state::LayerState;
use statescan::ops::selective_scan::{Args, Outputs, forward};
use statescan::{View, ViewMut};

pub(crate) struct Scan {
    /// Decays: (channels, dstate), or (channels) where all states of a channel have the same.
    pub(crate) a: Vec<f32>,
    /// Skips, one for each channel.
    pub(crate) d: Vec<f32>,
    /// Added to step sizes before softplus, one for each channel.
    pub(crate) dt_bias: Vec<f32>,
    pub(super) dt_limit: (f64, f64),
    pub(super) dstate: usize,
    pub(super) ngroups: usize,
}

/// Where the arguments of a scan are among the rows of a pass.
pub(super) struct Inputs<'i> {
    pub(super) x: Columns<'i>,
    pub(super) dt: Columns<'i>,
    pub(super) b: Columns<'i>,
    pub(super) c: Columns<'i>,
    pub(super) z: Columns<'i>,
}

impl Scan {
    /// Every sequence from its state, which is carried on.
    pub(super) fn forward(
        &self,
        pass: &Pass<'_>,
        from: &Inputs<'_>,
        states: &mut [&mut LayerState],
        y: &mut [f32],
    ) -> Result<()> {
        let (channels, dstate, a) = (self.d.len(), self.dstate, self.decays()?);
        let mut next = vec![0.0; channels * dstate];
        for (rows, state) in pass.sequences.iter().zip(states).filter(|(rows, _)| !rows.is_empty()) {
            let (x, dt) = (from.x.channels(rows, channels)?, from.dt.channels(rows, channels)?);
            let (b, c) = (from.b.maps(rows, self.ngroups, dstate)?, from.c.maps(rows, self.ngroups, dstate)?);
            let args = Args::new(x, dt, a, b, c)
                .d(View::new(&self.d, &[channels])?)
                .z(from.z.channels(rows, channels)?)
                .dt_bias(View::new(&self.dt_bias, &[channels])?)
                .dt_softplus(true)
                .dt_limit(self.dt_limit)
                .initial_state(View::new(&state.scan, &[1, channels, dstate])?);
            let out = Outputs::default().y(channels_mut(y, rows, channels)?);
            forward(pass.exec, &args, &mut out.final_state(ViewMut::new(&mut next, &[1, channels, dstate])?))?;
            std::mem::swap(&mut state.scan, &mut next);
        }
        Ok(())
    }

    /// The decays as (channels, dstate).
    fn decays(&self) -> statescan::Result<View<'_>> {
        let (channels, dstate) = (self.d.len(), self.dstate);
        let strides = if self.a.len() == channels { [1, 0] } else { [dstate as isize, 1] };
        View::strided(&self.a, 0, &[channels, dstate], &strides)
    }
}

/// `-exp(log)`, as checkpoints have decays.
pub(super) fn decays(log: Vec<f32>) -> Vec<f32> {
    log.into_iter().map(|log| -log.exp()).collect()
}
