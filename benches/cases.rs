//! The benchmarks measure every pass of every operation at one small shape, with the arguments that a model would give.

pub mod targets;
mod varied;

use statescan::Exec;
use statescan::ops::Operation;
use statescan::ops::signature::Hardest;
use statescan_cases::Result;
use statescan_cases::measure::measured::Measured;
use statescan_cases::ops;
use statescan_cases::samples;
use statescan_cases::sizes::Sizes;
use statescan_cases::work;
use varied::varied;

/// One pass of one operation.
#[derive(Clone)]
pub struct Case {
    op: &'static Operation,
    sizes: Sizes,
    backward: bool,
    /// The words that set it apart where a pass has several cases.
    detail: &'static str,
    /// The word of a change of its call ([`varied`]).
    word: Option<&'static str>,
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
        let forward = Case { op, sizes, backward: false, detail: "", word: None };
        let backward = op.signature.differentiable.then_some(Case { backward: true, ..forward.clone() });
        let of_many = |sizes| Case { sizes: Sizes::of(sizes), backward: true, detail: ", many channels", ..forward.clone() };
        let many = op.signature.facts.many_channels.map(of_many);
        [Some(forward), backward, many]
    };
    ops::all().flat_map(passes).flatten().collect()
}

/// A pass with other numbers than usual ones.
pub struct OtherNumbers {
    /// The pass.
    pub case: Case,
    /// This pass with usual numbers.
    pub usual: Case,
    /// How many times as many instructions as of the usual one it may take.
    pub most: f64,
}

/// Passes with the numbers that cost the most. Matrices of decays (SSD) and states with constant ones (S5) cost the same whatever they hold.
pub fn of_other_numbers() -> Vec<OtherNumbers> {
    let with = |usual: Case| {
        let (numbers, most) = usual.op.signature.facts.hardest?;
        let (word, detail) = match numbers {
            Hardest::StrongDecays => (Some("strong"), ", strong decays"),
            Hardest::LargeInputs => (Some("large"), ", large inputs"),
        };
        usual.detail.is_empty().then(|| OtherNumbers { case: Case { word, detail, ..usual.clone() }, usual, most })
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
        let usual = samples::random(self.op, &self.sizes, statescan::DType::F32)?;
        Measured::new(self.word.into_iter().try_fold(usual, varied)?)
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
