//! The part of a layer between its projections, as one forward and one backward pass, written once for a device and for the ranks
//! of a context ([`passes`]). Products are PyTorch's ([`pytorch`]).
//!
//! A pass takes the first projection's result as it is and hands its parts to the operations; the backward pass writes every gradient into its part of
//! one tensor. So nothing is padded, concatenated, transposed or added, and the convolution's result is computed again and not kept. A pass writes only
//! into memory that it has made: saved tensors may be somebody else's, too.

mod mamba;
mod mamba2;
mod maps;
mod passes;
mod pytorch;

use crate::exec::Unobserved;
use crate::rows::{Part, Rows};
use passes::{Here, Output, OverRanks, Passes};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};
use pytorch::{Object, PyTorch};
use statescan::ops::operation::Operation;

/// Gradients in the order of the arguments; those that are not there are not needed.
type Gradients<'py> = Vec<Option<Object<'py>>>;

/// A kind of layer.
trait Kind<'py> {
    /// Two results, and what is kept for gradients.
    fn forward(&self, save: bool) -> PyResult<Vec<Object<'py>>>;

    /// The gradients, from what was kept and from the cotangents of both results, which may be None.
    fn backward(&self, needed: &[bool], kept: &[Object<'py>], cotangents: [Object<'py>; 2]) -> PyResult<Gradients<'py>>;
}

/// A call of a layer, and the verbs that it is written in.
struct Layer<'l, 'py> {
    py: Python<'py>,
    torch: &'l PyTorch<'py>,
    /// Runs what does not look along time.
    here: &'l Here<'l, 'py>,
    /// Runs convolutions and scans.
    in_time: &'l dyn Passes<'py>,
    /// The result of the first projection, whose parts the layer takes.
    input: Rows<'py>,
    /// The epsilon of the norms of maps and steps.
    eps: Object<'py>,
}

impl<'py> Layer<'_, 'py> {
    fn none(&self) -> Object<'py> {
        self.py.None().into_bound(self.py)
    }

    fn truth(&self, value: bool) -> Object<'py> {
        PyBool::new(self.py, value).to_owned().into_any()
    }

    fn word(&self, word: &str) -> Object<'py> {
        pyo3::types::PyString::new(self.py, word).into_any()
    }

    /// Rows of a batch, and steps.
    fn steps(&self) -> (usize, usize) {
        (self.input.parts.shape[0], self.input.parts.shape[1])
    }

    /// (batch, seqlen, channels).
    fn room(&self, channels: usize) -> PyResult<Object<'py>> {
        let (batch, seqlen) = self.steps();
        self.torch.room(&[batch, seqlen, channels])
    }

    /// (batch * seqlen, channels), as products take it.
    fn matrix(&self, channels: usize) -> PyResult<Object<'py>> {
        let (batch, seqlen) = self.steps();
        self.torch.room(&[batch * seqlen, channels])
    }

    /// Returns the parts of a matrix of rows, or of a tensor (batch, seqlen, channels).
    fn rows(&self, matrix: &Object<'py>) -> PyResult<Rows<'py>> {
        Rows::made(matrix, self.steps())
    }

    /// Returns an empty tensor, which is kept in the place of one that is there anyway, or that is computed again.
    fn nothing(&self) -> PyResult<Object<'py>> {
        self.torch.room(&[0])
    }

    /// Some channels of a tensor like the input, as a matrix whose rows are aligned, or room for as many where they would not be.
    fn columns_or_room(&self, of: &Rows<'py>, first: usize, count: usize) -> PyResult<Object<'py>> {
        let (batch, seqlen) = self.steps();
        match of.are_aligned(first) {
            true => self.torch.view(&of.tensor, &[(batch * seqlen, of.parts.strides[1]), (count, 1)], first as isize),
            false => self.matrix(count),
        }
    }

    /// `-exp(A)` of logarithms, in float32 or better.
    fn decays(&self, a: &Object<'py>, are_logarithms: bool) -> PyResult<Object<'py>> {
        if !are_logarithms {
            return Ok(a.clone());
        }
        let parts = crate::rows::parts_of(a, "A")?;
        let is_narrow = parts.dtype.size() < 4;
        let a = if is_narrow { a.call_method0("float")? } else { a.clone() };
        self.torch.call("exp", (a,), None)?.call_method0("neg_")
    }

    /// The gradient by A as it is given, `like`, from that by the decays.
    fn by_logarithms(
        &self,
        by_decays: Option<Object<'py>>,
        decays: &Object<'py>,
        like: &Object<'py>,
        are_logarithms: bool,
    ) -> PyResult<Option<Object<'py>>> {
        match by_decays {
            Some(by_decays) if are_logarithms => self.torch.typed_as(&by_decays.call_method1("mul_", (decays,))?, like).map(Some),
            as_given => Ok(as_given),
        }
    }

    /// Arguments of the RMS norm of rows.
    fn norm_of(&self, rows: &Object<'py>, weight: &Object<'py>) -> PyResult<Vec<Object<'py>>> {
        let (none, groups) = (self.none(), 1i64.into_pyobject(self.py)?.into_any());
        Ok(vec![
            rows.clone(),
            weight.clone(),
            none.clone(),
            none.clone(),
            none.clone(),
            none,
            self.word("rms"),
            self.eps.clone(),
            groups,
            self.truth(false),
        ])
    }

    /// The RMS norm of rows, (rows, channels).
    fn normalized(&self, rows: &Object<'py>, weight: &Object<'py>) -> PyResult<Object<'py>> {
        let shape: Vec<usize> = rows.getattr("shape")?.extract()?;
        let y = self.torch.room(&shape)?;
        self.here.forward(operation("norm"), &self.norm_of(rows, weight)?, vec![Output::To(y.clone()), Output::Nothing], None)?;
        Ok(y)
    }

    /// Writes the gradient by rows into `to`, and gives that by the weight where it is needed.
    fn normalized_back(
        &self,
        rows: &Object<'py>,
        weight: &Object<'py>,
        by_normed: Object<'py>,
        to: Object<'py>,
        needed: bool,
    ) -> PyResult<Option<Object<'py>>> {
        let outputs = vec![Output::To(to), needed.into()];
        let made =
            self.here.backward(operation("norm"), &self.norm_of(rows, weight)?, (&[], [by_normed, self.none()]), outputs)?;
        Ok(made.into_iter().next())
    }

    /// The gradient by what was projected, of that by the result; zeros of so many channels where there is none.
    fn project_back(&self, by_out: Option<&Object<'py>>, weight: &Object<'py>, channels: usize) -> PyResult<Object<'py>> {
        match by_out {
            None => self.matrix(channels)?.call_method0("zero_"),
            Some(by_out) if weight.is_none() => Ok(by_out.clone()),
            Some(by_out) => self.torch.product(by_out, weight),
        }
    }

    /// The gradients by the weight and the bias of a projection, where they are needed; `rows` makes what was projected.
    fn projection_gradients(
        &self,
        by_out: Option<&Object<'py>>,
        rows: impl FnOnce() -> PyResult<Object<'py>>,
        parameters: [&Object<'py>; 2],
        needed: &[bool],
    ) -> PyResult<[Option<Object<'py>>; 2]> {
        let Some(by_out) = by_out else {
            let zeros = |at: usize| needed[at].then(|| self.torch.call("zeros_like", (parameters[at],), None)).transpose();
            return Ok([zeros(0)?, zeros(1)?]);
        };
        let by_weight = match needed[0] {
            true => Some(self.torch.product(&self.torch.transposed(by_out)?, &self.torch.matrix(&rows()?)?)?),
            false => None,
        };
        Ok([by_weight, if needed[1] { Some(by_out.call_method1("sum", (0,))?) } else { None }])
    }

    /// Arguments of the convolution of `x`, (batch, channels, seqlen), behind the inputs `before`, which may be None.
    fn convolution(&self, [x, weight, bias, before, seq_idx, activation]: [Object<'py>; 6]) -> PyResult<[Object<'py>; 8]> {
        Ok([x, Part::filters(&weight, "conv1d_weight")?, bias, before, self.none(), seq_idx, activation, self.truth(false)])
    }

    /// Writes the gradient by what was convolved into `to`, and gives those by the weight, like which it is, and by the bias, where they are needed.
    fn convolved_back(
        &self,
        convolution: &[Object<'py>],
        weight: &Object<'py>,
        given: passes::Given<'_, 'py>,
        to: Object<'py>,
        needed: &[bool],
    ) -> PyResult<[Option<Object<'py>>; 2]> {
        let by_weight = if needed[0] { Some(self.torch.room_like(weight)?) } else { None };
        let to_weight = match &by_weight {
            Some(room) => Output::To(Part::filters(room, "grad of conv1d_weight")?),
            None => Output::Nothing,
        };
        let outputs = vec![Output::To(to), to_weight, needed[1].into()];
        let made = self.in_time.backward(operation("causal_conv1d"), convolution, given, outputs)?;
        Ok([by_weight, made.into_iter().next()])
    }
}

/// An operation of a name.
fn operation(name: &'static str) -> &'static Operation {
    Operation::find(name).expect("the operations of layers are in the table")
}

/// Gradients in the order in which they may be asked for, none for those that were not.
fn each<'py, const N: usize>(made: Vec<Object<'py>>, asked: [bool; N]) -> [Option<Object<'py>>; N] {
    let mut made = made.into_iter();
    asked.map(|is_made| if is_made { made.next() } else { None })
}

/// A tensor unless it is None.
fn given<'o, 'py>(object: &'o Object<'py>) -> Option<&'o Object<'py>> {
    Some(object).filter(|object| !object.is_none())
}

/// Runs `work` on the layer of some arguments and on the number of those of the call, behind which others may be; none if the place is an [`Unobserved`] one
/// and somebody has a say.
fn with_layer<'py, T>(
    kind: &str,
    arguments: &Bound<'py, PyTuple>,
    place: &Bound<'py, PyAny>,
    ranks: Option<&Bound<'py, PyDict>>,
    work: impl FnOnce(&dyn Kind<'py>, usize) -> PyResult<T>,
) -> PyResult<Option<T>> {
    let place = match place.cast_exact::<Unobserved>() {
        Ok(unobserved) => unobserved.get().of(arguments)?,
        Err(_) => Some(place.extract()?),
    };
    let Some(place) = place else { return Ok(None) };
    let (name, eps, count) = match kind {
        "mamba_inner" => ("xz", mamba::EPS, mamba::ARGUMENTS),
        "mamba2_inner" => ("zxbcdt", mamba2::EPS, mamba2::ARGUMENTS),
        _ => return Err(PyValueError::new_err(format!("there is no layer {kind:?}"))),
    };
    let input = Rows::new(arguments.get_item(0)?, name)?;
    let torch = PyTorch::new(&input.tensor, input.parts.dtype, place.device())?;
    let here = Here(&place);
    let over = match ranks {
        Some(passes) => Some(OverRanks { passes, context: arguments.get_item(count)?, torch: &torch }),
        None => None,
    };
    let in_time: &dyn Passes<'py> = match &over {
        Some(over) => over,
        None => &here,
    };
    let layer = Layer { py: arguments.py(), torch: &torch, here: &here, in_time, input, eps: arguments.get_item(eps)? };
    let count = count + usize::from(ranks.is_some());
    match kind {
        "mamba_inner" => work(&mamba::Mamba::new(layer, arguments)?, count).map(Some),
        _ => work(&mamba2::Mamba2::new(layer, arguments)?, count).map(Some),
    }
}

/// The forward pass of a layer, `mamba_inner` or `mamba2_inner`: two results, and what is kept for gradients if `save` says so. `ranks` are the passes over
/// the ranks of a context, whose name is the last one of the arguments. As a pass of an operation it answers None, before it has done anything, if its
/// place is an [`Unobserved`] one and the call is not.
#[pyfunction]
#[pyo3(signature = (kind, save, arguments, place, ranks=None))]
pub fn layer_forward<'py>(
    kind: &str,
    save: bool,
    arguments: &Bound<'py, PyTuple>,
    place: &Bound<'py, PyAny>,
    ranks: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<Vec<Object<'py>>>> {
    with_layer(kind, arguments, place, ranks, |layer, _| layer.forward(save))
}

/// The backward pass alike: the gradients that are needed. Behind the arguments of the call are what was kept, and the cotangents of both results.
#[pyfunction]
#[pyo3(signature = (kind, needed, arguments, place, ranks=None))]
pub fn layer_backward<'py>(
    kind: &str,
    needed: Vec<bool>,
    arguments: &Bound<'py, PyTuple>,
    place: &Bound<'py, PyAny>,
    ranks: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<Vec<Object<'py>>>> {
    let found = with_layer(kind, arguments, place, ranks, |layer, count| {
        let mut kept: Vec<_> = arguments.iter().skip(count).collect();
        let (Some(second), Some(first)) = (kept.pop(), kept.pop()) else {
            return Err(PyValueError::new_err(format!("{kind}: cotangents are missing")));
        };
        layer.backward(&needed, &kept, [first, second])
    })?;
    Ok(found.map(|found| found.into_iter().zip(&needed).filter_map(|(gradient, needed)| gradient.filter(|_| *needed)).collect()))
}
