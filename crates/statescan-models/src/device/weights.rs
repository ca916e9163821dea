//! The weights of a model on the device.

use crate::config::Config;
use crate::error::Result;
use crate::mixer::{Conv, Maps, Mixer};
use crate::model::Model;
use crate::rows::Linear;
use crate::weight::{TYPES, Weight};
use statescan::cuda::layers::training::Form;
use statescan::tensor::Tensor;
use statescan::{DType, Exec, View};

pub(super) struct Weights {
    /// Of products and of the embedding.
    pub(super) dtype: DType,
    pub(super) embedding: Tensor,
    pub(super) blocks: Vec<Block>,
    pub(super) norm: Tensor,
    /// None where the embedding is the head.
    head: Option<Tensor>,
}

pub(super) struct Block {
    pub(super) norm: Tensor,
    pub(super) in_proj: Product,
    pub(super) conv_weight: Tensor,
    pub(super) conv_bias: Option<Tensor>,
    pub(super) a: Tensor,
    pub(super) d: Tensor,
    pub(super) dt_bias: Tensor,
    pub(super) own: Own,
    pub(super) out_proj: Product,
}

/// What is different from kind to kind.
#[allow(clippy::large_enum_variant)] // one for each block
pub(super) enum Own {
    Mamba {
        x_proj: Product,
        dt_proj: Product,
        norms: Option<f32>,
    },
    /// Scan parameters are one for each head; a gated norm follows.
    Mamba2 {
        norm: Tensor,
        eps: f32,
    },
}

/// A projection; its bias has the type of its results.
pub(super) struct Product {
    pub(super) weight: Tensor,
    pub(super) bias: Option<Tensor>,
}

impl Block {
    fn of(&mut self, name: &str) -> Option<&mut Tensor> {
        Some(match (name, &mut self.own) {
            ("norm.weight", _) => &mut self.norm,
            ("mixer.in_proj.weight", _) => &mut self.in_proj.weight,
            ("mixer.in_proj.bias", _) => return self.in_proj.bias.as_mut(),
            ("mixer.conv1d.weight", _) => &mut self.conv_weight,
            ("mixer.conv1d.bias", _) => return self.conv_bias.as_mut(),
            ("mixer.A_log", _) => &mut self.a,
            ("mixer.D", _) => &mut self.d,
            ("mixer.dt_proj.bias", Own::Mamba { .. }) | ("mixer.dt_bias", Own::Mamba2 { .. }) => &mut self.dt_bias,
            ("mixer.x_proj.weight", Own::Mamba { x_proj, .. }) => &mut x_proj.weight,
            ("mixer.dt_proj.weight", Own::Mamba { dt_proj, .. }) => &mut dt_proj.weight,
            ("mixer.norm.weight", Own::Mamba2 { norm, .. }) => norm,
            ("mixer.out_proj.weight", _) => &mut self.out_proj.weight,
            ("mixer.out_proj.bias", _) => return self.out_proj.bias.as_mut(),
            _ => return None,
        })
    }
}

impl Product {
    pub(super) fn bias(&self) -> Option<View<'_>> {
        self.bias.as_ref().map(Tensor::view)
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

    fn vector(&self, numbers: &[f32], shape: &[usize]) -> Result<Tensor> {
        Ok(Tensor::from_slice(self.exec, numbers, shape)?)
    }

    /// A projection with results of a type.
    fn product(&self, linear: &Linear, results: DType) -> Result<Product> {
        let bias = linear.bias.as_ref().map(|bias| Weight::rounded(bias, results, &[bias.len()])).transpose()?;
        let bias = bias.map(|bias| Tensor::from_host(self.exec, &bias.view())).transpose()?;
        Ok(Product { weight: self.matrix(&linear.weight)?, bias })
    }

    fn block(&self, norm: &[f32], mixer: &Mixer, headdim: usize) -> Result<Block> {
        let Mixer { in_proj, conv: Conv { weight, bias, channels, .. }, scan, out_proj, maps, .. } = mixer;
        let inner = scan.d.len();
        // parameters of heads stand there once for each channel
        let of_heads = |all: &[f32]| all.iter().step_by(headdim).copied().collect::<Vec<_>>();
        let heads = inner / headdim;
        let a = match maps {
            Maps::Mamba(_) => self.vector(&scan.a, &[inner, scan.a.len() / inner])?,
            Maps::Mamba2(_) => self.vector(&of_heads(&scan.a), &[heads])?,
        };
        let own = match maps {
            Maps::Mamba(own) => Own::Mamba {
                x_proj: self.product(&own.x_proj, self.dtype)?,
                dt_proj: self.product(&own.dt_proj, self.dtype)?,
                norms: own.norms,
            },
            Maps::Mamba2(own) => Own::Mamba2 { norm: self.vector(&own.norm, &[inner])?, eps: own.eps },
        };
        Ok(Block {
            norm: self.vector(norm, &[norm.len()])?,
            in_proj: self.product(in_proj, self.dtype)?,
            conv_weight: self.vector(weight, &[*channels, weight.len() / channels])?,
            conv_bias: bias.as_ref().map(|bias| self.vector(bias, &[*channels])).transpose()?,
            a,
            d: self.vector(&of_heads(&scan.d), &[heads])?,
            dt_bias: self.vector(&of_heads(&scan.dt_bias), &[heads])?,
            own,
            // its results are added to the stream
            out_proj: self.product(out_proj, DType::F32)?,
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
        let headdim = config.headdim();
        let blocks = model.blocks.iter().map(|block| upload.block(&block.norm, &block.mixer, headdim)).collect::<Result<_>>()?;
        let head = if config.tied { None } else { Some(upload.matrix(&model.head.weight)?) };
        let norm = upload.vector(&model.norm, &[config.dim])?;
        Ok(Weights { dtype, embedding: upload.matrix(&model.embedding)?, blocks, norm, head })
    }

    pub(super) fn head(&self) -> &Tensor {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// The tensor that is used in the place of a weight, and how it comes from it.
    ///
    /// # Panics
    /// If there is no such weight.
    pub(super) fn of(&mut self, config: &Config, name: &str) -> (&mut Tensor, Form) {
        let found = match name.strip_prefix("backbone.layers.").and_then(|rest| rest.split_once('.')) {
            Some((layer, name)) => {
                let block = layer.parse().ok().and_then(|layer: usize| self.blocks.get_mut(layer));
                block.and_then(|block| block.of(name))
            }
            None if name == config.package.embedding() => Some(&mut self.embedding),
            None if name == "lm_head.weight" => self.head.as_mut(),
            None => Some(&mut self.norm),
        };
        let form = if name.ends_with(".A_log") { Form::Decay } else { Form::Same };
        (found.unwrap_or_else(|| panic!("a tensor for `{name}`")), form)
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
