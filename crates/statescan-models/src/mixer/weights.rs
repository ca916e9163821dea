//! The weights of a mixer as passes take them, and the gradients by them.

use crate::inner::{OfScan, Parameters};
use crate::tensors::Array;
use statescan::{Tensor, View, ViewMut};
use std::collections::{BTreeMap, HashMap};

/// A linear layer.
#[derive(Clone, Copy)]
pub(crate) struct Product<'w> {
    /// (outputs, inputs)
    pub(crate) weight: View<'w>,
    pub(crate) bias: Option<View<'w>>,
}

/// The weights of a mixer on any device.
#[derive(Clone, Copy)]
pub(crate) struct Weights<'w> {
    pub(crate) in_proj: Product<'w>,
    pub(crate) own: Parameters<'w>,
    /// The projections to step sizes of low rank, B and C, and from there to step sizes; Mamba-2 has none.
    pub(crate) maps: Option<[Product<'w>; 2]>,
    pub(crate) out_proj: Product<'w>,
    /// Decays, D and the bias of step sizes of each channel, for scans of heads that go step by step.
    pub(crate) channels: Option<[View<'w>; 3]>,
}

/// Gradients by a linear layer.
pub(crate) struct OfProduct<'g> {
    pub(crate) weight: ViewMut<'g>,
    pub(crate) bias: Option<ViewMut<'g>>,
}

/// Gradients by the weights of a mixer; those by decays stand in the place of those by their logarithms.
pub(crate) struct Gradients<'g> {
    pub(crate) in_proj: OfProduct<'g>,
    /// By the filters, (channels, width), and their bias.
    pub(crate) conv: OfProduct<'g>,
    pub(crate) scan: OfScan<'g>,
    pub(crate) maps: Option<[OfProduct<'g>; 2]>,
    pub(crate) norm: Option<ViewMut<'g>>,
    pub(crate) out_proj: OfProduct<'g>,
}

/// Numbers that can be written.
pub(crate) trait Written {
    fn written(&mut self) -> ViewMut<'_>;
}

impl Written for Array {
    fn written(&mut self) -> ViewMut<'_> {
        ViewMut::new(&mut self.data, &self.shape).expect("as many numbers as the shape has")
    }
}

impl Written for Tensor {
    fn written(&mut self) -> ViewMut<'_> {
        self.view_mut()
    }
}

impl<'g> Gradients<'g> {
    /// Binds the gradients by the mixer whose weights' names have a prefix.
    ///
    /// # Panics
    /// If one is missing: what the model is made of and what it has gradients of are the same names.
    pub(crate) fn of<T: Written>(tensors: &'g mut BTreeMap<String, T>, prefix: &str) -> Self {
        let part = tensors.range_mut(prefix.to_owned()..).take_while(|(name, _)| name.starts_with(prefix));
        let mut part: HashMap<&str, ViewMut<'g>> = part.map(|(name, tensor)| (&name[prefix.len()..], tensor.written())).collect();
        let mut product = |name: &str| {
            let weight = part.remove(&*format!("{name}.weight"))?;
            Some(OfProduct { weight, bias: part.remove(&*format!("{name}.bias")) })
        };
        let there = "a gradient by every weight";
        let [in_proj, conv, out_proj] = ["in_proj", "conv1d", "out_proj"].map(|name| product(name).expect(there));
        let (x_proj, dt_proj, norm) = (product("x_proj"), product("dt_proj"), product("norm"));
        let mut dt_bias = part.remove("dt_bias");
        let dt_proj = dt_proj.map(|OfProduct { weight, bias }| {
            // the scan adds it, and has its gradient
            dt_bias = bias;
            OfProduct { weight, bias: None }
        });
        let scan = [part.remove("A_log"), part.remove("D"), dt_bias].map(|of| of.expect(there));
        Gradients {
            in_proj,
            conv: OfProduct { weight: conv.weight.index(1, 0), bias: conv.bias },
            scan,
            maps: x_proj.zip(dt_proj).map(|(x_proj, dt_proj)| [x_proj, dt_proj]),
            norm: norm.map(|norm| norm.weight),
            out_proj,
        }
    }
}
