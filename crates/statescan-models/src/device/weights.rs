//! The weights of a model on the device.

use crate::config::{Config, Kind};
use crate::error::Result;
use crate::mixer::{Mixer, Named, Role};
use crate::model::{self, Model};
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

/// A layer: its norm, the weights of its mixer in the order in which its kind names them, and what the kind derives from them.
pub(super) struct Block {
    pub(super) norm: Tensor,
    pub(super) mixer: Vec<Tensor>,
    pub(super) derived: Vec<Tensor>,
}

/// Copies what is given to a device.
pub(crate) struct Upload<'u> {
    pub(crate) exec: &'u Exec,
    pub(crate) dtype: DType,
}

impl Upload<'_> {
    /// A weight in a type, which is rounded if it has another one.
    fn typed(&self, weight: &Weight, dtype: DType) -> Result<Tensor> {
        match weight.dtype() == dtype {
            true => Ok(Tensor::from_host(self.exec, &weight.view())?),
            false => Ok(Tensor::from_host(self.exec, &Weight::rounded(&weight.to_f32(), dtype, weight.shape())?.view())?),
        }
    }

    fn vector(&self, numbers: &[f32]) -> Result<Tensor> {
        Ok(Tensor::from_slice(self.exec, numbers, &[numbers.len()])?)
    }

    /// The weights of a mixer, and those that its kind derives from them. A bias has the type of the results that it is added to; those of the last product
    /// are added to the stream, and have its factor.
    pub(crate) fn mixer(&self, config: &Config, kind: Kind, mixer: &Mixer) -> Result<[Vec<Tensor>; 2]> {
        let weight = |(named, weight): (Named, &Weight)| match named.role {
            Role::Matrix | Role::Bias => self.typed(weight, self.dtype),
            Role::LastBias => self.vector(&weight.to_f32().iter().map(|x| config.scales.residual * x).collect::<Vec<_>>()),
            _ => self.typed(weight, DType::F32),
        };
        let weights = kind.weights(config).into_iter().zip(&mixer.weights).map(weight).collect::<Result<_>>()?;
        let derived = kind.mix().derived(config, &mixer.weights, false)?;
        Ok([weights, derived.iter().map(|weight| self.typed(weight, DType::F32)).collect::<Result<_>>()?])
    }

    /// A layer.
    fn block(&self, config: &Config, kind: Kind, block: &model::Block) -> Result<Block> {
        let [mixer, derived] = self.mixer(config, kind, &block.mixer)?;
        Ok(Block { norm: self.vector(&block.norm)?, mixer, derived })
    }
}

impl Weights {
    pub(super) fn new(exec: &Exec, model: &Model, dtype: DType) -> Result<Self> {
        if !TYPES.iter().any(|(known, _)| *known == dtype) {
            let (op, argument, expected) = ("DeviceModel", "dtype", "f32, bf16 or f16");
            return Err(statescan::Error::DType { op, argument, expected, got: dtype }.into());
        }
        let (upload, config) = (Upload { exec, dtype }, &model.config);
        let blocks = config.layers.iter().zip(&model.blocks).map(|(&kind, block)| upload.block(config, kind, block));
        let blocks = blocks.collect::<Result<_>>()?;
        let head = if config.tied { None } else { Some(upload.typed(&model.head, dtype)?) };
        let norm = upload.vector(&model.norm)?;
        Ok(Weights { dtype, embedding: upload.typed(&model.embedding, dtype)?, blocks, norm, head })
    }

    pub(super) fn head(&self) -> &Tensor {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// The tensors that are used in the places of weights, by the names of these in checkpoints.
    pub(super) fn tensors_mut(&mut self, config: &Config) -> HashMap<String, &mut Tensor> {
        let Weights { embedding, blocks, norm, head, .. } = self;
        let mut all = HashMap::from([(config.embedding().to_owned(), embedding), (config.last_norm().to_owned(), norm)]);
        all.extend(head.as_mut().map(|head| (config.head().to_owned(), head)));
        for (layer, (Block { norm, mixer, .. }, kind)) in blocks.iter_mut().zip(&config.layers).enumerate() {
            let (prefix, names) = (config.prefix(layer), kind.weights(config));
            all.insert(config.norm(layer), norm);
            all.extend(names.iter().zip(mixer).map(|(named, tensor)| (format!("{prefix}{}", named.name), tensor)));
        }
        all
    }

    /// The biases that are added to the stream, with the factor of what layers add.
    pub(super) fn last_biases<'w>(&'w mut self, config: &'w Config) -> impl Iterator<Item = &'w mut Tensor> {
        let all = self
            .blocks
            .iter_mut()
            .zip(&config.layers)
            .flat_map(|(block, kind)| kind.weights(config).into_iter().zip(&mut block.mixer));
        all.filter(|(named, _)| named.role == Role::LastBias).map(|(_, tensor)| tensor)
    }

    /// Bytes of projections and head.
    pub(super) fn bytes_per_step(&self, config: &Config) -> usize {
        let size = |tensor: &Tensor| tensor.shape().iter().product::<usize>() * tensor.dtype().size();
        let of_blocks =
            self.blocks.iter().zip(&config.layers).flat_map(|(block, kind)| kind.weights(config).into_iter().zip(&block.mixer));
        let matrices = of_blocks.filter(|(named, _)| named.role == Role::Matrix);
        matrices.map(|(_, tensor)| size(tensor)).sum::<usize>() + size(self.head())
    }
}
