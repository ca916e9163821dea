//! The part that the mixers of Mamba and of Mamba-2 share: projections around, and a convolution.
//!
//! Everything is read where it lies among the columns of rows, and every gradient is written into its columns: nothing is cut out, padded, transposed or
//! put together.

use super::run::{Back, BackEnds, Ends, Part, Run, Steps, first, part};
use super::weights::{Linear, Next, Role};
use super::{Multiplied, Rooms};
use crate::config::Config;
use crate::error::Result;
use crate::state::StateShape;
use statescan::ops::causal_conv1d::{Activation, Args, Cotangents, Gradients, Outputs, forward, prepare};
use statescan::{View, ViewMut};
use std::ops::Range;

/// The projections into and out of a mixer, and the convolution.
#[derive(Clone)]
pub(super) struct Around<T> {
    /// The products of the first rows, whose columns lie behind one another.
    pub(super) into: Vec<Linear<T>>,
    /// Filters (channels, width), and their bias.
    pub(super) conv: Linear<T>,
    pub(super) out_proj: Linear<T>,
}

impl<T> Around<T> {
    /// Binds those of Mamba and Mamba-2, for so many columns of the first projection.
    pub(super) fn bind(config: &Config, columns: usize, next: Next<'_, T>) -> Self {
        let Config { dim, inner, bias, conv_bias, width, .. } = *config;
        let channels = config.conv_channels();
        let mut in_proj = Linear::plain(next("in_proj.weight", &[columns, dim], Role::Matrix));
        let mut conv = Linear::plain(next("conv1d.weight", &[channels, 1, width], Role::Filter));
        let mut out_proj = Linear::plain(next("out_proj.weight", &[dim, inner], Role::Matrix));
        if bias {
            in_proj.bias = Some(next("in_proj.bias", &[columns], Role::Bias));
            out_proj.bias = Some(next("out_proj.bias", &[dim], Role::LastBias));
        }
        conv.bias = conv_bias.then(|| next("conv1d.bias", &[channels], Role::Vector));
        Around { into: vec![in_proj], conv, out_proj }
    }
}

/// The states of convolution and scan.
pub(super) fn states(config: &Config) -> Vec<StateShape> {
    let conv = StateShape { name: "conv", shape: [config.conv_channels(), config.width - 1], grows: false };
    vec![conv, StateShape { name: "scan", shape: [config.inner, config.dstate], grows: false }]
}

/// Products with the columns of their results, which lie behind one another.
pub(super) fn apart<'p>(products: &[Linear<View<'p>>]) -> impl Iterator<Item = (Linear<View<'p>>, Range<usize>)> {
    products.iter().scan(0, |end, &product| {
        let start = *end;
        *end += product.weight.shape()[0];
        Some((product, start..*end))
    })
}

/// The projections and the convolution around a scan. The first of a mixer's own rooms has the rows of the first projection, the
/// second those of the convolution, and so it is with the gradients by them.
pub(super) struct Frame<'f, 'r> {
    pub(super) run: &'f Run<'r>,
    pub(super) around: Around<View<'r>>,
    /// The columns of the first projection that are convolved.
    pub(super) columns: Range<usize>,
}

/// Rows of sequences of one length, and their states, in front of a scan.
pub(super) type Scan<'s> = (Range<usize>, Steps, Ends<'s>);

impl<'w> Frame<'_, 'w> {
    fn args<'r>(&self, steps: Steps, projected: View<'r>) -> Args<'r>
    where
        'w: 'r,
    {
        let (x, Linear { weight, bias }) = (steps.channels(projected, self.columns.clone()), self.around.conv);
        Args::new(x, weight).bias(bias).activation(Activation::Silu)
    }

    /// Projects and convolves rows `x`; what is left are scans.
    pub(super) fn forward<'p>(&self, x: View<'_>, parts: Vec<Part<'p>>, rooms: &mut Rooms) -> Result<Vec<Scan<'p>>> {
        let (Rooms { own: [projected, conv, ..], .. }, device, rows) = (rooms, self.run.device, x.shape()[0]);
        for (product, columns) in apart(&self.around.into) {
            device.product(x, product, &mut projected.of_mut(rows).slice(1, columns))?;
        }
        let mut scans = Vec::with_capacity(parts.len());
        for Part { rows, steps, states, .. } in parts {
            let [of_conv, of_scan] = first(states);
            let (initial, last) = of_conv.unzip();
            let args = self.args(steps, part(projected, &rows)).initial_states(initial);
            let to = conv.of_mut(rows.end).slice(0, rows.clone());
            forward(device.exec(), &args, &mut Outputs::default().y(steps.channels_mut(to)).final_states(last))?;
            scans.push((rows, steps, of_scan));
        }
        Ok(scans)
    }

    /// The way back: `between` goes from the gradient by the rows that the last product took to those by the columns of the first projection that were not
    /// convolved and by the convolution's results.
    pub(super) fn backward(
        &self,
        (mut back, ends): (Back<'_>, BackEnds<'_>),
        into: Around<ViewMut<'_>>,
        (rooms, own): (&mut Rooms, &mut Rooms),
        between: &mut dyn FnMut(&mut Rooms, &mut Rooms) -> Result<()>,
    ) -> Result<()> {
        let (device, steps, rows) = (self.run.device, back.steps, back.steps.rows());
        let of = Multiplied { x: rooms.mixed.of(rows), product: self.around.out_proj, dy: back.dy };
        device.product_backward(of, &mut own.mixed.of_mut(rows), false, into.out_proj, &mut own.workspace)?;
        between(rooms, own)?;
        let (Rooms { own: [projected, ..], .. }, Rooms { own: [dprojected, dconv, ..], workspace, .. }) = (rooms, own);
        let args = self.args(steps, projected.of(rows)).initial_states(ends.initial);
        let call = prepare(device.exec(), &args)?;
        let mut grads = Gradients::default()
            .x(steps.channels_mut(dprojected.of_mut(rows).slice(1, self.columns.clone())))
            .weight(into.conv.weight)
            .bias(into.conv.bias)
            .initial_states(ends.first)
            .workspace(workspace.view_mut(device.exec(), call.backward_workspace_len(false)?)?);
        let dy = steps.channels(dconv.of(rows), 0..self.columns.len());
        call.backward(None, &Cotangents::default().y(dy).final_states(ends.last), &mut grads)?;
        for (i, ((product, columns), into)) in apart(&self.around.into).zip(into.into).enumerate() {
            let of = Multiplied { x: back.x, product, dy: dprojected.of(rows).slice(1, columns) };
            device.product_backward(of, &mut back.dx, i > 0, into, workspace)?;
        }
        Ok(())
    }
}
