//! What the benchmarks measure: every pass of every operation at one small shape, with the arguments that a model would give.

pub mod targets;

use statescan::Exec;
use statescan::ops::Operation;
use statescan_cases::Result;
use statescan_cases::measure::measured::Measured;
use statescan_cases::ops;
use statescan_cases::samples;
use statescan_cases::sizes::Sizes;
use statescan_cases::work;
use targets::Variation;

/// One pass of one operation.
#[derive(Clone)]
pub struct Case {
    op: &'static Operation,
    sizes: Sizes,
    backward: bool,
    /// What sets it apart where a pass has several cases.
    detail: &'static str,
    variation: Variation,
}

/// A case with its arguments and memory.
pub struct Prepared {
    measured: Measured,
    backward: bool,
}

/// Every case.
pub fn all() -> Vec<Case> {
    let passes = |op: &'static Operation| {
        let sizes = Sizes::of(op.signature.facts.small);
        let forward = Case { op, sizes: sizes.clone(), backward: false, detail: "", variation: Variation::Plain };
        let backward = op.signature.differentiable.then_some(Case { backward: true, ..forward.clone() });
        // few channels have no partial sums over ranges of them
        let sizes = Sizes::of(&[('B', 1), ('D', 320), ('L', 256), ('N', 16)]);
        let many = Case { sizes, backward: true, detail: ", many channels", ..forward.clone() };
        let many = (ops::name(op) == "selective_scan").then_some(many);
        [Some(forward), backward, many]
    };
    ops::all().flat_map(passes).flatten().collect()
}

/// Passes whose work must not depend on their numbers, each with what it is compared with: the same pass of usual numbers.
pub fn of_other_numbers() -> Vec<(Case, Case)> {
    let with = |case: Case| {
        let (variation, detail) = match case.op() {
            "selective_scan" | "ssd" | "simplified_scan" => (Variation::Strong, ", strong decays"),
            "causal_conv1d" => (Variation::Large, ", large inputs"),
            _ => return None,
        };
        case.detail.is_empty().then(|| (Case { variation, detail, ..case.clone() }, case))
    };
    all().into_iter().filter_map(with).collect()
}

impl Case {
    /// The operation's name.
    pub fn op(&self) -> &'static str {
        ops::name(self.op)
    }

    /// `forward`, `backward`, or `step` for one-step updates, and what sets the case apart from others.
    pub fn pass(&self) -> String {
        let pass = if self.backward { "backward" } else { ops::pass_name(self.op) };
        format!("{pass}{}", self.detail)
    }

    /// State-steps of a pass.
    pub fn state_steps(&self) -> u64 {
        work::forward(self.op, &self.sizes).state_steps as u64
    }

    /// Makes the arguments, and runs every pass once, so that what the forward pass saves is there.
    ///
    /// # Errors
    /// Those of the operation.
    ///
    /// # Panics
    /// If a result is not what the oracle says.
    pub fn prepare(&self, exec: &Exec) -> Result<Prepared> {
        let call = self.variation.apply(samples::random(self.op, &self.sizes, statescan::DType::F32)?)?;
        let mut measured = Measured::new(call)?;
        let wrong = measured.check(exec)?;
        assert!(wrong.is_empty(), "{} {}: {wrong:?}", self.op(), self.pass());
        Ok(Prepared { measured, backward: self.backward })
    }
}

impl Prepared {
    /// Runs the pass.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn run(&mut self, exec: &Exec) -> Result<()> {
        if self.backward { self.measured.backward(exec) } else { self.measured.forward(exec) }
    }
}
