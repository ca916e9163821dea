//! Products of many rows, by cuBLASLt.

use super::rows::Rows;
use statescan::Exec;
use statescan::error::{Error, Result};
use statescan::ops::check::{Checker, Kind};
use statescan::tensor::{DType, View, ViewMut};
use statescan_cuda::{AsStream, Blaslt, Product};

const OP: &str = "multiply";

/// Products of matrices on an executor's stream, by cuBLASLt, which is opened at run time. It keeps 32 MiB of scratch memory, and the algorithm of
/// each product that it has met.
#[derive(Debug)]
pub struct Products {
    exec: Exec,
    library: Blaslt,
}

/// The addend of a product.
enum Onto<'o> {
    Nothing,
    /// The values that the results replace, times this factor.
    Itself(f32),
    Another(View<'o>),
}

impl Products {
    /// Opens the library.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without the library or if the executor is not a CUDA one; [`Error::OutOfMemory`].
    pub fn new(exec: &Exec) -> Result<Self> {
        Ok(Products { library: Blaslt::new(exec.as_stream()?)?, exec: exec.clone() })
    }

    /// Computes `y = x W^T + bias`, or with `add` adds that to `y`: x (rows, inputs), weight (outputs, inputs), bias (outputs), y (rows, outputs).
    ///
    /// x and the weights, if they are matrices, may also have columns of neighbours instead of rows: the gradients of a product are such products,
    /// `dx = dy W` and `dW = dy^T x`.
    ///
    /// Weights and rows have one type, f32, bf16 or f16; results have it too, or are f32, and the bias has the results' type. Sums are f32, and
    /// factors in f32 are not rounded unless the executor allows it ([`Exec::with_tf32`]). The algorithm, and with it the order of a sum, depends on
    /// the number of rows.
    ///
    /// # Errors
    /// Arguments of wrong shapes, types or devices, rows that are not neighbours, results that overlap something. Nothing is written then.
    pub fn multiply(&self, x: View<'_>, weight: View<'_>, bias: Option<View<'_>>, y: &mut ViewMut<'_>, add: bool) -> Result<()> {
        self.product([x, weight], bias, if add { Onto::Itself(1.0) } else { Onto::Nothing }, y)
    }

    /// Adds `factor x W^T + bias` to `y`: as [`Products::multiply`] otherwise.
    ///
    /// # Errors
    /// As [`Products::multiply`].
    pub fn add_multiple(
        &self,
        x: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        factor: f32,
        y: &mut ViewMut<'_>,
    ) -> Result<()> {
        self.product([x, weight], bias, Onto::Itself(factor), y)
    }

    /// Computes `y = before + x W^T + bias`: as [`Products::multiply`] otherwise. `before` is of the type and shape of `y`, and its rows are as far
    /// apart.
    ///
    /// # Errors
    /// As [`Products::multiply`].
    pub fn multiply_add(
        &self,
        x: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        before: View<'_>,
        y: &mut ViewMut<'_>,
    ) -> Result<()> {
        self.product([x, weight], bias, Onto::Another(before), y)
    }

    fn product(&self, [x, weight]: [View<'_>; 2], bias: Option<View<'_>>, onto: Onto<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        let result = y.as_view();
        let [of_x, of_weight] = [Factor::of("x", &x)?, Factor::of("weight", &weight)?];
        let of_y = Rows::of(OP, "y", &result)?;
        let mut checker = Checker::new(OP, self.exec.device());
        checker.read("x", &x, Kind::Real, &x.shape())?;
        checker.read("weight", &weight, Kind::Real, &[of_weight.rows, of_x.columns])?;
        checker.read_if("bias", &bias, Kind::Real, &[of_weight.rows])?;
        let lead = x.rank() - 1;
        let expected = [&x.shape()[..lead], &[of_weight.rows]].concat();
        if let Onto::Another(before) = &onto {
            checker.read("before", before, Kind::Real, &expected)?;
        }
        checker.write("y", y, Kind::Real, &expected)?;
        checker.finish()?;
        check_types([&of_x, &of_weight], &of_y, bias, &onto)?;
        if let Some(bias) = &bias {
            Rows::row(OP, "bias", bias, of_weight.rows)?;
        }
        if of_x.rows == 0 || of_weight.rows == 0 {
            return Ok(());
        }
        let (factor, onto) = match onto {
            Onto::Nothing => (1.0, None),
            Onto::Itself(factor) => (factor, Some(of_y.address)),
            Onto::Another(before) => (1.0, Some(onto_rows(&before, &of_y)?)),
        };
        let aligned = |address: u64| 1 << address.trailing_zeros().min(8);
        let lie = [of_weight.lies, of_x.lies, of_y];
        let product = Product {
            rows: of_x.rows,
            inputs: of_x.columns,
            outputs: of_weight.rows,
            input: of_x.dtype.into(),
            output: of_y.dtype.into(),
            bias: bias.is_some(),
            transposed: [of_weight.transposed, of_x.transposed],
            pitches: lie.map(|rows| rows.pitch),
            aligned: lie.map(|rows| aligned(rows.address)),
            added_aligned: onto.map_or(256, aligned),
        };
        let addresses = [of_weight.lies.address, of_x.lies.address, bias.map_or(0, |bias| bias.as_ptr() as u64), of_y.address];
        // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them.
        unsafe { self.library.multiply(&product, addresses, factor, onto) }.map_err(Into::into)
    }
}

/// Refuses types that do not go together.
fn check_types([x, weight]: [&Factor; 2], y: &Rows, bias: Option<View<'_>>, onto: &Onto<'_>) -> Result<()> {
    let type_of = |argument, got, fits: bool, expected| match fits {
        true => Ok(()),
        false => Err(Error::DType { op: OP, argument, expected, got }),
    };
    let of_y = |argument, got| type_of(argument, got, got == y.dtype, "of the type of y");
    type_of("x", x.dtype, matches!(x.dtype, DType::F32 | DType::BF16 | DType::F16), "f32, bf16 or f16")?;
    type_of("weight", weight.dtype, weight.dtype == x.dtype, "of the type of x")?;
    type_of("y", y.dtype, y.dtype == x.dtype || y.dtype == DType::F32, "of the type of x, or f32")?;
    if let Onto::Another(before) = onto {
        of_y("before", before.dtype())?;
    }
    bias.map_or(Ok(()), |bias| of_y("bias", bias.dtype()))
}

/// The address of rows that a product is added to, which lie as its results do.
fn onto_rows(before: &View<'_>, of_y: &Rows) -> Result<u64> {
    let rows = Rows::of(OP, "before", before)?;
    match rows.pitch == of_y.pitch || rows.rows < 2 {
        true => Ok(rows.address),
        false => Err(Error::Presence { op: OP, argument: "before", expected: "must have rows as far apart as those of y" }),
    }
}

/// A factor of a product.
struct Factor {
    rows: usize,
    columns: usize,
    dtype: DType,
    /// The rows in memory: its own, or those of its transpose.
    lies: Rows,
    transposed: bool,
}

impl Factor {
    fn of(argument: &'static str, view: &View<'_>) -> Result<Self> {
        let own = Rows::of(OP, argument, view);
        let transposed = own.is_err() && view.rank() == 2;
        let lies = match transposed {
            true => Rows::of(OP, argument, &view.permute(&[1, 0])).or(own)?,
            false => own?,
        };
        let [rows, columns] = if transposed { [lies.columns, lies.rows] } else { [lies.rows, lies.columns] };
        Ok(Factor { rows, columns, dtype: lies.dtype, lies, transposed })
    }
}
