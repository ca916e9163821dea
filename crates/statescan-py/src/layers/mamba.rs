//! Mamba: convolution, projections to step sizes and maps, selective scan with its gate, and the projection out.

use super::maps::Map;
use super::passes::{Output, Passes};
use super::pytorch::Object;
use super::{Gradients, Kind, Layer, each, given, operation};
use crate::rows::{Rows, parts_of};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Arguments of a call.
pub const ARGUMENTS: usize = 20;
/// The number of the norms' epsilon.
pub const EPS: usize = 19;
/// Tensors that are kept in front of what scans keep.
const KEPT: usize = 2;

/// The tensors of a layer of Mamba. Any that is not named here may be None: biases, D, the last projection.
pub struct Mamba<'l, 'py> {
    layer: Layer<'l, 'py>,
    conv1d_weight: Object<'py>,
    conv1d_bias: Object<'py>,
    x_proj_weight: Object<'py>,
    dt_proj_weight: Object<'py>,
    dt_bias: Object<'py>,
    /// As it is given.
    a: Object<'py>,
    d: Object<'py>,
    outproj_weight: Object<'py>,
    outproj_bias: Object<'py>,
    dt_norm: Object<'py>,
    dt_softplus: Object<'py>,
    are_logarithms: bool,
    /// B and C, whose channels follow those of the steps in what is projected.
    maps: [Map<'py>; 2],
    dim: usize,
    rank: usize,
}

/// The inputs of the scan, and the tensors that they were made of.
struct Scanned<'py> {
    /// The convolution's result as a matrix.
    x: Object<'py>,
    projected: Object<'py>,
    /// The rows that step sizes are projected from.
    low: Object<'py>,
    scan: Vec<Object<'py>>,
}

impl<'l, 'py> Mamba<'l, 'py> {
    pub fn new(layer: Layer<'l, 'py>, arguments: &Bound<'py, PyTuple>) -> PyResult<Self> {
        let at = |number: usize| arguments.get_item(number);
        let (a, dt_proj_weight) = (at(6)?, at(4)?);
        let (of_a, rank) = (parts_of(&a, "A")?, parts_of(&dt_proj_weight, "dt_proj_weight")?.shape[1]);
        let (is_complex, [dim, dstate, ..]) = (of_a.dtype.is_complex(), of_a.shape);
        let count = if is_complex { 2 * dstate } else { dstate };
        let b = Map::new([at(10)?, at(12)?, at(14)?], is_complex, rank, count);
        let c = Map::new([at(11)?, at(13)?, at(15)?], is_complex, b.end(), count);
        Ok(Mamba {
            conv1d_weight: at(1)?,
            conv1d_bias: at(2)?,
            x_proj_weight: at(3)?,
            dt_proj_weight,
            dt_bias: at(5)?,
            a,
            d: at(7)?,
            outproj_weight: at(8)?,
            outproj_bias: at(9)?,
            dt_norm: at(16)?,
            dt_softplus: at(17)?,
            are_logarithms: at(18)?.extract()?,
            maps: [b, c],
            dim,
            rank,
            layer,
        })
    }

    /// Arguments of the convolution; `before` are the inputs in front of it, or None.
    fn convolution(&self, before: Object<'py>) -> PyResult<[Object<'py>; 8]> {
        let layer = &self.layer;
        let input = layer.input.timed(0, self.dim)?;
        let (weight, bias) = (self.conv1d_weight.clone(), self.conv1d_bias.clone());
        layer.convolution([input, weight, bias, before, layer.none(), layer.word("silu")])
    }

    /// (batch, dim, seqlen) of a matrix of as many channels.
    fn timed(&self, matrix: &Object<'py>) -> PyResult<Object<'py>> {
        self.layer.rows(matrix)?.timed(0, self.dim)
    }

    /// Returns the inputs of the scan, from the results that the convolution has left in the matrix x.
    fn scanned(&self, x: Object<'py>, a: &Object<'py>) -> PyResult<Scanned<'py>> {
        let (layer, torch, none) = (&self.layer, self.layer.torch, self.layer.none());
        let timed = self.timed(&x)?;
        let projected = torch.linear(&x, &self.x_proj_weight, &none)?;
        let mut low = torch.columns(&projected, 0, self.rank)?;
        if let Some(norm) = given(&self.dt_norm) {
            low = layer.normalized(&low, norm)?;
        }
        let dt = self.timed(&torch.linear(&low, &self.dt_proj_weight, &none)?)?;
        let [b, c] = [self.maps[0].of(layer, &projected)?, self.maps[1].of(layer, &projected)?];
        let z = layer.input.timed(self.dim, self.dim)?;
        let mut scan = vec![timed, dt, a.clone(), b, c, self.d.clone(), z, self.dt_bias.clone()];
        scan.extend([none.clone(), none.clone(), none.clone(), none.clone(), self.dt_softplus.clone(), none.clone(), none]);
        scan.extend([layer.word("mamba"), layer.truth(false)]);
        Ok(Scanned { x, projected, low, scan })
    }

    /// Adds to the gradient by x what comes through step sizes, B and C, and gives those by the weights that made these: of both projections, and of the
    /// steps' norm. All of them are matrices of rows.
    fn step_gradients(
        &self,
        scanned: &Scanned<'py>,
        [by_x, by_dt, by_projected]: [&Object<'py>; 3],
        needed: &[bool],
    ) -> PyResult<[Option<Object<'py>>; 3]> {
        let (torch, mut by_norm) = (self.layer.torch, None);
        let to = torch.columns(by_projected, 0, self.rank)?;
        match given(&self.dt_norm) {
            None => torch.product_to(by_dt, &self.dt_proj_weight, &to)?,
            Some(norm) => {
                let by_low = torch.product(by_dt, &self.dt_proj_weight)?;
                let rows = torch.columns(&scanned.projected, 0, self.rank)?;
                by_norm = self.layer.normalized_back(&rows, norm, by_low, to, needed[16])?;
            }
        }
        let by_weight = |by_rows: &Object<'py>, rows: &Object<'py>, needed: bool| match needed {
            true => torch.product(&torch.transposed(by_rows)?, rows).map(Some),
            false => Ok(None),
        };
        let by_dt_proj = by_weight(by_dt, &scanned.low, needed[4])?;
        let by_x_proj = by_weight(by_projected, &scanned.x, needed[3])?;
        by_x.call_method1("addmm_", (by_projected, &self.x_proj_weight))?;
        Ok([by_x_proj, by_dt_proj, by_norm])
    }
}

impl<'py> Kind<'py> for Mamba<'_, 'py> {
    fn forward(&self, save: bool) -> PyResult<Vec<Object<'py>>> {
        let (layer, torch) = (&self.layer, self.layer.torch);
        let (mut of_conv, mut of_scan) = (save.then(Vec::new), save.then(Vec::new));
        let a = layer.decays(&self.a, self.are_logarithms)?;
        let x = layer.matrix(self.dim)?;
        let outputs = vec![Output::To(self.timed(&x)?), Output::Nothing];
        layer.in_time.forward(operation("causal_conv1d"), &self.convolution(layer.none())?, outputs, of_conv.as_mut())?;
        let scanned = self.scanned(x, &a)?;
        let y = layer.room(self.dim)?;
        let outputs = vec![Output::To(self.timed(&y)?), Output::Made];
        let made = layer.in_time.forward(operation("selective_scan"), &scanned.scan, outputs, of_scan.as_mut())?;
        let out = torch.linear(&y, &self.outproj_weight, &self.outproj_bias)?;
        let mut found = vec![out];
        found.extend(made);
        if save {
            found.push(if self.outproj_weight.is_none() { layer.nothing()? } else { y });
            found.push(if self.are_logarithms { a } else { layer.nothing()? });
        }
        found.extend(of_conv.into_iter().chain(of_scan).flatten());
        Ok(found)
    }

    fn backward(&self, needed: &[bool], kept: &[Object<'py>], [by_out, by_state]: [Object<'py>; 2]) -> PyResult<Gradients<'py>> {
        let (layer, torch, dim) = (&self.layer, self.layer.torch, self.dim);
        let (own, kept) = kept.split_at(KEPT);
        // a convolution keeps something over ranks only: one tensor less than a scan
        let (of_conv, of_scan) = kept.split_at(kept.len() / 2);
        let a = if self.are_logarithms { &own[1] } else { &self.a };
        let of = Rows::new(torch.room_like(&layer.input.tensor)?, "grad of xz")?;
        let by_out = given(&by_out).map(|by_out| torch.matrix(by_out)).transpose()?;
        let by_out = by_out.as_ref();
        let by_projection = layer.projection_gradients(
            by_out,
            || Ok(own[0].clone()),
            [&self.outproj_weight, &self.outproj_bias],
            &needed[8..10],
        )?;
        let by_y = layer.project_back(by_out, &self.outproj_weight, dim)?;
        // computed again where the gradient by what is convolved is written in the end
        let x = layer.columns_or_room(&of, 0, dim)?;
        let before = of_conv.get(1).cloned().unwrap_or_else(|| layer.none());
        let outputs = vec![Output::To(self.timed(&x)?), Output::Nothing];
        layer.here.forward(operation("causal_conv1d"), &self.convolution(before)?, outputs, None)?;
        let scanned = self.scanned(x, a)?;
        let width = parts_of(&scanned.projected, "projected")?.shape[1];
        let (by_x, by_dt, by_projected) = (layer.matrix(dim)?, layer.matrix(dim)?, layer.matrix(width)?);
        let [b, c] = &self.maps;
        let targets = [b.wanted(layer, &by_projected, needed[10])?, c.wanted(layer, &by_projected, needed[11])?];
        let are_made = targets.each_ref().map(|target| matches!(target, Output::Made));
        let by_timed = self.timed(&by_x)?;
        let mut outputs = vec![Output::To(by_timed.clone()), Output::To(self.timed(&by_dt)?), needed[6].into()];
        outputs.extend(targets);
        outputs.extend([needed[7].into(), Output::To(of.timed(dim, dim)?), needed[5].into()]);
        let cotangents = [self.timed(&by_y)?, by_state];
        let made = layer.in_time.backward(operation("selective_scan"), &scanned.scan, (of_scan, cotangents), outputs)?;
        let [by_a, by_b, by_c, by_d, by_bias] = each(made, [needed[6], are_made[0], are_made[1], needed[7], needed[5]]);
        let by_a = layer.by_logarithms(by_a, a, &self.a, self.are_logarithms)?;
        let channels = [&scanned.projected, &by_projected];
        let [by_b, of_b, norm_b] = b.back(layer, by_b, channels, [needed[12], needed[14]])?;
        let [by_c, of_c, norm_c] = c.back(layer, by_c, channels, [needed[13], needed[15]])?;
        let [by_x_proj, by_dt_proj, by_norm] = self.step_gradients(&scanned, [&by_x, &by_dt, &by_projected], needed)?;
        let (convolution, given) = (self.convolution(layer.none())?, (of_conv, [by_timed, layer.none()]));
        let [by_filters, by_conv_bias] =
            layer.convolved_back(&convolution, &self.conv1d_weight, given, of.timed(0, dim)?, &needed[1..3])?;
        let [by_out_weight, by_out_bias] = by_projection;
        let found =
            [Some(of.tensor), by_filters, by_conv_bias, by_x_proj, by_dt_proj, by_bias, by_a, by_d, by_out_weight, by_out_bias];
        Ok(found.into_iter().chain([by_b, by_c, of_b, of_c, norm_b, norm_c, by_norm]).collect())
    }
}
