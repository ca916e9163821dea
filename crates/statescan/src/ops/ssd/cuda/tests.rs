//! Every family of configurations compiles for every architecture, without a GPU: registers do not spill, shared memory suffices.

use super::super::Args;
use super::super::{GradientTargets, Sources, Targets};
use super::backward::Plan;
use super::hopper::{fused, halves, hand_on, packed, walk as hopper};
use super::portable::gradients::{self, GRADIENTS};
use super::portable::maps::{MAPS, Maps, Of};
use super::portable::plan::Tiles;
use super::walk::{Direction, FORWARD, Output, Pass, WALK, Walk};
use super::*;
use crate::cuda::Numbers;
use crate::cuda::testing::{Suite, target, tensor};
use crate::ops::prepared::NO_STATES;
use crate::tensor::Device;

/// What kernels are made for.
#[derive(Clone, Copy)]
struct Made {
    numbers: Numbers,
    architectures: [&'static str; 2],
    tf32: bool,
}

/// Devices with much shared memory and with little, and the architectures of both.
static DEVICES: [Made; 2] = [
    Made { numbers: Numbers::H200, architectures: ["sm_90a", "sm_100"], tf32: false },
    Made { numbers: Numbers::SMALL, architectures: ["sm_80", "sm_120"], tf32: false },
];

/// (seqlen, nheads, headdim, ngroups, dstate)
type Sizes = [usize; 5];

fn args(dtype: DType, [l, h, p, g, n]: Sizes) -> Args<'static> {
    let of = |shape: &[usize]| tensor(dtype, shape);
    let maps = of(&[2, l, g, n]);
    Args::new(of(&[2, l, h, p]), of(&[2, l, h]), tensor(DType::F32, &[h]), maps, maps)
}

/// Adds the kernels of both passes for a device, with time cut or not.
fn add(suite: &mut Suite, args: &Args<'_>, state: &[usize], made: Made, cut: bool) {
    let Made { numbers, architectures, tf32 } = made;
    let state = tensor(DType::F32, state);
    let problem = Problem::new(args, Device::Cuda(0), [Some(state.shape()), None]).unwrap();
    let like = |view: View<'_>| target(tensor(view.dtype(), &view.shape()));
    let last = problem.normal.state(target(state));
    let targets = Targets { y: Some(like(problem.x)), final_state: Some(last), checkpoints: None, workspace: None };
    let call = Call::new(&problem, None);
    let tiles = Tiles::new(&call.shape(call.math(tf32)), FORWARD, numbers).unwrap();
    let output = Output::Y(targets.y.as_ref().unwrap());
    let walk = Walk {
        call,
        direction: Direction::Forward,
        output,
        before: problem.initial_state,
        after: targets.final_state,
        slots: None,
        slot_chunks: 1,
    };
    for pass in if cut { vec![Pass::Ends, Pass::Rest] } else { vec![Pass::Whole] } {
        suite.add_for(&architectures, &WALK, &walk.config(&tiles, pass, numbers));
    }
    add_backward(suite, &problem, last, made);
}

/// Adds the kernels of both passes on Hopper.
fn add_hopper(suite: &mut Suite, args: &Args<'_>) {
    add_walks_on_hopper(suite, args);
    let problem = Problem::new(args, Device::Cuda(0), NO_STATES).unwrap();
    if problem.dstate > hopper::MOST_STATES {
        return;
    }
    let mut targets = every_gradient(&problem);
    add_fused(suite, &problem, &targets, None);
    (targets.dt, targets.d, targets.z) = (None, None, None);
    add_fused(suite, &problem, &targets, None);
}

/// Adds the walks: with y, its first and its second launch; with slots in both directions; and for the states alone.
fn add_walks_on_hopper(suite: &mut Suite, args: &Args<'_>) {
    let problem = Problem::new(args, Device::Cuda(0), NO_STATES).unwrap();
    let plan = hopper::Plan::new(&problem, Numbers::H200).unwrap();
    let y = target(problem.x);
    let state = Walk {
        call: Call::new(&problem, Some(problem.x)),
        direction: Direction::Forward,
        output: Output::Nothing,
        before: problem.initial_state,
        after: None,
        slots: None,
        slot_chunks: 1,
    };
    let slots = Walk { slots: Some(0), slot_chunks: fused::SLOT_CHUNKS, ..state };
    let forward = Walk { output: Output::Y(&y), ..state };
    let backward = Walk { direction: Direction::Backward, ..slots };
    for (walk, passes) in [
        (&state, &[Pass::Whole][..]),
        (&forward, &[Pass::Whole, Pass::Ends, Pass::Rest]),
        (&slots, &[Pass::Whole, Pass::Rest]),
        (&backward, &[Pass::Whole, Pass::Ends, Pass::Rest]),
    ] {
        for &pass in passes {
            suite.add_for(&["sm_90a"], &hopper::KERNEL, &plan.config(walk, pass));
        }
    }
    if plan.packed.is_some() {
        suite.add_for(&["sm_90a"], &packed::SEQUENCES, &packed::config(&slots.call, slots.slot_chunks));
        suite.add_for(&["sm_90a"], &hand_on::KERNEL, &hand_on::config(&forward.call, &forward.before, &forward.after));
    }
}

fn add_fused(suite: &mut Suite, problem: &Problem<'_>, targets: &GradientTargets, half: Option<fused::Half>) {
    let plan = fused::Plan::new(problem, Numbers::H200).unwrap();
    let config = plan.config(&Call::new(problem, Some(problem.x)), targets, half, Numbers::H200);
    suite.add_for(&["sm_90a"], &fused::KERNEL, &config);
}

/// Adds the gradients of more than 128 states.
fn add_halves(suite: &mut Suite, args: &Args<'_>) {
    let problem = Problem::new(args, Device::Cuda(0), NO_STATES).unwrap();
    let [first, second] = halves::of_states(&problem).unwrap();
    let targets = every_gradient(&problem);
    add_fused(suite, &second, &targets, Some(fused::Half::Second));
    add_fused(suite, &first, &GradientTargets { d: None, ..targets }, Some(fused::Half::First));
}

/// Every gradient but that of the initial state.
fn every_gradient(p: &Problem<'_>) -> GradientTargets {
    let like = |view: View<'_>| target(tensor(view.dtype(), &view.shape()));
    GradientTargets {
        x: Some(like(p.x)),
        dt: Some(like(p.dt)),
        a: Some(like(p.a)),
        b: Some(like(p.b)),
        c: Some(like(p.c)),
        d: p.d.map(like),
        z: p.z.map(like),
        dt_bias: p.dt_bias.map(like),
        dt_a: p.dt_a.map(like),
        initial_state: None,
        workspace: None,
    }
}

#[test]
fn ssd_kernels_compile_for_hopper() {
    let Some(mut suite) = Suite::new() else { return };
    for (at, sizes) in [[2048, 80, 64, 1, 128], [100, 6, 80, 2, 64], [300, 60, 64, 1, 256]].into_iter().enumerate() {
        let [_, h, p, _, n] = sizes;
        let plain = args(DType::BF16, sizes);
        let (head, state) = (tensor(DType::F32, &[h]), tensor(DType::F32, &[2, h, p, n]));
        let skip = Args { d: Some(head), ..plain };
        let all = Args {
            z: Some(plain.x),
            dt_bias: Some(head),
            dt_softplus: true,
            dt_limit: (0.0, 1.0),
            initial_state: Some(state),
            dt_a: Some(plain.dt),
            ..skip
        };
        let wide_skip = Args { d: Some(tensor(DType::BF16, &[h, p])), ..plain };
        // the smaller one has the options that the larger one lacks, and all of them
        let some = [
            vec![plain, Args { z: Some(plain.x), ..wide_skip }, all],
            vec![skip, Args { z: Some(plain.x), ..plain }, all],
            vec![plain, all],
        ];
        for args in &some[at] {
            add_hopper(&mut suite, args);
        }
        let packed = Args { sequences: Sequences::SeqIdx(tensor(DType::I32, &[2, sizes[0]])), ..all };
        match at {
            // with every option its fused kernel is longer than the rest
            0 => add_walks_on_hopper(&mut suite, &packed),
            1 => add_hopper(&mut suite, &packed),
            _ => {
                add_walks_on_hopper(&mut suite, &packed);
                [plain, Args { d: wide_skip.d, ..all }, packed].iter().for_each(|args| add_halves(&mut suite, args));
            }
        }
    }
    let of = |shape: &[usize]| tensor(DType::BF16, shape);
    let maps = of(&[1, 512, 1, 128]);
    let packed = Args::new(of(&[1, 512, 8, 64]), of(&[1, 512, 8]), tensor(DType::F32, &[8]), maps, maps);
    let bounds = Sequences::CuSeqlens(tensor(DType::I32, &[6]));
    add_hopper(&mut suite, &Args { sequences: bounds, ..packed });
    suite.compile();
}

fn add_backward(suite: &mut Suite, p: &Problem<'_>, last: RawViewMut, Made { numbers, architectures, tf32 }: Made) {
    let architectures = &architectures;
    let sources = Sources { checkpoints: None, y: Some(p.x), final_state: Some(last.as_read()) };
    let t = GradientTargets { initial_state: Some(last), ..every_gradient(p) };
    let mut call = Call::new(p, sources.y);
    let plan = Plan::new(&call, call.math(tf32), numbers).unwrap();
    call.gated = plan.keeps_gated(&call, &t).then_some(0);
    let tiles = &plan.tiles;
    let forward = Walk {
        call,
        direction: Direction::Forward,
        output: t.z.as_ref().map_or(Output::Nothing, Output::Gate),
        before: p.initial_state,
        after: None,
        slots: Some(0),
        slot_chunks: 1,
    };
    let backward = Walk {
        direction: Direction::Backward,
        output: Output::Nothing,
        before: sources.final_state,
        after: t.initial_state,
        ..forward
    };
    for walk in [forward, backward] {
        suite.add_for(architectures, &WALK, &walk.config(tiles, Pass::Whole, numbers));
    }
    suite.add_for(architectures, &GRADIENTS, &gradients::config(&call, &sources, &t, tiles, numbers));
    for (of, target) in [(Of::B, &t.b), (Of::C, &t.c)] {
        let maps = Maps { of, target: target.as_ref().unwrap(), slots: 0, terms: 0, slices: plan.slices };
        suite.add_for(architectures, &MAPS, &maps.config(&call, &sources, tiles, numbers));
    }
}

fn add_types_and_sizes(suite: &mut Suite) {
    let sizes: [Sizes; 6] = [
        [2048, 80, 64, 1, 128],
        [1000, 8, 80, 1, 128],
        [100, 4, 128, 1, 64],
        [333, 24, 64, 2, 256],
        [7, 3, 24, 3, 17],
        [70, 2, 1, 1, 1],
    ];
    for (dtype, sizes) in [(DType::BF16, &sizes[..]), (DType::F16, &sizes[..4]), (DType::F32, &sizes[1..3])] {
        for (i, &sizes) in sizes.iter().enumerate() {
            let [_, h, p, _, n] = sizes;
            add(suite, &args(dtype, sizes), &[2, h, p, n], DEVICES[i % 2], i == 0);
        }
    }
}

fn add_options(suite: &mut Suite) {
    let sizes = [512, 24, 64, 1, 128];
    let [_, h, p, _, n] = sizes;
    let plain = args(DType::BF16, sizes);
    let (head, own) = (tensor(DType::F32, &[h]), tensor(DType::F32, &[2, h, p, n]));
    let all = Args { d: Some(head), z: Some(plain.x), dt_bias: Some(head), dt_softplus: true, ..plain };
    add(suite, &Args { dt_limit: (0.0, 1.0), initial_state: Some(own), ..all }, &[2, h, p, n], DEVICES[0], false);
    add(
        suite,
        &Args { d: Some(tensor(DType::F32, &[h, p])), dt_a: Some(plain.dt), reverse: true, ..plain },
        &[2, h, p, n],
        DEVICES[1],
        false,
    );
    let index = Sequences::SeqIdx(tensor(DType::I64, &[2, sizes[0]]));
    add(suite, &Args { sequences: index, ..all }, &[2, h, p, n], DEVICES[1], false);
    add(suite, &Args { sequences: index, reverse: true, ..plain }, &[2, 4, h, p, n], DEVICES[0], true);
    let of = |shape: &[usize]| tensor(DType::BF16, shape);
    let maps = of(&[1, 512, 1, 128]);
    let packed = Args::new(of(&[1, 512, 8, 64]), of(&[1, 512, 8]), tensor(DType::F32, &[8]), maps, maps);
    let bounds = Sequences::CuSeqlens(tensor(DType::I32, &[6]));
    add(suite, &Args { sequences: bounds, ..packed }, &[5, 8, 64, 128], DEVICES[0], false);
}

#[test]
fn ssd_kernels_compile() {
    let Some(mut suite) = Suite::new() else { return };
    add_types_and_sizes(&mut suite);
    add_options(&mut suite);
    let [l, h, p, g, n] = [2048, 80, 64, 1, 128];
    let state = [2, h, p, n];
    add(&mut suite, &args(DType::F32, [l, h, p, g, n]), &state, Made { tf32: true, ..DEVICES[0] }, false);
    // half precision with every option
    let plain = args(DType::F16, [l, h, p, g, n]);
    let head = tensor(DType::F32, &[h]);
    let all = Args { d: Some(head), z: Some(plain.x), dt_bias: Some(head), dt_softplus: true, ..plain };
    add(&mut suite, &Args { initial_state: Some(tensor(DType::F32, &state)), ..all }, &state, DEVICES[1], false);
    suite.compile();
}
