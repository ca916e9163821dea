//! Every family of configurations compiles for every architecture, without a GPU: registers do not spill.

use super::super::Args;
use super::*;
use crate::cuda::testing::{Suite, target, tensor};
use crate::ops::states::NO_STATES;
use crate::tensor::{DType, Device};

/// Compiles every kernel of both passes, with all that can be asked for or without the products of maps.
fn check(suite: &mut Suite, [ngroups, nheads, dstate, angles]: [usize; 4], dtype: DType, whole: bool) {
    let maps = |groups| tensor(dtype, &[2, 33, 2, groups, dstate]);
    let (bias, rate) = (tensor(DType::F32, &[2, nheads, dstate]), tensor(dtype, &[2, 33, nheads, angles]));
    let dt = tensor(DType::F32, &[2, 33, nheads]);
    let problem = Problem::new(&Args::new(maps(ngroups), bias, rate, dt), Device::Cuda(0), NO_STATES).unwrap();
    let some = |view: View<'static>| whole.then_some(view);
    let call = Call::new(&problem, &Some(target(tensor(DType::F32, &[Room::new(&problem, true).len])))).unwrap();
    let targets = Targets { turned: Some(target(maps(nheads))), dots: some(dt).map(target), workspace: None };
    suite.add(&TURNS, &call.turns().unwrap().config, 0);
    suite.add(&FORWARD, &call.forward(&targets).unwrap().config, 0);
    let sources = Sources { turned: Some(maps(nheads)), dots: some(dt) };
    let grads = GradientTargets {
        maps: some(maps(ngroups)).map(target),
        bias: Some(target(bias)),
        rate: Some(target(rate)),
        dt: some(dt).map(target),
        workspace: None,
    };
    suite.add(&BACKWARD, &call.backward(&sources, &grads, [0; 2]).unwrap().config, 0);
    suite.add(&RATES, &call.rates(&grads, 0).unwrap().config, 0);
}

#[test]
fn turned_maps_compile() {
    let Some(mut suite) = Suite::new() else { return };
    let sizes = [[1, 32, 128, 32], [2, 4, 256, 128], [4, 4, 64, 32], [1, 3, 7, 3], [1, 2, 130, 40]];
    for (at, sizes) in sizes.into_iter().enumerate() {
        check(&mut suite, sizes, [DType::BF16, DType::F32, DType::F16][at % 3], at % 2 == 0);
    }
    check(&mut suite, sizes[0], DType::F32, true);
    suite.compile();
}
