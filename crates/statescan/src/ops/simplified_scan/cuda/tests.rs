//! Every family of configurations compiles for every architecture, without a GPU: registers do not spill.

use super::super::{Args, GradientTargets, Sources};
use super::product::PRODUCT;
use super::skip::{SKIP, Skip};
use super::walk::{GRADIENTS, SCAN};
use super::*;
use crate::cuda::testing::{Suite, target, tensor};
use crate::ops::discretization::Discretization;
use crate::ops::sequences::Sequences;
use crate::ops::states::testing::pool;
use crate::ops::states::{NO_STATES, States};
use crate::tensor::Device;

const BATCH: usize = 3;

/// Adds the kernels of both passes with every result and gradient.
fn add(suite: &mut Suite, args: &Args<'_>, state: &[usize]) {
    add_with(suite, args, state, false);
}

fn add_with(suite: &mut Suite, args: &Args<'_>, state: &[usize], tf32: bool) {
    let state = tensor(DType::Complex64, state);
    let problem = Problem::new(args, Device::Cuda(0), States::of_shapes([Some(state.shape()), None])).unwrap();
    let (call, p) = (Call::new(&problem, Numbers::H200, tf32).unwrap(), &problem);
    let last = problem.normal.state(target(state));
    let y = target(tensor(if p.real_factor.is_some() { DType::F32 } else { DType::Complex64 }, &p.u.shape()));
    let mut products = vec![call.driven(0), call.output(0, &y)];
    let places = Places { numbers: 0, ends: 0, checkpoints: 0 };
    for scan in
        [Scan { after: Some(last), states: true, checkpoints: true }, Scan { after: None, states: false, checkpoints: true }]
    {
        scan.kernels(&call, &places).unwrap().iter().for_each(|kernel| suite.add(&SCAN, &kernel.config, 0));
    }
    let sources = Sources { checkpoints: None, y: Some(y.as_read()), last_state: Some(last.as_read()) };
    let targets = GradientTargets { initial_state: Some(last), ..planned::every_gradient(p).unwrap() };
    let gradients = call.gradients(&sources, &targets, &Layout::backward(&call.plan), |_| 0);
    gradients.kernels(&call, &places).unwrap().iter().for_each(|kernel| suite.add(&GRADIENTS, &kernel.config, 0));
    let complex = p.b.dtype().is_complex();
    products.extend([call.by_states(y.as_read(), 0), call.by_input(sources.y, 0, targets.u.as_ref().unwrap())]);
    products.extend([call.by_b(0, 0, complex), call.by_c(y.as_read(), 0, 0, complex)]);
    for kernel in products.iter().map(|product| product.kernel().unwrap()) {
        suite.add(&PRODUCT, &kernel.config, kernel.launch.shared as usize);
    }
    for (kernel, _) in products.iter().filter_map(|product| hopper::plan(product, Numbers::H200)) {
        suite.add_for(&["sm_90a"], &hopper::KERNEL, &kernel.config);
    }
    let skip = Skip { u: p.u, by_y: y.as_read(), slices: call.plan.skip, terms: 0 };
    suite.add(&SKIP, &skip.kernel().unwrap().config, 0);
}

fn args(u: DType, maps: DType, steps: DType, [h, p, l]: [usize; 3]) -> Args<'static> {
    let (u, delta) = (tensor(u, &[BATCH, h, l]), tensor(steps, &[BATCH, p, l]));
    Args::new(u, delta, tensor(maps, &[p]), tensor(maps, &[p, h]), tensor(maps, &[h, p]))
}

const SIZES: [usize; 3] = [512, 256, 4096];

fn add_types(suite: &mut Suite) {
    let skip = tensor(DType::F32, &[SIZES[0]]);
    for (u, maps, real) in [
        (DType::Complex64, DType::Complex64, false),
        (DType::F32, DType::Complex64, true),
        (DType::BF16, DType::Complex64, true),
        (DType::F16, DType::F32, false),
    ] {
        for discretization in Discretization::ALL {
            let args = Args { d: real.then_some(skip), discretization, ..args(u, maps, DType::F32, SIZES) };
            add(suite, &args, &[BATCH, SIZES[1]]);
        }
    }
}

fn add_options(suite: &mut Suite) {
    add_with(suite, &args(DType::Complex64, DType::Complex64, DType::F32, SIZES), &[BATCH, SIZES[1]], true);
    let [h, p, l] = [17, 5, 1001];
    let plain = args(DType::Complex64, DType::Complex64, DType::BF16, [h, p, l]);
    let steady = tensor(DType::F32, &[p]);
    let state = |shape: &[usize]| Some(tensor(DType::Complex64, shape));
    let index = Sequences::SeqIdx(tensor(DType::I64, &[BATCH, l]));
    let options = Args { delta: steady, delta_a: Some(plain.delta), initial_state: state(&[BATCH, p]), ..plain };
    add(suite, &options, &[BATCH, p]);
    add(suite, &Args { delta_a: Some(steady), reverse: true, sequences: index, ..plain }, &[BATCH, p]);
    let numbered = Args { sequences: index, initial_state: state(&[BATCH, 4, p]), discretization: Discretization::Zoh, ..plain };
    add(suite, &numbered, &[BATCH, 4, p]);
    let one = |view: View<'static>| tensor(view.dtype(), &[&[1], &view.shape()[1..]].concat());
    let bounds = Sequences::CuSeqlens(tensor(DType::I32, &[6]));
    let packed = Args { u: one(plain.u), delta: one(plain.delta), sequences: bounds, initial_state: state(&[5, p]), ..plain };
    add(suite, &Args { delta: steady, ..packed }, &[5, p]);
    add(suite, &Args { discretization: Discretization::Zoh, reverse: true, ..packed }, &[5, p]);
    // channels side by side in memory
    let last = tensor(DType::Complex64, &[BATCH, l, h]).permute(&[0, 2, 1]);
    add(suite, &Args { u: last, ..plain }, &[BATCH, p]);
}

#[test]
fn simplified_scans_compile() {
    let Some(mut suite) = Suite::new() else { return };
    add_types(&mut suite);
    add_options(&mut suite);
    suite.compile();
}

/// Which kernel takes a product, and what is printed of a call: nothing of a device is asked for it.
#[test]
fn routes_need_no_device() {
    let of = |args: &Args<'_>, numbers: Numbers| {
        let problem = Problem::new(args, Device::Cuda(0), NO_STATES).unwrap();
        plan(&problem, numbers).unwrap().iter().map(|launch| launch.kernel).collect::<Vec<_>>()
    };
    let count = |kernels: &[&str], name: &str| kernels.iter().filter(|&&kernel| kernel == name).count();
    let complex = args(DType::Complex64, DType::Complex64, DType::F32, SIZES);
    let kernels = of(&complex, Numbers::H200);
    assert_eq!(count(&kernels, "complex_product_hopper") + count(&kernels, "complex_product"), 7, "{kernels:?}");
    assert!(count(&kernels, "complex_product_hopper") > 4, "{kernels:?}");
    // another device, another type, steps that do not lie side by side
    assert_eq!(count(&of(&complex, Numbers::SMALL), "complex_product"), 7);
    let half = args(DType::F16, DType::F32, DType::F32, SIZES);
    assert!(count(&of(&half, Numbers::H200), "complex_product") > 0);
    let [h, _, l] = SIZES;
    let last = tensor(DType::Complex64, &[BATCH, l, h]).permute(&[0, 2, 1]);
    let moved = of(&Args { u: last, ..complex }, Numbers::H200);
    assert!(count(&moved, "complex_product_hopper") < count(&kernels, "complex_product_hopper"), "{moved:?}");
    // a long row of few states is cut into segments, which are walked twice
    let long = args(DType::Complex64, DType::Complex64, DType::F32, [4, 2, 65536]);
    assert_eq!(count(&of(&long, Numbers::H200), "simplified_scan"), 2);
}

#[test]
fn pooled_scans_compile() {
    let Some(mut suite) = Suite::new() else { return };
    let [h, p, l] = [16, 8, 65536];
    let plain = args(DType::F32, DType::Complex64, DType::F32, [h, p, l]);
    let one = |view: View<'static>| tensor(view.dtype(), &[&[1], &view.shape()[1..]].concat());
    let bounds = Sequences::CuSeqlens(tensor(DType::I32, &[6]));
    let packed = Args { u: one(plain.u), delta: one(plain.delta), sequences: bounds, ..plain };
    for (args, rows) in [(plain, (BATCH, None)), (packed, (5, None)), (packed, (5, Some(5)))] {
        let problem = Problem::new(&args, Device::Cuda(0), pool(DType::Complex64, rows, &[p])).unwrap();
        let call = Call::new(&problem, Numbers::H200, false).unwrap();
        assert_eq!(call.plan.segments, 1, "a segment would write a slot while another one reads it");
        let scan = Scan { after: problem.initial_state.map(target), states: true, checkpoints: false };
        let places = Places { numbers: 0, ends: 0, checkpoints: 0 };
        scan.kernels(&call, &places).unwrap().iter().for_each(|kernel| suite.add(&SCAN, &kernel.config, 0));
    }
    suite.compile();
}
