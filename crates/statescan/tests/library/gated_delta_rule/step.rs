//! The step against the operation, bit by bit.

use super::*;
use statescan::Level;
use statescan::ops::gated_delta_rule::update as step;

/// The step of a call of one step.
fn step_of<'a>(args: &Args<'a>) -> step::Args<'a> {
    let now = |view: View<'a>| view.index(1, 0);
    step::Args::new(now(args.q), now(args.k), now(args.v))
        .g(args.g.map(now))
        .beta(args.beta.map(now))
        .a_log(args.a_log)
        .dt_bias(args.dt_bias)
        .scale(args.scale)
        .qk_l2norm(args.qk_l2norm)
        .lower_bound(args.lower_bound)
        .beta_sigmoid(args.beta_sigmoid)
        .allow_neg_eigval(args.allow_neg_eigval)
}

fn at(view: View<'_>, t: usize) -> View<'_> {
    view.slice(1, t..t + 1)
}

const OPTIONS: [u32; 7] = [
    0,
    DECAY | BETA,
    DECAY | CHANNELS | BETA | UNIT,
    RAW | BIAS | SIGMOID | DOUBLED | UNIT,
    RAW | LOWER | SCALE,
    RAW | BIAS | CHANNELS | SIGMOID,
    RAW | BIAS | LOWER | CHANNELS | UNIT | TOGETHER,
];

#[test]
fn steps_give_the_bits_of_the_operation() {
    for options in OPTIONS {
        for level in Level::available() {
            let exec = Exec::cpu(1).with_level(level).unwrap();
            let case = Case::new(DType::F32, [2, 70, 2, 4, 33, 80], options | INITIAL);
            let inputs = Inputs::new(&case);
            let out = run_forward(&case, &inputs, &exec).unwrap();
            let (args, mut state) = (inputs.args(&case), inputs.state.clone());
            for t in 0..70 {
                let cut = |view| at(view, t);
                let now = args.q(cut(args.q)).k(cut(args.k)).v(cut(args.v)).g(args.g.map(cut)).beta(args.beta.map(cut));
                let mut y = Tensor::host(DType::F32, &[2, 4, 80]).unwrap();
                step::update(&exec, &step_of(&now), &mut state.view_mut(), &mut y.view_mut()).unwrap();
                let expected = Dense::from_view(&out.y.view().index(1, t));
                assert_eq!(y.to_dense().data(), expected.data(), "step {t} of {case:?} on {level}");
            }
            assert_eq!(state.to_dense().data(), out.last.to_dense().data(), "{case:?} on {level}");
        }
    }
}
