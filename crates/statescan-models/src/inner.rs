//! What a mixer does between its projections, as calls of operations on views: on every device, in training and for prompts.
//!
//! ```text
//! x, z, .. = projected      x = silu(conv(x))      y = scan(x, dt, A, B, C, D) silu(z)
//! ```
//!
//! Everything is read where it lies among the columns of rows, and every gradient is written into its columns: nothing is cut out, padded, transposed or
//! put together. `mamba.rs` has the scan of Mamba and FalconMamba, `mamba2.rs` that of Mamba-2 with the norm behind it.

mod mamba;
mod mamba2;

use crate::config::{Config, Kind};
use crate::error::Result;
pub(crate) use mamba::{ScanTargets, Scanned};
pub(crate) use mamba2::SsdTargets;
use statescan::ops::causal_conv1d;
use statescan::tensor::Workspace;
use statescan::{Exec, View, ViewMut};
use std::ops::Range;

/// Rows of a pass: so many steps of so many sequences.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    pub(crate) sequences: usize,
    pub(crate) steps: usize,
}

impl Steps {
    pub(crate) fn rows(self) -> usize {
        self.sequences * self.steps
    }

    /// Rows as (sequences, steps, columns).
    pub(crate) fn of(self, rows: View<'_>) -> View<'_> {
        rows.split(0, self.sequences)
    }

    /// Some columns of rows as (sequences, columns, steps).
    pub(crate) fn channels(self, rows: View<'_>, columns: Range<usize>) -> View<'_> {
        self.of(rows).slice(2, columns).permute(&[0, 2, 1])
    }

    /// All columns, to be written.
    pub(crate) fn channels_mut(self, rows: ViewMut<'_>) -> ViewMut<'_> {
        rows.split(0, self.sequences).permute(&[0, 2, 1])
    }
}

/// The weights of a mixer that are of no projection.
#[derive(Clone, Copy)]
pub(crate) struct Parameters<'w> {
    /// (channels, width)
    pub(crate) conv: View<'w>,
    pub(crate) conv_bias: Option<View<'w>>,
    /// Decays, (inner, dstate) or, in Mamba-2, (nheads).
    pub(crate) a: View<'w>,
    pub(crate) d: View<'w>,
    pub(crate) dt_bias: View<'w>,
    /// The weight of the norm behind the scan; only Mamba-2 has one.
    pub(crate) norm: Option<View<'w>>,
}

/// Gradients by the parameters of a scan: A, D, and the bias of step sizes.
pub(crate) type OfScan<'g> = [ViewMut<'g>; 3];

/// States before the first step and room for those after the last one, with a first axis of sequences.
pub(crate) type Ends<'e> = Option<(View<'e>, ViewMut<'e>)>;

/// The states at both ends on the way back, as far as they are known or asked for, with a first axis of sequences.
#[derive(Default)]
pub(crate) struct BackEnds<'e> {
    /// States before the first step; zeros if there are none.
    pub(crate) initial: Option<View<'e>>,
    /// Gradients by the states after the last step; zeros if there are none.
    pub(crate) last: Option<View<'e>>,
    /// Gradients by those before the first step, to be written.
    pub(crate) first: Option<ViewMut<'e>>,
}

impl<'e> BackEnds<'e> {
    /// Ends of a shape in the memory of the host.
    pub(crate) fn new(initial: &'e [f32], last: Option<&'e [f32]>, first: &'e mut [f32], shape: [usize; 3]) -> Result<Self> {
        let last = last.map(|last| View::new(last, &shape)).transpose()?;
        Ok(BackEnds { initial: Some(View::new(initial, &shape)?), last, first: Some(ViewMut::new(first, &shape)?) })
    }
}

/// A mixer between its projections, for some rows.
pub(crate) struct Inner<'i> {
    pub(crate) exec: &'i Exec,
    pub(crate) config: &'i Config,
    pub(crate) steps: Steps,
    pub(crate) own: Parameters<'i>,
}

impl Config {
    /// The convolution's columns of the first projection.
    pub(crate) fn conv_columns(&self) -> Range<usize> {
        let first = if self.kind == Kind::Mamba2 { self.inner } else { 0 };
        first..first + self.conv_channels()
    }

    /// The gate's columns of the first projection.
    pub(crate) fn gate_columns(&self) -> Range<usize> {
        let first = if self.kind == Kind::Mamba2 { 0 } else { self.inner };
        first..first + self.inner
    }
}

impl<'i> Inner<'i> {
    fn conv_args<'r>(&self, projected: View<'r>) -> causal_conv1d::Args<'r>
    where
        'i: 'r,
    {
        let Parameters { conv, conv_bias, .. } = self.own;
        causal_conv1d::Args::new(self.steps.channels(projected, self.config.conv_columns()), conv)
            .bias(conv_bias)
            .activation(causal_conv1d::Activation::Silu)
    }

    /// The convolution of its columns of `projected`, to the rows `conv`.
    pub(crate) fn convolve(&self, projected: View<'_>, states: Ends<'_>, conv: ViewMut<'_>) -> Result<()> {
        let (initial, last) = states.unzip();
        let args = self.conv_args(projected).initial_states(initial);
        let out = causal_conv1d::Outputs::default().y(self.steps.channels_mut(conv));
        Ok(causal_conv1d::forward(self.exec, &args, &mut out.final_states(last))?)
    }

    /// From the gradient by the convolution's results to those by its columns of `projected`, and by filters and bias.
    pub(crate) fn convolve_backward(
        &self,
        projected: View<'_>,
        dconv: View<'_>,
        dprojected: ViewMut<'_>,
        (dweight, dbias): (ViewMut<'_>, Option<ViewMut<'_>>),
        ends: BackEnds<'_>,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let (steps, columns) = (self.steps, self.config.conv_columns());
        let args = self.conv_args(projected).initial_states(ends.initial);
        let dy = steps.channels(dconv, 0..columns.len());
        let mut grads = causal_conv1d::Gradients::default()
            .x(steps.channels_mut(dprojected.slice(1, columns)))
            .weight(dweight)
            .bias(dbias)
            .initial_states(ends.first)
            .workspace(workspace.view_mut(self.exec, causal_conv1d::backward_workspace_len(self.exec, &args)?)?);
        let cotangents = causal_conv1d::Cotangents::default().y(dy).final_states(ends.last);
        Ok(causal_conv1d::backward(self.exec, &args, &cotangents, &mut grads)?)
    }
}
