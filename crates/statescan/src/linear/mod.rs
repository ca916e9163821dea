//! Products of rows with a matrix of weights, `y = x W^T + bias`: the linear layers between scans.
//!
//! R rows, K inputs, O outputs.
//!
//! | argument | shape | type |
//! |---|---|---|
//! | x | (R, K) | f32 |
//! | weight | (O, K), as PyTorch and checkpoints have it | f32, bf16 or f16 |
//! | bias | (O,) | real |
//! | -> y | (R, O) | f32 |
//!
//! Elements of a row of `x`, of `weight` and of `y` are neighbours in memory; rows may be any distance apart. Weights are used where they lie,
//! in the type that they have, which is what decoding is bound by: a product of one row reads them once and writes nothing of their size.
//!
//! **A row's result does not depend on other rows**, bit by bit, nor on how many there are: lane `l` of a vector sums the products of inputs
//! `l`, `l + lanes`, .., in this order, and one addition tree joins the lanes. So a prompt may be processed in parts of any length, one step
//! at a time or together with other prompts, with the same bits. Libraries for matrix products cut sums as the shape of a call suggests.
//!
//! **Weights in bf16 on processors with AMX** (x86-64 under Linux, [`rounds_rows`]) are multiplied by its tiles, ten times as fast for many rows. Rows are
//! rounded to bf16 for that, as PyTorch has them; sums are f32, over 32 inputs at a time from the first ones on, for one row as for many, so that what is
//! said above holds there too. [`Exec::with_exact_products`] leaves rows in f32.
//!
//! This is for the CPU. On a GPU the crate `statescan-models` has products of many rows, by cuBLASLt, and of one (`kernels`).

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod amx;
mod backward;
mod kernel;
pub mod reference;

use crate::cpu::Level;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::builder::builder;
use crate::ops::check::{Checker, Kind};
use crate::tensor::{DType, Shape, View, ViewMut};
use half::{bf16, f16};
use kernel::Rows;

const OP: &str = "linear";

/// Computes `y = x W^T + bias`, or without the bias.
///
/// # Errors
/// Any argument of a wrong shape, type or device, rows whose elements are not neighbours, a `y` that overlaps an argument; an executor on a
/// GPU. Nothing is written then.
pub fn forward(exec: &Exec, x: View<'_>, weight: View<'_>, bias: Option<View<'_>>, mut y: ViewMut<'_>) -> Result<()> {
    exec.cpu_only("linear")?;
    let [rows, inputs] = matrix("x", "(rows, inputs)", &x.shape())?;
    let [outputs, _] = matrix("weight", "(outputs, inputs)", &weight.shape())?;
    let mut checker = Checker::new(OP, exec.device());
    checker.read("x", &x, Kind::Exact(DType::F32), &[rows, inputs])?;
    checker.read("weight", &weight, Kind::Real, &[outputs, inputs])?;
    checker.read_if("bias", &bias, Kind::Real, &[outputs])?;
    checker.write("y", &y, Kind::Exact(DType::F32), &[rows, outputs])?;
    for (argument, view) in [("x", &x), ("weight", &weight), ("y", &y.as_view())] {
        check_rows(argument, view)?;
    }
    checker.finish()?;
    let bias = bias.map(|bias| (0..outputs).map(|o| bias.at(&[o]).re as f32).collect::<Vec<_>>());
    let (x, y) = (kernel::Matrix::of(&x), kernel::Target::of(&y.raw()));
    match weight.dtype() {
        DType::F32 => kernel::product(exec, &Rows::<f32>::new(x, &weight, bias.as_deref(), y)),
        #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
        DType::BF16 if inputs > 0 && rounds_rows(exec, DType::BF16) => {
            amx::product(exec, &Rows::new(x, &weight, bias.as_deref(), y));
        }
        DType::BF16 => kernel::product(exec, &Rows::<bf16>::new(x, &weight, bias.as_deref(), y)),
        DType::F16 => kernel::product(exec, &Rows::<f16>::new(x, &weight, bias.as_deref(), y)),
        got => return Err(Error::DType { op: OP, argument: "weight", expected: "f32, bf16 or f16", got }),
    }
    Ok(())
}

/// Whether [`forward`] rounds rows to bf16 for weights of a type.
pub fn rounds_rows(exec: &Exec, weights: DType) -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    let available = amx::available;
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
    let available = || false;
    weights == DType::BF16 && exec.level() == Level::Avx512 && !exec.exact_products() && available()
}

builder! {
    /// The gradients of a backward pass, which overwrites them where nothing else is said; a gradient of `None` is not computed.
    #[derive(Debug, Default)]
    pub struct Gradients<'a> {
        /// By `x`, (R, K).
        pub x: Option<ViewMut<'a>>,
        /// Whether that by `x` is added to what is there.
        pub add_to_x: bool,
        /// By `weight`, (O, K).
        pub weight: Option<ViewMut<'a>>,
        /// By the bias, (O,).
        pub bias: Option<ViewMut<'a>>,
    }
}

/// Computes the gradients that are asked for from `dy`, that of `y`; everything is f32.
///
/// ```text
/// dx = dy W        dW = dy^T x        dbias = the sum of the rows of dy
/// ```
///
/// # Errors
/// As [`forward`].
pub fn backward(exec: &Exec, x: View<'_>, weight: View<'_>, dy: View<'_>, grads: &mut Gradients<'_>) -> Result<()> {
    exec.cpu_only("linear")?;
    let [rows, inputs] = matrix("x", "(rows, inputs)", &x.shape())?;
    let [outputs, _] = matrix("weight", "(outputs, inputs)", &weight.shape())?;
    let (mut checker, single) = (Checker::new(OP, exec.device()), Kind::Exact(DType::F32));
    checker.read("x", &x, single, &[rows, inputs])?;
    checker.read("weight", &weight, single, &[outputs, inputs])?;
    checker.read("grad of y", &dy, single, &[rows, outputs])?;
    checker.write_if("grad of x", &grads.x, single, &[rows, inputs])?;
    checker.write_if("grad of weight", &grads.weight, single, &[outputs, inputs])?;
    checker.write_if("grad of bias", &grads.bias, single, &[outputs])?;
    let (of_x, of_weight) = (grads.x.as_ref().map(ViewMut::as_view), grads.weight.as_ref().map(ViewMut::as_view));
    let given =
        [("x", Some(x)), ("weight", Some(weight)), ("grad of y", Some(dy)), ("grad of x", of_x), ("grad of weight", of_weight)];
    for (argument, view) in given {
        view.map_or(Ok(()), |view| check_rows(argument, &view))?;
    }
    checker.finish()?;
    let [x, weight, dy] = [x, weight, dy].map(|view| kernel::Matrix::of(&view));
    if let Some(dx) = &mut grads.x {
        backward::inputs(exec, &dy, &weight, (&dx.raw(), grads.add_to_x));
    }
    if let Some(dw) = &mut grads.weight {
        backward::weights(exec, &dy, &x, &dw.raw());
    }
    if let Some(db) = &mut grads.bias {
        backward::bias(&dy, &db.raw());
    }
    Ok(())
}

/// Refuses rows whose elements lie apart, and rows that follow one another backwards.
fn check_rows(argument: &'static str, view: &View<'_>) -> Result<()> {
    // a row of one element has no neighbours
    match (view.strides()[1] == 1 || view.shape()[1] < 2) && (view.strides()[0] >= 0 || view.shape()[0] < 2) {
        true => Ok(()),
        false => Err(Error::Presence {
            op: OP,
            argument,
            expected: "must have rows one behind another, whose elements are neighbours",
        }),
    }
}

/// The sizes of an argument with two axes.
fn matrix(argument: &'static str, expected: &'static str, shape: &Shape) -> Result<[usize; 2]> {
    shape[..].try_into().map_err(|_| Error::Rank {
        op: OP,
        argument,
        expected: expected.into(),
        got: *shape,
        help: String::new(),
    })
}
