//! Products of matrices on tensor cores: one launch of `complex_product`, or of the kernel for Hopper.

use super::OP;
use super::plan::{COLUMNS, DEPTH, RESIDENT, ROWS, Slices};
use crate::cuda::{Address, COMMON, Config, Kernel, Launch, MMA, Program, SharedMemory, Strided, header, neighbours, params};
use crate::error::Result;
use crate::tensor::{DType, View};

pub(super) static PRODUCT: Program<Params> =
    Program::new("complex_product", &[COMMON, MMA], include_str!("product.cu")).including(&[header!("product.cuh")]);

params! {
    /// Parameters of `complex_product`.
    pub(super) struct Params {
        /// (batch, row, depth)
        a: Strided,
        /// (batch, depth, column), or (batch, column, depth) over time.
        b: Strided,
        /// (batch, row, column)
        to: Strided,
        /// (row)
        skip: Strided,
        /// (batch, row, column)
        extra: Strided,
        /// Dense (slice, part, row, column).
        terms: Address<f32>,
        batch: i64,
        rows: i64,
        columns: i64,
        depth: i64,
        row_tiles: i64,
        column_tiles: i64,
        slice_units: i64,
        factor: f32,
    }
}

/// A factor with axes as in [`Params`], taken as it is or conjugate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Factor<'v> {
    pub view: View<'v>,
    pub conjugate: bool,
}

/// The target of a product.
#[allow(clippy::large_enum_variant)] // one is made for a launch, and copied nowhere else
#[derive(Debug, Clone, Copy)]
pub(super) enum To<'v> {
    /// (batch, row, column), with `skip(row) Re extra` added to it.
    Tensor { view: View<'v>, skip: Option<(View<'v>, View<'v>)> },
    /// Over time: terms of slices at an address, real ones or of two parts.
    Terms { address: u64, slices: Slices, complex: bool },
}

/// One product.
#[derive(Debug, Clone, Copy)]
pub(super) struct Product<'v> {
    pub a: Factor<'v>,
    pub b: Factor<'v>,
    pub factor: f64,
    /// Terms that an f32 is split into.
    pub terms: usize,
    pub to: To<'v>,
}

/// Real numbers in an element of a type.
fn parts(dtype: DType) -> usize {
    1 + usize::from(dtype.is_complex())
}

/// Whether two neighbours are one access.
fn is_wide(view: &View<'_>) -> bool {
    neighbours(view, 2, 2) == 2
}

impl Product<'_> {
    /// Terms of bf16 that numbers of a type are split into.
    fn terms(&self, dtype: DType) -> usize {
        match dtype {
            DType::BF16 => 1,
            DType::F16 => 2,
            _ => self.terms,
        }
    }

    /// Shared memory: a tile for each part and each term of both factors.
    fn shared(&self) -> SharedMemory {
        let (a, b) = (self.a.view.dtype(), self.b.view.dtype());
        let line = |length: usize| 2 * length + 16;
        let over_time = matches!(self.to, To::Terms { .. });
        let tile = if over_time { COLUMNS * line(DEPTH) } else { DEPTH * line(COLUMNS) };
        SharedMemory::default()
            .array("A_AT", parts(a) * self.terms(a) * ROWS * line(DEPTH))
            .array("B_AT", parts(b) * self.terms(b) * tile)
            .array("SHARED_END", 0)
    }

    /// Configuration and parameters of every kernel, for tiles of so many rows and columns, and how many tiles there are.
    pub(super) fn tiled(&self, [tile_rows, tile_columns]: [usize; 2]) -> (Config, Params, Option<usize>) {
        let (a, b) = (self.a.view, self.b.view);
        let over_time = matches!(self.to, To::Terms { .. });
        let [batch, rows, depth] = [0, 1, 2].map(|axis| a.shape()[axis]);
        let columns = b.shape()[if over_time { 1 } else { 2 }];
        let (row_tiles, column_tiles) = (rows.div_ceil(tile_rows), columns.div_ceil(tile_columns));
        let config = Config::default()
            .dtype("A", a.dtype())
            .dtype("B", b.dtype())
            .flag("A_CONJUGATE", self.a.conjugate)
            .flag("B_CONJUGATE", self.b.conjugate)
            .int("A_TERMS", self.terms(a.dtype()))
            .int("B_TERMS", self.terms(b.dtype()))
            .int("DEPTH", DEPTH)
            .flag("OVER_TIME", over_time);
        let mut params = Params {
            a: Strided::of(&a),
            b: Strided::of(&b),
            to: Strided::default(),
            skip: Strided::default(),
            extra: Strided::default(),
            terms: Address::NULL,
            batch: batch as i64,
            rows: rows as i64,
            columns: columns as i64,
            depth: depth as i64,
            row_tiles: row_tiles as i64,
            column_tiles: column_tiles as i64,
            slice_units: 0,
            factor: self.factor as f32,
        };
        let (config, count) = self.destination(config, &mut params);
        let tiles = row_tiles.checked_mul(column_tiles).and_then(|tiles| tiles.checked_mul(count));
        (config, params, tiles)
    }

    /// Adds the target to a config and its parameters, and returns the config and how many products of the factors there are.
    fn destination(&self, config: Config, params: &mut Params) -> (Config, usize) {
        match self.to {
            To::Tensor { view, skip } => {
                let of = |view: Option<View<'_>>| view.map_or(DType::F32, |v| v.dtype());
                let config = config
                    .dtype("OUT", view.dtype())
                    .dtype("SKIP", of(skip.map(|(skip, _)| skip)))
                    .dtype("EXTRA", of(skip.map(|(_, extra)| extra)))
                    .flag("HAS_SKIP", skip.is_some())
                    .flag("EXTRA_WIDE", skip.is_some_and(|(_, extra)| is_wide(&extra)))
                    .flag("OUT_WIDE", is_wide(&view))
                    .int("TERM_PARTS", 1);
                params.to = Strided::of(&view);
                params.skip = Strided::of_option(&skip.map(|(skip, _)| skip));
                params.extra = Strided::of_option(&skip.map(|(_, extra)| extra));
                (config, self.a.view.shape()[0])
            }
            To::Terms { address, slices, complex } => {
                let config = config
                    .dtype("OUT", DType::F32)
                    .dtype("SKIP", DType::F32)
                    .dtype("EXTRA", DType::F32)
                    .flag("HAS_SKIP", false)
                    .flag("EXTRA_WIDE", false)
                    .flag("OUT_WIDE", false)
                    .int("TERM_PARTS", if complex { 2 } else { 1 });
                params.terms = Address::new(address);
                params.slice_units = slices.units as i64;
                (config, slices.count)
            }
        }
    }

    pub fn kernel(&self) -> Result<Kernel<Params>> {
        let (config, params, blocks) = self.tiled([ROWS, COLUMNS]);
        let (a, b, shared) = (self.a.view, self.b.view, self.shared());
        let lines_first = |view: &View<'_>| view.strides()[1].unsigned_abs() < view.strides()[2].unsigned_abs();
        let config = config
            .flag("A_WIDE", is_wide(&a))
            .flag("B_WIDE", is_wide(&b))
            .flag("A_LINES_FIRST", lines_first(&a))
            .flag("B_LINES_FIRST", lines_first(&b))
            .int("ROWS", ROWS)
            .int("COLUMNS", COLUMNS)
            .int("RESIDENT", RESIDENT)
            .shared(&shared);
        let launch = Launch { shared: shared.len() as u32, ..Launch::new(OP, blocks, 2 * ROWS)? };
        Ok(Kernel { config, launch, params })
    }
}
