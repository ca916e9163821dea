//! The launches of both passes: products, and the walks between them.

use super::plan::Layout;
use super::product::Product;
use super::skip::{SKIP, Skip};
use super::walk::{GRADIENTS, Places, SCAN, Scan};
use super::{Call, Problem};
use crate::cuda::{Numbers, PlannedLaunch, nowhere, written_like};
use crate::error::Result;
use crate::ops::simplified_scan::{GradientTargets, Sources};
use crate::tensor::{DType, RawViewMut, View};

/// Every gradient that a problem has, dense.
pub(super) fn every_gradient(p: &Problem<'_>) -> Result<GradientTargets> {
    let some = |view: &Option<View<'_>>| view.as_ref().map(written_like).transpose();
    let like = |view: &View<'_>| -> Result<Option<RawViewMut>> { Ok(Some(written_like(view)?)) };
    Ok(GradientTargets {
        u: like(&p.u)?,
        delta: like(p.delta.view())?,
        a: like(&p.a)?,
        b: like(&p.b)?,
        c: like(&p.c)?,
        d: some(&p.d)?,
        delta_a: some(&p.delta_a.as_ref().map(|step| *step.view()))?,
        initial_state: some(&p.initial_state)?,
        workspace: None,
    })
}

/// The launches of both passes with every result and gradient, and with the states that the forward pass saves.
pub(in crate::ops::simplified_scan) fn plan(p: &Problem<'_>, numbers: Numbers) -> Result<Vec<PlannedLaunch>> {
    let (call, nothing) = (Call::new(p, numbers, false)?, Places { numbers: 0, ends: 0, checkpoints: 0 });
    let result = if p.real_factor.is_some() { DType::F32 } else { DType::Complex64 };
    let y = written_like(&nowhere(result, &p.u.shape())?)?;
    let mut all = Vec::new();
    let product = |pass, product: Product<'_>| -> Result<PlannedLaunch> {
        let (kernel, launch) = product.route(numbers)?.launch();
        Ok(PlannedLaunch::new(pass, kernel, launch))
    };
    all.push(product("forward", call.driven(0))?);
    for kernel in (Scan { after: None, states: true, checkpoints: true }).kernels(&call, &nothing)? {
        all.push(PlannedLaunch::new("forward", SCAN.kernel, kernel.launch));
    }
    all.push(product("forward", call.output(0, &y))?);

    let (by_y, t) = (y.as_read(), every_gradient(p)?);
    let sources = Sources { y: Some(by_y), ..Sources::default() };
    all.push(product("backward", call.driven(0))?);
    all.push(product("backward", call.by_states(by_y, 0))?);
    for kernel in call.gradients(&sources, &t, &Layout::backward(&call.plan), |_| 0).kernels(&call, &nothing)? {
        all.push(PlannedLaunch::new("backward", GRADIENTS.kernel, kernel.launch));
    }
    if let Some(u) = &t.u {
        all.push(product("backward", call.by_input(sources.y, 0, u))?);
    }
    let complex = |view: View<'_>| view.dtype().is_complex();
    all.push(product("backward", call.by_b(0, 0, complex(p.b)))?);
    all.push(product("backward", call.by_c(by_y, 0, 0, complex(p.c)))?);
    if t.d.is_some() {
        let skip = Skip { u: p.u, by_y, slices: call.plan.skip, terms: 0 };
        all.push(PlannedLaunch::new("backward", SKIP.kernel, skip.kernel()?.launch));
    }
    Ok(all)
}
