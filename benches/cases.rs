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
        let many = (op.signature.name == "selective_scan").then_some(many);
        [Some(forward), backward, many]
    };
    ops::all().flat_map(passes).flatten().collect()
}

/// A pass with other numbers than usual ones.
pub struct OtherNumbers {
    /// The pass.
    pub case: Case,
    /// The same pass with usual numbers.
    pub usual: Case,
    /// How many times as many instructions as of the usual one it may take.
    pub most: f64,
}

/// Passes with strong decays or large inputs. Matrices of decays (SSD) and states with constant ones (S5) cost the same whatever
/// they hold. Where each step has its own exponential, one that may leave the range of f32 takes nineteen instructions instead of ten.
pub fn of_other_numbers() -> Vec<OtherNumbers> {
    let with = |usual: Case| {
        let (variation, detail, most) = match usual.op() {
            "ssd" | "simplified_scan" => (Variation::Strong, ", strong decays", 1.03),
            "selective_scan" => (Variation::Strong, ", strong decays", 1.5),
            "causal_conv1d" => (Variation::Large, ", large inputs", 1.25),
            _ => return None,
        };
        usual.detail.is_empty().then(|| OtherNumbers { case: Case { variation, detail, ..usual.clone() }, usual, most })
    };
    all().into_iter().filter_map(with).collect()
}

impl Case {
    /// The operation's name.
    pub fn op(&self) -> &'static str {
        self.op.signature.name
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

    /// Makes the arguments, and runs every pass once: the backward pass needs what the forward pass saves, and a first call does more than others.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn prepare(&self, exec: &Exec) -> Result<Prepared> {
        let mut prepared = Prepared { measured: self.measured()?, backward: self.backward };
        prepared.measured.forward(exec)?;
        prepared.run(exec)?;
        Ok(prepared)
    }

    /// Runs every pass, and compares the results with the oracle.
    ///
    /// # Errors
    /// Those of the operation.
    ///
    /// # Panics
    /// If a result is not what the oracle says.
    pub fn verify(&self, exec: &Exec) -> Result<()> {
        let wrong = self.measured()?.check(exec)?;
        assert!(wrong.is_empty(), "{} {}: {wrong:?}", self.op(), self.pass());
        Ok(())
    }

    fn measured(&self) -> Result<Measured> {
        Measured::new(self.variation.apply(samples::random(self.op, &self.sizes, statescan::DType::F32)?)?)
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
