//! Every operation by name: its signature, and what runs a [`Call`] of it.

use super::call::{Call, Given, Planned, Written};
use super::op::{Op, Step};
pub use super::prepared::Prepared;
use super::signature::Signature;
use super::states::NO_STATES;
use super::summary::Summary;
use super::{causal_conv1d, gated_delta_rule, linear_scan, norm, selective_scan, simplified_scan, ssd, turned_maps};
use crate::cuda::{Gpu, PlannedLaunch, on_a_device};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::tensor::{Dense, Device, Shape, View, ViewMut};

/// Results or gradients of an oracle, by their names.
pub type Exact = Vec<(&'static str, Dense)>;

/// An operation that takes calls by position.
///
/// ```
/// use statescan::ops::{Call, Operation, Written};
/// use statescan::{Exec, View, ViewMut};
///
/// let linear_scan = Operation::find("linear_scan").unwrap();
/// let (a, b, mut h) = ([0.5f32; 4], [1f32; 4], [0f32; 4]);
/// let mut call = Call::new(linear_scan.signature);
/// call.views[0] = Some(View::new(&a, &[4])?);
/// call.views[1] = Some(View::new(&b, &[4])?);
/// let mut out = Written::default();
/// out.views[0] = Some(ViewMut::new(&mut h, &[4])?);
/// linear_scan.forward(&Exec::cpu(1), &call, &mut out)?;
/// assert_eq!(h, [1.0, 1.5, 1.75, 1.875]);
/// # Ok::<(), statescan::Error>(())
/// ```
pub struct Operation {
    /// The operation as data.
    pub signature: &'static Signature,
    runs: Runs,
}

/// The code that runs the calls of an operation.
enum Runs {
    Passes(&'static dyn Op),
    Step(&'static dyn Step),
}

impl core::fmt::Debug for Operation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Operation({})", self.signature.name)
    }
}

const fn passes(signature: &'static Signature, op: &'static dyn Op) -> Operation {
    Operation { signature, runs: Runs::Passes(op) }
}

const fn step(signature: &'static Signature, step: &'static dyn Step) -> Operation {
    Operation { signature, runs: Runs::Step(step) }
}

impl Operation {
    /// Every operation, in the order of the documentation.
    pub const ALL: &'static [Operation] = &[
        passes(&selective_scan::SIGNATURE, &selective_scan::Table),
        passes(&ssd::SIGNATURE, &ssd::Table),
        passes(&gated_delta_rule::SIGNATURE, &gated_delta_rule::Table),
        passes(&simplified_scan::SIGNATURE, &simplified_scan::Table),
        passes(&simplified_scan::INNER, &simplified_scan::Table),
        passes(&linear_scan::SIGNATURE, &linear_scan::Table),
        passes(&causal_conv1d::SIGNATURE, &causal_conv1d::Table),
        passes(&norm::SIGNATURE, &norm::Table),
        passes(&turned_maps::SIGNATURE, &turned_maps::Table),
        step(&selective_scan::update::SIGNATURE, &selective_scan::update::Table),
        step(&gated_delta_rule::update::SIGNATURE, &gated_delta_rule::update::Table),
        step(&simplified_scan::update::SIGNATURE, &simplified_scan::update::Table),
        step(&causal_conv1d::update::SIGNATURE, &causal_conv1d::update::Table),
    ];

    /// The operations whose states may lie in a [pool](super::pool), which they change as steps change a state.
    pub const POOLED: &[Operation] = &[
        step(&selective_scan::POOLED, &selective_scan::IN_POOL),
        step(&ssd::POOLED, &ssd::IN_POOL),
        step(&gated_delta_rule::POOLED, &gated_delta_rule::IN_POOL),
        step(&simplified_scan::POOLED, &simplified_scan::IN_POOL),
        step(&simplified_scan::POOLED_INNER, &simplified_scan::INNER_IN_POOL),
        step(&linear_scan::POOLED, &linear_scan::IN_POOL),
        step(&causal_conv1d::POOLED, &causal_conv1d::IN_POOL),
    ];

    /// The steps whose rows are tokens of sequences, which read and write slots of a pool: several tokens at once, and a way back.
    pub const SLOTTED: &[Operation] = &[
        step(&selective_scan::update::SLOTTED, &selective_scan::update::BETWEEN_SLOTS),
        step(&gated_delta_rule::update::SLOTTED, &gated_delta_rule::update::BETWEEN_SLOTS),
        step(&simplified_scan::update::SLOTTED, &simplified_scan::update::BETWEEN_SLOTS),
        step(&causal_conv1d::update::SLOTTED, &causal_conv1d::update::BETWEEN_SLOTS),
    ];

    /// All of these, in this order: their numbers are those of calls from other languages.
    pub fn every() -> impl Iterator<Item = &'static Operation> {
        Self::ALL.iter().chain(Self::POOLED).chain(Self::SLOTTED)
    }

    /// The operation of a name.
    pub fn find(name: &str) -> Option<&'static Operation> {
        Self::every().find(|operation| operation.signature.name == name)
    }

    /// Checks the arguments of a call, once for all that is asked about it and for its passes.
    ///
    /// # Errors
    /// Those of the operation that concern the arguments; [`Error::Presence`] for an argument that is missing; [`Error::Unavailable`] for a step, whose
    /// state is checked with its arguments when it runs.
    pub fn prepare<'p>(&self, exec: &'p Exec, call: &'p Call<'p>) -> Result<Prepared<'p>> {
        call.check_presence()?;
        Prepared::new(self.op()?, exec, *call, NO_STATES)
    }

    /// Type and shape of a result of a call.
    ///
    /// # Errors
    /// Those of the operation that concern the arguments.
    pub fn result(&self, call: &Call<'_>, at: usize) -> Result<Planned> {
        let dtype = call.result_type(at);
        match call.like(at) {
            Some(shape) => Ok(Planned { dtype, shape }),
            None => Ok(Planned { dtype, shape: self.state_shape(call)? }),
        }
    }

    /// The shape that a state of a call has.
    ///
    /// # Errors
    /// As [`Operation::result`].
    pub fn state_shape(&self, call: &Call<'_>) -> Result<Shape> {
        let none = Error::Unavailable { what: self.signature.name, why: "no result of it is a state" };
        self.states(call)?.0.ok_or(none)
    }

    /// Numbers in the states that the forward pass of a call keeps.
    ///
    /// # Errors
    /// As [`Operation::result`].
    pub fn saved_len(&self, call: &Call<'_>) -> Result<usize> {
        Ok(self.states(call)?.1)
    }

    fn states(&self, call: &Call<'_>) -> Result<(Option<Shape>, usize)> {
        call.check_presence()?;
        match &self.runs {
            Runs::Passes(op) => {
                let device = call.views[0].map_or(Device::Cpu, |view| view.device());
                let problem = op.problem(call, device, NO_STATES)?;
                Ok((problem.state_shape(), problem.saved_len()))
            }
            Runs::Step(_) => Ok((Some(state_of(call)?.shape()), 0)),
        }
    }

    /// Elements of `f32` that the forward pass wants as scratch memory.
    ///
    /// # Errors
    /// As [`Operation::result`].
    pub fn workspace_len(&self, exec: &Exec, call: &Call<'_>) -> Result<usize> {
        match self.runs {
            Runs::Passes(_) => self.prepare(exec, call)?.workspace_len(),
            Runs::Step(step) => {
                call.check_presence()?;
                step.workspace_len(exec, call, &state_of(call)?)
            }
        }
    }

    /// Returns the workspace length of a backward pass, with or without the states that the forward pass saved.
    ///
    /// # Errors
    /// As [`Operation::result`].
    pub fn backward_workspace_len(&self, exec: &Exec, call: &Call<'_>, has_saved: bool) -> Result<usize> {
        match self.runs {
            Runs::Passes(_) => self.prepare(exec, call)?.backward_workspace_len(has_saved),
            Runs::Step(_) => Ok(0),
        }
    }

    /// Computes the results that are asked for.
    ///
    /// # Errors
    /// Those of the operation; [`Error::Presence`] for an argument that is missing.
    pub fn forward(&self, exec: &Exec, call: &Call<'_>, out: &mut Written<'_>) -> Result<()> {
        let Runs::Step(step) = &self.runs else { return self.prepare(exec, call)?.forward(out) };
        call.check_presence()?;
        let op = call.signature.name;
        let missing = |argument| Error::Presence { op, argument, expected: "is written and must be there" };
        let state = out.state.as_mut().ok_or_else(|| missing(state_name(call)))?;
        let workspace = out.workspace.as_mut().map(ViewMut::reborrow);
        step.update(exec, call, state, out.views[0].as_mut().ok_or_else(|| missing("y"))?, workspace)
    }

    /// Checks a call as its forward pass would, which is not run: no tensor on a CUDA device is read or written, and there need be none. Of
    /// what is written, only a step's state and result are looked at.
    ///
    /// # Errors
    /// Those of [`Operation::forward`] that concern the arguments.
    pub fn check(&self, call: &Call<'_>, out: &Written<'_>) -> Result<()> {
        let Runs::Step(step) = &self.runs else { return self.states(call).map(drop) };
        call.check_presence()?;
        let op = call.signature.name;
        let missing = |argument| Error::Presence { op, argument, expected: "is written and must be there" };
        let state = out.state.as_ref().ok_or_else(|| missing(state_name(call)))?;
        step.check(call, state, out.views[0].as_ref().ok_or_else(|| missing("y"))?)
    }

    /// The kernels that a GPU would launch for a call whose tensors lie dense in its memory, forward with every result and backward with every
    /// gradient, in their order; of the tensors types and shapes count alone. Sums of terms at the end of a backward pass are left out.
    ///
    /// # Errors
    /// Those of the operation that concern the arguments; [`Error::Unavailable`] for an operation whose kernels are no choice, or that has none for the call.
    pub fn plan(&self, gpu: &Gpu, call: &Call<'_>) -> Result<Vec<PlannedLaunch>> {
        let call = on_a_device(call)?;
        call.check_presence()?;
        match call.signature.name {
            "gated_delta_rule" => gated_delta_rule::plan(&gated_delta_rule::Args::of_call(&call), gpu.0),
            "ssd" => ssd::plan(&ssd::Args::of_call(&call), gpu.0),
            "simplified_scan" | "s5_inner" => simplified_scan::plan(&simplified_scan::Args::of_call(&call), gpu.0),
            what => Err(Error::Unavailable { what, why: "its kernels are the same for every call" }),
        }
    }

    /// Computes the summary of a slice of a sequence: its effect on the state that enters it. Only the shape of the initial state
    /// counts.
    ///
    /// # Errors
    /// As [`Operation::forward`]; [`Error::Unavailable`] for an operation that is no scan.
    pub fn summary(&self, exec: &Exec, call: &Call<'_>, mut out: Summary<'_>) -> Result<()> {
        call.check_presence()?;
        self.op()?.summary(exec, call, &mut out)
    }

    /// Elements of `f32` that a summary needs as scratch memory.
    ///
    /// # Errors
    /// As [`Operation::result`].
    pub fn summary_workspace_len(&self, exec: &Exec, call: &Call<'_>) -> Result<usize> {
        call.check_presence()?;
        self.op()?.summary_workspace_len(exec, call)
    }

    /// Computes the gradients that are asked for.
    ///
    /// # Errors
    /// As [`Operation::forward`]; [`Error::Presence`] for an operation in place, which has none.
    pub fn backward(&self, exec: &Exec, call: &Call<'_>, given: &Given<'_>, grads: &mut Written<'_>) -> Result<()> {
        self.differentiable()?;
        self.prepare(exec, call)?.backward(given, grads)
    }

    /// The results in `f64`.
    ///
    /// # Errors
    /// As [`Operation::forward`].
    pub fn reference(&self, call: &Call<'_>) -> Result<Exact> {
        call.check_presence()?;
        match &self.runs {
            Runs::Passes(op) => Ok(named_results(call, op.reference(call)?)),
            Runs::Step(step) => {
                let [y, state] = step.reference(call, &state_of(call)?)?;
                Ok(vec![("y", y), (state_name(call), state)])
            }
        }
    }

    /// The gradients in `f64`.
    ///
    /// # Errors
    /// As [`Operation::backward`].
    pub fn reference_backward(&self, call: &Call<'_>, given: &Given<'_>) -> Result<Exact> {
        self.differentiable()?;
        call.check_presence()?;
        Ok(named_gradients(call, self.op()?.reference_backward(call, given)?))
    }

    fn op(&self) -> Result<&'static dyn Op> {
        match self.runs {
            Runs::Passes(op) => Ok(op),
            Runs::Step(_) => Err(Error::Unavailable { what: self.signature.name, why: "a step is neither prepared nor divided" }),
        }
    }

    fn differentiable(&self) -> Result<()> {
        let (op, expected) = (self.signature.name, "do not exist: a state is changed in place");
        if self.signature.differentiable { Ok(()) } else { Err(Error::Presence { op, argument: "gradients", expected }) }
    }
}

/// The name of the state that a step changes.
fn state_name(call: &Call<'_>) -> &'static str {
    call.signature.in_place.map_or("state", |state| state.name)
}

/// Returns the state that a step changes, before the step.
fn state_of<'a>(call: &Call<'a>) -> Result<View<'a>> {
    let missing = Error::Presence { op: call.signature.name, argument: state_name(call), expected: "must be there" };
    call.state.ok_or(missing)
}

/// The names of an oracle's results.
fn named_results(call: &Call<'_>, exact: Vec<Dense>) -> Exact {
    call.signature.results.iter().map(|output| output.name).zip(exact).collect()
}

/// The names of the arguments that an oracle's gradients are by: of those that were given, and of states.
fn named_gradients(call: &Call<'_>, exact: Vec<Option<Dense>>) -> Exact {
    let differentiable = call.signature.arguments.iter().zip(&call.views).filter(|(argument, _)| argument.gradient);
    let named = differentiable.zip(exact).filter(|((argument, view), _)| argument.is_state() || view.is_some());
    named.filter_map(|((argument, _), exact)| Some((argument.name, exact?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::discretization::Discretization;
    use crate::ops::signature::Choice;

    /// The signatures of all operations. They are taken while this is compiled, so that the tests do not have what runs the operations: all kernels.
    const SIGNATURES: [&Signature; Operation::ALL.len()] = {
        let mut all = [Operation::ALL[0].signature; Operation::ALL.len()];
        let mut at = 1;
        while at < all.len() {
            all[at] = Operation::ALL[at].signature;
            at += 1;
        }
        all
    };

    #[test]
    fn every_operation_has_a_name_of_its_own() {
        for signature in SIGNATURES {
            assert_eq!(SIGNATURES.iter().filter(|other| other.name == signature.name).count(), 1, "{signature:?}");
        }
    }

    #[test]
    fn words_are_those_of_the_types() {
        for signature in SIGNATURES {
            if let Some(at) = signature.option("discretization") {
                let Choice::Word(words, _) = signature.options[at].choice else { panic!("a list of words") };
                assert!(words.iter().zip(Discretization::ALL).all(|(word, rule)| *word == rule.name()));
            }
        }
    }
}
