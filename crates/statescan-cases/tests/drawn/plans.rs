//! Calls of the sizes that kernels plan for: around tiles, windows and blocks, of few channels and of many, rows that threads share, and none at all.

use super::*;
use common::device::gpu;
use statescan::cuda::Gpu;

type Plans = &'static [(&'static str, &'static [&'static str])];

const PLANS: Plans = &[
    (
        "selective_scan",
        &[
            "B=1 D=1 L=1 N=1",
            "B=2 D=5 L=67 N=16",
            "B=3 D=48 L=31 N=1",
            "B=1 D=2 L=200 N=70",
            // rows that threads share: whole tiles of 64 steps and not, blocks of channels, lanes for each of them
            "B=1 D=16 L=1024 N=16",
            "B=1 D=16 L=256 N=2",
            "B=1 D=13 L=1300 N=16",
            "B=1 D=5 L=1152 N=32",
            "B=2 D=40 L=300 N=12",
            "B=1 D=16 L=257 N=64",
            "B=2 D=9 L=1025 N=2",
            "B=1 D=16 L=1030 N=3",
            "B=5 D=7 L=260 N=5",
            "B=1 D=256 L=320 N=2",
            "B=1 D=48 L=1301 N=8",
            // windows of steps, ranges of channels
            "B=1 D=260 L=1030 N=16",
            // few channels of every number
            "B=1 D=1 L=131 N=16",
            "B=1 D=2 L=131 N=8",
            "B=1 D=3 L=131 N=4",
            "B=2 D=64 L=96 N=16",
            "B=3 D=100 L=140 N=5",
        ],
    ),
    (
        "selective_state_update",
        &["B=2 D=1 N=200", "B=2 D=37 N=15", "B=2 D=300 N=17", "B=2 H=2 P=130 N=64", "B=1 H=2 P=64 N=128", "B=5 H=9 P=140 N=24"],
    ),
    (
        "ssd",
        &[
            "B=1 L=1 H=1 P=1 N=1",
            "B=2 L=67 H=3 P=5 N=16",
            "B=2 L=31 H=1 P=300 N=1",
            "B=1 L=63 H=40 P=1 N=5",
            "B=1 L=200 H=2 P=8 N=70",
            "B=1 L=33 H=5 P=64 N=128",
            // several blocks of heads in a group, the last one smaller
            "B=2 L=70 H=7 P=100 N=9",
            "B=1 L=70 H=14 P=60 N=3",
            // chunks, columns and states around tiles
            "B=1 L=63 H=2 P=1 N=256",
            "B=1 L=64 H=2 P=24 N=17",
            "B=1 L=65 H=2 P=80 N=17",
            "B=1 L=127 H=2 P=24 N=1",
            "B=1 L=333 H=2 P=80 N=16",
            "B=1 L=1 H=2 P=80 N=256",
            "B=1 L=333 H=2 P=1 N=17",
            "B=1 L=64 H=2 P=80 N=1",
            "B=1 L=127 H=2 P=24 N=256",
            // rows that threads share, long ones
            "B=3 L=150 H=12 P=50 N=9",
            "B=2 L=1300 H=2 P=32 N=8",
            "B=1 L=5000 H=1 P=3 N=4",
        ],
    ),
    (
        "gated_delta_rule",
        &[
            "B=1 L=1 H=1 J=1 N=1 P=1",
            "B=2 L=67 H=3 J=3 N=5 P=16",
            "B=2 L=65 H=1 J=3 N=16 P=7",
            "B=1 L=129 H=2 J=2 N=33 P=130",
            "B=1 L=31 H=1 J=1 N=256 P=200",
            "B=1 L=63 H=4 J=4 N=1 P=65",
            "B=1 L=200 H=1 J=2 N=64 P=48",
            "B=2 L=250 H=2 J=2 N=6 P=4",
            "B=3 L=150 H=2 J=4 N=20 P=130",
        ],
    ),
    ("gated_delta_rule_update", &["B=3 H=2 J=4 N=24 P=64", "B=2 H=1 J=70 N=5 P=3", "B=1 H=3 J=3 N=130 P=100"]),
    (
        "simplified_scan",
        &[
            "B=1 H=1 P=1 L=1",
            "B=2 H=3 P=5 L=70",
            "B=1 H=17 P=33 L=129",
            "B=3 H=8 P=16 L=64",
            "B=1 H=2 P=31 L=300",
            "B=40 H=4 P=3 L=2",
            "B=2 H=6 P=70 L=700",
            "B=9 H=40 P=5 L=33",
            // several waves of blocks, cut inside of a row
            "B=2 H=1 P=2 L=20000",
        ],
    ),
    ("simplified_state_update", &["B=2 H=5 P=7", "B=1 H=64 P=33", "B=70 H=3 P=16", "B=3 H=130 P=65"]),
    (
        "linear_scan",
        &[
            "L=1",
            "L=65",
            "D=17 L=63",
            "B=2 D=31 L=130",
            "B=3 E=1 D=16 L=7",
            "B=2 E=3 F=1 D=5 L=67",
            // channels that lie side by side are taken in wide blocks
            "D=520 L=70",
            "D=1030 L=3",
            "D=2100 L=65",
            "D=3 L=4000",
            "B=3 D=37 L=200",
        ],
    ),
    (
        "causal_conv1d",
        &[
            "B=1 D=1 L=1 W=2",
            "B=3 D=130 L=15 W=7",
            "B=1 D=2 L=1031 W=8",
            "B=1 D=3 L=2049 W=2",
            "B=2 D=3 L=5049 W=3",
            "B=3 D=70 L=2500 W=4",
            // lines of whole cache lines
            "B=2 D=24 L=2048 W=4",
            // shorter than the filter, and pieces of fewer steps than it has taps
            "B=2 D=5 L=3 W=5",
            "B=2 D=5 L=7 W=8",
            "B=1 D=5 L=1025 W=5",
            "B=1 D=5 L=65 W=5",
        ],
    ),
    (
        "causal_conv1d_update",
        &["B=1 D=1100 W=4 M=3", "B=4 D=67 W=8 M=16", "B=3 D=5 T=9 W=4 M=83", "B=3 D=5 T=70 W=4 M=12", "B=7 D=3000 T=2 W=4 M=3"],
    ),
    (
        "norm",
        &[
            "L=37 D=127",
            "L=2 D=333",
            "B=2 L=5 D=768",
            "B=2 E=3 L=7 D=64",
            "D=1009",
            "L=1031 D=16",
            "L=300 D=257",
            "L=3 D=5120",
            "L=2 D=8191",
            "L=1 D=40000",
        ],
    ),
];

/// Rows that GPUs cut into segments, tiles of their matrix products, models' widths.
const ON_GPUS: Plans = &[
    (
        "selective_scan",
        &[
            "B=4 D=4096 L=40 N=16",
            "B=1 D=9 L=100 N=256",
            "B=2 D=40 L=1000 N=128",
            "B=1 D=6 L=5000 N=16",
            "B=2 D=2100 L=70 N=16",
            "B=1 D=3 L=33 N=400",
            "B=2 D=33 L=2817 N=5",
        ],
    ),
    ("selective_state_update", &["B=40 D=4099 N=16"]),
    (
        "simplified_scan",
        &[
            "B=2 H=64 P=64 L=128",
            "B=1 H=63 P=65 L=127",
            "B=1 H=65 P=63 L=129",
            "B=2 H=16 P=130 L=255",
            "B=1 H=130 P=17 L=257",
            "B=1 H=1 P=64 L=16",
            "B=3 H=64 P=1 L=17",
            "B=3 H=200 P=130 L=516",
            "B=2 H=17 P=193 L=36",
            "B=2 H=96 P=80 L=300",
            "B=2 H=5 P=3 L=2077",
        ],
    ),
    ("linear_scan", &["D=2 L=5000", "D=300 L=1100", "B=2 D=31 L=2047"]),
    ("turned_maps", &["L=129 N=64 A=20", "B=2 L=131 N=130 A=40", "L=70 N=256 A=100", "B=2 L=1100 N=16 A=8"]),
];

/// Sizes as they are written above.
fn sizes(text: &str) -> Sizes {
    let pairs: Vec<_> = text.split(' ').map(|pair| pair.split_once('=').expect("a letter and its size")).collect();
    Sizes::of(&pairs.into_iter().map(|(letter, size)| (letter.as_bytes()[0].into(), size.parse().unwrap())).collect::<Vec<_>>())
}

fn plans(plans: Plans) -> impl Iterator<Item = (&'static Operation, Fixed)> {
    let of = |name: &str| Operation::find(name).expect("an operation");
    plans
        .iter()
        .flat_map(move |(name, all)| all.iter().map(move |text| (of(name), Fixed { sizes: sizes(text), ..Fixed::default() })))
}

fn agrees(part: usize) {
    let (cpu, gpu) = (levels(), gpu());
    for (plan, (op, fixed)) in plans(PLANS).enumerate().filter(|(at, _)| at % 4 == part) {
        // one other number of threads for each, since small calls that are drawn have all of them
        let threads = [2, 3, 7][plan % 3];
        for (at, drawn) in drawn_as(op, fixed).take(number("STATESCAN_DRAWN", 80) as usize / 80).enumerate() {
            let execs = cpu.iter().chain(gpu.iter().filter(|_| at == 0)).cloned().collect::<Vec<_>>();
            assert_agrees(&drawn, &execs, &[threads]);
        }
    }
}

#[test]
fn sizes_of_plans_0() {
    agrees(0);
}
#[test]
fn sizes_of_plans_1() {
    agrees(1);
}
#[test]
fn sizes_of_plans_2() {
    agrees(2);
}
#[test]
fn sizes_of_plans_3() {
    agrees(3);
}

#[test]
fn nothing_at_all() {
    for op in Operation::ALL {
        // the width of a filter is never 0
        let letters = || op.signature.facts.state_steps.chars().filter(|&letter| letter != 'W');
        for none in letters() {
            // beside any sizes, and beside those of whole vectors
            let whole: Vec<_> = letters().map(|letter| (letter, if letter == none { 0 } else { 16 })).collect();
            for (sizes, count) in [(Sizes::of(&[(none, 0)]), 2), (Sizes::of(&whole), 4)] {
                let fixed = Fixed { sizes, ..Fixed::default() };
                drawn_as(op, fixed).take(count).for_each(|drawn| assert_agrees(&drawn, &levels(), &[3]));
            }
        }
    }
}

/// The kernels of older devices, and rows cut as other devices would cut them: in one pass, and in as many segments as plans make.
fn agrees_by_every_route(part: usize) {
    let Some(exec) = gpu() else { return };
    let (own, old) = (Gpu::of(&exec).expect("it has a GPU"), Gpu::named("a100").expect("a name"));
    let forced = [own, old, old.with_multiprocessors(1), old.with_multiprocessors(2000), own.with_multiprocessors(1)];
    let execs = forced.map(|gpu| exec.clone().planned_as(gpu));
    for (_, (op, fixed)) in plans(ON_GPUS).enumerate().filter(|(at, _)| at % 4 == part) {
        let fixed = |dtype| Fixed { dtype: Some(dtype), ..fixed.clone() };
        for drawn in [DType::F32, DType::BF16].into_iter().flat_map(|dtype| drawn_as(op, fixed(dtype)).take(1)) {
            assert_agrees(&drawn, &execs, &[]);
        }
    }
}

#[test]
fn cuda_sizes_of_plans_by_every_route_0() {
    agrees_by_every_route(0);
}
#[test]
fn cuda_sizes_of_plans_by_every_route_1() {
    agrees_by_every_route(1);
}
#[test]
fn cuda_sizes_of_plans_by_every_route_2() {
    agrees_by_every_route(2);
}
#[test]
fn cuda_sizes_of_plans_by_every_route_3() {
    agrees_by_every_route(3);
}
