//! The simplified scan: its oracle against identities and central differences, its kernels against the oracle.

mod cuda;
mod errors;
mod oracle;

use crate::common::device::{home, is_gpu, on, ran};
use crate::common::*;
use num_complex::Complex64;
use proptest::prelude::proptest;
use statescan::ops::simplified_scan::{
    Args, Cotangents, Gradients, Outputs, backward, backward_workspace_len, checkpoints_len, forward, last_state_shape,
    reference, workspace_len,
};
use statescan::tensor::{Dense, ErrorBound};
use statescan::{DType, Discretization, Error, Exec, Sequences, Tensor, View};

/// Everything that a call depends on besides numbers.
#[derive(Debug, Clone)]
struct Setup {
    batch: usize,
    dim: usize,
    dstate: usize,
    seqlen: usize,
    u: DType,
    /// Type of a, b and c.
    maps: DType,
    delta: DType,
    constant: bool,
    /// The decay's own step, and whether it is constant.
    delta_a: Option<bool>,
    /// `None`: complex.
    conj_sym: Option<bool>,
    initial: bool,
    reverse: bool,
    packed: Packed,
    method: Discretization,
    layout: Layout,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Packed {
    No,
    /// One row cut at random.
    Bounds,
    /// Every row cut at random, states of the first and last sequence.
    Index,
    /// Every row cut at random, a state for each numbered sequence.
    Numbered,
}

/// Sequences in a row with numbers.
const NUMBERED: usize = 5;

impl Setup {
    fn new(batch: usize, dim: usize, dstate: usize, seqlen: usize) -> Self {
        Setup {
            batch,
            dim,
            dstate,
            seqlen,
            u: DType::Complex64,
            maps: DType::Complex64,
            delta: DType::F32,
            constant: false,
            delta_a: None,
            conj_sym: None,
            initial: true,
            reverse: false,
            packed: Packed::No,
            method: Discretization::Zoh,
            layout: Layout::Dense,
        }
    }

    fn random(rng: &mut Rng, sizes: [usize; 4]) -> Self {
        let [batch, dim, dstate, seqlen] = sizes;
        let packed = rng.pick(&[Packed::No, Packed::No, Packed::Bounds, Packed::Index, Packed::Numbered]);
        let double = rng.below(5) == 0;
        let conj_sym = rng.pick(&[None, Some(true), Some(false)]);
        Setup {
            batch: if packed == Packed::Bounds { 1 } else { batch },
            u: match double {
                true => rng.pick(&[DType::F64, DType::Complex128]),
                false => rng.pick(&[DType::Complex64, DType::Complex64, DType::F32, DType::BF16, DType::F16]),
            },
            maps: match double {
                true => rng.pick(&[DType::F64, DType::Complex128]),
                false => rng.pick(&[DType::Complex64, DType::Complex64, DType::F32]),
            },
            delta: if double { DType::F64 } else { rng.pick(&[DType::F32, DType::BF16]) },
            constant: rng.below(3) == 0,
            delta_a: rng.pick(&[None, None, Some(true), Some(false)]),
            conj_sym,
            initial: rng.below(2) == 0,
            reverse: rng.below(2) == 0,
            packed,
            method: rng.pick(&Discretization::ALL),
            layout: rng.pick(&[Layout::Dense, Layout::Scattered]),
            ..Setup::new(batch, dim, dstate, seqlen)
        }
    }

    fn double(&self) -> bool {
        self.u.is_double()
    }
}

struct Case {
    setup: Setup,
    u: Tensor,
    delta: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Option<Tensor>,
    delta_a: Option<Tensor>,
    index: Option<Tensor>,
    initial: Option<Tensor>,
    by_y: Tensor,
    by_last: Tensor,
}

impl Case {
    fn new(rng: &mut Rng, setup: Setup) -> Self {
        let Setup { batch, dim, dstate, seqlen, layout, .. } = setup;
        let complex = if setup.double() { DType::Complex128 } else { DType::Complex64 };
        let step = |rng: &mut Rng, constant| match constant {
            true => uniform(rng, setup.delta, &[dstate], layout, 0.01, 0.6),
            false => uniform(rng, setup.delta, &[batch, dstate, seqlen], layout, 0.01, 0.6),
        };
        let index = match setup.packed {
            Packed::No => None,
            Packed::Bounds => {
                let mut bounds: Vec<usize> = (0..rng.below(4)).map(|_| rng.below(seqlen + 1)).chain([0, seqlen]).collect();
                bounds.sort_unstable();
                let mut values = bounds.into_iter();
                let count = values.len();
                Some(random(rng, DType::I64, &[count], layout, |_| (values.next().unwrap() as f64).into()))
            }
            Packed::Numbered => {
                let (mut value, mut t) = (0, 0);
                Some(random(rng, DType::I64, &[batch, seqlen], layout, |rng| {
                    value = if t % seqlen == 0 { rng.below(2) } else { (value + rng.below(10) / 9).min(NUMBERED - 1) };
                    t += 1;
                    (value as f64).into()
                }))
            }
            Packed::Index => {
                let (mut value, every) = (0, 1 + rng.below(40));
                Some(random(rng, DType::I32, &[batch, seqlen], layout, |rng| {
                    value += usize::from(rng.below(every) == 0);
                    (value as f64).into()
                }))
            }
        };
        let rows = match (&index, setup.packed) {
            (Some(bounds), Packed::Bounds) => bounds.shape()[0] - 1,
            _ => batch,
        };
        let state: &[usize] = if setup.packed == Packed::Numbered { &[rows, NUMBERED, dstate] } else { &[rows, dstate] };
        let a_rank = 1 + rng.below(2);
        let a = random(rng, setup.maps, &[dstate, 1][..a_rank], layout, |rng| {
            let im = if setup.maps.is_complex() { rng.uniform(-4.0, 4.0) } else { 0.0 };
            Complex64::new(rng.uniform(-1.5, -0.05), im)
        });
        let fan = |n: usize| 1.0 / (n.max(1) as f64).sqrt();
        let y = match setup.conj_sym {
            None => complex,
            Some(_) => complex.real(),
        };
        Case {
            u: normal(rng, setup.u, &[batch, dim, seqlen], layout, 1.0),
            delta: step(rng, setup.constant),
            a,
            b: normal(rng, setup.maps, &[dstate, dim], layout, fan(dim)),
            c: normal(rng, setup.maps, &[dim, dstate], layout, fan(dstate)),
            d: setup.conj_sym.is_some().then(|| normal(rng, DType::F32, &[dim], layout, 1.0)),
            delta_a: setup.delta_a.map(|constant| step(rng, constant)),
            index,
            initial: setup.initial.then(|| normal(rng, complex, state, layout, 1.0)),
            by_y: normal(rng, y, &[batch, dim, seqlen], layout, 1.0),
            by_last: normal(rng, complex, state, layout, 1.0),
            setup,
        }
    }

    fn args(&self) -> Args<'_> {
        Args::new(self.u.view(), self.delta.view(), self.a.view(), self.b.view(), self.c.view())
            .delta_a(self.delta_a.as_ref().map(|v| v.view()))
            .initial_state(self.initial.as_ref().map(|v| v.view()))
            .sequences(match (&self.index, self.setup.packed) {
                (Some(index), Packed::Bounds) => Sequences::CuSeqlens(index.view()),
                (Some(index), _) => Sequences::SeqIdx(index.view()),
                _ => Sequences::Whole,
            })
            .reverse(self.setup.reverse)
            .discretization(self.setup.method)
            .d(self.d.as_ref().map(|v| v.view()))
            .conj_sym(self.setup.conj_sym.unwrap_or(true))
    }

    fn cotangents(&self) -> Cotangents<'_> {
        Cotangents::default().y(self.by_y.view()).last_state(self.by_last.view())
    }

    /// The same on an executor's device.
    fn on(&self, exec: &Exec) -> Self {
        let [u, delta, a, b, c, by_y, by_last] =
            [&self.u, &self.delta, &self.a, &self.b, &self.c, &self.by_y, &self.by_last].map(|tensor| on(exec, tensor));
        let optional = [&self.d, &self.delta_a, &self.index, &self.initial];
        let [d, delta_a, index, initial] = optional.map(|of| of.as_ref().map(|tensor| on(exec, tensor)));
        Case { setup: self.setup.clone(), u, delta, a, b, c, d, delta_a, index, initial, by_y, by_last }
    }

    /// y, last state, checkpoints, poisoned before; nothing where a GPU has no kernel for the case.
    fn forward(&self, exec: &Exec, rng: &mut Rng) -> Option<[Tensor; 3]> {
        let here = self.on(exec);
        let (args, layout) = (here.args(), self.setup.layout);
        let mut y = on(exec, &poisoned(rng, self.by_y.dtype(), &self.by_y.shape(), layout));
        let mut last = on(exec, &poisoned(rng, self.by_last.dtype(), &self.by_last.shape(), layout));
        // the form with sequences shows in the states alone
        assert!(self.setup.packed == Packed::Numbered || last_state_shape(&args).unwrap() == last.shape());
        let saved = poisoned(rng, self.by_last.dtype().real(), &[checkpoints_len(&args).unwrap()], Layout::Dense);
        let mut saved = on(exec, &saved);
        let mut scratch = scratch(exec, rng, workspace_len(exec, &args));
        let mut out = Outputs::default()
            .y(y.view_mut())
            .last_state(last.view_mut())
            .checkpoints(saved.view_mut())
            .workspace(scratch.view_mut());
        let call = forward(exec, &args, &mut out);
        let results = [&y, &last, &saved];
        ran(exec, call, &results).then(|| results.map(home))
    }

    /// Names and gradients.
    fn backward(&self, exec: &Exec, rng: &mut Rng, saved: Option<&Tensor>) -> Vec<(&'static str, Tensor)> {
        let (here, saved) = (self.on(exec), saved.map(|tensor| on(exec, tensor)));
        let mut scratch = scratch(exec, rng, backward_workspace_len(exec, &here.args()));
        let mut like = |of: &Tensor| on(exec, &poisoned(rng, of.dtype(), &of.shape(), self.setup.layout));
        let [mut u, mut delta, mut a, mut b, mut c] = [&self.u, &self.delta, &self.a, &self.b, &self.c].map(&mut like);
        let [mut d, mut delta_a] = [&self.d, &self.delta_a].map(|of| of.as_ref().map(&mut like));
        let mut initial = like(&self.by_last);
        let mut grads = Gradients::default()
            .u(u.view_mut())
            .delta(delta.view_mut())
            .a(a.view_mut())
            .b(b.view_mut())
            .c(c.view_mut())
            .d(d.as_mut().map(|v| v.view_mut()))
            .delta_a(delta_a.as_mut().map(|v| v.view_mut()))
            .initial_state(initial.view_mut())
            .workspace(scratch.view_mut());
        backward(exec, &here.args(), saved.as_ref().map(|v| v.view()), &here.cotangents(), &mut grads).unwrap();
        let mut all = vec![("u", u), ("delta", delta), ("a", a), ("b", b), ("c", c), ("initial_state", initial)];
        all.extend(d.map(|d| ("d", d)));
        all.extend(delta_a.map(|d| ("delta_a", d)));
        all.into_iter().map(|(name, tensor)| (name, home(&tensor))).collect()
    }

    /// The kernels of executors against the oracle, the backward pass with and without checkpoints.
    fn check(&self, execs: &[Exec], rng: &mut Rng) {
        // a decay that never changes repeats its one rounding error in the same direction: what is a random walk of L steps otherwise
        // grows with L itself, in the naive loop as here
        let steady = self.setup.delta_a.unwrap_or(self.setup.constant);
        let length = if steady { self.setup.seqlen * self.setup.seqlen } else { self.setup.seqlen };
        let expected = reference::forward_with_state_shape(&self.args(), &self.by_last.shape()).unwrap();
        let by = reference::backward(&self.args(), &self.cotangents()).unwrap();
        let of = |name: &str| match name {
            "u" => &by.u,
            "delta" => &by.delta,
            "a" => &by.a,
            "b" => &by.b,
            "c" => &by.c,
            "d" => by.d.as_ref().unwrap(),
            "delta_a" => by.delta_a.as_ref().unwrap(),
            _ => &by.initial_state,
        };
        for exec in execs {
            let Some([y, last, saved]) = self.forward(exec, rng) else { continue };
            let name = |what: &str| format!("{what} {:?} {exec:?}", self.setup);
            assert_close(&name("y"), &y, &expected.y, ErrorBound::for_scan(y.dtype(), length));
            assert_close(&name("last_state"), &last, &expected.last_state, ErrorBound::for_scan(last.dtype(), length));
            let with = self.backward(exec, rng, Some(&saved));
            for (what, grad) in &with {
                let bound = ErrorBound::for_gradient(grad.dtype(), self.setup.seqlen);
                assert_close(&name(&format!("grad of {what}")), grad, of(what), bound);
            }
            // recomputed states are the saved ones
            for ((what, a), (_, b)) in with.iter().zip(self.backward(exec, rng, None)) {
                assert!(same(&a.to_dense(), &b.to_dense()), "{}", name(what));
            }
        }
    }
}

/// Scratch memory of a call, poisoned; what has no kernel needs none.
fn scratch(exec: &Exec, rng: &mut Rng, len: Result<usize, Error>) -> Tensor {
    on(exec, &poisoned(rng, DType::F32, &[len.unwrap_or(0)], Layout::Dense))
}

/// Bit by bit, where NaN is NaN.
fn same(a: &Dense, b: &Dense) -> bool {
    a.data().iter().zip(b.data()).all(|(a, b)| a == b || a.is_nan() && b.is_nan())
}

#[test]
fn kernels_agree_with_the_oracle() {
    let mut rng = Rng::new(1);
    let sizes = [
        [1, 1, 1, 1],
        [2, 3, 5, 70],
        [1, 17, 33, 129],
        [3, 8, 16, 64],
        [2, 5, 7, 63],
        [1, 2, 31, 300],
        [40, 4, 3, 2],
        [0, 3, 4, 5],
        [2, 0, 4, 5],
        [2, 3, 0, 5],
        [2, 3, 4, 0],
    ];
    let execs = executors();
    // a GPU compiles kernels for nearly every draw
    let draws = if execs.iter().any(is_gpu) { 2 } else { 12 };
    for size in sizes {
        for _ in 0..draws {
            let setup = Setup::random(&mut rng, size);
            Case::new(&mut rng, setup).check(&execs, &mut rng);
        }
    }
}

#[test]
fn several_waves_join() {
    // enough steps for more than one wave of blocks, cut inside a row
    let mut rng = Rng::new(2);
    for (reverse, packed) in [(false, Packed::No), (true, Packed::Index)] {
        let setup = Setup { reverse, packed, conj_sym: Some(true), ..Setup::new(2, 1, 2, 20000) };
        Case::new(&mut rng, setup).check(&[Exec::cpu(2)], &mut rng);
    }
}

proptest! {
    #![proptest_config(random_cases(64, "tests/simplified_scan.proptest-regressions"))]
    #[test]
    fn any_shape_and_option(seed in 0u64..1 << 40, batch in 0usize..4, dim in 0usize..20, dstate in 0usize..40, seqlen in 0usize..150) {
        let mut rng = Rng::new(seed);
        let setup = Setup::random(&mut rng, [batch, dim, dstate, seqlen]);
        Case::new(&mut rng, setup).check(&[Exec::cpu(1)], &mut rng);
    }
}

#[test]
fn bits_do_not_depend_on_threads_or_runs() {
    let mut rng = Rng::new(4);
    for setup in [
        Setup { conj_sym: Some(true), ..Setup::new(2, 6, 70, 700) },
        Setup { packed: Packed::Index, constant: true, ..Setup::new(9, 40, 5, 33) },
    ] {
        let case = Case::new(&mut rng, setup);
        let mut all = Vec::new();
        for threads in [1, 2, 3, 7, 1] {
            let exec = Exec::cpu(threads);
            let out = case.forward(&exec, &mut rng).unwrap();
            let mut bytes: Vec<_> = out.iter().map(|b| b.bytes().to_vec()).collect();
            bytes.extend(case.backward(&exec, &mut rng, None).iter().map(|(_, b)| b.bytes().to_vec()));
            all.push(bytes);
        }
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn nan_stays_in_its_sequence() {
    for exec in executors() {
        for packed in [Packed::No, Packed::Bounds] {
            let mut rng = Rng::new(5);
            let batch = if packed == Packed::No { 3 } else { 1 };
            let mut case = Case::new(&mut rng, Setup { packed, ..Setup::new(batch, 5, 19, 200) });
            if packed == Packed::Bounds {
                case.index = Some(Tensor::from_dense(&Dense::from_slice(&[0i32, 90, 150, 200], &[4]).unwrap(), DType::I32));
                case.initial = Some(normal(&mut rng, DType::Complex64, &[3, 19], Layout::Dense, 1.0));
                case.by_last = normal(&mut rng, DType::Complex64, &[3, 19], Layout::Dense, 1.0);
            }
            let run = |case: &Case, rng: &mut Rng| {
                let [y, last, _] = case.forward(&exec, rng).unwrap();
                let grads = case.backward(&exec, rng, None);
                (y.to_dense(), last.to_dense(), grads.into_iter().map(|(n, g)| (n, g.to_dense())).collect::<Vec<_>>())
            };
            let clean = run(&case, &mut rng);
            let mut dirty = case.u.to_dense();
            // the second sequence
            let (row, step) = if packed == Packed::No { (1, 20) } else { (0, 100) };
            *dirty.at_mut(&[row, 3, step]) = Complex64::new(f64::NAN, 1.0);
            case.u.copy_from(&dirty);
            let spoilt = run(&case, &mut rng);
            let timed = |clean: &Dense, spoilt: &Dense| {
                let (channels, steps) = (clean.shape()[1], clean.shape()[2]);
                for (i, (a, b)) in clean.data().iter().zip(spoilt.data()).enumerate() {
                    let (b_row, t) = (i / (channels * steps), i % steps);
                    let inside = if packed == Packed::No { b_row == 1 } else { (90..150).contains(&t) };
                    assert!(inside || a == b, "{exec:?}: row {b_row} step {t}");
                }
            };
            timed(&clean.0, &spoilt.0);
            for (i, (a, b)) in clean.1.data().iter().zip(spoilt.1.data()).enumerate() {
                assert!(i / 19 == 1 || a == b, "last state {i}");
            }
            for ((name, a), (_, b)) in clean.2.iter().zip(&spoilt.2) {
                match *name {
                    "u" | "delta" => timed(a, b),
                    "initial_state" => {
                        a.data().iter().zip(b.data()).enumerate().for_each(|(i, (a, b))| assert!(i / 19 == 1 || a == b));
                    }
                    _ => {}
                }
            }
        }
    }
}
