//! Every operation against its oracle, in calls that are drawn from its signature: a new argument, option or operation is among them without a line here.
//!
//! A call has types, layouts, sizes and options of its own; some results are asked for, of cotangents and gradients some. It runs with every instruction
//! set of the CPU, with the same bits on any number of threads, and, a few calls of each operation, on a GPU where there is one, whose kernels are compiled for
//! each: with the same bits twice. What is not written was poisoned before. A call that fails is written to a file that `statescan verify` reads.
//! `PROPTEST_RNG_SEED=7 STATESCAN_DRAWN=1000 cargo test` draws others, and more of them.

#[path = "../../../statescan/tests/common/mod.rs"]
mod common;
mod draw;
mod laws;
mod locality;
mod plans;
mod refusals;

use common::device::{find_gpu, is_gpu, only_gpu};
use common::{Layout, Rng, normal, poisoned};
use draw::{Draw, Fixed};
use num_complex::Complex64;
use statescan::ops::Operation;
use statescan::ops::call::carried;
use statescan::ops::operation::Exact;
use statescan::ops::signature::TensorCores;
use statescan::tensor::{Dense, ErrorBound, difference};
use statescan::{DType, Exec, Level, Tensor};
use statescan_cases::call::Call;
use statescan_cases::pass::{self, Planned};
use statescan_cases::sizes::Sizes;
use statescan_cases::tensors::{SAVED, Tensors, WORKSPACE};
use statescan_cases::{Error, Result, check, files, ops};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A call, what it is given besides, and poisoned room for what it is asked for.
#[derive(Clone)]
struct Drawn {
    call: Call,
    results: Tensors,
    cotangents: Tensors,
    gradients: Tensors,
    /// The oracle's results.
    exact: Exact,
    /// Whether a forward pass saves states for the backward pass.
    saves: bool,
    /// Whether everything is asked for, as it is where sizes are chosen.
    whole: bool,
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
    fn new(op: &'static Operation, fixed: &Fixed, seed: u64) -> Option<Self> {
        let rng = &mut Rng::new(seed);
        let mut draw = Draw::new(op, fixed, rng);
        // a call of chosen sizes is asked for everything
        let whole = fixed.sizes != Sizes::default();
        let some = |draw: &mut Draw<'_>, of: usize| whole || draw.rng.below(of) > 0;
        let call = draw.call(if whole { 1e7 } else { 3e4 })?;
        let exact = pass::reference(&call).ok()?;
        let mut planned = pass::plan(&call, false).ok()?;
        let (all, mut cotangents) = (planned.clone(), Tensors::default());
        // a state that is updated in place is always there
        planned.retain(|_| some(&mut draw, 6) || op.signature.in_place.is_some());
        let results = room(&mut draw, planned);
        let saves = draw.coin();
        let mut gradients = Tensors::default();
        if op.signature.differentiable {
            for plan in all.iter().filter(|plan| ops::results(op).any(|result| result.name == plan.name && result.cotangent)) {
                if some(&mut draw, 3) {
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
            let wanted: Vec<_> = wanted.into_iter().filter(|_| some(&mut draw, 3)).collect();
            gradients = room(&mut draw, wanted);
        }
        Some(Drawn { call, results, cotangents, gradients, exact, saves, whole, seed })
    }

    /// Results and gradients, on the host.
    fn run(&self, exec: &Exec) -> Result<[Tensors; 2]> {
        let (mut call, mut results, mut cotangents, mut gradients) =
            (self.call.clone(), self.results.clone(), self.cotangents.clone(), self.gradients.clone());
        pass::prepare(&call, &mut results)?;
        let scratch = |len: usize| Tensor::host(DType::F32, &[len]);
        if is_gpu(exec) {
            call.place(exec)?;
        }
        if self.saves {
            // a GPU saves others than a CPU; they are dense
            let kept = pass::plan(&call, true)?.into_iter().find(|plan| plan.name == SAVED);
            let rng = &mut Rng::new(self.seed);
            kept.into_iter().for_each(|kept| results.push(SAVED, poisoned(rng, kept.dtype, &kept.shape, Layout::Dense)));
        }
        if is_gpu(exec) {
            results.push(WORKSPACE, scratch(pass::workspace(exec, &call)?)?);
            results.place(exec)?;
            cotangents.place(exec)?;
        }
        pass::forward(exec, &call, &mut results)?;
        if !gradients.is_empty() {
            gradients.push(WORKSPACE, scratch(pass::workspace_backward(exec, &call, &results)?)?);
            if is_gpu(exec) {
                gradients.place(exec)?;
            }
            pass::backward(exec, &call, &results, &cotangents, &mut gradients)?;
        }
        let (mut home, mut graded) = (self.results.clone(), self.gradients.clone());
        for (from, to) in [(&results, &mut home), (&gradients, &mut graded)] {
            match is_gpu(exec) {
                true => from.fetch_into(to)?,
                false => *to = from.clone(),
            }
        }
        Ok([home, graded])
    }

    /// The faults on some executors, in words: on each of them alone, and on CPUs with other numbers of threads.
    fn check(&self, execs: &[Exec], threads: &[usize]) -> Result<Vec<String>> {
        let graded = if self.gradients.is_empty() { Vec::new() } else { pass::reference_backward(&self.call, &self.cotangents)? };
        let mut wrong = Vec::new();
        for exec in execs {
            let run = match self.run(exec) {
                Err(Error::Op { error, .. }) if is_gpu(exec) && matches!(*error, statescan::Error::Unavailable { .. }) => {
                    continue;
                }
                run => run?,
            };
            wrong.extend(self.differences(exec, &run, &graded).into_iter().map(|words| format!("{words} on {exec:?}")));
            // a GPU's kernels are compiled for what is asked for
            if self.seed.is_multiple_of(4) && !self.whole && !is_gpu(exec) {
                wrong.extend(self.alone(exec, &run[1])?);
            }
            let again = match is_gpu(exec) {
                true => vec![exec.clone()],
                false => {
                    threads.iter().map(|&n| with_threads(n).with_level(exec.level())).collect::<std::result::Result<_, _>>()?
                }
            };
            for other in again {
                let pairs = run.iter().flat_map(Tensors::iter).zip(self.run(&other)?.into_iter().flat_map(named));
                let differ = pairs.filter(|((name, one), (_, two))| *name != WORKSPACE && one.bytes() != two.bytes());
                wrong.extend(differ.map(|((name, _), _)| format!("{name}: other bits on {exec:?} and {other:?}")));
            }
        }
        Ok(wrong)
    }

    /// The gradients that have other bits where they are asked for alone.
    fn alone(&self, exec: &Exec, together: &Tensors) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        for (name, tensor) in self.gradients.iter() {
            let mut one = self.clone();
            one.gradients = Tensors::default();
            one.gradients.push(name, tensor.clone());
            let [_, alone] = one.run(exec)?;
            let differ = alone.get(name).map(Tensor::bytes) != together.get(name).map(Tensor::bytes);
            wrong.extend(differ.then(|| format!("{name}: other bits alone on {exec:?}")));
        }
        Ok(wrong)
    }

    /// The results and gradients that are not what the oracle says.
    fn differences(&self, exec: &Exec, [results, gradients]: &[Tensors; 2], graded: &Exact) -> Vec<String> {
        let (call, facts) = (&self.call, self.call.op.signature.facts);
        let in_products = is_gpu(exec) && facts.tensor_cores == TensorCores::Always;
        let bound = |of: fn(DType, usize) -> ErrorBound, tensor: &Tensor| {
            let bound = of(tensor.dtype(), call.steps() * call.sizes().get('B'));
            if in_products { bound.in_products(call.dtype()) } else { bound }
        };
        let all = self.exact.iter().chain(graded).flat_map(|(_, dense)| dense.data()).filter(|z| z.is_finite());
        let largest = all.fold(0.1, |most: f64, z| most.max(z.norm()));
        let mut wrong = Vec::new();
        for (of, exact, got) in [
            (ErrorBound::for_scan as fn(_, _) -> _, &self.exact, results),
            (ErrorBound::for_gradient as fn(_, _) -> _, graded, gradients),
        ] {
            for ((name, expected), tensor) in exact.iter().filter_map(|one| Some((one, got.get(one.0)?))) {
                let (bound, dense) = (bound(of, tensor), tensor.to_dense());
                let compared = check::compare(name.to_string(), &dense, expected, tensor.dtype(), bound);
                // terms of a sum may cancel: the rest is compared in the size of the largest number, where arguments are about 1
                let within = |(got, expected): (&Complex64, &Complex64)| {
                    !got.is_finite() || difference(*got, *expected) <= bound.at(*expected, largest)
                };
                let cancels = compared.max_abs.is_finite() && dense.data().iter().zip(expected.data()).all(within);
                wrong.extend((!compared.ok && !cancels).then(|| format!("{name}: {}", compared.mismatch.unwrap())));
            }
        }
        wrong
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
        let graded =
            if self.cotangents.is_empty() { Vec::new() } else { pass::reference_backward(&self.call, &self.cotangents)? };
        let as_planned = |exact: &[(&'static str, Dense)], room: &Tensors| {
            let mut all = Tensors::default();
            for (name, dense) in exact {
                if let Some(like) = room.get(name) {
                    all.push(name, Tensor::from_dense(dense, like.dtype()));
                }
            }
            all
        };
        let (results, gradients) = (as_planned(&self.exact, &self.results), as_planned(&graded, &self.gradients));
        let (mut call, mut cotangents) = (self.call.clone(), Tensors::default());
        let dense = |tensor: &Tensor| Tensor::from_dense(&tensor.to_dense(), tensor.dtype());
        call.inputs.iter_mut().for_each(|input| input.buffer = dense(&input.buffer));
        self.cotangents.iter().for_each(|(name, tensor)| cotangents.push(name, dense(tensor)));
        files::write_case(path, &call, &results, &cotangents, &gradients, true)
    }
}

/// Copies by name.
fn named(tensors: Tensors) -> impl Iterator<Item = (&'static str, Tensor)> {
    tensors.iter().map(|(name, tensor)| (name, tensor.clone())).collect::<Vec<_>>().into_iter()
}

/// Calls of an operation that it takes, the same ones in every run.
fn drawn(op: &'static Operation) -> impl Iterator<Item = Drawn> {
    drawn_as(op, Fixed::default()).take(number("STATESCAN_DRAWN", 80) as usize)
}

/// Such calls of which something is fixed, any number.
fn drawn_as(op: &'static Operation, fixed: Fixed) -> impl Iterator<Item = Drawn> {
    // calls of other sizes have other seeds
    let own: usize = fixed.sizes.iter().map(|(_, size)| size).sum();
    let first = (number("PROPTEST_RNG_SEED", 1) << 32) + ((own as u64) << 16);
    let mut refused = 0;
    (first..).filter_map(move |seed| {
        let drawn = Drawn::new(op, &fixed, seed);
        refused = if drawn.is_some() { 0 } else { refused + 1 };
        assert!(refused < 400, "{op:?}: no call that is drawn fits {fixed:?}");
        drawn
    })
}

/// Every operation whose place has a remainder: several tests, so that they run side by side.
fn operations(part: usize) -> impl Iterator<Item = &'static Operation> {
    Operation::ALL.iter().enumerate().filter(move |(at, _)| at % 4 == part).map(|(_, op)| op)
}

/// A CPU with threads, many of them of a pool of the caller's own.
fn with_threads(count: usize) -> Exec {
    let foreign = |count: usize, work: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| (0..count).for_each(|_| drop(scope.spawn(work))));
    };
    if count > 3 { Exec::cpu_on(count, Arc::new(foreign)) } else { Exec::cpu(count) }
}

/// Every instruction set of the CPU, on one thread.
fn levels() -> Vec<Exec> {
    let levels = Level::available().filter(|_| !only_gpu());
    levels.map(|level| Exec::cpu(1).with_level(level).unwrap()).collect()
}

/// Fails with a file where a call is not what it should be, or panics.
#[track_caller]
fn assert_agrees(drawn: &Drawn, execs: &[Exec], threads: &[usize]) {
    let checked = catch_unwind(AssertUnwindSafe(|| drawn.check(execs, threads)));
    let wrong = checked.map_or_else(|_| vec!["it panics".into()], |wrong| wrong.unwrap_or_else(|error| vec![error.to_string()]));
    if !wrong.is_empty() {
        drawn.fail(&wrong);
    }
}

fn agrees(part: usize) {
    let (cpu, gpu) = (levels(), find_gpu().ok());
    for (at, drawn) in operations(part).flat_map(|op| drawn(op).enumerate()) {
        // kernels of a GPU are compiled for each of them
        let execs = cpu.iter().chain(gpu.iter().filter(|_| at < 20)).cloned().collect::<Vec<_>>();
        assert_agrees(&drawn, &execs, &[3]);
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
