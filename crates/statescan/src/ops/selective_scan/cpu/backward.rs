use super::*;
pub(super) struct BackwardPass<'p, 'a> {
    pub exec: &'p Exec,
    pub problem: &'p Problem<'a>,
    pub sources: &'p Sources<'p>,
    pub targets: &'p GradientTargets,
}
impl Pass for BackwardPass<'_, '_> {
    fn run<E: Variant>(self) {}
}
