//! Steps between slots against steps of one token, one after another, on states that were gathered.

use crate::checksums::scenario::{SCENARIOS, Scenario};
use crate::common::device::{home, is_gpu, on, ran};
use crate::common::{self, Rng, executors, indices, poisoned};
use statescan::ops::signature::Role;
use statescan::ops::{Call, Operation, Written};
use statescan::tensor::{Dense, ErrorBound};
use statescan::{DType, Error, Exec, Tensor};

const SLOTS: usize = 13;
/// Tokens of all sequences, and how they may divide: three sequences of four tokens, or bounds of others, one of which has none.
const ROWS: usize = 12;
const BOUNDS: [i64; 4] = [0, 5, 5, 12];
/// The slots that are read: one by two sequences, or zeros.
const READ: [i64; 3] = [3, -4, 3];

/// The slots that are written.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kept {
    /// The one after the last token, or before there is one.
    Last,
    /// One after each token, but for some of them.
    Each,
}

impl Kept {
    fn slots(self, tokens: usize) -> (Vec<i64>, Vec<usize>) {
        match self {
            Kept::Last => (vec![1, 2, 6], vec![3]),
            Kept::Each => {
                let mut free = (0..SLOTS as i64).filter(|slot| !READ.contains(slot));
                let slot = |at: usize| if at % 3 == 1 { -1 - at as i64 } else { free.next().unwrap_or(-1) };
                ((0..3 * tokens).map(slot).collect(), vec![3, tokens])
            }
        }
    }
}

struct Case {
    base: &'static Operation,
    slotted: &'static Operation,
    scenario: &'static Scenario,
    inputs: Vec<Option<Tensor>>,
    pool: Tensor,
}

/// The results of a run: y and the pool.
type Results = [Tensor; 2];

impl Case {
    fn new(slotted: &'static Operation, scenario: &'static Scenario, (dtype, state): (DType, DType)) -> Self {
        let base = Operation::find(slotted.signature.name.strip_suffix("_slots").unwrap()).unwrap();
        let mut rng = Rng::new(8);
        let drawn: Vec<_> = (0..ROWS).map(|_| scenario.inputs(base, dtype, &mut rng)).collect();
        let input = |at: usize| {
            let argument = &base.signature.arguments[at];
            let first = drawn[0][at].as_ref().filter(|_| argument.role != Role::Index)?;
            if !argument.layouts.iter().any(|layout| layout.len() == first.shape().len() && layout.starts_with('B')) {
                return Some(first.clone());
            }
            // the first row of each
            let mut all = Dense::zeros(&[&[ROWS], &first.shape()[1..]].concat()).unwrap();
            let each = all.data().len() / ROWS;
            for (row, inputs) in drawn.iter().enumerate() {
                let own = inputs[at].as_ref().unwrap().to_dense();
                all.data_mut()[row * each..][..each].copy_from_slice(&own.data()[..each]);
            }
            Some(Tensor::from_dense(&all, first.dtype()))
        };
        let inputs = (0..base.signature.arguments.len()).map(input).collect();
        let own = scenario.state(base.signature.in_place.unwrap(), dtype, &mut rng);
        let dtype = if own.dtype().is_complex() { own.dtype() } else { state };
        let pool = common::normal(&mut rng, dtype, &[&[SLOTS], &own.shape()[1..]].concat(), scenario.layout, 0.5);
        Case { base, slotted, scenario, inputs, pool }
    }

    fn what(&self, exec: &Exec) -> String {
        format!("{} {} pool {} on {exec:?}", self.base.signature.name, self.scenario.name, self.pool.dtype())
    }

    /// The number of the argument that has slots.
    fn slots_at(&self) -> usize {
        self.slotted.signature.arguments.iter().position(|argument| argument.name.ends_with("_indices")).unwrap()
    }

    /// A call of one of both operations, without slots, on tensors that are where it runs.
    fn call<'a>(&self, operation: &'static Operation, inputs: &'a [Option<Tensor>]) -> Call<'a> {
        let mut call = Call::new(operation.signature);
        call.views.iter_mut().zip(inputs).for_each(|(view, input)| *view = input.as_ref().map(Tensor::view));
        self.scenario.set(&mut call);
        call
    }

    /// y, poisoned, and the pool after a call between slots; nothing where a GPU has no kernel.
    fn run(
        &self,
        exec: &Exec,
        (read, write): (&[i64], (&[i64], &[usize])),
        bounds: Option<&[i64]>,
    ) -> Result<Option<Results>, Error> {
        let inputs: Vec<_> = self.inputs.iter().map(|input| input.as_ref().map(|input| on(exec, input))).collect();
        let mut pool = on(exec, &self.pool);
        let mut written = Tensor::host(DType::I64, write.1).unwrap();
        let mut values = write.0.iter();
        written.fill_with(|| (*values.next().unwrap() as f64).into());
        let (read, written) = (on(exec, &indices(DType::I32, read)), on(exec, &written));
        let bounds = bounds.map(|bounds| on(exec, &indices(DType::I64, bounds)));
        let mut call = self.call(self.slotted, &inputs);
        let len = self.inputs.len();
        call.views[self.slots_at()] = Some(read.view());
        (call.views[len], call.views[len + 1]) = (Some(written.view()), bounds.as_ref().map(Tensor::view));
        let planned = self.slotted.result(&call, 0).unwrap();
        let mut y = on(exec, &poisoned(&mut Rng::new(3), planned.dtype, &planned.shape, common::Layout::Dense));
        let mut out = Written { state: Some(pool.view_mut()), ..Written::default() };
        out.views[0] = Some(y.view_mut());
        let result = self.slotted.forward(exec, &call, &mut out);
        if matches!(&result, Err(error) if !matches!(error, Error::Unavailable { .. })) {
            return result.map(|()| None);
        }
        let ran = ran(exec, result, &[&y]);
        Ok(ran.then(|| [home(&y), home(&pool)]))
    }

    /// The results by steps of one token of one sequence.
    fn one_by_one(&self, exec: &Exec, read: &[i64], kept: Kept, bounds: &[i64]) -> Results {
        let inputs: Vec<_> = self.inputs.iter().map(|input| input.as_ref().map(|input| on(exec, input))).collect();
        let planned = self.base.result(&self.call(self.base, &inputs), 0).unwrap();
        let mut y = on(exec, &Tensor::host(planned.dtype, &planned.shape).unwrap());
        let mut pool = self.pool.to_dense();
        let (each, columns) =
            (pool.data().len() / SLOTS, bounds.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap() as usize);
        let (write, _) = kept.slots(columns);
        let before = pool.data().to_vec();
        for (sequence, pair) in bounds.windows(2).enumerate() {
            let mut states = Dense::zeros(&[&[SLOTS], &self.pool.shape()[1..]].concat()).unwrap();
            if read[sequence] >= 0 {
                states.data_mut()[..each].copy_from_slice(&before[read[sequence] as usize * each..][..each]);
            }
            // lies as the pool does, and the first one is used
            let mut state = self.pool.clone();
            state.copy_from(&states);
            let mut state = on(exec, &state);
            let slot = on(exec, &indices(DType::I32, &[0]));
            let leave = |pool: &mut Dense, to: i64, state: &Tensor| {
                if to >= 0 {
                    pool.data_mut()[to as usize * each..][..each].copy_from_slice(&home(state).to_dense().data()[..each]);
                }
            };
            if pair[0] == pair[1] && kept == Kept::Last {
                leave(&mut pool, write[sequence], &state);
            }
            for token in pair[0] as usize..pair[1] as usize {
                let mut call = self.call(self.base, &inputs);
                for (argument, view) in self.base.signature.arguments.iter().zip(&mut call.views) {
                    let batched =
                        |rank: usize| argument.layouts.iter().any(|layout| layout.len() == rank && layout.starts_with('B'));
                    *view = view.map(|view| if batched(view.rank()) { view.slice(0, token..token + 1) } else { view });
                }
                call.views[self.slots_at()] = Some(slot.view());
                let mut out = Written { state: Some(state.view_mut()), ..Written::default() };
                out.views[0] = Some(y.view_mut().slice(0, token..token + 1));
                self.base.forward(exec, &call, &mut out).unwrap();
                let at = token - pair[0] as usize;
                let to = match kept {
                    Kept::Each => write[sequence * columns + at],
                    Kept::Last => {
                        if token + 1 == pair[1] as usize {
                            write[sequence]
                        } else {
                            -1
                        }
                    }
                };
                leave(&mut pool, to, &state);
            }
        }
        [home(&y), Tensor::from_dense(&pool, self.pool.dtype())]
    }
}

fn cases(types: &'static [(DType, DType)]) -> impl Iterator<Item = Case> {
    let pairs = Operation::SLOTTED.iter().flat_map(|slotted| SCENARIOS.iter().map(move |scenario| (slotted, scenario)));
    pairs.flat_map(move |(slotted, scenario)| {
        let base = Operation::find(slotted.signature.name.strip_suffix("_slots").unwrap()).unwrap();
        let fits = move |dtype| scenario.is_of(base) && scenario.has_type(base, dtype);
        types.iter().filter(move |(dtype, _)| fits(*dtype)).map(move |&types| Case::new(slotted, scenario, types))
    })
}

const TYPES: &[(DType, DType)] =
    &[(DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::F16, DType::F32), (DType::F32, DType::BF16)];

fn same(what: &str, got: &Tensor, expected: &Tensor) {
    assert_eq!(got.to_dense().data(), expected.to_dense().data(), "{what}");
}

#[test]
fn several_tokens_are_single_ones() {
    for case in cases(TYPES) {
        for exec in executors().into_iter().filter(|exec| !is_gpu(exec) || ["plain", "options"].contains(&case.scenario.name)) {
            for (kept, bounds) in [(Kept::Last, None), (Kept::Each, None), (Kept::Last, Some(BOUNDS)), (Kept::Each, Some(BOUNDS))]
            {
                let all = bounds.unwrap_or([0, 4, 8, 12]);
                let tokens = if bounds.is_some() { 7 } else { 4 };
                let (write, shape) = kept.slots(tokens);
                let got = case.run(&exec, (&READ, (&write, &shape)), bounds.as_ref().map(|bounds| &bounds[..])).unwrap();
                let Some([y, pool]) = got else { continue };
                let what = format!("{kept:?} {bounds:?} of {}", case.what(&exec));
                let [expected, states] = case.one_by_one(&exec, &READ, kept, &all);
                same(&format!("y {what}"), &y, &expected);
                same(&format!("pool {what}"), &pool, &states);
            }
        }
    }
}

/// A draft of three tokens of which one is kept: the next call reads that one's slot, and what was refused leaves no trace.
#[test]
fn a_refused_draft_was_never_there() {
    for case in cases(&[(DType::BF16, DType::BF16)]).filter(|case| case.scenario.name == "plain") {
        for exec in executors() {
            let draft = case.run(&exec, (&[3, 3], (&[5, 6, -1, 7, 8, 9, -1, -1, -1, 10, 11, 12], &[2, 6])), None).unwrap();
            let Some([_, after]) = draft else { continue };
            let kept = case.run(&exec, (&[3; 12], (&[[5; 1].as_slice(), &[-1; 11]].concat(), &[12])), None).unwrap().unwrap();
            let each = after.to_dense().data().len() / SLOTS;
            let slot = |pool: &Tensor, slot: usize| pool.to_dense().data()[slot * each..][..each].to_vec();
            assert_eq!(slot(&after, 5), slot(&kept[1], 5), "{}", case.what(&exec));
        }
    }
}

#[test]
fn the_oracle_walks_tokens_too() {
    for case in cases(&[(DType::F64, DType::F64)]).filter(|case| case.scenario.name == "plain") {
        let (exec, (write, shape)) = (Exec::cpu(2), Kept::Each.slots(7));
        let [y, pool] = case.run(&exec, (&READ, (&write, &shape)), Some(&BOUNDS)).unwrap().unwrap();
        let (read, bounds) = (indices(DType::I64, &READ), indices(DType::I32, &BOUNDS));
        let written = Tensor::from_slice(&exec, &write, &shape).unwrap();
        let mut call = case.call(case.slotted, &case.inputs);
        call.views[case.slots_at()] = Some(read.view());
        let len = case.inputs.len();
        (call.views[len], call.views[len + 1]) = (Some(written.view()), Some(bounds.view()));
        call.state = Some(case.pool.view());
        let exact = case.slotted.reference(&call).unwrap();
        let bound = ErrorBound::for_scan(DType::F64, 20);
        common::assert_close(&case.what(&exec), &y, &exact[0].1, bound);
        common::assert_close(&case.what(&exec), &pool, &exact[1].1, bound);
    }
}

#[test]
fn wrong_slots_and_bounds_are_named_and_nothing_is_written() {
    if common::device::only_gpu() {
        return println!("skipped: only the device reads slots there");
    }
    for case in cases(&[(DType::F32, DType::F32)]).filter(|case| case.scenario.name == "plain") {
        let [read, write] = [case.slots_at(), case.inputs.len()].map(|at| case.slotted.signature.arguments[at].name);
        let refused = |from: &[i64], to: &[i64], shape: &[usize], bounds: Option<&[i64]>| {
            case.run(&Exec::cpu(2), (from, (to, shape)), bounds).unwrap_err()
        };
        let index = |error: Error, name: &str, at: usize| {
            assert!(matches!(error, Error::Index { argument, position, .. } if argument == name && position == at), "{error}");
        };
        index(refused(&[3, 13, 3], &[1, -1, 6], &[3], None), read, 1);
        index(refused(&[3, 6, 3], &[1, -1, 6], &[3], None), read, 1);
        index(refused(&READ, &[1, 13, 6], &[3], None), write, 1);
        let twice: Vec<i64> = (0..12).map(|at| if at == 7 { 4 } else { at }).collect();
        index(refused(&[-1; 3], &twice, &[3, 4], None), write, 7);
        index(refused(&READ, &[-1; 18], &[3, 6], Some(&BOUNDS)), "cu_seqlens", 3);
        index(refused(&READ, &[-1; 3], &[3], Some(&[0, 5, 4, 12])), "cu_seqlens", 2);
        let error = refused(&READ, &[-1; 9], &[3, 3], None);
        assert!(matches!(error, Error::Shape { argument, .. } if argument == write), "{error}");
        let error = refused(&[1; 5], &[-1; 5], &[5], None);
        assert!(matches!(error, Error::Value { argument, .. } if argument == read), "{error}");
    }
}

#[test]
fn numbers_that_are_no_slots_touch_nothing_on_a_gpu() {
    let Some(exec) = common::device::gpu() else { return println!("skipped: there is no GPU") };
    for case in cases(&[(DType::F32, DType::F32)]).filter(|case| case.scenario.name == "plain") {
        let zeros = case.run(&exec, (&[-1; 3], (&[-1; 3], &[3])), None).unwrap();
        let Some([y, _]) = zeros else { continue };
        let far = [i32::MAX as i64, 13, 1 << 20];
        let wide: Vec<i64> = (0..12).map(|at| [i64::MAX, 13, i64::MIN, 1 << 33][at % 4]).collect();
        let [got, pool] = case.run(&exec, (&far, (&wide, &[3, 4])), None).unwrap().unwrap();
        same(&case.what(&exec), &got, &y);
        same(&case.what(&exec), &pool, &case.pool);
        // bounds count as if they were cut to the rows
        let wild = [-5, i64::MAX, i64::MIN, 1 << 40];
        let [_, pool] = case.run(&exec, (&far, (&wide, &[3, 4])), Some(&wild)).unwrap().unwrap();
        same(&case.what(&exec), &pool, &case.pool);
    }
}
