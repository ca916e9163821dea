//! The launches of a call on a GPU, whether one is there or not: the choice of kernels is a function of types, sizes and a
//! device's numbers.

use super::{Launch, Numbers};
use crate::error::Result;
use crate::exec::Exec;
use crate::ops::Call;
use crate::tensor::{DType, Device, RawViewMut, Shape, View, ViewMut};

/// A GPU as far as plans depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gpu(pub(crate) Numbers);

/// A name with compute capability, multiprocessors, and kilobytes of shared memory of a block and of a multiprocessor.
type Model = (&'static str, (u32, u32), usize, [usize; 2]);

const KNOWN: [Model; 5] = [
    ("a100", (8, 0), 108, [163, 164]),
    ("rtx4090", (8, 9), 128, [99, 100]),
    ("h100", (9, 0), 132, [227, 228]),
    ("b200", (10, 0), 148, [227, 228]),
    ("rtx5090", (12, 0), 170, [99, 100]),
];

impl Gpu {
    /// The names that [`Gpu::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|known| known.0)
    }

    /// A GPU by the name of its model, which need not be there.
    pub fn named(name: &str) -> Option<Gpu> {
        let &(_, capability, multiprocessors, shared) = KNOWN.iter().find(|known| known.0 == name)?;
        let [shared_per_block, shared_per_multiprocessor] = shared.map(|kilobytes| kilobytes << 10);
        Some(Gpu(Numbers { capability, multiprocessors, shared_per_block, shared_per_multiprocessor }))
    }

    /// Returns this GPU with another number of multiprocessors, by which rows are cut into segments: with one of them they are
    /// scanned in one pass.
    pub fn with_multiprocessors(self, multiprocessors: usize) -> Gpu {
        Gpu(Numbers { multiprocessors: multiprocessors.max(1), ..self.0 })
    }

    /// The GPU of an executor, if it has one.
    pub fn of(exec: &Exec) -> Option<Gpu> {
        exec.stream().map(|stream| Gpu(stream.numbers()))
    }
}

/// A launch of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedLaunch {
    /// `forward` or `backward`.
    pub pass: &'static str,
    /// The kernel's name, as profilers show it.
    pub kernel: &'static str,
    /// Blocks along x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block in bytes.
    pub shared: u32,
}

impl PlannedLaunch {
    pub(crate) fn new(pass: &'static str, kernel: &'static str, launch: Launch) -> PlannedLaunch {
        let Launch { grid, threads, shared, .. } = launch;
        PlannedLaunch { pass, kernel, blocks: grid, threads, shared }
    }
}

/// A dense tensor in a device's memory that nobody reads.
pub(crate) fn nowhere(dtype: DType, shape: &[usize]) -> Result<View<'static>> {
    let strides = Shape::new(shape)?.row_major();
    // SAFETY: nothing reads through the view: plans look at types, shapes and layouts.
    unsafe { View::from_raw_parts(core::ptr::without_provenance(1 << 20), dtype, Device::Cuda(0), shape, &strides) }
}

/// A dense tensor like a view, which nobody writes.
pub(crate) fn written_like(view: &View<'_>) -> Result<RawViewMut> {
    let dense = nowhere(view.dtype(), &view.shape())?;
    let (at, shape, strides) = (dense.as_ptr().cast_mut(), dense.shape(), dense.strides());
    // SAFETY: nothing writes through the view.
    let mut view = unsafe { ViewMut::from_raw_parts(at, dense.dtype(), dense.device(), &shape, &strides)? };
    Ok(view.raw())
}

/// A call whose tensors lie dense in a device's memory.
pub(crate) fn on_a_device<'c>(call: &Call<'_>) -> Result<Call<'c>> {
    let mut moved = Call::new(call.signature);
    moved.values = call.values;
    for (to, from) in moved.views.iter_mut().zip(&call.views) {
        *to = from.as_ref().map(|view| nowhere(view.dtype(), &view.shape())).transpose()?;
    }
    Ok(moved)
}
