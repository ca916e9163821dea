//! The launches of both passes, as their routes have them.

use super::forward::WalkRoute;
use super::portable::gradients::{self, GRADIENTS};
use super::portable::maps::{self, MAPS};
use super::route::{ByChunk, Fused, Route, walks};
use super::walk::Walk;
use super::{Call, Hardware, refuse_double};
use crate::cuda::{Launch, Numbers, PlannedLaunch, written_like};
use crate::error::Result;
use crate::ops::ssd::problem::Problem;
use crate::ops::ssd::{GradientTargets, Sources};
use crate::tensor::{RawViewMut, View};

/// Every gradient that a problem has, dense.
pub(super) fn every_gradient(p: &Problem<'_>) -> Result<GradientTargets> {
    let some = |view: &Option<View<'_>>| view.as_ref().map(written_like).transpose();
    let like = |view: &View<'_>| -> Result<Option<RawViewMut>> { Ok(Some(written_like(view)?)) };
    Ok(GradientTargets {
        x: like(&p.x)?,
        dt: like(&p.dt)?,
        a: like(&p.a)?,
        b: like(&p.b)?,
        c: like(&p.c)?,
        d: some(&p.d)?,
        z: some(&p.z)?,
        dt_bias: some(&p.dt_bias)?,
        dt_a: some(&p.dt_a)?,
        initial_state: some(&p.initial_state)?,
        workspace: None,
    })
}

/// The launches of both passes with every result and gradient; the forward pass has a workspace.
pub(in crate::ops::ssd) fn plan(p: &Problem<'_>, numbers: Numbers) -> Result<Vec<PlannedLaunch>> {
    refuse_double(p)?;
    let hardware = Hardware { numbers, tf32: false };
    let y = written_like(&p.x)?;
    let walk = Walk::forward(p, Some(&y), None);
    let mut all = Vec::new();
    let mut add = |pass, kernel, launches: &[Launch]| {
        all.extend(launches.iter().map(|&launch| PlannedLaunch::new(pass, kernel, launch)));
    };
    let (kernel, launches) = launches(&WalkRoute::new(&walk, hardware, true)?, &walk)?;
    add("forward", kernel, &launches);
    let (sources, targets) = (Sources { y: Some(y.as_read()), ..Sources::default() }, every_gradient(p)?);
    let call = Call::new(p, sources.y);
    let backward = match Route::new(&call, &sources, &targets, hardware)? {
        Route::Fused(route) => of_fused(&route, &call, &sources, &targets, hardware)?,
        // both halves of the states have the same launches
        Route::HalfStates(routes) => {
            let of_half = of_fused(&routes[0], &call, &sources, &targets, hardware)?;
            of_half.iter().chain(&of_half).cloned().collect()
        }
        Route::ByChunk(route) => of_chunks(&route, &call, &sources, &targets, hardware)?,
    };
    for (kernel, launches) in backward {
        add("backward", kernel, &launches);
    }
    Ok(all)
}

type Launches = (&'static str, Vec<Launch>);

fn launches(route: &WalkRoute, walk: &Walk<'_, '_>) -> Result<Launches> {
    let (kernel, launches) = route.launches(walk)?;
    Ok((kernel, launches.into_iter().map(|(_, launch)| launch).collect()))
}

fn of_fused(
    route: &Fused,
    call: &Call<'_, '_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
    hardware: Hardware,
) -> Result<Vec<Launches>> {
    let mut all = Vec::new();
    for (walk, route) in walks(*call, sources, targets, route.fused.plan.slots(call.problem)).iter().zip(route.walks) {
        all.push(launches(&WalkRoute::Hopper(route), walk)?);
    }
    all.push((super::hopper::fused::KERNEL.kernel, vec![route.fused.line(call, targets, hardware.numbers)?]));
    Ok(all)
}

fn of_chunks(
    route: &ByChunk,
    call: &Call<'_, '_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
    hardware: Hardware,
) -> Result<Vec<Launches>> {
    let mut all = Vec::new();
    for (walk, route) in route.walks_of(*call, sources, targets).iter().zip(route.walks) {
        if let Some(route) = route {
            all.push(launches(&route, walk)?);
        }
    }
    all.push((GRADIENTS.kernel, vec![gradients::line(call.problem, &route.tiles, hardware.numbers)?]));
    let of_map = maps::line(call.problem, &route.tiles, route.slices, hardware.numbers)?;
    all.push((MAPS.kernel, vec![of_map; 2]));
    Ok(all)
}
