//! Every family of configurations compiles for every architecture, without a GPU: registers do not spill, shared memory suffices.

use super::super::Args;
use super::super::{GradientTargets, Sources, Targets};
use super::forward::{self, WalkRoute};
use super::half_states;
use super::hopper::{cuts, fused, hand_on, packed, walk as hopper};
use super::portable::gradients::{self, GRADIENTS};
use super::portable::maps::{MAPS, Maps, Of};
use super::portable::walk::WALK;
use super::route::{ByChunk, Route};
use super::walk::{Direction, Output, Walk};
use super::*;
use crate::cuda::testing::{Suite, target, tensor};
use crate::cuda::{Numbers, PlannedLaunch};
use crate::ops::on_cuda::Pass;
use crate::ops::sequences::Sequences;
use crate::ops::states::testing::pool;
use crate::ops::states::{NO_STATES, States};
use crate::tensor::Device;

/// The device that kernels are made for.
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
    let problem = Problem::new(args, Device::Cuda(0), States::of_shapes([Some(state.shape()), None])).unwrap();
    let like = |view: View<'_>| target(tensor(view.dtype(), &view.shape()));
    let last = problem.normal.state(target(state));
    let targets = Targets { y: Some(like(problem.x)), final_state: Some(last), checkpoints: None, workspace: None };
    let walk = Walk::forward(&problem, targets.y.as_ref(), targets.final_state);
    let route = portable::walk::Route::alone(&walk, Hardware { numbers, tf32 }).unwrap();
    for pass in if cut { vec![Pass::Ends, Pass::Rest] } else { vec![Pass::Whole] } {
        suite.add_for(&architectures, &WALK, &route.config(&walk, pass));
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
    let state = Walk { call: Call::new(&problem, Some(problem.x)), ..Walk::forward(&problem, None, None) };
    let slots = Walk { slots: Some(plan.slots(&problem, fused::SLOT_CHUNKS)), ..state };
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
    if plan.packed.is_none() {
        // in two phases
        for (walk, pass) in [(&forward, Pass::Ends), (&forward, Pass::Rest), (&backward, Pass::Ends), (&backward, Pass::Rest)] {
            suite.add_for(&["sm_90a"], &hopper::KERNEL, &plan.config(&Walk { part: Pass::Ends, ..*walk }, pass));
        }
        for (walk, decay) in [(&forward, Some(target(problem.a))), (&backward, None)] {
            let walk = Walk { part: Pass::Ends, after: Some(target(problem.a)), ..*walk };
            suite.add_for(&["sm_90a"], &hopper::ENDS, &plan.config_of_ends(&walk, &decay));
        }
    }
    if plan.packed.is_some() {
        suite.add_for(&["sm_90a"], &packed::FIND, &packed::config(&slots.call, slots.slot_chunks()));
        suite.add_for(&["sm_90a"], &hand_on::KERNEL, &hand_on::config(&forward.call, &forward.before, &forward.after));
    }
}

fn add_fused(suite: &mut Suite, problem: &Problem<'_>, targets: &GradientTargets, half: Option<fused::HalfStates>) {
    let plan = fused::Plan::new(problem, Numbers::H200).unwrap();
    let config = plan.config(&Call::new(problem, Some(problem.x)), targets, half, Numbers::H200);
    suite.add_for(&["sm_90a"], &fused::KERNEL, &config);
}

/// Adds the gradients of more than 128 states.
fn add_half_states(suite: &mut Suite, args: &Args<'_>) {
    let problem = Problem::new(args, Device::Cuda(0), NO_STATES).unwrap();
    let [first, second] = half_states::of_states(&problem).unwrap();
    let targets = every_gradient(&problem);
    add_fused(suite, &second, &targets, Some(fused::HalfStates::Second));
    add_fused(suite, &first, &GradientTargets { d: None, ..targets }, Some(fused::HalfStates::First));
}

/// Every gradient but that of the initial state.
fn every_gradient(p: &Problem<'_>) -> GradientTargets {
    GradientTargets { initial_state: None, ..planned::every_gradient(p).unwrap() }
}

#[test]
fn ssd_kernels_compile_for_hopper() {
    let Some(mut suite) = Suite::new() else { return };
    for (at, sizes) in [[2048, 80, 64, 1, 128], [100, 6, 80, 2, 64], [300, 60, 64, 1, 256]].into_iter().enumerate() {
        let [_, h, p, _, n] = sizes;
        let plain = args(DType::BF16, sizes);
        // states of half the width are read by other means
        let of_state = if at == 1 { DType::BF16 } else { DType::F32 };
        let (head, state) = (tensor(DType::F32, &[h]), tensor(of_state, &[2, h, p, n]));
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
                [plain, Args { d: wide_skip.d, ..all }, packed].iter().for_each(|args| add_half_states(&mut suite, args));
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
    let route = ByChunk::new(&Call::new(p, sources.y), &sources, &t, Hardware { numbers, tf32 }).unwrap();
    let call = Call { gated: route.keeps_gated.then_some(0), ..Call::new(p, sources.y) };
    let tiles = &route.tiles;
    for walk in route.walks_of(call, &sources, &t) {
        let route = portable::walk::Route::beside(*tiles, None, numbers);
        suite.add_for(architectures, &WALK, &route.config(&walk, Pass::Whole));
    }
    suite.add_for(architectures, &GRADIENTS, &gradients::config(&call, &sources, &t, tiles, numbers));
    for (of, target) in [(Of::B, &t.b), (Of::C, &t.c)] {
        let maps = Maps { of, target: target.as_ref().unwrap(), slots: 0, terms: 0, slices: route.slices };
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

/// Numbers of a Hopper device and of another one.
const HOPPER: Hardware = Hardware { numbers: Numbers::H200, tf32: false };
const SMALL: Hardware = Hardware { numbers: Numbers::SMALL, tf32: false };

fn problem<'a>(args: &Args<'a>) -> Problem<'a> {
    Problem::new(args, Device::Cuda(0), NO_STATES).unwrap()
}

/// The route of a forward pass: nothing of a device is asked for it.
#[test]
fn routes_forwards_need_no_device() {
    let route = |args: &Args<'_>, hardware, has_workspace| {
        let problem = problem(args);
        let y = target(problem.x);
        WalkRoute::new(&Walk::forward(&problem, Some(&y), None), hardware, has_workspace).unwrap()
    };
    let hopper = |args: &Args<'_>| matches!(route(args, HOPPER, true), WalkRoute::Hopper(_));
    let plain = args(DType::BF16, [2048, 80, 64, 1, 128]);
    assert!(hopper(&plain) && hopper(&args(DType::BF16, [333, 24, 64, 1, 200])));
    // other types, columns that it does not have, another device, time backwards
    assert!(!hopper(&args(DType::F16, [2048, 80, 64, 1, 128])) && !hopper(&args(DType::F32, [2048, 80, 64, 1, 128])));
    assert!(!hopper(&args(DType::BF16, [2048, 80, 60, 1, 128])));
    assert!(matches!(route(&plain, SMALL, true), WalkRoute::Portable(_)));
    assert!(!hopper(&Args { reverse: true, ..plain }));
    // lines that the copy engine cannot read
    let odd = tensor(DType::BF16, &[2, 2048, 80, 68]).slice(3, 2..66);
    assert!(!hopper(&Args { x: odd, ..plain }));
    // packed sequences need room for what is known of them, and time is not cut without a workspace
    let packed = Args { sequences: Sequences::SeqIdx(tensor(DType::I32, &[2, 2048])), ..plain };
    assert!(hopper(&packed));
    let WalkRoute::Portable(without) = route(&packed, HOPPER, false) else { panic!("packed sequences need a workspace") };
    assert_eq!(without.cut, None);
}

/// The route of a backward pass, and the walks that it begins with.
#[test]
fn routes_backwards_need_no_device() {
    let with = |args: &Args<'_>, change: &dyn Fn(&mut Sources<'_>, &mut GradientTargets), hardware| {
        let problem = problem(args);
        let mut targets = every_gradient(&problem);
        let mut sources = Sources { checkpoints: None, y: Some(problem.x), final_state: None };
        change(&mut sources, &mut targets);
        Route::new(&Call::new(&problem, sources.y), &sources, &targets, hardware).unwrap()
    };
    let of = |args: &Args<'_>, hardware| with(args, &|_, _| (), hardware);
    let plain = args(DType::BF16, [2048, 80, 64, 1, 128]);
    let gated = Args { z: Some(plain.x), ..plain };
    assert!(matches!(of(&gated, HOPPER), Route::Fused(_)));
    assert!(matches!(of(&args(DType::BF16, [2048, 80, 64, 1, 256]), HOPPER), Route::HalfStates(_)));
    let by_chunk = |route| match route {
        Route::ByChunk(route) => route,
        other => panic!("{other:?}"),
    };
    // too few chunks to halve states; another device, type, direction
    by_chunk(of(&args(DType::BF16, [64, 8, 64, 1, 256]), HOPPER));
    by_chunk(of(&plain, SMALL));
    by_chunk(of(&args(DType::F16, [2048, 80, 64, 1, 128]), HOPPER));
    by_chunk(of(&Args { reverse: true, ..plain }, HOPPER));
    // a gradient that is not asked for: walks by Hopper's kernel beside others, unless they form the gradient by a gate
    let some = by_chunk(with(&plain, &|_, t| t.c = None, HOPPER));
    assert!(some.walks.iter().all(|walk| matches!(walk, Some(WalkRoute::Hopper(_)))), "{some:?}");
    let some = by_chunk(with(&gated, &|_, t| t.c = None, HOPPER));
    assert!(matches!(some.walks, [Some(WalkRoute::Portable(_)), Some(WalkRoute::Hopper(_))]) && some.keeps_gated, "{some:?}");
    // only what is wanted is walked
    let x_alone = |_: &mut Sources<'_>, t: &mut GradientTargets| *t = GradientTargets { x: t.x, ..GradientTargets::default() };
    let some = by_chunk(with(&plain, &x_alone, HOPPER));
    assert!(some.walks[0].is_none() && some.walks[1].is_some(), "{some:?}");
    // without a cotangent of y nothing is multiplied on the way back
    let some = by_chunk(with(&plain, &|sources, _| sources.y = None, HOPPER));
    assert!(matches!(some.walks[1], Some(WalkRoute::Portable(_))), "{some:?}");
}

/// The printed plan is the one that runs: the kernels of both passes, in their order.
#[test]
fn plans_are_told() {
    let of = |args: &Args<'_>, numbers| plan(&problem(args), numbers).unwrap();
    let names = |launches: &[PlannedLaunch]| launches.iter().map(|launch| launch.kernel).collect::<Vec<_>>();
    let plain = args(DType::BF16, [2048, 80, 64, 1, 128]);
    let hopper = of(&Args { z: Some(plain.x), ..plain }, Numbers::H200);
    assert_eq!(names(&hopper), ["ssd_hopper", "ssd_hopper", "ssd_hopper", "ssd_fused"]);
    assert_eq!(hopper.iter().filter(|launch| launch.pass == "backward").count(), 3);
    assert!(hopper.iter().all(|launch| launch.shared as usize <= Numbers::H200.shared_per_block), "{hopper:?}");
    assert_eq!(names(&of(&plain, Numbers::SMALL)), ["ssd_walk", "ssd_walk", "ssd_walk", "ssd_gradients", "ssd_maps", "ssd_maps"]);
    assert_eq!(
        names(&of(&args(DType::BF16, [2048, 80, 64, 1, 256]), Numbers::H200))[1..],
        ["ssd_hopper", "ssd_hopper", "ssd_fused"].repeat(2)
    );
    // a long row of few heads is cut: two launches of each walk
    assert_eq!(names(&of(&args(DType::F32, [65536, 2, 64, 1, 128]), Numbers::H200))[..4], ["ssd_walk"; 4]);
}

/// The workspace of every route lies within what was asked for before the route was known.
#[test]
fn a_workspace_suffices_for_every_route() {
    let sizes = [[2048, 80, 64, 1, 128], [5000, 3, 64, 1, 256], [300, 6, 80, 2, 17], [2048, 80, 64, 1, 256]];
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for (plain, hardware) in sizes.map(|sizes| args(dtype, sizes)).iter().flat_map(|args| [(args, HOPPER), (args, SMALL)]) {
            let index = Sequences::SeqIdx(tensor(DType::I32, &[2, plain.x.shape()[1]]));
            for args in [*plain, Args { z: Some(plain.x), ..*plain }, Args { sequences: index, ..*plain }] {
                let problem = problem(&args);
                let most = Route::most_workspace(&problem, hardware).unwrap();
                for (dy, without) in [(dtype, false), (dtype, true), (DType::F32, false)] {
                    let mut targets = every_gradient(&problem);
                    if without {
                        targets.b = None;
                    }
                    let sources = Sources { checkpoints: None, y: Some(tensor(dy, &problem.x.shape())), final_state: None };
                    let call = Call::new(&problem, sources.y);
                    let len = Route::new(&call, &sources, &targets, hardware).unwrap().workspace_len(&problem);
                    assert!(0 < len && len <= most, "{len} of {most}");
                }
                let walk = Walk { output: Output::Y(&target(problem.x)), ..Walk::forward(&problem, None, None) };
                let route = WalkRoute::new(&walk, hardware, true).unwrap();
                assert!(route.workspace_len(&problem) <= forward::most_workspace(&problem, hardware).unwrap());
            }
        }
    }
}

/// Rows of few heads are cut, or have a head a block, so that more multiprocessors are busy.
#[test]
fn few_heads_have_more_blocks() {
    let plan = |sizes: Sizes, batch: usize| {
        let [l, h, p, g, n] = sizes;
        let of = |shape: &[usize]| tensor(DType::BF16, shape);
        let maps = of(&[batch, l, g, n]);
        let args = Args::new(of(&[batch, l, h, p]), of(&[batch, l, h]), tensor(DType::F32, &[h]), maps, maps);
        let problem = problem(&args);
        let plan = hopper::Plan::new(&problem, Numbers::H200).unwrap();
        plan.grid()
    };
    // (units of a block, blocks of a segment, segments)
    assert_eq!(plan([2048, 80, 64, 1, 128], 8), (2, 320, 1));
    assert_eq!(plan([8192, 80, 64, 1, 128], 1), (2, 40, 3));
    assert_eq!(plan([32, 80, 64, 1, 128], 1), (1, 80, 1));
    assert_eq!(plan([333, 24, 64, 1, 128], 2), (1, 48, 1));
    assert_eq!(plan([2048, 24, 64, 1, 128], 4), (1, 96, 1));
}

#[test]
fn pooled_kernels_compile() {
    let Some(mut suite) = Suite::new() else { return };
    let sizes = [512, 8, 64, 1, 128];
    let plain = args(DType::BF16, sizes);
    let of = |shape: &[usize]| tensor(DType::BF16, shape);
    let maps = of(&[1, 512, 1, 128]);
    let packed = Args::new(of(&[1, 512, 8, 64]), of(&[1, 512, 8]), tensor(DType::F32, &[8]), maps, maps);
    let packed = packed.sequences(Sequences::CuSeqlens(tensor(DType::I32, &[6])));
    for (args, rows) in [(plain, (2, None)), (packed, (5, None)), (packed, (5, Some(5)))] {
        let problem = Problem::new(&args, Device::Cuda(0), pool(DType::BF16, rows, &[8, 64, 128])).unwrap();
        let y = target(problem.x);
        let walk = Walk::forward(&problem, Some(&y), Some(target(problem.initial_state.unwrap())));
        let whole = cuts::whole(&problem);
        let of_whole =
            whole.as_ref().map_or(walk, |(whole, cuts)| Walk { cuts: Some(*cuts), ..Walk::forward(whole, Some(&y), walk.after) });
        let route = hopper::Route::new(&of_whole, Numbers::H200, true).unwrap();
        for pass in [Pass::Whole, Pass::Ends, Pass::Rest] {
            suite.add_for(&["sm_90a"], &hopper::KERNEL, &route.plan.config(&of_whole, pass));
        }
        if route.plan.packed.is_some() {
            suite.add_for(&["sm_90a"], &hand_on::KERNEL, &hand_on::config(&of_whole.call, &walk.before, &walk.after));
        }
        if whole.is_some() {
            suite.add_for(&["sm_90a"], &cuts::KERNEL, &cuts::config(&route, &of_whole));
        }
        for hardware in [HOPPER, SMALL] {
            let route = portable::walk::Route::alone(&walk, hardware).unwrap();
            suite.add_for(&["sm_80", "sm_90a", "sm_120"], &WALK, &route.config(&walk, Pass::Whole));
        }
    }
    suite.compile();
}
