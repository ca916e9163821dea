//! Every operation against its oracle, in calls that are drawn from its signature: a new argument, option or operation is among them without a line here.
//!
//! A call has types, layouts, sizes and options of its own; some results are asked for, of cotangents and gradients some. It runs with every instruction
//! set of the CPU, on one thread and with the same bits on three. What is not written was poisoned before. A call that fails is written to a file that
//! `statescan verify` reads. `PROPTEST_RNG_SEED=7 STATESCAN_DRAWN=1000 cargo test` draws others, and more of them. GPUs are left to the tests of each
//! operation: a call that is drawn has kernels of its own to compile.

#[path = "../../../statescan/tests/common/mod.rs"]
mod common;
mod draw;
mod refusals;

use common::{Layout, Rng, cpu_executors, normal, poisoned};
use draw::Draw;
use statescan::ops::Operation;
use statescan::ops::call::carried;
use statescan::{DType, Exec, Level, Tensor};
use statescan_cases::call::Call;
use statescan_cases::check::{self, Backward, Comparison};
use statescan_cases::pass::{self, Planned};
use statescan_cases::tensors::{SAVED, Tensors, WORKSPACE};
use statescan_cases::{Result, compute, files, ops, work};

/// A call, what it is given besides, and poisoned room for what it is asked for.
struct Drawn {
    call: Call,
    results: Tensors,
    cotangents: Tensors,
    gradients: Tensors,
    seed: u64,
}

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn room(draw: &mut Draw<'_>, planned: impl IntoIterator<Item = Planned>) -> Tensors {
    let mut all = Tensors::default();
    for plan in planned {
        let layout = draw.memory();
        all.push(plan.name, poisoned(draw.rng, plan.dtype, &plan.shape, layout));
    }
    all
}

impl Drawn {
    /// Nothing where the operation refuses the call, or where the oracle would take too long.
    fn new(op: &'static Operation, seed: u64) -> Option<Self> {
        let rng = &mut Rng::new(seed);
        let mut draw = Draw::new(op, rng);
        let call = draw.call();
        if work::oracle_cost(op, &call.sizes()) > 3e4 {
            return None;
        }
        pass::reference(&call).ok()?;
        let mut planned = pass::plan(&call, false).ok()?;
        let (all, mut cotangents) = (planned.clone(), Tensors::default());
        // what is updated in place is always there
        planned.retain(|_| draw.rng.below(6) > 0 || op.signature.in_place.is_some());
        let mut results = room(&mut draw, planned);
        if draw.coin() {
            // states that are saved are dense
            let kept = pass::plan(&call, true).ok()?.into_iter().nth(all.len());
            kept.into_iter().for_each(|kept| results.push(kept.name, poisoned(draw.rng, kept.dtype, &kept.shape, Layout::Dense)));
        }
        let mut gradients = Tensors::default();
        if op.signature.differentiable {
            for plan in all.iter().filter(|plan| ops::results(op).any(|result| result.name == plan.name && result.cotangent)) {
                if draw.rng.below(3) > 0 {
                    let layout = draw.memory();
                    cotangents.push(plan.name, normal(draw.rng, plan.dtype, &plan.shape, layout, 1.0));
                }
            }
            let of = |input: &statescan_cases::call::Input| {
                // beside complex states the gradient of a real one is complex
                let is_complex = input.argument.carried_gradient && all.iter().any(|plan| plan.dtype.is_complex());
                let own = input.buffer.dtype();
                Planned {
                    name: input.argument.name,
                    dtype: if is_complex { carried(own.real(), true) } else { own },
                    shape: input.buffer.shape(),
                }
            };
            let wanted: Vec<_> = call.inputs.iter().filter(|input| input.argument.gradient).map(of).collect();
            let wanted: Vec<_> = wanted.into_iter().filter(|_| draw.rng.below(3) > 0).collect();
            gradients = room(&mut draw, wanted);
        }
        Some(Drawn { call, results, cotangents, gradients, seed })
    }

    /// Results and gradients.
    fn run(&self, exec: &Exec) -> Result<[Tensors; 2]> {
        let (mut results, mut gradients) = (self.results.clone(), self.gradients.clone());
        compute::forward(exec, &self.call, &mut results)?;
        if !gradients.is_empty() {
            let len = pass::workspace_backward(exec, &self.call, &results)?;
            gradients.push(WORKSPACE, Tensor::host(DType::F32, &[len])?);
            compute::backward(exec, &self.call, &results, &self.cotangents, &mut gradients)?;
        }
        Ok([results, gradients])
    }

    /// What is wrong on an executor, in words.
    fn check(&self, exec: &Exec) -> Result<Vec<String>> {
        let [results, gradients] = self.run(exec)?;
        let backward = Backward { cotangents: &self.cotangents, gradients: &gradients };
        let backward = (!self.gradients.is_empty()).then_some(backward);
        let (_, all) = check::against_oracle(exec, &self.call, &results, backward, f64::INFINITY)?;
        // terms of a sum may cancel: what is left of them is compared in the size of the largest number, where arguments are about 1
        let numbers = results.iter().filter(|(name, _)| *name != SAVED).chain(gradients.iter());
        let largest = numbers.flat_map(|(_, t)| t.to_dense().data().to_vec()).fold(0.1, |most: f64, z| most.max(z.norm()));
        let cancels = |c: &Comparison| c.max_abs <= c.bound.at(0.0.into(), largest);
        let wrong = all.into_iter().filter(|compared| !compared.ok && !cancels(compared));
        let mut wrong: Vec<_> = wrong.map(|c| format!("{} on {exec:?}: {}", c.name, c.mismatch.unwrap())).collect();
        let [again, graded] = self.run(&Exec::cpu(3).with_level(exec.level())?)?;
        let pairs = results.iter().zip(again.iter()).chain(gradients.iter().zip(graded.iter()));
        let differ = pairs.filter(|((name, one), (_, other))| *name != WORKSPACE && one.bytes() != other.bytes());
        wrong.extend(differ.map(|((name, _), _)| format!("{name} on {exec:?}: other bits on three threads")));
        Ok(wrong)
    }

    /// Writes the call with the oracle's results as a file, and says what is wrong.
    fn fail(&self, wrong: &[String]) -> ! {
        let op = self.call.op.signature.name;
        let inputs = self.call.inputs.iter().map(|i| format!("{} {}{}", i.argument.name, i.buffer.dtype(), i.buffer.shape()));
        let inputs = inputs.collect::<Vec<_>>().join(", ");
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{op}-{}.safetensors", self.seed));
        let written =
            self.write(&path).map_or_else(|error| error.to_string(), |()| format!("statescan verify {}", path.display()));
        panic!("{op}, seed {}: {}\n{inputs}\n{:?}\n{written}", self.seed, wrong.join("\n"), self.call.options);
    }

    fn write(&self, path: &std::path::Path) -> Result<()> {
        let exact = pass::reference(&self.call)?;
        let graded =
            if self.cotangents.is_empty() { Vec::new() } else { pass::reference_backward(&self.call, &self.cotangents)? };
        let as_planned = |exact: &[(&'static str, statescan::tensor::Dense)], room: &Tensors| {
            let mut all = Tensors::default();
            for (name, dense) in exact {
                if let Some(like) = room.get(name) {
                    all.push(name, Tensor::from_dense(dense, like.dtype()));
                }
            }
            all
        };
        let (results, gradients) = (as_planned(&exact, &self.results), as_planned(&graded, &self.gradients));
        let (mut call, mut cotangents) = (self.call.clone(), Tensors::default());
        let dense = |tensor: &Tensor| Tensor::from_dense(&tensor.to_dense(), tensor.dtype());
        call.inputs.iter_mut().for_each(|input| input.buffer = dense(&input.buffer));
        self.cotangents.iter().for_each(|(name, tensor)| cotangents.push(name, dense(tensor)));
        files::write_case(path, &call, &results, &cotangents, &gradients, true)
    }
}

/// Calls of an operation that it takes, the same ones in every run.
fn drawn(op: &'static Operation) -> impl Iterator<Item = Drawn> {
    let first = number("PROPTEST_RNG_SEED", 1) << 32;
    let mut tried = 0;
    let all = (first..).filter_map(move |seed| {
        tried += 1;
        assert!(tried < 40 * number("STATESCAN_DRAWN", 80), "{op:?}: too few calls that are drawn fit");
        Drawn::new(op, seed)
    });
    all.take(number("STATESCAN_DRAWN", 80) as usize)
}

/// Every operation whose place has a remainder: several tests, so that they run side by side.
fn operations(part: usize) -> impl Iterator<Item = &'static Operation> {
    Operation::ALL.iter().enumerate().filter(move |(at, _)| at % 4 == part).map(|(_, op)| op)
}

fn agrees(part: usize) {
    for op in operations(part) {
        for drawn in drawn(op) {
            for exec in cpu_executors().iter().filter(|exec| exec.threads() == 1) {
                let wrong = drawn.check(exec).unwrap_or_else(|error| vec![error.to_string()]);
                if !wrong.is_empty() {
                    drawn.fail(&wrong);
                }
            }
        }
    }
}

#[test]
fn agrees_with_the_oracle_0() {
    agrees(0);
}
#[test]
fn agrees_with_the_oracle_1() {
    agrees(1);
}
#[test]
fn agrees_with_the_oracle_2() {
    agrees(2);
}
#[test]
fn agrees_with_the_oracle_3() {
    agrees(3);
}

#[test]
fn a_call_that_was_written_is_verified() {
    for op in Operation::ALL {
        let fits = |drawn: &Drawn| {
            let exact = drawn.call.dtype() == DType::F64 && !drawn.results.is_empty();
            exact && (drawn.gradients.is_empty() || !drawn.cotangents.is_empty())
        };
        let drawn = drawn(op).find(fits).expect("one of them");
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("written-{}.safetensors", op.signature.name));
        drawn.write(&path).unwrap();
        let case = files::read_case(&path, None, &Default::default(), &[]).unwrap();
        let exec = Exec::cpu(1).with_level(Level::Scalar).unwrap();
        let all = statescan_cases::verify::check(&case, Some(&exec), Default::default()).unwrap();
        assert!(!all.is_empty() && all.iter().all(|compared| compared.ok), "{op:?}: {all:?}");
    }
}
