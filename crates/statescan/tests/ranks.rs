//! A sequence cut over ranks, which are threads here, is the whole sequence: outputs, final states and every gradient, for any cuts, packing and
//! direction of time.

mod common;

use common::{Rng, assert_close, device, random_cases};
use num_complex::Complex64;
use proptest::prelude::*;
use statescan::ops::{
    Call, Given, Operation, Summary, Written,
    call::Value,
    ranks::combine,
    signature::{Complex, Role},
};
use statescan::tensor::{Dense, ErrorBound, Workspace};
use statescan::{DType, Error, Exec, Tensor};
use std::sync::{Barrier, Mutex};

const OPERATIONS: [&str; 6] = ["selective_scan", "ssd", "ssd_heads_first", "simplified_scan", "s5_inner", "linear_scan"];

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
                Role::Hint => (false, DType::F32),
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
        for (setting, value) in signature.settings.iter().zip(&mut call.values) {
            match setting.name {
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

fn part(dense: &Dense, axis: Option<usize>, steps: &std::ops::Range<usize>) -> Dense {
    match axis {
        Some(axis) => Dense::from_view(&dense.view().slice(axis, steps.clone())),
        None => dense.clone(),
    }
}

/// What the ranks tell each other: everybody puts something in, and gets all of it.
struct Exchange {
    slots: Vec<Mutex<Option<Dense>>>,
    barrier: Barrier,
}

impl Exchange {
    fn new(ranks: usize) -> Self {
        Exchange { slots: (0..ranks).map(|_| Mutex::new(None)).collect(), barrier: Barrier::new(ranks) }
    }
    fn gather(&self, rank: usize, mine: Dense) -> Vec<Dense> {
        *self.slots[rank].lock().unwrap() = Some(mine);
        self.barrier.wait();
        let all = self.slots.iter().map(|slot| slot.lock().unwrap().clone().unwrap()).collect();
        self.barrier.wait();
        all
    }
}

/// Combines summaries, the first one first, by the library.
fn combined(exec: &Exec, states: &[&Dense], decays: &[Dense], initial: Option<&Dense>, dtype: DType, like: &Dense) -> Dense {
    let stack = |all: &[&Dense], shape: &[usize]| {
        let mut whole = Dense::zeros(&[&[all.len()], shape].concat()).unwrap();
        let values: Vec<_> = all.iter().flat_map(|dense| dense.data().iter().copied()).collect();
        whole.data_mut().copy_from_slice(&values);
        Tensor::from_dense(&whole, dtype).to(exec).unwrap()
    };
    let axes = decays.first().map_or(like.shape(), |decay| decay.shape());
    let (states, decays) = (stack(states, &like.shape()), stack(&decays.iter().collect::<Vec<_>>(), &axes));
    let initial = initial.map(|dense| Tensor::from_dense(dense, dtype).to(exec).unwrap());
    let mut out = Tensor::empty(exec, dtype, &like.shape()).unwrap();
    combine(exec, states.view(), decays.view(), initial.as_ref().map(Tensor::view), out.view_mut()).unwrap();
    out.to_host().unwrap().to_dense()
}

/// Multiplies the rows of a state, its first axis.
fn by_rows(dense: &Dense, factors: &[f64]) -> Dense {
    let mut dense = dense.clone();
    let inner = dense.data().len() / factors.len().max(1);
    dense.data_mut().iter_mut().enumerate().for_each(|(i, value)| *value *= factors[i / inner]);
    dense
}

/// Results and gradients of one rank, by their names.
type Found = Vec<(&'static str, Tensor)>;

struct Rank<'r> {
    exec: &'r Exec,
    owned: &'r Owned,
    tensors: &'r [Option<Tensor>],
    /// The steps of each rank, and where the ranks stand in the order of the scan.
    slices: &'r [std::ops::Range<usize>],
    order: &'r [usize],
    exchange: &'r Exchange,
    rank: usize,
}

impl Rank<'_> {
    fn to(&self, dense: &Dense, dtype: DType) -> Tensor {
        Tensor::from_dense(dense, dtype).to(self.exec).unwrap()
    }

    /// Whether the sequence of each row goes on from the ranks before this one, 1, or starts with it, 0.
    fn continues(&self, rank: usize) -> Vec<f64> {
        let (owned, place) = (self.owned, self.order.iter().position(|&other| other == rank).unwrap());
        let seqlen = self.slices.last().unwrap().end;
        let rows = if owned.packing == Packing::Index { 2 } else { return Vec::new() };
        let steps = |rank: usize| Some(self.slices[rank].clone()).filter(|steps| !steps.is_empty());
        let before = self.order[..place].iter().rev().find_map(|&other| steps(other));
        (0..rows)
            .map(|row| match (steps(rank), &before) {
                (Some(own), Some(before)) => {
                    let (first, last) = if owned.reverse { (own.end - 1, before.start) } else { (own.start, before.end - 1) };
                    f64::from(owned.index[row * seqlen + first] == owned.index[row * seqlen + last])
                }
                _ => 1.0,
            })
            .collect()
    }

    fn masked(&self, rank: usize, dense: &Dense) -> Dense {
        let factors = self.continues(rank);
        if factors.is_empty() { dense.clone() } else { by_rows(dense, &factors) }
    }

    fn run(&self) -> Result<Found, Error> {
        let (exec, owned, operation, steps) = (self.exec, self.owned, self.owned.operation, self.slices[self.rank].clone());
        let signature = operation.signature;
        let place = self.order.iter().position(|&rank| rank == self.rank).unwrap();
        let (before, after) = (&self.order[..place], &self.order[place + 1..]);
        let mut call = owned.of(self.tensors, steps.clone());
        let clipped: Vec<i64> =
            owned.bounds.iter().map(|&bound| bound.clamp(steps.start as i64, steps.end as i64) - steps.start as i64).collect();
        let clipped = Tensor::from_slice(exec, &clipped, &[clipped.len()]).unwrap();
        if owned.packing == Packing::Bounds {
            call.views[owned.at("cu_seqlens").unwrap()] = Some(clipped.view());
        }
        let initial_at = owned.at("initial_state").unwrap();
        let given = self.tensors[initial_at].as_ref().map(|tensor| tensor.to_host().unwrap().to_dense());

        let (planned, seen) = (operation.result(&call, 1)?, Mutex::new(Workspace::default()));
        let shape = planned.shape;
        let decay = signature.decay.unwrap();
        let dropped = signature.results[1].layouts[0].len() - decay.layouts[0].len();
        let decay_dtype = if call.is_complex(decay.complex) { DType::Complex64 } else { DType::F32 };
        let mut own_state = Tensor::empty(exec, planned.dtype, &shape)?;
        let mut own_decay = Tensor::empty(exec, decay_dtype, &shape[..shape.len() - dropped])?;
        let mut workspace = seen.lock().unwrap();
        let len = operation.summary_workspace_len(exec, &call)?;
        let scratch = if len > 0 { Some(workspace.view_mut(exec, len)?) } else { None };
        let summary = Summary::default().state(own_state.view_mut()).decay(own_decay.view_mut()).workspace(scratch);
        let summarized = operation.summary(exec, &call, summary);
        let home = |tensor: &Tensor| tensor.to_host().unwrap().to_dense();
        let states = self.exchange.gather(self.rank, home(&own_state));
        let decays = self.exchange.gather(self.rank, home(&own_decay));
        summarized?;

        let like = Dense::zeros(&shape).unwrap();
        let pick = |from: &[Dense], ranks: &[usize]| ranks.iter().map(|&rank| self.masked(rank, &from[rank])).collect::<Vec<_>>();
        let found: Vec<_> = before.iter().map(|&rank| &states[rank]).collect();
        let entering = combined(exec, &found, &pick(&decays, before), given.as_ref(), planned.dtype, &like);
        // the caller's state may be real where the scan is complex
        let entering = self.to(&self.masked(self.rank, &entering), planned.dtype);
        call.views[initial_at] = Some(entering.view());

        let mut results: Found = Vec::new();
        let mut out = Written::default();
        for at in 0..2 {
            let planned = operation.result(&call, at)?;
            results.push((signature.results[at].name, Tensor::empty(exec, planned.dtype, &planned.shape)?));
        }
        for ((_, tensor), view) in results.iter_mut().zip(&mut out.views) {
            *view = Some(tensor.view_mut());
        }
        let len = operation.workspace_len(exec, &call)?;
        out.workspace = if len > 0 { Some(workspace.view_mut(exec, len)?) } else { None };
        operation.forward(exec, &call, &mut out)?;

        // what flows to the ranks before this one, without what comes from those behind it
        let y = part(&owned.cotangents[0], Owned::time(signature.results[0].layout(owned.cotangents[0].shape().len())), &steps);
        let y = self.to(&y, operation.result(&call, 0)?.dtype);
        let last = if after.is_empty() { owned.cotangents[1].clone() } else { like.clone() };
        let backward = |last: &Dense, all: bool, workspace: &mut Workspace| -> Result<Found, Error> {
            let last = self.to(last, planned.dtype);
            let cotangents = Given { cotangents: [Some(y.view()), Some(last.view())], ..Given::default() };
            let mut found: Found = Vec::new();
            let mut places = Vec::new();
            for (at, argument) in signature.arguments.iter().enumerate().filter(|(_, argument)| argument.gradient) {
                if let Some(view) = call.views[at].filter(|_| all || at == initial_at) {
                    found.push((argument.name, Tensor::empty(exec, view.dtype(), &view.shape())?));
                    places.push(at);
                }
            }
            let mut grads = Written::default();
            for (at, (_, tensor)) in places.into_iter().zip(&mut found) {
                grads.views[at] = Some(tensor.view_mut());
            }
            let len = operation.backward_workspace_len(exec, &call, false)?;
            grads.workspace = if len > 0 { Some(workspace.view_mut(exec, len)?) } else { None };
            operation.backward(exec, &call, &cotangents, &mut grads)?;
            Ok(found)
        };
        let flowing = backward(&last, false, &mut workspace)?;
        let flowing = self.exchange.gather(self.rank, home(&flowing[0].1));
        let reversed: Vec<usize> = after.iter().rev().copied().collect();
        let conjugate = |mut dense: Dense| {
            dense.data_mut().iter_mut().for_each(|value| *value = value.conj());
            dense
        };
        let flowing = pick(&flowing, &reversed);
        let conjugates: Vec<_> = pick(&decays, &reversed).into_iter().map(conjugate).collect();
        let coming = combined(exec, &flowing.iter().collect::<Vec<_>>(), &conjugates, None, planned.dtype, &like);
        let last = if after.is_empty() { last } else { coming };
        results.extend(backward(&last, true, &mut workspace)?);
        Ok(results.into_iter().map(|(name, tensor)| (name, tensor.to_host().unwrap())).collect())
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
                // what goes into a scan is x, u or b, the first activation that is no step
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
    let error = convolution.summary(&Exec::cpu(1), &Call::new(convolution.signature), Summary::default()).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}
