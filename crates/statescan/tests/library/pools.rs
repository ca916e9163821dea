//! Operations whose states lie in a pool, against the same operations beside states that were gathered.

use crate::checksums::scenario::{SCENARIOS, Scenario};
use crate::common::device::{home, is_gpu, on};
use crate::common::{self, Layout, Rng, executors, indices, poisoned};
use statescan::ops::call::Value;
use statescan::ops::{Call, Operation, Written};
use statescan::tensor::{Dense, Device, ErrorBound};
use statescan::{DType, Error, Exec, Tensor};

/// Slots of the pool.
const SLOTS: usize = 9;
/// The slots that sequences start and end in: two start from one slot, one from zeros; one stays in its slot, one leaves nothing.
const READ: [i64; 4] = [3, -1, 3, 6];
const WRITE: [i64; 4] = [1, 0, -2, 6];
/// Steps of packed sequences: one is shorter than a filter remembers.
const BOUNDS: [i64; 5] = [0, 2, 2, 40, 83];

/// A call of an operation, without states.
struct Case {
    base: &'static Operation,
    pooled: &'static Operation,
    scenario: &'static Scenario,
    packed: bool,
    reverse: bool,
    inputs: Vec<Option<Tensor>>,
    pool: Tensor,
}

impl Case {
    fn new(pooled: &'static Operation, scenario: &'static Scenario, packed: bool, (dtype, state): (DType, DType)) -> Self {
        let base = Operation::find(pooled.signature.name.strip_suffix("_pooled").unwrap()).unwrap();
        let mut rng = Rng::new(5);
        let mut inputs = scenario.inputs(base, dtype, &mut rng);
        for (argument, input) in base.signature.arguments.iter().zip(&mut inputs) {
            match argument.name {
                "cu_seqlens" => *input = packed.then(|| indices(DType::I32, &BOUNDS)),
                name if argument.is_state() || name == "seq_idx" => *input = None,
                _ if packed => *input = input.take().map(|input| one_row(argument.layouts, input)),
                _ => {}
            }
        }
        let mut call = Call::new(base.signature);
        call.views.iter_mut().zip(&inputs).for_each(|(view, input)| *view = input.as_ref().map(Tensor::view));
        scenario.set(&mut call);
        let shape = base.state_shape(&call).unwrap();
        let shape: Vec<usize> = [SLOTS].iter().chain(&shape[1..]).copied().collect();
        let complex = call.result_type(base.signature.results.len() - 1).is_complex();
        let dtype = if complex { statescan::ops::call::carried(dtype, true) } else { state };
        let pool = common::normal(&mut rng, dtype, &shape, Layout::Dense, 0.5);
        Case { base, pooled, scenario, packed, reverse: false, inputs, pool }
    }

    fn rows(&self) -> usize {
        if self.packed { BOUNDS.len() - 1 } else { self.inputs[0].as_ref().unwrap().shape()[0] }
    }

    fn state_at(&self) -> usize {
        self.base.signature.arguments.iter().position(|argument| argument.is_state()).unwrap()
    }

    /// `y` and the states of the sequences, from states that were gathered.
    fn gathered(&self, exec: &Exec) -> [Tensor; 2] {
        let rows = self.rows();
        let shape = [&[rows], &self.pool.shape()[1..]].concat();
        let (mut before, pool) = (Dense::zeros(&shape).unwrap(), self.pool.to_dense());
        let each = before.data().len() / rows;
        for (row, slot) in READ[..rows].iter().enumerate().filter(|(_, slot)| **slot >= 0) {
            before.data_mut()[row * each..][..each].copy_from_slice(&pool.data()[*slot as usize * each..][..each]);
        }
        let before = Tensor::from_dense(&before, self.pool.dtype());
        let (inputs, before) = (self.there(exec), on(exec, &before));
        let mut call = Call::new(self.base.signature);
        call.views.iter_mut().zip(&inputs).for_each(|(view, input)| *view = input.as_ref().map(Tensor::view));
        call.views[self.state_at()] = Some(before.view());
        self.scenario.set(&mut call);
        let planned = [0, 1].map(|at| self.base.result(&call, at).unwrap());
        let types = [planned[0].dtype, self.pool.dtype()];
        let mut results = [0, 1].map(|at| on(exec, &poisoned(&mut Rng::new(3), types[at], &planned[at].shape, Layout::Dense)));
        let mut workspace = Tensor::zeros(exec, DType::F32, &[self.base.workspace_len(exec, &call).unwrap()]).unwrap();
        let mut out = Written { workspace: Some(workspace.view_mut()), ..Written::default() };
        out.views.iter_mut().zip(&mut results).for_each(|(view, result)| *view = Some(result.view_mut()));
        self.base.forward(exec, &call, &mut out).unwrap();
        results.each_ref().map(home)
    }

    fn there(&self, exec: &Exec) -> Vec<Option<Tensor>> {
        self.inputs.iter().map(|input| input.as_ref().map(|input| on(exec, input))).collect()
    }

    /// `y` and the pool after a pass.
    fn run(&self, exec: &Exec, [read, write]: [&[i64]; 2], dtype: DType) -> Result<[Tensor; 2], Error> {
        let (inputs, mut pool) = (self.there(exec), on(exec, &self.pool));
        let mut slots = [read, write].map(|slots| on(exec, &indices(dtype, slots)));
        if read.len() < write.len() && write.len().is_multiple_of(read.len()) {
            slots[1] = on(exec, &in_pieces(dtype, write, write.len() / read.len()));
        }
        let before = on(exec, &self.pool);
        let mut call = Call::new(self.pooled.signature);
        let all = inputs.iter().map(|input| input.as_ref().map(Tensor::view)).chain(slots.iter().map(|slots| Some(slots.view())));
        call.views.iter_mut().zip(all).for_each(|(view, input)| *view = input);
        self.scenario.set(&mut call);
        if self.reverse {
            call.values[call.signature.option("reverse").unwrap()] = Value::Flag(true);
        }
        call.state = Some(before.view());
        let planned = self.pooled.result(&call, 0).unwrap();
        let mut y = on(exec, &poisoned(&mut Rng::new(3), planned.dtype, &planned.shape, Layout::Dense));
        let len = self.pooled.workspace_len(exec, &call)?;
        let mut workspace = Tensor::zeros(exec, DType::F32, &[len]).unwrap();
        let mut out = Written { workspace: Some(workspace.view_mut()), state: Some(pool.view_mut()), ..Written::default() };
        out.views[0] = Some(y.view_mut());
        self.pooled.forward(exec, &call, &mut out)?;
        Ok([home(&y), home(&pool)])
    }

    /// `y` and the pool after calls for one piece after another.
    fn cut(&mut self, exec: &Exec, read: &[i64], write: &[i64]) -> [Dense; 2] {
        let (pieces, first) = (write.len() / read.len(), self.pool.to_dense());
        let axis = self.base.signature.arguments[0].layouts[0].find('L').unwrap();
        let mut y = None;
        for (number, sequence) in (0..pieces).flat_map(|number| (0..read.len()).map(move |sequence| (number, sequence))) {
            let row = |number| sequence * pieces + if self.reverse { pieces - 1 - number } else { number };
            // a place for what is not left
            let slot = |number| usize::try_from(write[row(number)]).unwrap_or(SLOTS - 1 - sequence) as i64;
            let (mut from, mut to) = ([-1; 4], [-1; 4]);
            (from[row(number)], to[row(number)]) = (if number > 0 { slot(number - 1) } else { read[sequence] }, slot(number));
            let steps = BOUNDS[row(number)] as usize..BOUNDS[row(number) + 1] as usize;
            let [got, pool] = self.run(exec, [&from, &to], DType::I64).unwrap();
            self.pool = pool;
            let (shape, dense) = (got.shape(), got.to_dense());
            let (len, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
            let all = y.get_or_insert_with(|| Dense::zeros(&shape).unwrap());
            for outer in 0..shape[..axis].iter().product() {
                let part = (outer * len + steps.start) * inner..(outer * len + steps.end) * inner;
                all.data_mut()[part.clone()].copy_from_slice(&dense.data()[part]);
            }
        }
        let (mut left, each) = (self.pool.to_dense(), first.data().len() / SLOTS);
        for slot in (SLOTS - read.len()..SLOTS).filter(|slot| !write.contains(&(*slot as i64))) {
            left.data_mut()[slot * each..][..each].copy_from_slice(&first.data()[slot * each..][..each]);
        }
        [y.unwrap(), left]
    }

    fn what(&self, exec: &Exec) -> String {
        format!(
            "{} {} packed {} pool {} on {exec:?}",
            self.base.signature.name,
            self.scenario.name,
            self.packed,
            self.pool.dtype()
        )
    }
}

/// Slots of pieces, so many of each sequence.
fn in_pieces(dtype: DType, slots: &[i64], pieces: usize) -> Tensor {
    let list = indices(dtype, slots);
    Tensor::from_dense(&Dense::from_view(&list.view().split(0, slots.len() / pieces)), dtype)
}

/// The first row of a batch, where a tensor has one.
fn one_row(layouts: &[&str], input: Tensor) -> Tensor {
    match layouts.iter().any(|layout| layout.len() == input.shape().len() && layout.starts_with('B')) {
        true => Tensor::from_dense(&Dense::from_view(&input.view().slice(0, 0..1)), input.dtype()),
        false => input,
    }
}

fn cases(types: &'static [(DType, DType)]) -> impl Iterator<Item = Case> {
    let fits = |pooled: &Operation, scenario: &Scenario, dtype| {
        let base = Operation::find(pooled.signature.name.strip_suffix("_pooled").unwrap()).unwrap();
        scenario.is_of(base) && scenario.has_type(base, dtype)
    };
    let pairs = Operation::POOLED.iter().flat_map(|pooled| SCENARIOS.iter().map(move |scenario| (pooled, scenario)));
    pairs.flat_map(move |(pooled, scenario)| {
        let types = types.iter().filter(move |(dtype, _)| fits(pooled, scenario, *dtype));
        types.flat_map(move |&types| {
            let can_be_packed = pooled.signature.argument("cu_seqlens").is_some();
            let packed = scenario.has_steps(83) && can_be_packed;
            [false, true].into_iter().filter(move |p| packed || !p).map(move |packed| Case::new(pooled, scenario, packed, types))
        })
    })
}

const TYPES: &[(DType, DType)] = &[(DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::F16, DType::F32)];

#[test]
fn a_pool_holds_what_gathered_states_would_be() {
    for case in cases(TYPES) {
        let rows = case.rows();
        // a GPU has kernels to compile for each of them
        let few = ["plain", "options"].contains(&case.scenario.name) && case.pool.dtype() != DType::F32
            || case.scenario.name == "packed"
            // time is cut into segments, of which all but the last start from what the last one may change
            || (case.scenario.name, case.base.signature.name) == ("few channels", "linear_scan");
        for exec in executors().into_iter().filter(|exec| !is_gpu(exec) || few) {
            let what = case.what(&exec);
            let [y, states] = case.gathered(&exec);
            let [got, pool] = case.run(&exec, [&READ[..rows], &WRITE[..rows]], DType::I32).unwrap();
            assert_eq!(got.to_dense().data(), y.to_dense().data(), "y of {what}");
            let (pool, states, mut expected) = (pool.to_dense(), states.to_dense(), case.pool.to_dense());
            let each = pool.data().len() / SLOTS;
            for (row, slot) in WRITE[..rows].iter().enumerate().filter(|(_, slot)| **slot >= 0) {
                expected.data_mut()[*slot as usize * each..][..each].copy_from_slice(&states.data()[row * each..][..each]);
            }
            for (slot, (got, expected)) in pool.data().chunks(each).zip(expected.data().chunks(each)).enumerate() {
                assert_eq!(got, expected, "slot {slot} of {what}");
            }
        }
    }
}

#[test]
fn the_oracle_gathers_and_scatters() {
    for case in cases(&[(DType::F64, DType::F64)]).filter(|case| case.scenario.name == "plain") {
        let (exec, rows) = (Exec::cpu(1), case.rows());
        let [y, pool] = case.run(&exec, [&READ[..rows], &WRITE[..rows]], DType::I64).unwrap();
        let slots = [READ, WRITE].map(|slots| indices(DType::I64, &slots[..rows]));
        let mut call = Call::new(case.pooled.signature);
        let all =
            case.inputs.iter().map(|input| input.as_ref().map(Tensor::view)).chain(slots.iter().map(|slots| Some(slots.view())));
        call.views.iter_mut().zip(all).for_each(|(view, input)| *view = input);
        case.scenario.set(&mut call);
        call.state = Some(case.pool.view());
        let exact = case.pooled.reference(&call).unwrap();
        let bound = ErrorBound::for_scan(DType::F64, 1000);
        common::assert_close(&case.what(&exec), &y, &exact[0].1, bound);
        common::assert_close(&case.what(&exec), &pool, &exact[1].1, bound);
    }
}

#[test]
fn wrong_slots_are_named_and_nothing_is_written() {
    if common::device::only_gpu() {
        return println!("skipped: only the device reads slots there");
    }
    for case in cases(&[(DType::F32, DType::F32)]).filter(|case| case.packed && case.scenario.name == "plain") {
        let refused =
            |read: [i64; 4], write: [i64; 4]| case.run(&Exec::cpu(2), [&read, &write], DType::I64).unwrap_err().to_string();
        let name = case.base.signature.name;
        let far = refused([3, 9, 3, 6], WRITE);
        assert_eq!(far, format!("{name}: `read_indices`[1] must be less than the number of slots, 9, got 9"));
        let twice = refused(READ, [4, -1, 4, 5]);
        assert_eq!(twice, format!("{name}: `write_indices`[2] must be used by one row only; also at position 0, got 4"));
        let raced = refused([3, 1, -1, 6], WRITE);
        let expected = "a slot that no other sequence writes, as does the one at position 0";
        assert_eq!(raced, format!("{name}: `read_indices`[1] must be {expected}, got 1"));
        let short = case.run(&Exec::cpu(2), [&READ[..3], &WRITE], DType::I64).unwrap_err();
        assert!(matches!(short, Error::Shape { argument: "read_indices", .. }), "{short}");
    }
}

#[test]
fn a_pool_of_another_shape_or_beside_a_state_is_refused() {
    let mut case = cases(&[(DType::F32, DType::F32)]).find(|case| case.base.signature.name == "ssd").unwrap();
    let (rows, exec) = (case.rows(), Exec::cpu(1));
    let shape = case.pool.shape();
    let at = case.state_at();
    case.inputs[at] = Some(Tensor::host(DType::F32, &[&[rows], &shape[1..]].concat()).unwrap());
    let refused = case.run(&exec, [&READ[..rows], &WRITE[..rows]], DType::I64).unwrap_err();
    assert!(matches!(refused, Error::Presence { argument: "initial_state", .. }), "{refused}");
    case.inputs[at] = None;
    case.pool = Tensor::host(DType::F32, &[SLOTS, 1, shape[2], shape[3]]).unwrap();
    let refused = case.run(&exec, [&READ[..rows], &WRITE[..rows]], DType::I64).unwrap_err();
    assert!(matches!(refused, Error::Shape { argument: "state_pool", .. }), "{refused}");
}

/// The slots that sequences in pieces start in, and that their pieces end in: pieces without steps, some that leave nothing, sequences that end where they start.
const PIECES: [(&[i64], [i64; 4]); 3] = [(&[3, 6], [1, 3, 0, -1]), (&[-1, 6], [3, 1, -1, 4]), (&[6], [1, 0, 6, 5])];

#[test]
fn states_at_positions_are_those_that_cut_calls_leave() {
    let plain = |case: &Case| case.packed && case.scenario.name == "plain";
    for mut case in cases(&[(DType::F32, DType::F32), (DType::BF16, DType::BF16)]).filter(plain) {
        let (first, dtype) = (case.pool.to_dense(), case.pool.dtype());
        let has_reverse = case.base.signature.option("reverse").is_some();
        for (exec, (read, write)) in executors().into_iter().flat_map(|exec| PIECES.map(|slots| (exec.clone(), slots))) {
            // on the CPU a state goes from piece to piece by its slot, and is rounded there if it has one; on a GPU it stays in f32
            let rounds = exec.device() == Device::Cpu;
            if rounds && dtype == DType::BF16 && write.contains(&-1) {
                continue;
            }
            for reverse in [false, true].into_iter().filter(|reverse| has_reverse || !reverse) {
                (case.reverse, case.pool) = (reverse, Tensor::from_dense(&first, dtype));
                let [got, pool] = case.run(&exec, [read, &write], DType::I64).unwrap();
                let (bound, what) = (ErrorBound::for_scan(dtype, 1000), format!("{} reverse {reverse}", case.what(&exec)));
                if !rounds && dtype == DType::BF16 {
                    case.pool = Tensor::from_dense(&first, DType::F32);
                }
                let [y, expected] = case.cut(&exec, read, &write);
                common::assert_close(&what, &pool, &expected, bound);
                common::assert_close(&what, &got, &y, bound);
            }
        }
    }
}

#[test]
fn pieces_that_are_none_are_refused() {
    if common::device::only_gpu() {
        return println!("skipped: only the device reads bounds there");
    }
    let plain = |case: &Case| case.packed && case.scenario.name == "plain";
    for mut case in cases(&[(DType::F32, DType::F32)]).filter(plain) {
        let (name, at) = (case.base.signature.name, case.base.signature.argument("cu_seqlens").unwrap());
        let mut refused = |bounds: &[i64], write: &[i64]| {
            case.inputs[at] = Some(indices(DType::I32, bounds));
            let before = case.pool.to_dense();
            let error = case.run(&Exec::cpu(2), [&[3, 6], write], DType::I64).unwrap_err().to_string();
            assert_eq!(case.pool.to_dense().data(), before.data());
            error
        };
        let unsorted = refused(&[0, 40, 2, 50, 83], &[0, 1, 2, 4]);
        assert_eq!(unsorted, format!("{name}: `cu_seqlens`[2] must be at least the element before it, 40, got 2"));
        let beyond = refused(&[0, 2, 40, 84, 83], &[0, 1, 2, 4]);
        assert_eq!(beyond, format!("{name}: `cu_seqlens`[3] must be at most the sequence length 83, got 84"));
        let twice = refused(&BOUNDS, &[0, 1, 2, 1]);
        assert_eq!(twice, format!("{name}: `write_indices`[3] must be used by one row only; also at position 1, got 1"));
        let raced = refused(&BOUNDS, &[0, 6, 2, 1]);
        let expected = "a slot that no other sequence writes, as does the one at position 0";
        assert_eq!(raced, format!("{name}: `read_indices`[1] must be {expected}, got 6"));
        case.inputs[at] = Some(indices(DType::I32, &[0, 2, 40, 83]));
        let few = case.run(&Exec::cpu(2), [&[3, 6], &[0, 1, 2, 4]], DType::I64).unwrap_err();
        assert!(matches!(few, Error::Value { argument: "write_indices", .. }), "{few}");
    }
}

#[test]
fn rows_that_are_one_sequence_have_no_pieces() {
    let named = |case: &Case| case.base.signature.name == "linear_scan" && case.scenario.name == "plain";
    let case = cases(&[(DType::F32, DType::F32)]).find(named).unwrap();
    let (rows, write): (usize, Vec<i64>) = (case.rows(), (0..2 * case.rows() as i64).collect());
    for exec in executors() {
        let refused = case.run(&exec, [&READ[..rows], &write], DType::I64).unwrap_err();
        assert!(matches!(refused, Error::Unavailable { what: "linear_scan", .. }), "{refused}");
    }
}

#[test]
fn several_threads_and_a_slot_that_stays() {
    // each thread has parts of a row; a sequence that ends in the slot it starts from must read all of it before
    for case in cases(&[(DType::F32, DType::F32)]).filter(|case| !case.packed) {
        let rows = case.rows();
        let same: Vec<i64> = (0..rows as i64).collect();
        let one = case.run(&Exec::cpu(1), [&same, &same], DType::I64).unwrap();
        for _ in 0..3 {
            let many = case.run(&Exec::cpu(3), [&same, &same], DType::I64).unwrap();
            assert!(
                one.iter().zip(&many).all(|(a, b)| a.to_dense().data() == b.to_dense().data()),
                "{}",
                case.base.signature.name
            );
        }
    }
}

#[test]
fn numbers_that_are_no_slots_touch_nothing_on_a_gpu() {
    let Some(exec) = common::device::gpu() else { return println!("skipped: there is no GPU") };
    for case in cases(&[(DType::F32, DType::F32)]).filter(|case| case.scenario.name == "plain") {
        let rows = case.rows();
        let [far, negative] = [[9, i64::MAX, 1 << 32, 77], [-1, i64::MIN, -1 << 33, -9]];
        let zeros = case.run(&exec, [&[-1; 4][..rows], &[-1; 4][..rows]], DType::I64).unwrap();
        for (read, write) in [(far, negative), (negative, far)] {
            let [y, pool] = case.run(&exec, [&read[..rows], &write[..rows]], DType::I64).unwrap();
            assert_eq!(y.to_dense().data(), zeros[0].to_dense().data(), "y of {}", case.what(&exec));
            assert_eq!(pool.to_dense().data(), case.pool.to_dense().data(), "pool of {}", case.what(&exec));
        }
    }
}
