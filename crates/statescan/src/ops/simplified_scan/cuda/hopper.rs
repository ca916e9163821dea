//! Products by warpgroups on Hopper (`wgmma`): those of f32 and complex64 along time, whose layout the copy engine can describe. All others are
//! left to `mma.sync`.

use super::plan::{COLUMNS, DEPTH, LINES};
use super::product::{Factor, Params, Product, To};
use crate::cuda::{
    COMMON, HOPPER, Kernel, Launch, MMA, Numbers, Program, Swizzle, TensorMap, Tiling, header, neighbours, params,
};
use crate::tensor::{DType, View};

pub(super) static KERNEL: Program<HopperParams> =
    Program::new("complex_product_hopper", &[COMMON, MMA, HOPPER], include_str!("product_hopper.cu"))
        .including(&[header!("product.cuh")]);

params! {
    /// Parameters of `complex_product_hopper`.
    pub(super) struct HopperParams(product: Params) {
        /// Boxes of the streamed factor, (batch, line, real number along time).
        pub(super) streamed: TensorMap,
        tiles: i64,
    }
}

/// Shared memory of a block, which has a multiprocessor for itself, and its threads.
const SHARED: usize = 226 << 10;
const THREADS: usize = 3 * 128;
/// Real numbers of a line of a box.
const LINE: usize = 32;
/// The most elements along an axis: coordinates of boxes are 32 bits wide.
const LONGEST: usize = i32::MAX as usize / 2 - 128;
/// Registers of a thread of a block as it is launched, those of the warpgroups that multiply, and of the one that splits: more
/// than a block is launched with it never gets.
const LAUNCH_REGISTERS: usize = 65536 / THREADS / 8 * 8;
const PRODUCT_REGISTERS: usize = 224;
const HELD_REGISTERS: usize = 56;
const _: () = assert!(2 * PRODUCT_REGISTERS + HELD_REGISTERS <= 3 * LAUNCH_REGISTERS);

/// The launch of a product but for its tensor map, and what that describes: nothing if this kernel cannot take it.
pub(super) fn plan(product: &Product<'_>, numbers: Numbers) -> Option<(Kernel<HopperParams>, Tiling)> {
    let over_time = matches!(product.to, To::Terms { .. });
    let (streamed, held) = if over_time { (product.a, product.b) } else { (product.b, product.a) };
    let tiling = boxes(&streamed, over_time)?;
    let short = |view: &View<'_>| view.shape().iter().all(|&n| n <= LONGEST);
    let lines_first = held.view.strides()[2] != 1;
    // a complex product and what is added to it are too many registers
    let skips = matches!(product.to, To::Tensor { view, skip: Some(_) } if view.dtype().is_complex());
    // offsets within a tile are 32 bits wide
    let near = held.view.strides()[1..].iter().all(|stride| stride.unsigned_abs() <= 1 << 24);
    let side_by_side = !lines_first || (!over_time && held.view.strides()[1] == 1);
    if numbers.capability != (9, 0)
        || !is_full(&held.view)
        || !short(&streamed.view)
        || !short(&held.view)
        || !near
        || skips
        || !side_by_side
    {
        return None;
    }
    let (config, product, tiles) = product.tiled(if over_time { [LINES, COLUMNS] } else { [COLUMNS, LINES] });
    let tiles = tiles.filter(|&tiles| tiles <= LONGEST)?;
    let config = config
        .flag("HELD_WIDE", neighbours(&held.view, 2, 2) == 2)
        .flag("HELD_LINES_FIRST", lines_first)
        .int("PRODUCT_REGISTERS", PRODUCT_REGISTERS)
        .int("HELD_REGISTERS", HELD_REGISTERS)
        .int("SHARED", SHARED);
    let launch = Launch::line(tiles.min(numbers.multiprocessors) as u32, THREADS as u32, SHARED as u32);
    let params = HopperParams { product, streamed: TensorMap::default(), tiles: tiles as i64 };
    Some((Kernel { config, launch, params }, tiling))
}

fn is_full(view: &View<'_>) -> bool {
    matches!(view.dtype(), DType::F32 | DType::Complex64)
}

/// A factor along time in lines of real numbers.
fn boxes(factor: &Factor<'_>, over_time: bool) -> Option<Tiling> {
    let view = &factor.view;
    let (shape, strides, parts) = (view.shape(), view.strides(), 1 + usize::from(view.dtype().is_complex()));
    if !is_full(view) || factor.conjugate || strides[2] != 1 {
        return None;
    }
    let of_reals = |stride: isize| stride.checked_mul(parts as isize);
    let (shape, strides) =
        ([shape[0], shape[1], shape[2].checked_mul(parts)?], [of_reals(strides[0])?, of_reals(strides[1])?, 1]);
    // SAFETY: the memory is that of the view, whose complex numbers are pairs of real ones.
    let reals = unsafe { View::from_raw_parts(view.as_ptr(), DType::F32, view.device(), &shape, &strides) }.ok()?;
    Tiling::new(&reals, &[1, if over_time { LINES } else { DEPTH }, LINE], Swizzle::Bytes128).ok()
}
