//! A sequence cut over ranks, which are threads here, is the whole sequence: outputs, final states and every gradient, for any cuts, packing and
//! direction of time.

mod combine;
mod rank;

use crate::common::{Rng, assert_close, device, random_cases};
use num_complex::Complex64;
use proptest::prelude::*;
use rank::{Exchange, Found, Rank};
use statescan::ops::{
    Call, Given, Operation, Summary, Written,
    call::Value,
    ranks::combine,
    signature::{Complex, Role},
};
use statescan::tensor::{Dense, ErrorBound, Workspace};
use statescan::{DType, Error, Exec, Tensor};
use std::sync::{Barrier, Mutex};

const OPERATIONS: [&str; 5] = ["selective_scan", "ssd", "simplified_scan", "s5_inner", "linear_scan"];

/// How the sequences of a call are packed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Packing {
    Whole,
    Bounds,
    Index,
    IndexStates,
}

#[derive(Debug, Clone)]
struct Case {
    operation: usize,
    lengths: Vec<usize>,
    packing: Packing,
    reverse: bool,
    complex: bool,
    initial: bool,
    optional: bool,
    word: usize,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let packings = prop::sample::select(vec![Packing::Whole, Packing::Bounds, Packing::Index, Packing::IndexStates]);
    let lengths = prop::collection::vec(prop_oneof![2 => Just(0usize), 2 => Just(1), 6 => 2usize..30, 2 => 60usize..140], 1..9);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (0..OPERATIONS.len(), lengths, packings, flags, 0usize..4, any::<u64>()).prop_map(
        |(operation, lengths, packing, (reverse, complex, initial, optional), word, seed)| Case {
            operation,
            lengths,
            packing,
            reverse,
            complex,
            initial,
            optional,
            word,
            seed,
        },
    )
}

/// A call with the memory that its views are of.
struct Owned {
    operation: &'static Operation,
    tensors: Vec<Option<Tensor>>,
    call: Call<'static>,
    cotangents: Vec<Dense>,
    packing: Packing,
    reverse: bool,
    /// The sequence of each step, for each row; bounds of sequences.
    index: Vec<i64>,
    bounds: Vec<i64>,
}

const SEQUENCES: usize = 5;

impl Owned {
    fn new(case: &Case) -> Self {
        let operation = Operation::find(OPERATIONS[case.operation]).unwrap();
        let (signature, rng) = (operation.signature, &mut Rng::new(case.seed));
        let packing = if signature.argument("seq_idx").is_none() { Packing::Whole } else { case.packing };
        let (seqlen, batch) = (case.lengths.iter().sum::<usize>(), if packing == Packing::Bounds { 1 } else { 2 });
        let size = |letter| match letter {
            'L' => seqlen,
            'B' => batch,
            'S' => SEQUENCES,
            'G' => 2,
            'K' => SEQUENCES + 1,
            'N' => 3,
            'E' | 'F' | '1' => 1,
            _ => 4,
        };
        let mut starts: Vec<i64> = (1..SEQUENCES).map(|_| rng.below(seqlen + 1) as i64).collect();
        starts.sort_unstable();
        let bounds = [vec![0], starts, vec![seqlen as i64]].concat();
        let of_step = |t: usize| bounds[1..SEQUENCES].iter().filter(|&&start| start <= t as i64).count() as i64;
        let index: Vec<i64> = (0..batch * seqlen).map(|at| of_step(at % seqlen.max(1))).collect();
        let mut call = Call::new(signature);
        let states = signature.results[1].layouts;
        // a linear scan has all its axes, other operations one more where sequences of a row have states
        let with_sequences = packing == Packing::IndexStates || signature.argument("seq_idx").is_none();
        let state = if with_sequences { states[states.len() - 1] } else { states[0] };
        let complex = case.complex && !signature.name.starts_with("ssd");
        let mut tensors = Vec::new();
        for argument in signature.arguments {
            let layout = if argument.role == Role::State { state } else { argument.layouts[argument.layouts.len() - 1] };
            let mut shape: Vec<usize> = layout.chars().map(size).collect();
            if argument.role == Role::State && packing == Packing::Bounds {
                shape[0] = SEQUENCES;
            }
            let (given, dtype) = match argument.role {
                Role::Index if argument.name == "cu_seqlens" => (packing == Packing::Bounds, DType::I64),
                Role::Index => (matches!(packing, Packing::Index | Packing::IndexStates), DType::I64),
                Role::State => (case.initial || packing == Packing::IndexStates, DType::F32),
                _ => (argument.required || case.optional, DType::F32),
            };
            // the gradient of a real state would be real where that of the states between ranks is complex
            let always = argument.role == Role::State && signature.results[1].complex == Complex::Always;
            let may_be = argument.role == Role::State || matches!(argument.name, "A" | "a" | "B" | "C");
            let dtype = if always || (complex && may_be) { DType::Complex64 } else { dtype };
            let mut indices = if argument.name == "cu_seqlens" { &bounds } else { &index }.iter();
            tensors.push(given.then(|| {
                let mut tensor = Tensor::host(dtype, &shape).unwrap();
                tensor.fill_with(|| {
                    let im = if dtype.is_complex() { rng.normal() } else { 0.0 };
                    match (argument.role, argument.name) {
                        (Role::Index, _) => (*indices.next().unwrap() as f64).into(),
                        (_, "a") => Complex64::from_polar(rng.uniform(0.3, 1.0), im),
                        (_, "A") => Complex64::new(-rng.uniform(0.1, 1.5), im),
                        (_, "dt" | "dt_a" | "delta" | "deltaA") => rng.uniform(0.001, 0.5).into(),
                        _ => Complex64::new(rng.normal(), im),
                    }
                });
                tensor
            }));
        }
        for (option, value) in signature.options.iter().zip(&mut call.values) {
            match option.name {
                "reverse" => *value = Value::Flag(case.reverse),
                "dt_softplus" => *value = Value::Flag(case.optional),
                "dt_limit" if case.optional => *value = Value::Interval(0.01, 0.4),
                "discretization" => *value = Value::Word(Some(case.word)),
                _ => {}
            }
        }
        let mut owned = Owned { operation, tensors, call, cotangents: Vec::new(), packing, reverse: case.reverse, index, bounds };
        let whole = owned.of(&owned.tensors, 0..seqlen);
        owned.cotangents = (0..2)
            .map(|at| {
                let planned = operation.result(&whole, at).unwrap();
                let mut tensor = Tensor::host(planned.dtype, &planned.shape).unwrap();
                tensor.fill_with(|| Complex64::new(rng.normal(), if planned.dtype.is_complex() { rng.normal() } else { 0.0 }));
                tensor.to_dense()
            })
            .collect();
        owned
    }

    /// The call on some steps, with arguments from these tensors. The bounds of sequences are those of the whole.
    fn of<'t>(&self, tensors: &'t [Option<Tensor>], steps: std::ops::Range<usize>) -> Call<'t> {
        let mut call = Call { views: Default::default(), state: None, ..self.call };
        for (at, (argument, tensor)) in self.operation.signature.arguments.iter().zip(tensors).enumerate() {
            let Some(tensor) = tensor else { continue };
            let layout = argument.layout(tensor.shape().len()).unwrap();
            call.views[at] = Some(match layout.find('L') {
                Some(axis) => tensor.view().slice(axis, steps.clone()),
                None => tensor.view(),
            });
        }
        call
    }

    fn at(&self, name: &str) -> Option<usize> {
        self.operation.signature.argument(name)
    }

    /// The axis of time in a result or argument.
    fn time(layout: Option<&str>) -> Option<usize> {
        layout.and_then(|layout| layout.find('L'))
    }
}

fn check(case: &Case, exec: &Exec) {
    let owned = Owned::new(case);
    let mut slices = Vec::new();
    for &length in &case.lengths {
        let start = slices.last().map_or(0, |steps: &std::ops::Range<usize>| steps.end);
        slices.push(start..start + length);
    }
    let ranks = slices.len();
    let order: Vec<usize> = if case.reverse { (0..ranks).rev().collect() } else { (0..ranks).collect() };
    let tensors: Vec<_> = owned.tensors.iter().map(|tensor| tensor.as_ref().map(|tensor| tensor.to(exec).unwrap())).collect();
    let exchange = Exchange::new(ranks);
    let found: Result<Vec<Found>, Error> = std::thread::scope(|scope| {
        let rank =
            |rank| Rank { exec, owned: &owned, tensors: &tensors, slices: &slices, order: &order, exchange: &exchange, rank };
        let threads: Vec<_> = (0..ranks).map(|at| (at, rank(at))).map(|(_, rank)| scope.spawn(move || rank.run())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let found = match found {
        // there is no kernel for it: all ranks said so in the same place
        Err(Error::Unavailable { .. }) if device::is_gpu(exec) => return,
        found => found.unwrap(),
    };

    let seqlen = slices.last().unwrap().end;
    let whole = owned.of(&owned.tensors, 0..seqlen);
    let [y, last] = [0, 1].map(|at| Tensor::from_dense(&owned.cotangents[at], owned.operation.result(&whole, at).unwrap().dtype));
    let given = Given { cotangents: [Some(y.view()), Some(last.view())], ..Given::default() };
    let signature = owned.operation.signature;
    let mut exact = owned.operation.reference(&whole).unwrap();
    exact.truncate(2);
    let results = exact.len();
    exact.extend(owned.operation.reference_backward(&whole, &given).unwrap());
    for (number, (name, expected)) in exact.iter().enumerate() {
        let argument = if number < results { None } else { owned.at(name) };
        if argument.is_some_and(|at| owned.tensors[at].is_none()) {
            continue;
        }
        let layouts = argument.map_or(signature.results[number.min(1)].layouts, |at| signature.arguments[at].layouts);
        let layout = layouts.iter().find(|layout| layout.len() == expected.shape().len()).copied();
        let of = |rank: usize| {
            &found[rank].iter().skip(if number < results { 0 } else { results }).find(|(n, _)| n == name).unwrap().1
        };
        let is_state = |at: usize| signature.arguments[at].role == Role::State;
        let got = match (Owned::time(layout), argument) {
            (Some(axis), _) => joined(&(0..ranks).map(|rank| of(rank).to_dense()).collect::<Vec<_>>(), axis, expected),
            // the state before the first step, after the last one
            (None, Some(at)) if is_state(at) => of(order[0]).to_dense(),
            (None, None) => of(order[ranks - 1]).to_dense(),
            // a weight, which all ranks share
            (None, Some(_)) => {
                let mut sum = Dense::zeros(&expected.shape()).unwrap();
                for rank in 0..ranks {
                    let own = of(rank).to_dense();
                    sum.data_mut().iter_mut().zip(own.data()).for_each(|(sum, own)| *sum += own);
                }
                sum
            }
        };
        let bound = if number < results { ErrorBound::for_scan } else { ErrorBound::for_gradient }(DType::F32, 2 * seqlen);
        let real = !of(0).dtype().is_complex();
        let got = Tensor::from_dense(&got, if real { DType::F64 } else { DType::Complex128 });
        assert_close(&format!("{} {name} of {ranks} ranks", signature.name), &got, expected, bound);
    }
}

/// Tensors one behind the other along an axis.
fn joined(parts: &[Dense], axis: usize, like: &Dense) -> Dense {
    let mut whole = Dense::zeros(&like.shape()).unwrap();
    let inner: usize = like.shape()[axis + 1..].iter().product();
    let outer: usize = like.shape()[..axis].iter().product();
    let mut values = Vec::new();
    for row in 0..outer {
        for part in parts {
            let width = part.shape()[axis] * inner;
            values.extend_from_slice(&part.data()[row * width..(row + 1) * width]);
        }
    }
    whole.data_mut().copy_from_slice(&values);
    whole
}

fn executors() -> impl Iterator<Item = Exec> {
    let cpu = (!device::only_gpu()).then(|| Exec::cpu(1));
    cpu.into_iter().chain(device::find_gpu().ok())
}

proptest! {
    #![proptest_config(random_cases(96, "tests/ranks.proptest-regressions"))]

    #[test]
    fn a_sequence_over_ranks_is_the_whole(case in cases()) {
        executors().for_each(|exec| check(&case, &exec));
    }
}

#[test]
fn every_operation_packing_and_direction() {
    for operation in 0..OPERATIONS.len() {
        for packing in [Packing::Whole, Packing::Bounds, Packing::Index, Packing::IndexStates] {
            for reverse in [false, true] {
                let word = (operation + usize::from(reverse)) % 4;
                let lengths = vec![0, 30, 1, 0, 70, 13, 0];
                let case = Case {
                    operation,
                    lengths,
                    packing,
                    reverse,
                    complex: reverse,
                    initial: true,
                    optional: !reverse,
                    word,
                    seed: 7,
                };
                executors().for_each(|exec| check(&case, &exec));
            }
        }
    }
}

#[test]
fn a_summary_is_the_scan_of_zero_and_what_is_left_of_one() {
    let case = |operation, word, packing| Case {
        operation,
        lengths: vec![57],
        packing,
        reverse: false,
        complex: true,
        initial: true,
        optional: true,
        word,
        seed: 3,
    };
    for operation in 0..OPERATIONS.len() {
        for (word, packing) in [(0, Packing::Whole), (1, Packing::Index), (2, Packing::Bounds), (3, Packing::IndexStates)] {
            let owned = Owned::new(&case(operation, word, packing));
            let (operation, signature) = (owned.operation, owned.operation.signature);
            let whole = owned.of(&owned.tensors, 0..57);
            let planned = operation.result(&whole, 1).unwrap();
            let final_state = |fill: f64, input: bool| {
                let mut call = whole;
                let mut state = Tensor::host(planned.dtype, &planned.shape).unwrap();
                state.fill_with(|| fill.into());
                call.views[owned.at("initial_state").unwrap()] = Some(state.view());
                // a scan's input is x, u or b, the first activation that is no step
                let input_at = usize::from(signature.name == "linear_scan");
                let zero = call.views[input_at].map(|view| Tensor::host(view.dtype(), &view.shape()).unwrap()).unwrap();
                if !input {
                    call.views[input_at] = Some(zero.view());
                }
                operation.reference(&call).unwrap()[1].1.clone()
            };
            let dropped = signature.results[1].layouts[0].len() - signature.decay.unwrap().layouts[0].len();
            let kept = &planned.shape[..planned.shape.len() - dropped];
            let decay_dtype = if whole.is_complex(signature.decay.unwrap().complex) { DType::Complex64 } else { DType::F32 };
            let (mut state, mut decay) =
                (Tensor::host(planned.dtype, &planned.shape).unwrap(), Tensor::host(decay_dtype, kept).unwrap());
            state.fill_bytes(0xff);
            decay.fill_bytes(0xff);
            let out = Summary::default().state(state.view_mut()).decay(decay.view_mut());
            operation.summary(&Exec::cpu(2), &whole, out).unwrap();
            let bound = ErrorBound::for_scan(DType::F32, 57);
            assert_close(&format!("{} state", signature.name), &state, &final_state(0.0, true), bound);
            let ones = final_state(1.0, false);
            let first = ones.view();
            let ones = Dense::from_view(&(0..dropped).fold(first, |view, _| view.index(view.rank() - 1, 0)));
            assert_close(&format!("{} decay", signature.name), &decay, &ones, bound);
        }
    }
}

#[test]
fn wrong_summaries_are_named() {
    let owned = Owned::new(&Case {
        operation: 0,
        lengths: vec![5],
        packing: Packing::Whole,
        reverse: false,
        complex: false,
        initial: false,
        optional: false,
        word: 0,
        seed: 1,
    });
    let call = owned.of(&owned.tensors, 0..5);
    let mut wrong = Tensor::host(DType::F32, &[2, 4, 2]).unwrap();
    wrong.fill_bytes(0xff);
    for summary in [0, 1] {
        let out = Summary::default();
        let out = if summary == 0 { out.state(wrong.view_mut()) } else { out.decay(wrong.view_mut()) };
        let error = owned.operation.summary(&Exec::cpu(1), &call, out).unwrap_err();
        let name = ["state", "decay"][summary];
        assert!(error.to_string().starts_with(&format!("selective_scan: `{name}`")), "{error}");
        assert!(wrong.bytes().iter().all(|&byte| byte == 0xff));
    }
    let convolution = Operation::find("causal_conv1d").unwrap();
    let (x, weight) = (Tensor::host(DType::F32, &[1, 4, 5]).unwrap(), Tensor::host(DType::F32, &[4, 3]).unwrap());
    let mut call = Call::new(convolution.signature);
    call.views[0] = Some(x.view());
    call.views[1] = Some(weight.view());
    let error = convolution.summary(&Exec::cpu(1), &call, Summary::default()).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}
