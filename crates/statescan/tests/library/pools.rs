//! Operations whose states lie in a pool, against the same operations beside states that were gathered.

use crate::checksums::scenario::{SCENARIOS, Scenario};
use crate::common::device::{home, is_gpu, on};
use crate::common::{self, Layout, Rng, executors, indices, poisoned};
use statescan::ops::{Call, Operation, Written};
use statescan::tensor::{Dense, ErrorBound};
use statescan::{DType, Error, Exec, Tensor};

/// Slots of the pool.
const SLOTS: usize = 9;
/// Where sequences start and end: two start from one slot, one from zeros; one stays in its slot, one leaves nothing.
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
        Case { base, pooled, scenario, packed, inputs, pool }
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
        let slots = [read, write].map(|slots| on(exec, &indices(dtype, slots)));
        let before = on(exec, &self.pool);
        let mut call = Call::new(self.pooled.signature);
        let all = inputs.iter().map(|input| input.as_ref().map(Tensor::view)).chain(slots.iter().map(|slots| Some(slots.view())));
        call.views.iter_mut().zip(all).for_each(|(view, input)| *view = input);
        self.scenario.set(&mut call);
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
