//! CPU
use super::*;
pub(crate) struct Targets {
    pub y: Option<RawViewMut>,
    pub final_state: Option<RawViewMut>,
    pub checkpoints: Option<RawViewMut>,
}
pub(crate) struct Sources<'a> {
    pub checkpoints: Option<View<'a>>,
    pub y: Option<View<'a>>,
    pub final_state: Option<View<'a>>,
}
pub(crate) struct GradientTargets {
    pub x: Option<RawViewMut>,
    pub dt: Option<RawViewMut>,
    pub a: Option<RawViewMut>,
    pub b: Option<Projection<RawViewMut>>,
    pub c: Option<Projection<RawViewMut>>,
    pub d: Option<RawViewMut>,
    pub z: Option<RawViewMut>,
    pub dt_bias: Option<RawViewMut>,
    pub dt_a: Option<RawViewMut>,
    pub initial_state: Option<RawViewMut>,
}
pub(crate) fn forward(_: &Exec, _: &Problem<'_>, _: &Targets) {}
pub(crate) fn backward(_: &Exec, _: &Problem<'_>, _: &Sources<'_>, _: &GradientTargets) {}
