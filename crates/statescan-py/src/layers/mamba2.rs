//! Mamba-2: convolution, SSD, gated norm, the gated unit beside them, and the projection out.

use super::passes::{Output, Passes};
use super::pytorch::Object;
use super::{Gradients, Kind, Layer, each, given, operation};
use crate::rows::{Rows, parts_of};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Arguments of a call.
pub const ARGUMENTS: usize = 20;
/// The number of the norm's epsilon.
pub const EPS: usize = 14;
/// Tensors that are kept in front of what scans keep.
const KEPT: usize = 2;

/// The tensors of a layer of Mamba-2. Any may be None but the first weight and A.
pub struct Mamba2<'l, 'py> {
    layer: Layer<'l, 'py>,
    conv1d_weight: Object<'py>,
    conv1d_bias: Object<'py>,
    dt_bias: Object<'py>,
    /// As it is given.
    a: Object<'py>,
    d: Object<'py>,
    rmsnorm_weight: Object<'py>,
    outproj_weight: Object<'py>,
    outproj_bias: Object<'py>,
    initial_states: Object<'py>,
    seq_idx: Object<'py>,
    activation: Object<'py>,
    dt_limit: [Object<'py>; 2],
    ngroups: Object<'py>,
    chunk_size: Object<'py>,
    norm_before_gate: Object<'py>,
    are_logarithms: bool,
    sizes: Sizes,
}

/// How channels of the input divide: the gated unit, the gate, the convolution's input, step sizes.
#[derive(Clone, Copy)]
struct Sizes {
    unit: usize,
    dim: usize,
    convolved: usize,
    nheads: usize,
    headdim: usize,
    ngroups: usize,
    dstate: usize,
}

impl Sizes {
    /// Channels of what is projected.
    fn width(&self) -> usize {
        self.beside() + self.dim
    }

    /// Channels of the gated unit, in front of the scan's.
    fn beside(&self) -> usize {
        self.unit / 2
    }
}

impl<'l, 'py> Mamba2<'l, 'py> {
    pub fn new(layer: Layer<'l, 'py>, arguments: &Bound<'py, PyTuple>) -> PyResult<Self> {
        let at = |number: usize| arguments.get_item(number);
        let (conv1d_weight, a) = (at(1)?, at(4)?);
        let (convolved, nheads) = (parts_of(&conv1d_weight, "conv1d_weight")?.shape[0], parts_of(&a, "A")?.shape[0]);
        let (headdim, ngroups): (usize, usize) = (at(15)?.extract()?, at(16)?.extract()?);
        let dim = nheads * headdim;
        let dstate = convolved.saturating_sub(dim) / (2 * ngroups.max(1));
        let unit = layer.input.parts.shape[2].saturating_sub(dim + convolved + nheads);
        Ok(Mamba2 {
            conv1d_weight,
            conv1d_bias: at(2)?,
            dt_bias: at(3)?,
            a,
            d: at(5)?,
            rmsnorm_weight: at(6)?,
            outproj_weight: at(7)?,
            outproj_bias: at(8)?,
            initial_states: at(9)?,
            seq_idx: at(10)?,
            activation: at(11)?,
            dt_limit: [at(12)?, at(13)?],
            ngroups: at(16)?,
            chunk_size: at(17)?,
            norm_before_gate: at(18)?,
            are_logarithms: at(19)?.extract()?,
            sizes: Sizes { unit, dim, convolved, nheads, headdim, ngroups, dstate },
            layer,
        })
    }

    fn is_normed(&self) -> bool {
        !self.rmsnorm_weight.is_none()
    }

    /// (batch, seqlen, nheads, headdim) of the last ones of the channels of a tensor.
    fn heads(&self, of: &Object<'py>) -> PyResult<Object<'py>> {
        let (of, Sizes { dim, nheads, headdim, .. }) = (self.layer.rows(of)?, self.sizes);
        of.groups(of.parts.shape[2] - dim, nheads, headdim)
    }

    /// The gate as the scan takes it; none where a norm has it.
    fn gate(&self, of: &Rows<'py>) -> PyResult<Option<Object<'py>>> {
        let Sizes { unit, nheads, headdim, .. } = self.sizes;
        if self.is_normed() { Ok(None) } else { of.groups(unit, nheads, headdim).map(Some) }
    }

    fn step_sizes(&self, of: &Rows<'py>) -> PyResult<Object<'py>> {
        let Sizes { unit, dim, convolved, nheads, .. } = self.sizes;
        of.rows(unit + dim + convolved, nheads)
    }

    /// x, B and C of a matrix that is like what the convolution gives.
    fn parts(&self, matrix: &Object<'py>) -> PyResult<[Object<'py>; 3]> {
        let (of, Sizes { dim, nheads, headdim, ngroups, dstate, .. }) = (self.layer.rows(matrix)?, self.sizes);
        let c = dim + ngroups * dstate;
        Ok([of.groups(0, nheads, headdim)?, of.groups(dim, ngroups, dstate)?, of.groups(c, ngroups, dstate)?])
    }

    /// Returns the columns of rows, or of their gradients, that are convolved.
    fn convolved(&self, of: &Rows<'py>) -> PyResult<Object<'py>> {
        of.timed(self.sizes.unit + self.sizes.dim, self.sizes.convolved)
    }

    /// (batch, channels, seqlen) of a matrix that is like what the convolution gives.
    fn timed(&self, matrix: &Object<'py>) -> PyResult<Object<'py>> {
        self.layer.rows(matrix)?.timed(0, self.sizes.convolved)
    }

    /// Arguments of the convolution; `before` are the inputs in front of it, or None.
    fn convolution(&self, before: Object<'py>) -> PyResult<[Object<'py>; 8]> {
        let (weight, bias) = (self.conv1d_weight.clone(), self.conv1d_bias.clone());
        let of_input = [self.convolved(&self.layer.input)?, weight, bias, before];
        let [input, weight, bias, before] = of_input;
        self.layer.convolution([input, weight, bias, before, self.seq_idx.clone(), self.activation.clone()])
    }

    /// Arguments of the scan, from what the convolution has left in a matrix.
    fn ssd(&self, matrix: &Object<'py>, a: &Object<'py>) -> PyResult<Vec<Object<'py>>> {
        let (layer, none, [x, b, c]) = (&self.layer, self.layer.none(), self.parts(matrix)?);
        let (dt, z) = (self.step_sizes(&layer.input)?, self.gate(&layer.input)?.unwrap_or_else(|| none.clone()));
        let mut ssd = vec![x, dt, a.clone(), b, c, self.d.clone(), z, self.dt_bias.clone()];
        ssd.extend([none.clone(), self.initial_states.clone(), none, self.seq_idx.clone(), layer.truth(true)]);
        ssd.extend(self.dt_limit.iter().cloned());
        ssd.extend([self.chunk_size.clone(), layer.truth(false)]);
        Ok(ssd)
    }

    /// Arguments of the norm of the scan's result.
    fn norm(&self, y: &Object<'py>) -> PyResult<Vec<Object<'py>>> {
        let (layer, none) = (&self.layer, self.layer.none());
        let z = layer.input.rows(self.sizes.unit, self.sizes.dim)?;
        let mut norm = vec![y.clone(), self.rmsnorm_weight.clone(), none.clone(), z, none.clone(), none, layer.word("rms")];
        norm.extend([layer.eps.clone(), self.ngroups.clone(), self.norm_before_gate.clone()]);
        Ok(norm)
    }

    /// Makes of the scan's result what is projected; where a gate has no norm behind it, its channels are there already.
    fn finish(&self, y: &Object<'py>, to: &Object<'py>) -> PyResult<()> {
        let (layer, torch, beside) = (&self.layer, self.layer.torch, self.sizes.beside());
        if self.is_normed() {
            let outputs = vec![Output::To(layer.rows(to)?.rows(beside, self.sizes.dim)?), Output::Nothing];
            layer.here.forward(operation("norm"), &self.norm(y)?, outputs, None)?;
        }
        if beside > 0 {
            let [gate, value] = self.gated(&layer.input.tensor)?;
            torch.multiply_to(&torch.silu(&gate)?, &value, &torch.columns(to, 0, beside)?)?;
        }
        Ok(())
    }

    /// Gate and value of the gated unit.
    fn gated(&self, of: &Object<'py>) -> PyResult<[Object<'py>; 2]> {
        let (torch, beside) = (self.layer.torch, self.sizes.beside());
        Ok([torch.columns(of, 0, beside)?, torch.columns(of, beside, beside)?])
    }

    /// Gradients by gate and value of the gated unit.
    fn unit_backward(&self, of: &Object<'py>, by_made: &Object<'py>) -> PyResult<()> {
        let (layer, torch) = (&self.layer, self.layer.torch);
        let ([gate, value], [by_gate, by_value]) = (self.gated(&layer.input.tensor)?, self.gated(of)?);
        let (batch, seqlen) = layer.steps();
        let by_out = by_made.call_method1("view", (batch, seqlen, self.sizes.width()))?;
        let by_out = torch.columns(&by_out, 0, self.sizes.beside())?;
        torch.multiply_to(&torch.silu(&gate)?, &by_out, &by_value)?;
        torch.copy(&by_gate, &torch.silu_back(&by_out.mul(value)?, &gate)?)
    }

    /// The gradients by the scan's result, a matrix, and by the norm's weight; that by the gate goes into `of`.
    fn norm_backward(
        &self,
        y: &Object<'py>,
        by_made: &Object<'py>,
        of: &Rows<'py>,
        needed: bool,
    ) -> PyResult<(Object<'py>, Option<Object<'py>>)> {
        let (layer, Sizes { unit, dim, .. }) = (&self.layer, self.sizes);
        let (by_y, by_normed) = (layer.matrix(dim)?, layer.rows(by_made)?.rows(self.sizes.beside(), dim)?);
        let (to_y, to_gate) = (Output::To(layer.rows(&by_y)?.rows(0, dim)?), Output::To(of.rows(unit, dim)?));
        let outputs = vec![to_y, needed.into(), Output::Nothing, to_gate, Output::Nothing];
        let made = layer.here.backward(operation("norm"), &self.norm(y)?, (&[], [by_normed, layer.none()]), outputs)?;
        Ok((by_y, made.into_iter().next()))
    }
}

impl<'py> Kind<'py> for Mamba2<'_, 'py> {
    fn forward(&self, save: bool) -> PyResult<Vec<Object<'py>>> {
        let (layer, sizes) = (&self.layer, &self.sizes);
        let (mut of_conv, mut of_scan) = (save.then(Vec::new), save.then(Vec::new));
        let a = layer.decays(&self.a, self.are_logarithms)?;
        let made = layer.room(sizes.width())?;
        let y = if self.is_normed() { layer.room(sizes.dim)? } else { made.clone() };
        let x = layer.matrix(sizes.convolved)?;
        let outputs = vec![Output::To(self.timed(&x)?), Output::Nothing];
        layer.in_time.forward(operation("causal_conv1d"), &self.convolution(layer.none())?, outputs, of_conv.as_mut())?;
        let outputs = vec![Output::To(self.heads(&y)?), Output::Made];
        let last = layer.in_time.forward(operation("ssd"), &self.ssd(&x, &a)?, outputs, of_scan.as_mut())?;
        self.finish(&y, &made)?;
        let mut found = vec![layer.torch.linear(&made, &self.outproj_weight, &self.outproj_bias)?];
        found.extend(last);
        if save {
            let keeps = self.is_normed() || !self.outproj_weight.is_none();
            found.push(if keeps { y } else { layer.nothing()? });
            found.push(if self.are_logarithms { a } else { layer.nothing()? });
        }
        found.extend(of_conv.into_iter().chain(of_scan).flatten());
        Ok(found)
    }

    fn backward(&self, needed: &[bool], kept: &[Object<'py>], [by_out, by_state]: [Object<'py>; 2]) -> PyResult<Gradients<'py>> {
        let (layer, torch, sizes) = (&self.layer, self.layer.torch, &self.sizes);
        let (own, kept) = kept.split_at(KEPT);
        // a convolution keeps something over ranks only: one tensor less than a scan
        let (of_conv, of_scan) = kept.split_at(kept.len() / 2);
        let (y, a) = (&own[0], if self.are_logarithms { &own[1] } else { &self.a });
        let of = Rows::new(torch.room_like(&layer.input.tensor)?, "grad of zxbcdt")?;
        let by_out = given(&by_out).map(|by_out| torch.matrix(by_out)).transpose()?;
        let by_made = layer.project_back(by_out.as_ref(), &self.outproj_weight, sizes.width())?;
        let (by_y, by_weight) = match self.is_normed() {
            true => self.norm_backward(y, &by_made, &of, needed[6])?,
            false => (by_made.clone(), None),
        };
        if sizes.unit > 0 {
            self.unit_backward(&of.tensor, &by_made)?;
        }
        // nothing else of this size is needed while the scan's memory is
        drop(by_made);
        let projected = || {
            if !self.is_normed() {
                return Ok(y.clone());
            }
            let made = layer.room(sizes.width())?;
            self.finish(y, &made)?;
            Ok(made)
        };
        let parameters = [&self.outproj_weight, &self.outproj_bias];
        let [by_out_weight, by_out_bias] = layer.projection_gradients(by_out.as_ref(), projected, parameters, &needed[7..9])?;
        // computed again where the gradient by what is convolved is written in the end
        let x = layer.columns_or_room(&of, sizes.unit + sizes.dim, sizes.convolved)?;
        let before = of_conv.get(1).cloned().unwrap_or_else(|| layer.none());
        let outputs = vec![Output::To(self.timed(&x)?), Output::Nothing];
        layer.here.forward(operation("causal_conv1d"), &self.convolution(before)?, outputs, None)?;
        let by_conv = layer.matrix(sizes.convolved)?;
        let [by_x, by_b, by_c] = self.parts(&by_conv)?.map(Output::To);
        let mut outputs = vec![by_x, Output::To(self.step_sizes(&of)?), needed[4].into(), by_b, by_c, needed[5].into()];
        outputs.push(self.gate(&of)?.map_or(Output::Nothing, Output::To));
        outputs.extend([needed[3].into(), Output::Nothing, needed[9].into()]);
        let cotangents = [self.heads(&by_y)?, by_state];
        let made = layer.in_time.backward(operation("ssd"), &self.ssd(&x, a)?, (of_scan, cotangents), outputs)?;
        let [by_a, by_d, by_bias, by_initial] = each(made, [needed[4], needed[5], needed[3], needed[9]]);
        let by_a = layer.by_logarithms(by_a, a, &self.a, self.are_logarithms)?;
        let (convolution, given) = (self.convolution(layer.none())?, (of_conv, [self.timed(&by_conv)?, layer.none()]));
        let [by_filters, by_conv_bias] =
            layer.convolved_back(&convolution, &self.conv1d_weight, given, self.convolved(&of)?, &needed[1..3])?;
        let found = [Some(of.tensor), by_filters, by_conv_bias, by_bias, by_a, by_d, by_weight];
        Ok(found.into_iter().chain([by_out_weight, by_out_bias, by_initial]).collect())
    }
}
