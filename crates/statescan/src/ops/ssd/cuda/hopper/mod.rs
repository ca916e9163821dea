//! Kernels for Hopper, on products of warpgroups (`wgmma`) and tiles that the copy engine brings.

pub(super) mod cuts;
pub(super) mod fused;
pub(super) mod hand_on;
pub(super) mod packed;
pub(super) mod walk;

use crate::cuda::{Header, header};

const PACKED: Header = header!("packed.cuh");
const TOOLS: Header = header!("tools.cuh");
