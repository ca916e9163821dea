//! The weights of a model on the device.

use crate::config::Config;
use crate::error::Result;
use crate::inner::Parameters;
use crate::mixer::{self, Mixer, Product};
use crate::model::Model;
use crate::weight::{TYPES, Weight};
use statescan::tensor::Tensor;
use statescan::{DType, Exec};
use std::collections::HashMap;

pub(super) struct Weights {
    /// Type of the weights of products and of the embedding.
    pub(super) dtype: DType,
    pub(super) embedding: Tensor,
    pub(super) blocks: Vec<Block>,
    pub(super) norm: Tensor,
    /// None where the embedding is the head.
    head: Option<Tensor>,
}

pub(super) struct Block {
    pub(super) norm: Tensor,
    pub(super) in_proj: Linear,
    pub(super) conv_weight: Tensor,
    pub(super) conv_bias: Option<Tensor>,
    pub(super) a: Tensor,
    pub(super) d: Tensor,
    pub(super) dt_bias: Tensor,
    pub(super) own: Own,
    pub(super) out_proj: Linear,
}

/// What is different from kind to kind.
#[allow(clippy::large_enum_variant)] // one for each block
pub(super) enum Own {
    Mamba {
        x_proj: Linear,
        dt_proj: Linear,
    },
    /// Scan parameters are one for each head; a gated norm follows.
    Mamba2 {
        norm: Tensor,
    },
}

/// A projection; its bias has the type of its results.
pub(super) struct Linear {
    pub(super) weight: Tensor,
    pub(super) bias: Option<Tensor>,
}

impl Block {
    /// The weights of the mixer as passes take them.
    pub(super) fn mixer(&self) -> mixer::Weights<'_> {
        let (maps, norm) = match &self.own {
            Own::Mamba { x_proj, dt_proj } => (Some([x_proj, dt_proj].map(Linear::view)), None),
            Own::Mamba2 { norm } => (None, Some(norm.view())),
        };
        let own = Parameters {
            conv: self.conv_weight.view(),
            conv_bias: self.conv_bias.as_ref().map(Tensor::view),
            a: self.a.view(),
            d: self.d.view(),
            dt_bias: self.dt_bias.view(),
            norm,
        };
        mixer::Weights { in_proj: self.in_proj.view(), own, maps, out_proj: self.out_proj.view(), channels: None }
    }

    /// The tensors that are used in the places of weights, by their names.
    fn tensors_mut(&mut self) -> Vec<(&'static str, &mut Tensor)> {
        let Block { norm, in_proj, conv_weight, conv_bias, a, d, dt_bias, own, out_proj } = self;
        let mut all = vec![
            ("norm.weight", norm),
            ("mixer.in_proj.weight", &mut in_proj.weight),
            ("mixer.conv1d.weight", conv_weight),
            ("mixer.A_log", a),
            ("mixer.D", d),
            ("mixer.out_proj.weight", &mut out_proj.weight),
        ];
        match own {
            Own::Mamba { x_proj, dt_proj } => all.extend([
                ("mixer.dt_proj.bias", dt_bias),
                ("mixer.x_proj.weight", &mut x_proj.weight),
                ("mixer.dt_proj.weight", &mut dt_proj.weight),
            ]),
            Own::Mamba2 { norm } => all.extend([("mixer.dt_bias", dt_bias), ("mixer.norm.weight", norm)]),
        }
        let biases = [
            ("mixer.in_proj.bias", &mut in_proj.bias),
            ("mixer.conv1d.bias", conv_bias),
            ("mixer.out_proj.bias", &mut out_proj.bias),
        ];
        all.extend(biases.into_iter().filter_map(|(name, bias)| Some((name, bias.as_mut()?))));
        all
    }
}

impl Linear {
    pub(super) fn view(&self) -> Product<'_> {
        Product { weight: self.weight.view(), bias: self.bias.as_ref().map(Tensor::view) }
    }
}

/// Copies what is given to a device.
struct Upload<'u> {
    exec: &'u Exec,
    dtype: DType,
}

impl Upload<'_> {
    fn matrix(&self, weight: &Weight) -> Result<Tensor> {
        match weight.dtype() == self.dtype {
            true => Ok(Tensor::from_host(self.exec, &weight.view())?),
            false => {
                let rounded = Weight::rounded(&weight.to_f32(), self.dtype, weight.shape())?;
                Ok(Tensor::from_host(self.exec, &rounded.view())?)
            }
        }
    }

    /// A projection with results of a type.
    fn linear(&self, linear: &mixer::Linear, results: DType) -> Result<Linear> {
        let bias = linear.bias.as_ref().map(|bias| Weight::rounded(bias, results, &[bias.len()])).transpose()?;
        let bias = bias.map(|bias| Tensor::from_host(self.exec, &bias.view())).transpose()?;
        Ok(Linear { weight: self.matrix(&linear.weight)?, bias })
    }

    fn block(&self, norm: &[f32], mixer: &Mixer) -> Result<Block> {
        let vector = |numbers: &[f32]| Tensor::from_slice(self.exec, numbers, &[numbers.len()]);
        let own = match (&mixer.maps, &mixer.norm) {
            (Some([x_proj, dt_proj]), _) => {
                Own::Mamba { x_proj: self.linear(x_proj, self.dtype)?, dt_proj: self.linear(dt_proj, self.dtype)? }
            }
            (None, norm) => Own::Mamba2 { norm: vector(norm.as_deref().unwrap_or_default())? },
        };
        Ok(Block {
            norm: vector(norm)?,
            in_proj: self.linear(&mixer.in_proj, self.dtype)?,
            conv_weight: Tensor::from_host(self.exec, &mixer.conv.view())?,
            conv_bias: mixer.conv_bias.as_deref().map(vector).transpose()?,
            a: Tensor::from_host(self.exec, &mixer.a.view())?,
            d: vector(&mixer.d)?,
            dt_bias: vector(&mixer.dt_bias)?,
            own,
            // its results are added to the stream
            out_proj: self.linear(&mixer.out_proj, DType::F32)?,
        })
    }
}

impl Weights {
    pub(super) fn new(exec: &Exec, model: &Model, dtype: DType) -> Result<Self> {
        if !TYPES.iter().any(|(known, _)| *known == dtype) {
            let (op, argument, expected) = ("DeviceModel", "dtype", "f32, bf16 or f16");
            return Err(statescan::Error::DType { op, argument, expected, got: dtype }.into());
        }
        let upload = Upload { exec, dtype };
        let config = &model.config;
        let blocks = model.blocks.iter().map(|block| upload.block(&block.norm, &block.mixer)).collect::<Result<_>>()?;
        let head = if config.tied { None } else { Some(upload.matrix(&model.head.weight)?) };
        let norm = Tensor::from_slice(exec, &model.norm, &[config.dim])?;
        Ok(Weights { dtype, embedding: upload.matrix(&model.embedding)?, blocks, norm, head })
    }

    pub(super) fn head(&self) -> &Tensor {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// The tensors that are used in the places of weights, by the names of these in checkpoints.
    pub(super) fn tensors_mut(&mut self, config: &Config) -> HashMap<String, &mut Tensor> {
        let Weights { embedding, blocks, norm, head, .. } = self;
        let mut all =
            HashMap::from([(config.package.embedding().to_owned(), embedding), ("backbone.norm_f.weight".to_owned(), norm)]);
        all.extend(head.as_mut().map(|head| ("lm_head.weight".to_owned(), head)));
        for (layer, block) in blocks.iter_mut().enumerate() {
            let named = |(name, tensor)| (format!("backbone.layers.{layer}.{name}"), tensor);
            all.extend(block.tensors_mut().into_iter().map(named));
        }
        all
    }

    /// Bytes of projections and head.
    pub(super) fn bytes_per_step(&self) -> usize {
        let size = |tensor: &Tensor| tensor.shape().iter().product::<usize>() * tensor.dtype().size();
        let of_block = |block: &Block| {
            let own = match &block.own {
                Own::Mamba { x_proj, dt_proj, .. } => size(&x_proj.weight) + size(&dt_proj.weight),
                Own::Mamba2 { .. } => 0,
            };
            size(&block.in_proj.weight) + own + size(&block.out_proj.weight)
        };
        self.blocks.iter().map(of_block).sum::<usize>() + size(self.head())
    }
}
