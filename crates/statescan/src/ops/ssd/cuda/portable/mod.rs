//! Kernels for every device, on products of warps (`mma.sync`).

pub(super) mod gradients;
pub(super) mod maps;
pub(super) mod plan;
pub(super) mod walk;

use crate::cuda::{Header, header};

const TILES: Header = header!("tiles.cuh");
