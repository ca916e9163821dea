//! The linear scan: its oracle against identities and central differences, its kernels against the oracle.

mod cuda;

use crate::common::device::{home, is_gpu, on, ran};
use crate::common::*;
use num_complex::Complex64;
use proptest::prelude::{prop, proptest};
use statescan::ops::linear_scan::{self, Args, Cotangents, Gradients, Outputs, backward, forward, reference};
use statescan::tensor::{Dense, ErrorBound};
use statescan::{DType, Error, Exec, Level, Tensor, View};

/// Arguments and cotangents of one call.
struct Case {
    a: Tensor,
    b: Tensor,
    initial: Option<Tensor>,
    by_h: Tensor,
    by_final: Tensor,
    reverse: bool,
}

fn complexity(a: DType, b: DType) -> bool {
    a.is_complex() || b.is_complex()
}

/// The type of the states for these arguments: the storage of `b`, complex if anything is.
fn state_type(a: DType, b: DType) -> DType {
    match (complexity(a, b), a.is_double() || b.is_double()) {
        (true, true) => DType::Complex128,
        (true, false) => DType::Complex64,
        (false, _) => b,
    }
}

impl Case {
    fn new(rng: &mut Rng, shape: &[usize], a: DType, b: DType, layout: Layout, initial: bool, reverse: bool) -> Self {
        let state = &shape[..shape.len() - 1];
        let h = state_type(a, b);
        // decays of modulus up to 1, so that neither the state nor its error grows
        let decay = random(rng, a, shape, layout, |rng| {
            let radius = rng.uniform(0.3, 0.999);
            if a.is_complex() { Complex64::from_polar(radius, rng.uniform(-3.0, 3.0)) } else { radius.into() }
        });
        Case {
            a: decay,
            b: normal(rng, b, shape, layout, 1.0),
            initial: initial.then(|| normal(rng, h, state, layout, 1.0)),
            by_h: normal(rng, h, shape, layout, 1.0),
            by_final: normal(rng, h, state, layout, 1.0),
            reverse,
        }
    }

    /// The same on an executor's device.
    fn on(&self, exec: &Exec) -> Self {
        let [a, b, by_h, by_final] = [&self.a, &self.b, &self.by_h, &self.by_final].map(|tensor| on(exec, tensor));
        Case { a, b, initial: self.initial.as_ref().map(|tensor| on(exec, tensor)), by_h, by_final, reverse: self.reverse }
    }

    fn args(&self) -> Args<'_> {
        let initial_state = self.initial.as_ref().map(|tensor| tensor.view());
        Args::new(self.a.view(), self.b.view()).initial_state(initial_state).reverse(self.reverse)
    }

    fn cotangents(&self) -> Cotangents<'_> {
        Cotangents::default().h(self.by_h.view()).final_state(self.by_final.view())
    }

    fn is_double(&self) -> bool {
        self.a.dtype().is_double() || self.b.dtype().is_double()
    }

    /// The states, the final state and the decay, poisoned before; nothing where a GPU has no kernel for the case.
    fn forward(&self, exec: &Exec, rng: &mut Rng, layout: Layout) -> Option<[Tensor; 3]> {
        let (shape, dtype) = (self.b.shape(), self.by_h.dtype());
        let state = &shape[..shape.len() - 1];
        // a long product leaves the range of half-precision numbers
        let carried = if dtype.size() == 2 { DType::F32 } else { dtype };
        let [mut h, mut last, mut decay] = [(dtype, &shape[..]), (dtype, state), (carried, state)]
            .map(|(dtype, shape)| on(exec, &poisoned(rng, dtype, shape, layout)));
        let here = self.on(exec);
        let args = here.args();
        let mut workspace = poisoned_workspace(exec, linear_scan::workspace_len(exec, &args).unwrap());
        let mut out = Outputs::default()
            .h(h.view_mut())
            .final_state(last.view_mut())
            .decay(decay.view_mut())
            .workspace(workspace.view_mut());
        let call = forward(exec, &args, &mut out);
        let results = [&h, &last, &decay];
        ran(exec, call, &results).then(|| results.map(home))
    }

    /// The gradients by `a`, `b` and the initial state, poisoned before.
    fn backward(&self, exec: &Exec, rng: &mut Rng, layout: Layout, h: Option<&Tensor>) -> [Tensor; 3] {
        let shape = self.b.shape();
        let (dtypes, state) = ([self.a.dtype(), self.b.dtype(), self.by_h.dtype()], &shape[..shape.len() - 1]);
        let [mut a, mut b, mut initial] = [(dtypes[0], &shape[..]), (dtypes[1], &shape[..]), (dtypes[2], state)]
            .map(|(dtype, shape)| on(exec, &poisoned(rng, dtype, shape, layout)));
        let (here, h) = (self.on(exec), h.map(|tensor| on(exec, tensor)));
        let args = here.args();
        let len = linear_scan::backward_workspace_len(exec, &args, h.is_some()).unwrap();
        let mut workspace = poisoned_workspace(exec, len);
        let mut grads = Gradients::default()
            .a(a.view_mut())
            .b(b.view_mut())
            .initial_state(initial.view_mut())
            .workspace(workspace.view_mut());
        backward(exec, &args, h.as_ref().map(|h| h.view()), &here.cotangents(), &mut grads).unwrap();
        [&a, &b, &initial].map(home)
    }

    /// The kernels of executors against the oracle; on a GPU a second run gives the same bits.
    fn check(&self, execs: &[Exec], rng: &mut Rng, layout: Layout) {
        let expected = reference::forward(&self.args()).unwrap();
        let by = reference::backward(&self.args(), &self.cotangents()).unwrap();
        for exec in execs {
            let name = format!("{:?} a {} b {} {exec:?}", self.b.shape(), self.a.dtype(), self.b.dtype());
            let Some(out) = self.forward(exec, rng, layout) else {
                assert!(self.is_double(), "no kernel for {name}");
                continue;
            };
            self.check_forward(&name, &out, &expected);
            // a rounded h is another h
            let given = (self.by_h.dtype().size() > 2).then_some(&out[0]);
            for h in [None, given] {
                self.check_backward(&name, &self.backward(exec, rng, layout, h), &by);
            }
            if is_gpu(exec) {
                let run = |mut rng: Rng| {
                    let out = self.forward(exec, &mut rng, layout).expect("it ran before");
                    [out, self.backward(exec, &mut rng, layout, None)].concat()
                };
                let (first, second) = (run(Rng::new(8)), run(Rng::new(8)));
                assert!(first.iter().zip(&second).all(|(a, b)| a.bytes() == b.bytes()), "two runs differ: {name}");
            }
        }
    }

    fn check_forward(&self, name: &str, [h, last, decay]: &[Tensor; 3], expected: &reference::Forward) {
        let bound = ErrorBound::for_scan(self.by_h.dtype(), *h.shape().last().unwrap());
        assert_close(&format!("h {name}"), h, &expected.h, bound);
        // the state carries the rounding errors of the steps it remembers, however small it ends up
        let largest = expected.h.data().iter().map(|v| v.norm()).fold(0.0, f64::max);
        assert_close_in_scale(&format!("final_state {name}"), last, &expected.final_state, bound, largest);
        // a product of many decays may be smaller than any number of its type
        assert_close_in_scale(&format!("decay {name}"), decay, &expected.decay, bound, f64::from(f32::MIN_POSITIVE));
    }

    fn check_backward(&self, name: &str, [a, b, initial]: &[Tensor; 3], expected: &reference::Backward) {
        let bound = |grad: &Tensor| ErrorBound::for_gradient(grad.dtype(), *a.shape().last().unwrap());
        assert_close(&format!("grad of a {name}"), a, &expected.a, bound(a));
        assert_close(&format!("grad of b {name}"), b, &expected.b, bound(b));
        assert_close(&format!("grad of initial_state {name}"), initial, &expected.initial_state, bound(initial));
    }
}

fn poisoned_workspace(exec: &Exec, len: usize) -> Tensor {
    on(exec, &poisoned(&mut Rng::new(0), DType::F32, &[len], Layout::Dense))
}

const TYPES: [(DType, DType); 9] = [
    (DType::F32, DType::F32),
    (DType::F64, DType::F64),
    (DType::BF16, DType::BF16),
    (DType::F32, DType::F16),
    (DType::BF16, DType::F32),
    (DType::Complex64, DType::Complex64),
    (DType::Complex128, DType::Complex128),
    (DType::F32, DType::Complex64),
    (DType::Complex64, DType::BF16),
];

#[test]
fn kernels_agree_with_the_oracle() {
    let mut rng = Rng::new(1);
    let shapes: [&[usize]; 10] =
        [&[1], &[65], &[3, 0], &[0, 5], &[5, 64], &[17, 63], &[2, 31, 130], &[3, 1, 16, 7], &[2, 3, 1, 5, 67], &[33, 1]];
    let execs = executors();
    for (i, shape) in shapes.iter().enumerate() {
        for (j, &(a, b)) in TYPES.iter().enumerate() {
            let layout = if (i + j) % 2 == 0 { Layout::Dense } else { Layout::Scattered };
            Case::new(&mut rng, shape, a, b, layout, (i + j) % 3 > 0, j % 2 == 1).check(&execs, &mut rng, layout);
        }
    }
}

/// Channels that lie side by side are taken in wide blocks, if there are many of them.
#[test]
fn channels_side_by_side_agree_with_the_oracle() {
    let (mut rng, execs) = (Rng::new(2), executors());
    for (dim, length) in [(520, 70), (1030, 3), (2100, 65), (3, 4000)] {
        for (a, b) in TYPES {
            let mut case = Case::new(&mut rng, &[dim, length], a, b, Layout::Dense, true, length == 70);
            for tensor in [&mut case.a, &mut case.b, &mut case.by_h] {
                let values = tensor.to_dense();
                *tensor = Tensor::strided(tensor.dtype(), &[dim, length], &[1, dim as isize], 0, dim * length).unwrap();
                tensor.copy_from(&values);
            }
            case.check(&execs, &mut rng, Layout::Dense);
        }
    }
}

proptest! {
    #![proptest_config(random_cases(48, "tests/linear_scan.proptest-regressions"))]
    #[test]
    fn any_shape_and_option(
        seed in 0u64..1 << 40, shape in prop::collection::vec(0usize..9, 0..4), length in 0usize..150, types in 0..TYPES.len(),
        scattered: bool, initial: bool, reverse: bool,
    ) {
        let mut rng = Rng::new(seed);
        let layout = if scattered { Layout::Scattered } else { Layout::Dense };
        let shape: Vec<usize> = shape.into_iter().chain([length]).collect();
        let (a, b) = TYPES[types];
        Case::new(&mut rng, &shape, a, b, layout, initial, reverse).check(&[Exec::cpu(1)], &mut rng, layout);
    }
}

#[test]
fn oracle_identities() {
    let mut rng = Rng::new(2);
    let shape = [3, 4, 20];
    let case = Case::new(&mut rng, &shape, DType::Complex128, DType::Complex128, Layout::Dense, true, false);
    let whole = reference::forward(&case.args()).unwrap();
    let close = |a: &Dense, b: &Dense| {
        assert_eq!(a.shape(), b.shape());
        a.data().iter().zip(b.data()).for_each(|(a, b)| assert!((a - b).norm() < 1e-12, "{a} {b}"));
    };
    // in two pieces: by carrying the state, and by scanning the second from zero
    let piece = |range: core::ops::Range<usize>, initial| {
        Args::new(case.a.view().slice(2, range.clone()), case.b.view().slice(2, range)).initial_state(initial)
    };
    let first = reference::forward(&piece(0..7, case.args().initial_state)).unwrap();
    let second = reference::forward(&piece(7..20, Some(first.final_state.view()))).unwrap();
    close(&second.final_state, &whole.final_state);
    let zero = reference::forward(&piece(7..20, None)).unwrap();
    let mut joined = zero.final_state.clone();
    for i in 0..joined.data().len() {
        joined.data_mut()[i] += zero.decay.data()[i] * first.final_state.data()[i];
    }
    close(&joined, &whole.final_state);
    // a mirrored call is the reversed scan
    let flipped = case.args().a(case.a.view().flip(2)).b(case.b.view().flip(2)).reverse(true);
    let mirrored = reference::forward(&flipped).unwrap();
    close(&Dense::from_view(&mirrored.h.view().flip(2)), &whole.h);
    close(&mirrored.final_state, &whole.final_state);
    // no decay: cumulative sums; full decay: the input itself
    let constant = |value: f64| Dense::from_slice(&[value; 240], &shape).unwrap();
    let sums = reference::forward(&Args::new(constant(1.0).view(), constant(1.0).view())).unwrap();
    assert_eq!(sums.h.at(&[2, 3, 19]).re, 20.0);
    let inputs = reference::forward(&Args::new(constant(0.0).view(), case.b.view())).unwrap();
    close(&inputs.h, &case.b.to_dense());
    // the adjoint identity: <cotangent, J b> = <J^H cotangent, b> for the linear map b -> h
    let linear = case.args().initial_state(None);
    let h = reference::forward(&linear).unwrap().h;
    let grad = reference::backward(&linear, &case.cotangents().final_state(None)).unwrap().b;
    let dot = |a: &Dense, b: &Dense| a.data().iter().zip(b.data()).map(|(a, b)| (a.conj() * b).re).sum::<f64>();
    let (left, right) = (dot(&case.by_h.to_dense(), &h), dot(&grad, &case.b.to_dense()));
    assert!((left - right).abs() < 1e-10 * left.abs().max(1.0));
}

#[test]
fn oracle_gradients_are_central_differences() {
    for (complex_a, complex_b, reverse) in [(false, false, false), (true, true, true), (false, true, false), (true, false, true)]
    {
        let mut rng = Rng::new(3);
        let of = |complex| if complex { DType::Complex128 } else { DType::F64 };
        let case = Case::new(&mut rng, &[2, 6], of(complex_a), of(complex_b), Layout::Dense, true, reverse);
        let (by_h, by_final) = (case.by_h.to_dense(), case.by_final.to_dense());
        let loss = |args: Args<'_>| {
            let out = reference::forward(&args).unwrap();
            let dot = |a: &Dense, b: &Dense| a.data().iter().zip(b.data()).map(|(a, b)| (a.conj() * b).re).sum::<f64>();
            dot(&by_h, &out.h) + dot(&by_final, &out.final_state)
        };
        let grads = reference::backward(&case.args(), &case.cotangents()).unwrap();
        let close = |name: &str, a: &Dense, b: &Dense| {
            a.data().iter().zip(b.data()).for_each(|(a, b)| assert!((a - b).norm() < 1e-7, "{name}: {a} {b}"));
        };
        let args = case.args();
        let a = central_differences(&case.a.to_dense(), 1e-5, complex_a, |a| loss(args.a(a)));
        close("a", &grads.a, &a);
        let b = central_differences(&case.b.to_dense(), 1e-5, complex_b, |b| loss(args.b(b)));
        close("b", &grads.b, &b);
        let initial = case.initial.as_ref().unwrap().to_dense();
        let by_initial = central_differences(&initial, 1e-5, complex_a || complex_b, |s| loss(args.initial_state(s)));
        close("initial_state", &grads.initial_state, &by_initial);
    }
}

#[test]
fn bits_do_not_depend_on_threads_or_runs() {
    let mut rng = Rng::new(4);
    let case = Case::new(&mut rng, &[3, 37, 200], DType::Complex64, DType::Complex64, Layout::Dense, true, false);
    let mut all = Vec::new();
    for threads in [1, 2, 3, 7, 1] {
        let exec = Exec::cpu(threads);
        let out = case.forward(&exec, &mut rng, Layout::Dense).unwrap();
        let grads = case.backward(&exec, &mut rng, Layout::Dense, None);
        all.push(out.iter().chain(&grads).map(|b| b.bytes().to_vec()).collect::<Vec<_>>());
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_broadcast_decay_needs_no_copy() {
    let mut rng = Rng::new(5);
    let case = Case::new(&mut rng, &[2, 19, 70], DType::F32, DType::F32, Layout::Dense, false, false);
    // one decay for each channel of all rows and steps
    let constant = uniform(&mut rng, DType::F32, &[19], Layout::Dense, 0.5, 0.99);
    let args = case.args().a(constant.view().expand(0, 2).expand(2, 70));
    let mut h = poisoned(&mut rng, DType::F32, &[2, 19, 70], Layout::Dense);
    forward(&Exec::cpu(1), &args, &mut Outputs::default().h(h.view_mut())).unwrap();
    assert_close("h", &h, &reference::forward(&args).unwrap().h, ErrorBound::for_scan(DType::F32, 70));
}

#[test]
fn nan_stays_in_its_channel() {
    let mut rng = Rng::new(6);
    let mut case = Case::new(&mut rng, &[2, 21, 100], DType::F32, DType::F32, Layout::Dense, true, false);
    for level in Level::available() {
        let exec = Exec::cpu(1).with_level(level).unwrap();
        let clean = (case.forward(&exec, &mut rng, Layout::Dense).unwrap(), case.backward(&exec, &mut rng, Layout::Dense, None));
        let keep = case.b.to_dense();
        let mut dirty = keep.clone();
        *dirty.at_mut(&[1, 5, 40]) = Complex64::from(f64::NAN);
        case.b.copy_from(&dirty);
        let spoilt = (case.forward(&exec, &mut rng, Layout::Dense).unwrap(), case.backward(&exec, &mut rng, Layout::Dense, None));
        case.b.copy_from(&keep);
        let pairs = clean.0.iter().zip(&spoilt.0).chain(clean.1.iter().zip(&spoilt.1));
        for (clean, spoilt) in pairs {
            let rows = clean.to_dense().data().len() / 42;
            for (i, (a, b)) in clean.to_dense().data().iter().zip(spoilt.to_dense().data()).enumerate() {
                assert!(i / rows == 21 + 5 || a == b, "element {i}");
            }
        }
        // states before the NaN and gradients after it are untouched
        assert_eq!(clean.0[0].to_dense().at(&[1, 5, 39]), spoilt.0[0].to_dense().at(&[1, 5, 39]));
        assert!(spoilt.0[0].to_dense().at(&[1, 5, 40]).re.is_nan());
    }
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let exec = Exec::cpu(1);
    let (data, complex) = (vec![0f32; 60], vec![num_complex::Complex32::ZERO; 60]);
    let indices = vec![0i32; 60];
    let view = |shape: &[usize]| View::new(&data[..shape.iter().product()], shape).unwrap();
    let good = Args::new(view(&[3, 20]), view(&[3, 20]));
    let run = |args: Args<'_>| {
        let mut h = vec![7f32; 60];
        let mut out = Outputs::default().h(statescan::ViewMut::new(&mut h, &[3, 20]).unwrap());
        let error = forward(&exec, &args, &mut out).unwrap_err();
        assert!(h.iter().all(|&v| v == 7.0));
        error
    };
    assert!(matches!(run(good.a(view(&[3, 19]))), Error::Shape { argument: "a", .. }));
    assert!(matches!(run(good.a(view(&[20]))), Error::Rank { argument: "a", .. }));
    let six = view(&[1, 1, 1, 1, 3, 20]);
    assert!(matches!(run(good.a(six).b(six)), Error::Rank { argument: "b", .. }));
    let index = View::new(&indices, &[3, 20]).unwrap();
    assert!(matches!(run(good.b(index)), Error::DType { argument: "b", .. }));
    assert!(matches!(run(good.initial_state(view(&[4]))), Error::Shape { argument: "initial_state", .. }));
    let state = View::new(&complex[..3], &[3]).unwrap();
    assert!(matches!(run(good.initial_state(state)), Error::DType { argument: "initial_state", .. }));
    let b = View::new(&complex, &[3, 20]).unwrap();
    assert!(matches!(run(good.b(b)), Error::DType { argument: "h", .. }));
    let mut one = [7f32; 3];
    let h = statescan::ViewMut::strided(&mut one, 0, &[3, 20], &[1, 0]).unwrap();
    let error = forward(&exec, &good, &mut Outputs::default().h(h)).unwrap_err();
    assert!(matches!(error, Error::Stride { argument: "h", .. }));
    let mut last = vec![7f32; 3];
    let mut grads = Gradients::default().initial_state(statescan::ViewMut::new(&mut last, &[3]).unwrap());
    let cotangents = Cotangents::default().h(view(&[3, 19]));
    let error = backward(&exec, &good, None, &cotangents, &mut grads).unwrap_err();
    assert!(matches!(error, Error::Shape { argument: "grad of h", .. }));
    assert!(last.iter().all(|&v| v == 7.0));
}

#[test]
fn sizes_that_no_memory_has_are_refused() {
    let (one, exec) = (&[0.5f32], &Exec::cpu(2));
    let op = "linear_scan";
    for shape in [
        &[1usize << 62][..],
        &[1, (1 << 48) + 1],
        &[1 << 62, 1],
        &[1 << 31, 1 << 31, 1],
        &[1 << 62, 0],
        &[1 << 15, 1 << 15, 1 << 15, 1 << 15, 0],
        &[1 << 20, 1 << 20, 1 << 20, 0, 1],
    ] {
        for reverse in [false, true] {
            let args = &Args::new(broadcast(one, shape), broadcast(one, shape)).reverse(reverse);
            assert_too_large(op, forward(exec, args, &mut Outputs::default()));
            let mut grad = [7f32];
            let mut grads = Gradients::default().initial_state(statescan::ViewMut::new(&mut grad, &[1]).unwrap());
            assert_too_large(op, backward(exec, args, None, &Cotangents::default(), &mut grads));
            assert_too_large(op, linear_scan::backward_workspace_len(exec, args, false));
            assert_too_large(op, reference::forward(args));
            assert_too_large(op, reference::backward(args, &Cotangents::default()));
            assert_eq!(grad, [7.0]);
        }
    }
    let most = broadcast(one, &[1, 1 << 48]);
    assert_eq!(linear_scan::backward_workspace_len(exec, &Args::new(most, most), false), Ok(0));
}
