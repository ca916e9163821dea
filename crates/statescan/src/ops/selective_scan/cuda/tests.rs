//! Every family of configurations compiles for every architecture, without a GPU: registers do not spill, shared memory suffices.

use super::super::{Args, GradientTargets, Sources, Targets};
use super::backward::{BACKWARD, Backward};
use super::forward::{FORWARD, Forward};
use super::phases::{ENDS, Together};
use super::plan::{Cut, Plan};
use super::*;
use crate::cuda::testing::{Suite, target, tensor};
use crate::cuda::{Key, Numbers};
use crate::ops::call::PassKind;
use crate::ops::checked::Checked;
use crate::ops::states::testing::pool;
use crate::ops::states::{NO_STATES, States};
use crate::tensor::Device;

/// Devices with much shared memory and with little, and the architectures of both.
static DEVICES: [(Numbers, [&str; 2]); 2] = [(Numbers::H200, ["sm_90a", "sm_100"]), (Numbers::SMALL, ["sm_80", "sm_120"])];

/// Sizes and types of a case; options are set on its arguments.
#[derive(Clone, Copy)]
struct Case {
    batch: usize,
    dim: usize,
    seqlen: usize,
    dstate: usize,
    dtype: DType,
    complex: bool,
    /// The devices that plans are made for.
    devices: &'static [(Numbers, [&'static str; 2])],
}

impl Case {
    fn args(&self) -> Args<'static> {
        let Case { batch, dim, seqlen, dstate, dtype, complex, .. } = *self;
        let wide = if complex { DType::Complex64 } else { DType::F32 };
        let map = tensor(if complex { wide } else { dtype }, &[batch, dstate, seqlen]);
        let x = tensor(dtype, &[batch, dim, seqlen]);
        Args::new(x, x, tensor(wide, &[dim, dstate]), map, map)
    }

    /// Adds the kernels of both passes.
    fn add(&self, suite: &mut Suite, args: &Args<'_>, state: &[usize]) {
        let field = if self.complex { DType::Complex64 } else { DType::F32 };
        let state = tensor(field, state);
        let problem = Problem::new(args, Device::Cuda(0), States::of_shapes([Some(state.shape()), None])).unwrap();
        let targets = Targets {
            y: Some(problem.normal.timed(target(tensor(self.dtype, &args.x.shape())), 2)),
            final_state: Some(problem.normal.state(target(state))),
            checkpoints: Some(target(tensor(DType::F32, &[checkpoints_len(&problem)]))),
            workspace: None,
        };
        let call = Forward::new(&problem, &targets);
        for &(numbers, architectures) in self.devices {
            let cut = Cut::new(&call.call.shape(), numbers);
            let in_two_phases = cut.map(|cut| (Some(cut.in_two_phases(self.seqlen)), Some(0)));
            for (cut, ends) in [(None, None), (cut, None)].into_iter().chain(in_two_phases) {
                let plan = Plan::new(&call.call.shape(), cut, numbers, |geometry| call.memory(geometry)).unwrap();
                let call = Forward { ends, ..Forward::new(&problem, &targets) };
                for &pass in Pass::all(cut.is_some()) {
                    suite.add_for(&architectures, &FORWARD, &call.config(&plan, pass));
                }
                if ends.is_some() {
                    let state = targets.final_state;
                    let together =
                        Together { problem: &problem, start: problem.initial_state, state, decay: state, backwards: false };
                    suite.add_for(&architectures, &ENDS, &together.config(call.config(&plan, Pass::Ends)));
                }
            }
        }
        self.add_backward(suite, &problem, target(state));
    }

    /// Adds those of a backward pass with every gradient.
    fn add_backward(&self, suite: &mut Suite, problem: &Problem<'_>, state: RawViewMut) {
        let p = problem;
        let like = |view: View<'_>| target(tensor(view.dtype(), &view.shape()));
        let map = |map: &Projection<View<'_>>| match map {
            Projection::Varying(view) => Projection::Varying(like(*view)),
            Projection::Constant(view) => Projection::Constant(like(*view)),
        };
        let sources = Sources {
            checkpoints: None,
            y: Some(p.normal.timed(tensor(self.dtype, &p.x.shape()), 2)),
            final_state: Some(p.normal.state(state.as_read())),
        };
        let targets = GradientTargets {
            x: Some(like(p.x)),
            dt: Some(like(p.dt)),
            a: Some(like(p.a)),
            b: Some(map(&p.b)),
            c: Some(map(&p.c)),
            d: p.d.map(like),
            z: p.z.map(like),
            dt_bias: p.dt_bias.map(like),
            dt_a: p.dt_a.map(like),
            initial_state: Some(p.normal.state(state)),
            workspace: None,
        };
        for two_phase in [false, true] {
            let call = Backward { call: Call::new(p), sources: &sources, targets: &targets, two_phase };
            for &(numbers, architectures) in self.devices {
                let plan = call.plan_for(numbers, call.cotangent()).unwrap();
                for &pass in Pass::all(plan.cut.is_some()).iter().filter(|_| !two_phase || plan.cut.is_some()) {
                    suite.add_for(&architectures, &BACKWARD, &call.config(&plan, pass, true));
                }
            }
        }
    }
}

fn case(dim: usize, seqlen: usize, dstate: usize, dtype: DType, complex: bool) -> Case {
    Case { batch: 2, dim, seqlen, dstate, dtype, complex, devices: &DEVICES }
}

/// Adds cases of options, for one device in turn: another one for real states than for complex ones.
fn add_in_turn<'a>(suite: &mut Suite, case: Case, cases: impl IntoIterator<Item = (Args<'a>, Vec<usize>)>) {
    for (i, (args, state)) in cases.into_iter().enumerate() {
        let device = (i + usize::from(case.complex)) % 2;
        Case { devices: &DEVICES[device..=device], ..case }.add(suite, &args, &state);
    }
}

fn add_types_and_sizes(suite: &mut Suite) {
    let sizes = [(16384, 2048, 16), (2048, 4096, 16), (192, 100, 16), (64, 2048, 128), (100, 333, 70), (7, 5, 0), (40, 9, 256)];
    // 16-bit types share all but their conversions
    for (dtype, sizes) in [(DType::F32, &sizes[..]), (DType::BF16, &sizes[..2]), (DType::F16, &sizes[4..5])] {
        for &(dim, seqlen, dstate) in sizes {
            let case = case(dim, seqlen, dstate, dtype, false);
            case.add(suite, &case.args(), &[2, dim, dstate]);
        }
    }
}

fn add_options(suite: &mut Suite) {
    for (dtype, dim, complex) in [(DType::F32, 8192, false), (DType::BF16, 96, true)] {
        let case = case(dim, 1024, 16, dtype, complex);
        let plain = case.args();
        let channel = tensor(DType::F32, &[dim]);
        let own = tensor(if complex { DType::Complex64 } else { DType::F32 }, &[2, dim, 16]);
        let gated = Args { d: Some(channel), z: Some(plain.x), dt_bias: Some(channel), dt_softplus: true, ..plain };
        let mut options = vec![
            Args { dt_limit: (0.0, 1.0), initial_state: Some(own), reverse: true, ..gated },
            Args { b: plain.a, c: plain.a, ..plain },
        ];
        options.extend(Discretization::ALL.map(|discretization| Args { discretization, dt_a: Some(plain.dt), ..plain }));
        add_in_turn(suite, case, options.into_iter().map(|args| (args, vec![2, dim, 16])));
    }
}

/// Adds calls as models make them: every option, rows that are aligned and rows that begin anywhere.
fn add_models(suite: &mut Suite) {
    for (dtype, seqlen) in [(DType::BF16, 2048), (DType::BF16, 2047), (DType::F32, 2047)] {
        let case = case(16384, seqlen, 16, dtype, false);
        let (plain, channel) = (case.args(), tensor(DType::F32, &[case.dim]));
        let args = Args { d: Some(channel), z: Some(plain.x), dt_bias: Some(channel), dt_softplus: true, ..plain };
        case.add(suite, &args, &[2, case.dim, 16]);
    }
}

fn add_packed_sequences(suite: &mut Suite) {
    for (complex, dim) in [(false, 2048), (true, 64)] {
        let case = Case { batch: 1, ..case(dim, 1024, 16, DType::BF16, complex) };
        let args = case.args();
        let bounds = Sequences::CuSeqlens(tensor(DType::I32, &[6]));
        let index = Sequences::SeqIdx(tensor(DType::I64, &[1, 1024]));
        let cases = [
            (Args { sequences: bounds, ..args }, vec![5, dim, 16]),
            (Args { sequences: index, ..args }, vec![1, dim, 16]),
            (Args { sequences: index, reverse: true, ..args }, vec![1, 4, dim, 16]),
        ];
        add_in_turn(suite, case, cases);
    }
}

#[test]
fn selective_scans_compile() {
    let Some(mut suite) = Suite::new() else { return };
    add_types_and_sizes(&mut suite);
    add_options(&mut suite);
    add_models(&mut suite);
    add_packed_sequences(&mut suite);
    suite.compile();
}

/// A block of 320 channels declares more than what plans leave at least; with its tiles and that it would not fit.
#[test]
fn plans_leave_room_for_what_kernels_declare() {
    let numbers = Numbers::SMALL;
    let case = Case { batch: 8, ..case(3200, 8, 1, DType::BF16, false) };
    let x = tensor(DType::BF16, &[8, 8, 3200]).permute(&[0, 2, 1]);
    let map = tensor(DType::F32, &[8, 1, 8]);
    let problem = Args { x, dt: x, z: Some(x), b: map, c: map, d: Some(tensor(DType::F32, &[3200])), ..case.args() };
    let problem = Problem::new(&problem, Device::Cuda(0), NO_STATES).unwrap();
    let targets = Targets { y: None, final_state: None, checkpoints: None, workspace: None };
    let call = Forward::new(&problem, &targets);
    let plan = Plan::new(&call.call.shape(), None, numbers, |geometry| call.memory(geometry)).unwrap();
    let memory = call.memory(plan.geometry);
    assert!(plan.geometry.channels > 128 && memory.whole_len() <= numbers.shared_per_block, "{plan:?} {memory:?}");
    // kernels declare the two vectors that `forward.cu` has
    assert_eq!(memory.whole_len() - memory.len(), (2 * 4 * plan.geometry.channels).next_multiple_of(128));
}

/// The key of a forward pass that writes `y`, laid out like `x`, and of a backward pass that reads its gradient.
fn keys(args: &Args<'_>) -> [Option<Key>; 2] {
    let problem = Problem::new(args, Device::Cuda(0), NO_STATES).unwrap();
    let checked = Checked { device: Device::Cuda(0), call: &args.call(), problem: &problem, pool: None };
    [PassKind::Forward, PassKind::Backward].map(|pass| checked.key(pass, [Some(args.x)].into_iter()))
}

fn moved(view: View<'static>, bytes: usize) -> View<'static> {
    let address = view.as_ptr().wrapping_add(bytes);
    // SAFETY: nothing reads through the view.
    unsafe { View::from_raw_parts(address, view.dtype(), view.device(), &view.shape(), &view.strides()) }.unwrap()
}

#[test]
fn whatever_kernels_are_made_for_tells_keys_apart() {
    let timed = |dtype| tensor(dtype, &[1, 8, 64]);
    let (x, a, map) = (timed(DType::F32), tensor(DType::F32, &[8, 4]), tensor(DType::F32, &[1, 4, 64]));
    let (channel, state) = (tensor(DType::F32, &[8]), tensor(DType::F32, &[1, 8, 4]));
    let plain = Args::new(x, x, a, map, map);
    let all = [
        plain,
        Args { x: timed(DType::BF16), ..plain },
        Args { x: tensor(DType::F32, &[1, 64, 8]).permute(&[0, 2, 1]), ..plain },
        Args { x: moved(x, 4), ..plain },
        Args { dt: moved(x, 4), ..plain },
        Args { a: tensor(DType::F16, &[8, 4]), ..plain },
        Args { a: tensor(DType::Complex64, &[8, 4]), ..plain },
        Args { b: a, ..plain },
        Args { c: a, ..plain },
        Args { b: tensor(DType::F32, &[1, 2, 4, 64]), ..plain },
        Args { d: Some(channel), ..plain },
        Args { z: Some(x), ..plain },
        Args { dt_bias: Some(channel), ..plain },
        Args { dt_softplus: true, ..plain },
        Args { dt_limit: (0.0, 1.0), ..plain },
        Args { dt_a: Some(x), ..plain },
        Args { initial_state: Some(state), ..plain },
        Args { sequences: Sequences::CuSeqlens(tensor(DType::I32, &[3])), ..plain },
        Args { sequences: Sequences::CuSeqlens(tensor(DType::I32, &[4])), ..plain },
        Args { sequences: Sequences::SeqIdx(tensor(DType::I32, &[1, 64])), ..plain },
        Args { reverse: true, ..plain },
        Args { discretization: Discretization::Zoh, ..plain },
    ];
    let all: Vec<_> = all.iter().flat_map(keys).collect();
    for (i, one) in all.iter().enumerate() {
        for (j, other) in all.iter().enumerate() {
            assert_eq!(one == other, i == j, "{i} {j}");
        }
    }
    // addresses do not
    let elsewhere = Args { x: moved(x, 64), d: Some(moved(channel, 32)), ..plain };
    assert_eq!(keys(&elsewhere), keys(&Args { d: Some(channel), ..plain }));
}

#[test]
fn pooled_scans_compile() {
    let Some(mut suite) = Suite::new() else { return };
    let (whole, packed, pieces) = ((None, None), (Some(6), None), (Some(6), Some(5)));
    let cases =
        [(false, whole, DType::BF16), (false, packed, DType::F32), (true, packed, DType::F32), (false, pieces, DType::F32)];
    for (complex, (bounds, pieces), dtype) in cases {
        let case = Case { batch: 1, ..case(64, 1024, 16, dtype, complex) };
        let args = case.args().sequences(bounds.map_or(Sequences::Whole, |n| Sequences::CuSeqlens(tensor(DType::I32, &[n]))));
        let field = if complex { DType::Complex64 } else { dtype };
        let states = pool(field, (bounds.map_or(1, |n| n - 1), pieces), &[64, 16]);
        let problem = Problem::new(&args, Device::Cuda(0), states).unwrap();
        let (y, state) = (target(problem.x), problem.initial_state.map(target));
        let targets = Targets { y: Some(y), final_state: state, checkpoints: None, workspace: None };
        let call = Forward::new(&problem, &targets);
        for &(numbers, architectures) in case.devices {
            let cut = Cut::new(&call.call.shape(), numbers);
            let plan = Plan::new(&call.call.shape(), cut, numbers, |geometry| call.memory(geometry)).unwrap();
            for &pass in Pass::all(cut.is_some()) {
                suite.add_for(&architectures, &FORWARD, &call.config(&plan, pass));
            }
        }
    }
    suite.compile();
}
