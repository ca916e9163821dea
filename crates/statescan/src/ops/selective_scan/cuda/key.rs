//! By what plans and kernels of a problem are found again.

use crate::ops::selective_scan::{Options, Problem, Projection, Targets};
use crate::ops::sequences::Sequences;
use crate::tensor::{Layout, RawViewMut, View};

/// A forward pass without the addresses that its launches take as parameters. Passes that are equal in this have the same plan and the same
/// kernels.
#[derive(PartialEq)]
pub(super) struct Key {
    x: Layout,
    dt: Layout,
    a: Layout,
    b: Projection<Layout>,
    c: Projection<Layout>,
    d: Option<Layout>,
    z: Option<Layout>,
    dt_bias: Option<Layout>,
    dt_a: Option<Layout>,
    initial_state: Option<Layout>,
    sequences: &'static str,
    index: Option<Layout>,
    states_have_sequences: bool,
    options: Options,
    y: Option<Layout>,
    final_state: Option<Layout>,
    has_checkpoints: bool,
    has_workspace: bool,
}

impl Key {
    pub(super) fn new(problem: &Problem<'_>, targets: &Targets) -> Self {
        let optional = |view: &Option<View<'_>>| view.as_ref().map(View::layout);
        let target = |view: &Option<RawViewMut>| view.as_ref().map(RawViewMut::layout);
        let projection = |map: &Projection<View<'_>>| match map {
            Projection::Varying(view) => Projection::Varying(view.layout()),
            Projection::Constant(view) => Projection::Constant(view.layout()),
        };
        // every field by its name, so that one that comes later is not forgotten; sizes and what follows from types are in the layouts
        let Problem {
            batch: _,
            dim: _,
            seqlen: _,
            dstate: _,
            complex: _,
            double: _,
            x,
            dt,
            a,
            b,
            c,
            d,
            z,
            dt_bias,
            dt_a,
            initial_state,
            sequences,
            segments,
            state_shape: _,
            normal: _,
            options,
        } = problem;
        let Targets { y, final_state, checkpoints, workspace } = targets;
        let (sequences, index) = match sequences {
            Sequences::Whole => ("Whole", None),
            Sequences::CuSeqlens(view) => ("Bounds", Some(view.layout())),
            Sequences::SeqIdx(view) => ("Index", Some(view.layout())),
        };
        Key {
            x: x.layout(),
            dt: dt.layout(),
            a: a.layout(),
            b: projection(b),
            c: projection(c),
            d: optional(d),
            z: optional(z),
            dt_bias: optional(dt_bias),
            dt_a: optional(dt_a),
            initial_state: optional(initial_state),
            sequences,
            index,
            states_have_sequences: segments.states_have_sequences(),
            options: *options,
            y: target(y),
            final_state: target(final_state),
            has_checkpoints: checkpoints.is_some(),
            has_workspace: workspace.is_some(),
        }
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use crate::cuda::testing::tensor;
    use crate::ops::discretization::Discretization;
    use crate::ops::prepared::NO_STATES;
    use crate::ops::selective_scan::Args;
    use crate::tensor::{DType, Device};

    fn key(args: &Args<'_>) -> Key {
        let problem = Problem::new(args, Device::Cuda(0), NO_STATES).unwrap();
        Key::new(&problem, &Targets { y: None, final_state: None, checkpoints: None, workspace: None })
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
        for (i, one) in all.iter().enumerate() {
            for (j, other) in all.iter().enumerate() {
                assert_eq!(key(one) == key(other), i == j, "{i} {j}");
            }
        }
        // addresses do not
        let elsewhere = Args { x: moved(x, 64), d: Some(moved(channel, 32)), ..plain };
        assert!(key(&elsewhere) == key(&Args { d: Some(channel), ..plain }));
    }
}
