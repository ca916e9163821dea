//! Every operation, pass, type and instruction set computes the same bits as when `values.txt` was written: changes that only rearrange
//! code show here that they do. Where results are meant to change, the test leaves the new file where its message says.

pub mod scenario;

use crate::common::{self, Rng};
use scenario::{SCENARIOS, Scenario};
use statescan::ops::call::carried;
use statescan::ops::signature::{Argument, Saved};
use statescan::ops::{Call, Given, Operation, Summary, Written};
use statescan::{DType, Exec, Level, Tensor, View};
use std::collections::BTreeMap;
use std::fmt::Write;

const TYPES: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::F16];
/// These multiply matrices with the instructions that the processor has, whatever level their own code runs on.
const WITH_PRODUCTS: [&str; 3] = ["ssd", "simplified_scan", "s5_inner"];
const HEADER: &str = "# operation, scenario, type, level, the level that products had; checksums of the passes\n";

/// A line of the file: what was computed, and the checksums of its passes.
type Values = BTreeMap<String, String>;

#[test]
fn results_have_the_bits_that_they_had() {
    if !cfg!(target_arch = "x86_64") || common::device::only_gpu() {
        return println!("skipped: the values are those of x86-64 processors");
    }
    for level in Level::ALL.into_iter().filter(|level| !level.is_available()) {
        println!("skipped: {level}, which this processor does not have");
    }
    let known: Values = include_str!("values.txt").lines().filter_map(|line| line.split_once(": ")).map(owned).collect();
    let mut all = Values::new();
    for level in Level::available() {
        let exec = Exec::cpu(2).with_level(level).unwrap();
        for operation in Operation::ALL {
            for scenario in SCENARIOS.iter().filter(|scenario| scenario.is_of(operation)) {
                for dtype in TYPES.into_iter().filter(|dtype| scenario.has_type(operation, *dtype)) {
                    let products = if WITH_PRODUCTS.contains(&operation.signature.name) { Level::best().name() } else { "-" };
                    let key = format!("{} {} {dtype} {level} {products}", operation.signature.name, scenario.name);
                    all.insert(key, checksums(&exec, operation, scenario, dtype));
                }
            }
        }
    }
    compare(&known, &all);
}

fn owned((key, value): (&str, &str)) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

fn compare(known: &Values, all: &Values) {
    let of_level = |key: &str, level: Level| key.contains(&format!(" {level} "));
    for level in Level::available() {
        let (ours, compared) = (all.keys().filter(|key| of_level(key, level)), |key: &&String| known.contains_key(*key));
        println!("{level}: {} of {} compared", ours.clone().filter(compared).count(), ours.count());
    }
    let unknown = all.keys().filter(|key| !known.contains_key(*key));
    // another processor's products are other sums, and no machine has had its values written that has them
    let new = unknown.filter(|key| key.ends_with(" avx2 avx2") || key.ends_with(" avx2 -")).count();
    let different: Vec<_> = all.iter().filter(|(key, value)| known.get(*key).is_some_and(|known| known != *value)).collect();
    if new > 0 || !different.is_empty() {
        let merged = known.iter().chain(all).collect::<BTreeMap<_, _>>();
        let mut text = HEADER.to_owned();
        merged.iter().for_each(|(key, value)| writeln!(text, "{key}: {value}").unwrap());
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("checksums.txt");
        std::fs::write(&path, text).unwrap();
        different.iter().for_each(|(key, value)| println!("{key}: {value}, was {}", known[*key]));
        panic!("{} results differ, {new} are new; the file as it would be: {}", different.len(), path.display());
    }
}

/// The checksums of all passes of a call, in words.
fn checksums(exec: &Exec, operation: &Operation, scenario: &Scenario, dtype: DType) -> String {
    let mut rng = Rng::new(7);
    let inputs = scenario.inputs(operation, dtype, &mut rng);
    let mut call = Call::new(operation.signature);
    call.views.iter_mut().zip(&inputs).for_each(|(view, input)| *view = input.as_ref().map(Tensor::view));
    scenario.set(&mut call);
    let mut state = operation.signature.in_place.map(|argument| scenario.state(argument, dtype, &mut rng));
    let before = state.as_ref().map(|state| Tensor::from_host(exec, &state.view()).unwrap());
    call.state = before.as_ref().map(Tensor::view);

    let planned = (0..operation.signature.results.len()).map(|at| operation.result(&call, at).unwrap());
    let mut results: Vec<_> = planned.map(|p| common::poisoned(&mut rng, p.dtype, &p.shape, scenario.layout)).collect();
    let saved_len = operation.saved_len(&call).unwrap();
    let has_states = matches!(operation.signature.saved, Saved::States { .. }) && saved_len > 0;
    let mut saved = has_states.then(|| Tensor::host(carried(dtype, false), &[saved_len]).unwrap());
    let mut out = Written { saved: saved.as_mut().map(Tensor::view_mut), ..Written::default() };
    out.state = state.as_mut().map(Tensor::view_mut);
    out.views.iter_mut().zip(&mut results).for_each(|(view, result)| *view = Some(result.view_mut()));
    operation.forward(exec, &call, &mut out).unwrap();
    let mut line = format!("forward {:016x}", checksum(results.iter().chain(&saved).chain(&state)));

    if operation.signature.differentiable {
        let cotangents: Vec<_> =
            operation.signature.results.iter().zip(&results).filter(|(output, _)| output.cotangent).collect();
        let cotangents: Vec<_> = cotangents
            .iter()
            .map(|(_, result)| common::normal(&mut rng, result.dtype(), &result.shape(), scenario.layout, 0.5))
            .collect();
        let kept = match operation.signature.saved {
            Saved::Result(at) => Some(&results[at]),
            _ => saved.as_ref(),
        };
        for (pass, kept) in [("backward", kept), ("recomputing", None)] {
            let mut given = Given { saved: kept.map(Tensor::view), ..Given::default() };
            given.cotangents.iter_mut().zip(&cotangents).for_each(|(view, cotangent)| *view = Some(cotangent.view()));
            let gradients = gradients(exec, operation, &call, &given, scenario, &mut rng);
            write!(line, " {pass} {:016x}", checksum(&gradients)).unwrap();
        }
    }
    if operation.signature.decay.is_some() {
        write!(line, " summary {:016x}", summary(exec, operation, &call)).unwrap();
    }
    line
}

fn gradients(
    exec: &Exec,
    operation: &Operation,
    call: &Call<'_>,
    given: &Given<'_>,
    scenario: &Scenario,
    rng: &mut Rng,
) -> Vec<Tensor> {
    let of = |(argument, view): (&Argument, &Option<View<'_>>)| {
        view.filter(|_| argument.gradient).map(|view| (view.dtype(), view.shape()))
    };
    let wanted: Vec<_> = operation.signature.arguments.iter().zip(&call.views).map(of).collect();
    let mut gradients: Vec<_> =
        wanted.iter().map(|wanted| wanted.map(|(dtype, shape)| common::poisoned(rng, dtype, &shape, scenario.layout))).collect();
    let mut written = Written::default();
    for (view, gradient) in written.views.iter_mut().zip(&mut gradients) {
        *view = gradient.as_mut().map(Tensor::view_mut);
    }
    operation.backward(exec, call, given, &mut written).unwrap();
    gradients.into_iter().flatten().collect()
}

fn summary(exec: &Exec, operation: &Operation, call: &Call<'_>) -> u64 {
    let decay = operation.signature.decay.unwrap();
    let at = operation.signature.results.iter().position(|output| output.like.is_none()).unwrap();
    let planned = operation.result(call, at).unwrap();
    let layouts = operation.signature.results[at].layouts.iter().zip(decay.layouts);
    let rank = layouts.filter(|(state, _)| state.len() == planned.shape.len()).map(|(_, decay)| decay.len()).next().unwrap();
    let dtype = planned.dtype;
    let mut state = Tensor::host(dtype, &planned.shape).unwrap();
    let decay_type = if call.is_complex(decay.complex) { dtype } else { dtype.real() };
    let mut decay = Tensor::host(decay_type, &planned.shape[..rank]).unwrap();
    let summary = Summary::default().state(state.view_mut()).decay(decay.view_mut());
    operation.summary(exec, call, summary).unwrap();
    checksum([&state, &decay])
}

/// The checksum of all bits of all numbers; one NaN is like another.
fn checksum<'t>(tensors: impl IntoIterator<Item = &'t Tensor>) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for tensor in tensors {
        for value in tensor.to_dense().data() {
            for part in [value.re, value.im] {
                let bits = if part.is_nan() { u64::MAX } else { part.to_bits() };
                sum = (sum ^ bits).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
            }
        }
    }
    sum
}
