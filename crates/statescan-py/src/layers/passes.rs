//! How a layer runs operations: here, or over the ranks that share a sequence.

use super::pytorch::{Object, PyTorch};
use crate::exec::Place;
use crate::passes;
use crate::rows::{Part, parts_of};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple};
use statescan::ops::operation::Operation;
use statescan::ops::signature::Saved;

/// The destination of a result or a gradient.
#[derive(Clone)]
pub enum Output<'py> {
    /// It is written into a tensor, or into a part of one.
    To(Object<'py>),
    /// It is made, and given.
    Made,
    /// It is not computed.
    Nothing,
}

impl From<bool> for Output<'_> {
    fn from(wanted: bool) -> Self {
        if wanted { Output::Made } else { Output::Nothing }
    }
}

impl<'py> Output<'py> {
    fn into_object(self, py: Python<'py>) -> Object<'py> {
        match self {
            Output::To(tensor) => tensor,
            Output::Made => PyBool::new(py, true).to_owned().into_any(),
            Output::Nothing => py.None().into_bound(py),
        }
    }
}

/// The inputs of a backward pass beside those of the forward pass: the tensors that were kept for it, and the cotangents of both
/// results, which may be None.
pub type Given<'g, 'py> = (&'g [Object<'py>], [Object<'py>; 2]);

/// The passes of an operation, whose inputs (tensors, parts of tensors, values) and outputs are in the order of its signature. What they make is given.
pub trait Passes<'py> {
    /// Computes results. What the backward pass needs beside the inputs is added to `kept`, if there is such a list.
    fn forward(
        &self,
        op: &'static Operation,
        inputs: &[Object<'py>],
        outputs: Vec<Output<'py>>,
        kept: Option<&mut Vec<Object<'py>>>,
    ) -> PyResult<Vec<Object<'py>>>;

    /// Computes gradients.
    fn backward(
        &self,
        op: &'static Operation,
        inputs: &[Object<'py>],
        given: Given<'_, 'py>,
        outputs: Vec<Output<'py>>,
    ) -> PyResult<Vec<Object<'py>>>;
}

/// The whole sequence is on one device.
pub struct Here<'p, 'py>(pub &'p Place<'py>);

/// Whether a pass keeps states.
fn keeps(op: &Operation) -> bool {
    matches!(op.signature.saved, Saved::States { .. })
}

fn tuple<'py>(py: Python<'py>, outputs: Vec<Output<'py>>) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, outputs.into_iter().map(|output| output.into_object(py)))
}

impl<'py> Passes<'py> for Here<'_, 'py> {
    fn forward(
        &self,
        op: &'static Operation,
        inputs: &[Object<'py>],
        mut outputs: Vec<Output<'py>>,
        kept: Option<&mut Vec<Object<'py>>>,
    ) -> PyResult<Vec<Object<'py>>> {
        let py = inputs[0].py();
        let kept = kept.filter(|_| keeps(op));
        outputs.extend(kept.is_some().then_some(Output::Made));
        let made = passes::compute(op, &PyTuple::new(py, inputs)?, &tuple(py, outputs)?, self.0, passes::Part::Whole)?;
        let mut made: Vec<_> = made.iter().collect();
        if let Some(kept) = kept {
            kept.extend(made.pop());
        }
        Ok(made)
    }

    fn backward(
        &self,
        op: &'static Operation,
        inputs: &[Object<'py>],
        (kept, cotangents): Given<'_, 'py>,
        outputs: Vec<Output<'py>>,
    ) -> PyResult<Vec<Object<'py>>> {
        let (py, mut all) = (inputs[0].py(), inputs.to_vec());
        if keeps(op) {
            // on a device that keeps none they are computed again
            let are_there = |states: &&Object<'py>| parts_of(states, "states").is_ok_and(|parts| parts.shape[0] > 0);
            all.push(kept.first().filter(are_there).cloned().unwrap_or_else(|| py.None().into_bound(py)));
        }
        all.extend(cotangents);
        let made = passes::differentiate(op, &PyTuple::new(py, all)?, &tuple(py, outputs)?, self.0, passes::Part::Whole)?;
        Ok(made.iter().collect())
    }
}

/// The sequence is divided among the ranks of a context: the passes are those of `statescan.distributed`, which take and give tensors.
pub struct OverRanks<'p, 'py> {
    /// Pairs of passes, by the names of operations.
    pub passes: &'p Bound<'py, PyDict>,
    /// The name of the context.
    pub context: Object<'py>,
    pub torch: &'p PyTorch<'py>,
}

impl<'py> OverRanks<'_, 'py> {
    /// The results of the forward (0) or the backward (1) pass of an operation.
    fn run(&self, op: &Operation, at: usize, arguments: Vec<Object<'py>>) -> PyResult<Vec<Object<'py>>> {
        let pass = self.passes.as_any().get_item(op.signature.name)?.get_item(at)?;
        pass.call1(PyTuple::new(pass.py(), arguments)?)?.try_iter()?.collect()
    }

    /// A tensor in the place of a part of one.
    fn tensor(&self, object: &Object<'py>) -> PyResult<Object<'py>> {
        let Ok(part) = object.cast_exact::<Part>() else { return Ok(object.clone()) };
        let (whole, part) = (part.get().whole(object.py()), part.get().parts);
        let start = parts_of(whole, "tensor")?.address;
        let axes: Vec<_> = part.shape.into_iter().zip(part.strides).take(part.rank).collect();
        self.torch.view(whole, &axes, part.address.wrapping_sub(start) as isize / part.dtype.size() as isize)
    }

    fn tensors(&self, objects: &[Object<'py>]) -> PyResult<Vec<Object<'py>>> {
        objects.iter().map(|object| self.tensor(object)).collect()
    }

    /// Puts what a pass has given where it is wanted.
    fn place(&self, given: &[Object<'py>], outputs: Vec<Output<'py>>) -> PyResult<Vec<Object<'py>>> {
        let mut made = Vec::new();
        for (given, output) in given.iter().zip(outputs) {
            match output {
                Output::To(target) => self.torch.copy(&self.tensor(&target)?, given)?,
                Output::Made => made.push(given.clone()),
                Output::Nothing => {}
            }
        }
        Ok(made)
    }
}

impl<'py> Passes<'py> for OverRanks<'_, 'py> {
    fn forward(
        &self,
        op: &'static Operation,
        inputs: &[Object<'py>],
        outputs: Vec<Output<'py>>,
        kept: Option<&mut Vec<Object<'py>>>,
    ) -> PyResult<Vec<Object<'py>>> {
        let saves = PyBool::new(inputs[0].py(), kept.is_some()).to_owned().into_any();
        let mut arguments = vec![self.context.clone(), saves];
        arguments.extend(self.tensors(inputs)?);
        let found = self.run(op, 0, arguments)?;
        if let Some(kept) = kept {
            kept.extend_from_slice(&found[2..]);
        }
        self.place(&found, outputs)
    }

    fn backward(
        &self,
        op: &'static Operation,
        inputs: &[Object<'py>],
        (kept, cotangents): Given<'_, 'py>,
        mut outputs: Vec<Output<'py>>,
    ) -> PyResult<Vec<Object<'py>>> {
        let py = inputs[0].py();
        outputs.resize(op.signature.arguments.iter().filter(|argument| argument.gradient).count(), Output::Nothing);
        let asked: Vec<bool> = outputs.iter().map(|output| !matches!(output, Output::Nothing)).collect();
        let mut arguments = vec![self.context.clone(), PyList::new(py, asked)?.into_any()];
        arguments.extend(self.tensors(inputs)?);
        arguments.push(PyList::new(py, kept)?.into_any());
        arguments.extend(self.tensors(&cotangents)?);
        outputs.retain(|output| !matches!(output, Output::Nothing));
        self.place(&self.run(op, 1, arguments)?, outputs)
    }
}
