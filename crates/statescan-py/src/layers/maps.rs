//! B and C of a Mamba layer: given, or parts of what is projected, with a bias, a norm, as pairs of complex numbers. What is projected is a matrix of rows.

use super::Layer;
use super::passes::Output;
use super::pytorch::Object;
use crate::rows::parts_of;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// One of both.
pub struct Map<'py> {
    given: Option<Object<'py>>,
    bias: Option<Object<'py>>,
    norm: Option<Object<'py>>,
    is_complex: bool,
    /// The channels of the projection that are its own, from the first one on.
    first: usize,
    count: usize,
}

fn option(object: Object<'_>) -> Option<Object<'_>> {
    Some(object).filter(|object| !object.is_none())
}

/// The gradients by a map that is given, by its bias and by the weight of its norm.
pub type Gradients<'py> = [Option<Object<'py>>; 3];

impl<'py> Map<'py> {
    /// A map that is given, or whose channels are `count` of the projection from `first` on. Any of the three tensors may be None.
    pub fn new([given, bias, norm]: [Object<'py>; 3], is_complex: bool, first: usize, count: usize) -> Self {
        let given = option(given);
        let count = if given.is_some() { 0 } else { count };
        Map { given, bias: option(bias), norm: option(norm), is_complex, first, count }
    }

    /// The channel behind its own.
    pub fn end(&self) -> usize {
        self.first + self.count
    }

    /// Whether the scan reads the projection itself, and writes the gradient by it.
    fn is_view(&self) -> bool {
        self.given.is_none() && self.bias.is_none() && self.norm.is_none() && !self.is_complex
    }

    /// (batch, dstate, seqlen) of a projection whose channels are not changed.
    fn view(&self, layer: &Layer<'_, 'py>, projected: &Object<'py>) -> PyResult<Object<'py>> {
        layer.rows(projected)?.timed(self.first, self.count)
    }

    /// Its channels with their bias.
    fn biased(&self, layer: &Layer<'_, 'py>, projected: &Object<'py>) -> PyResult<Object<'py>> {
        let own = layer.torch.columns(projected, self.first, self.count)?;
        match &self.bias {
            Some(bias) => own.add(layer.torch.typed_as(bias, &own)?),
            None => Ok(own),
        }
    }

    /// Returns the map as the scan takes it.
    pub fn of(&self, layer: &Layer<'_, 'py>, projected: &Object<'py>) -> PyResult<Object<'py>> {
        if let Some(given) = &self.given {
            return Ok(given.clone());
        }
        if self.is_view() {
            return self.view(layer, projected);
        }
        let mut rows = self.biased(layer, projected)?;
        if let Some(norm) = &self.norm {
            rows = layer.normalized(&rows, norm)?;
        }
        if self.is_complex {
            rows = layer.as_complex(&rows)?;
        }
        let parts = parts_of(&rows, "map")?;
        layer.rows(&rows)?.timed(0, parts.shape[1])
    }

    /// Returns the output for the gradient by the map that the scan takes; `needed` says whether a map that is given has one.
    pub fn wanted(&self, layer: &Layer<'_, 'py>, by_projected: &Object<'py>, needed: bool) -> PyResult<Output<'py>> {
        if self.given.is_some() {
            return Ok(needed.into());
        }
        if self.is_view() { self.view(layer, by_projected).map(Output::To) } else { Ok(Output::Made) }
    }

    /// The gradients by the map's own tensors, from that by what the scan takes. That by the projection is written; `needed` says whether bias and norm
    /// have theirs.
    pub fn back(
        &self,
        layer: &Layer<'_, 'py>,
        by_map: Option<Object<'py>>,
        [projected, by_projected]: [&Object<'py>; 2],
        needed: [bool; 2],
    ) -> PyResult<Gradients<'py>> {
        if self.given.is_some() {
            return Ok([by_map, None, None]);
        }
        let Some(by_map) = by_map.filter(|_| !self.is_view()) else { return Ok([None, None, None]) };
        let torch = &layer.torch;
        let to = torch.columns(by_projected, self.first, self.count)?;
        let mut by_rows = by_map.call_method1("transpose", (1, 2))?;
        if self.is_complex {
            by_rows = torch.typed_as(&torch.call("view_as_real", (by_rows,), None)?.call_method1("flatten", (-2,))?, &to)?;
        }
        let by_rows = by_rows.call_method1("reshape", (to.getattr("shape")?,))?;
        let mut by_norm = None;
        match &self.norm {
            None => torch.copy(&to, &by_rows)?,
            Some(norm) => {
                let rows = self.biased(layer, projected)?;
                by_norm = layer.normalized_back(&rows, norm, by_rows, to.clone(), needed[1])?;
            }
        }
        let by_bias = match &self.bias {
            Some(bias) if needed[0] => Some(torch.typed_as(&to.call_method1("sum", (0,))?, bias)?),
            _ => None,
        };
        Ok([None, by_bias, by_norm])
    }
}

impl<'py> Layer<'_, 'py> {
    /// Complex numbers from real ones, (rows, 2 n): real and imaginary parts in turn.
    fn as_complex(&self, pairs: &Object<'py>) -> PyResult<Object<'py>> {
        let module = |name: &str| pairs.py().import("torch")?.getattr(name);
        let wide = self.torch.call("promote_types", (pairs.getattr("dtype")?, module("float32")?), None)?;
        let pairs = pairs.call_method1("to", (wide,))?.call_method1("unflatten", (-1, (-1, 2)))?;
        self.torch.call("view_as_complex", (pairs.call_method0("contiguous")?,), None::<&Bound<'py, PyDict>>)
    }
}
