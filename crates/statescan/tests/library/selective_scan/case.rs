//! Random problems, what the oracle says of them, and what kernels make of them.

use super::*;

/// A random problem: which options are set, how large, stored how.
#[derive(Debug, Clone)]
pub struct Case {
    pub batch: usize,
    pub dim: usize,
    pub seqlen: usize,
    pub dstate: usize,
    pub groups: usize,
    pub dtype: DType,
    pub complex: bool,
    pub constant_b: bool,
    pub constant_c: bool,
    pub options: u32,
    pub discretization: Discretization,
    pub layout: Layout,
    pub seed: u64,
}

impl Case {
    pub fn new(dtype: DType, batch: usize, dim: usize, seqlen: usize, dstate: usize, options: u32) -> Self {
        Case {
            batch: if options & BOUNDS != 0 { 1 } else { batch },
            dim,
            seqlen,
            dstate,
            groups: 1,
            dtype,
            complex: false,
            constant_b: false,
            constant_c: false,
            options,
            discretization: Discretization::Mamba,
            layout: Layout::Dense,
            seed: 1,
        }
    }

    pub fn has(&self, option: u32) -> bool {
        self.options & option != 0
    }

    pub fn double(&self) -> bool {
        self.dtype == DType::F64
    }

    /// The type of parameters and states.
    pub fn wide(&self) -> DType {
        match (self.double(), self.complex) {
            (false, false) => DType::F32,
            (true, false) => DType::F64,
            (false, true) => DType::Complex64,
            (true, true) => DType::Complex128,
        }
    }

    pub fn state_shape(&self) -> Vec<usize> {
        let own = [self.dim, self.dstate];
        if self.has(BOUNDS) {
            vec![4, own[0], own[1]]
        } else if self.has(INDEX) && self.has(INDEX_STATES) {
            vec![self.batch, 5, own[0], own[1]]
        } else {
            vec![self.batch, own[0], own[1]]
        }
    }
}

pub struct Inputs {
    pub x: Tensor,
    pub dt: Tensor,
    pub a: Tensor,
    pub b: Tensor,
    pub c: Tensor,
    pub d: Tensor,
    pub z: Tensor,
    pub bias: Tensor,
    pub dt_a: Tensor,
    pub state: Tensor,
    pub bounds: Tensor,
    pub index: Tensor,
    pub dy: Tensor,
    pub dstate: Tensor,
}

impl Inputs {
    pub fn new(case: &Case) -> Self {
        let rng = &mut Rng::new(case.seed);
        let (l, wide) = (case.layout, case.wide());
        let bdl = [case.batch, case.dim, case.seqlen];
        let raw = case.has(SOFTPLUS);
        let map = |rng: &mut Rng, constant: bool| {
            let varying = if case.groups > 1 {
                vec![case.batch, case.groups, case.dstate, case.seqlen]
            } else {
                vec![case.batch, case.dstate, case.seqlen]
            };
            let shape = if constant { vec![case.dim, case.dstate] } else { varying };
            let dtype = if case.complex { wide } else { case.dtype };
            normal(rng, dtype, &shape, l, 0.7)
        };
        let complex = case.complex;
        let third = case.seqlen / 3;
        let bounds = indices(DType::I64, &[0, third, third, 2 * third, case.seqlen].map(|bound| bound as i64));
        let mut step = 0;
        let index = random(rng, DType::I32, &[case.batch, case.seqlen], l, |_| {
            let t = step % case.seqlen.max(1);
            step += 1;
            // sequences 0, 2 and 3 of five; 1 and 4 do not occur
            Complex64::from(if t < case.seqlen / 4 {
                0.0
            } else if t < case.seqlen / 2 + 1 {
                2.0
            } else {
                3.0
            })
        });
        Inputs {
            x: normal(rng, case.dtype, &bdl, l, 1.0),
            dt: if raw { normal(rng, case.dtype, &bdl, l, 1.0) } else { uniform(rng, case.dtype, &bdl, l, 0.001, 0.4) },
            a: random(rng, wide, &[case.dim, case.dstate], l, |rng| {
                Complex64::new(-rng.uniform(0.05, 3.0), if complex { rng.uniform(-4.0, 4.0) } else { 0.0 })
            }),
            b: map(rng, case.constant_b),
            c: map(rng, case.constant_c),
            d: normal(rng, DType::F32, &[case.dim], l, 1.0),
            z: normal(rng, case.dtype, &bdl, l, 1.0),
            bias: uniform(rng, DType::F32, &[case.dim], l, 0.0, 0.1),
            dt_a: uniform(rng, case.dtype, &bdl, l, 0.001, 0.4),
            state: normal(rng, wide, &case.state_shape(), l, 1.0),
            bounds,
            index,
            dy: normal(rng, case.dtype, &bdl, l, 1.0),
            dstate: normal(rng, wide, &case.state_shape(), l, 1.0),
        }
    }

    /// Copies of the inputs on an executor's device.
    pub fn on(&self, exec: &Exec) -> Self {
        let on = |tensor| on(exec, tensor);
        let [x, dt, a, b, c, d, z] = [&self.x, &self.dt, &self.a, &self.b, &self.c, &self.d, &self.z].map(on);
        let [bias, dt_a, state, bounds, index] = [&self.bias, &self.dt_a, &self.state, &self.bounds, &self.index].map(on);
        let [dy, dstate] = [&self.dy, &self.dstate].map(on);
        Inputs { x, dt, a, b, c, d, z, bias, dt_a, state, bounds, index, dy, dstate }
    }

    pub fn args<'a>(&'a self, case: &Case) -> Args<'a> {
        let on = |option, view: &'a Tensor| case.has(option).then(|| view.view());
        Args::new(self.x.view(), self.dt.view(), self.a.view(), self.b.view(), self.c.view())
            .d(on(SKIP, &self.d))
            .z(on(GATE, &self.z))
            .dt_bias(on(BIAS, &self.bias))
            .dt_softplus(case.has(SOFTPLUS))
            .dt_limit(if case.has(LIMIT) { (0.02, 0.3) } else { (f64::NEG_INFINITY, f64::INFINITY) })
            .dt_a(on(OWN_DECAY_STEP, &self.dt_a))
            .initial_state(on(INITIAL, &self.state))
            .sequences(if case.has(BOUNDS) {
                Sequences::CuSeqlens(self.bounds.view())
            } else if case.has(INDEX) {
                Sequences::SeqIdx(self.index.view())
            } else {
                Sequences::Whole
            })
            .reverse(case.has(REVERSE))
            .discretization(case.discretization)
    }

    pub fn cotangents(&self) -> Cotangents<'_> {
        Cotangents::default().y(self.dy.view()).final_state(self.dstate.view())
    }
}

/// A case and what the oracle says of it, which takes longer than any kernel: once for all executors.
pub struct Expected<'c> {
    pub case: &'c Case,
    pub inputs: Inputs,
    pub forward: reference::Forward,
    pub backward: reference::Backward,
}

impl<'c> Expected<'c> {
    pub fn new(case: &'c Case) -> Self {
        let inputs = Inputs::new(case);
        let args = inputs.args(case);
        // the form of the states with seq_idx follows from the tensors given
        let forward = reference::forward_with_state_shape(&args, &case.state_shape()).unwrap();
        let backward = reference::backward(&args, &inputs.cotangents()).unwrap();
        Expected { case, inputs, forward, backward }
    }

    /// Compares what the kernels of one executor compute with the oracle, with a workspace and without if there is one; on a GPU a second
    /// run gives the same bits.
    pub fn check(&self, exec: &Exec) {
        let (case, inputs) = (self.case, self.inputs.on(exec));
        let cut = selective_scan::workspace_len(exec, &inputs.args(case)).unwrap() > 0;
        let mut kept = Vec::new();
        for &with_workspace in if cut { &[true, false][..] } else { &[true] } {
            let name = |what: &str| format!("{what} of {case:?} on {exec:?}, workspace {with_workspace}");
            let Some([y, last, saved]) = run_forward(case, &inputs, exec, with_workspace) else {
                return assert!(case.double(), "{}", name("no kernel"));
            };
            assert_close(&name("y"), &y, &self.forward.y, ErrorBound::for_scan(case.dtype, case.seqlen));
            let bound = ErrorBound::for_scan(case.wide(), case.seqlen);
            assert_close(&name("final_state"), &last, &self.forward.final_state, bound);
            if is_gpu(exec) {
                let again = run_forward(case, &inputs, exec, with_workspace).expect("it ran before");
                let same = [&y, &last, &saved].into_iter().zip(&again).all(|(a, b)| a.bytes() == b.bytes());
                assert!(same, "{}", name("two runs differ"));
            }
            self.check_backward(exec, &inputs, Some(&saved));
            kept.push(saved.to_dense());
        }
        if case.seed.is_multiple_of(2) {
            self.check_backward(exec, &inputs, None);
        }
        // saved states are the same however the scan is cut
        if let [cut, whole] = &kept[..] {
            let near = |(a, b): (&Complex64, &Complex64)| (a - b).norm() < 1e-5 * (1.0 + b.norm());
            assert!(cut.data().iter().zip(whole.data()).all(near), "saved states of {case:?} on {exec:?}");
        }
    }

    fn check_backward(&self, exec: &Exec, inputs: &Inputs, saved: Option<&Tensor>) {
        let case = self.case;
        let name = format!("{case:?} on {exec:?}, saved states {}", saved.is_some());
        let got = Computed::backward(case, inputs, exec, saved);
        self.compare_gradients(&name, &got);
        if is_gpu(exec) {
            let again = Computed::backward(case, inputs, exec, saved);
            let same = got.all().into_iter().zip(again.all()).all(|((_, a), (_, b))| a.bytes() == b.bytes());
            assert!(same, "two runs differ: {name}");
        }
    }

    /// Compares gradients with the oracle's.
    pub fn compare_gradients(&self, name: &str, got: &Computed) {
        let Expected { case, backward: expected, .. } = self;
        let expected = [
            Some(&expected.x),
            Some(&expected.dt),
            Some(&expected.a),
            Some(&expected.b),
            Some(&expected.c),
            expected.d.as_ref(),
            expected.z.as_ref(),
            expected.dt_bias.as_ref(),
            expected.dt_a.as_ref(),
            Some(&expected.initial_state),
        ];
        for ((what, got), expected) in got.all().into_iter().zip(expected) {
            let Some(expected) = expected else { continue };
            let bound = ErrorBound::for_gradient(got.dtype(), case.seqlen);
            assert_close(&format!("gradient by {what} of {name}"), got, expected, bound);
        }
    }
}

/// `y`, the final state and the saved states, each poisoned before; nothing where a GPU has no kernel for the case. The inputs are on the
/// executor's device.
pub fn run_forward(case: &Case, inputs: &Inputs, exec: &Exec, with_workspace: bool) -> Option<[Tensor; 3]> {
    let (args, rng) = (inputs.args(case), &mut Rng::new(case.seed + 1));
    let real = if case.double() { DType::F64 } else { DType::F32 };
    let saved = selective_scan::checkpoints_len(&args).unwrap();
    let scratch = selective_scan::workspace_len(exec, &args).unwrap();
    let mut fresh = |dtype, shape: &[usize], layout| on(exec, &poisoned(rng, dtype, shape, layout));
    let mut y = fresh(case.dtype, &[case.batch, case.dim, case.seqlen], case.layout);
    let mut last = fresh(case.wide(), &case.state_shape(), case.layout);
    let [mut saved, mut scratch] = [(real, saved), (DType::F32, scratch)].map(|(of, len)| fresh(of, &[len], Layout::Dense));
    let mut out = Outputs::default()
        .y(y.view_mut())
        .final_state(last.view_mut())
        .checkpoints(saved.view_mut())
        .workspace(with_workspace.then(|| scratch.view_mut()));
    let call = selective_scan::forward(exec, &args, &mut out);
    let results = [&y, &last, &saved];
    ran(exec, call, &results).then(|| results.map(home))
}

/// Gradients by every argument that a case may have.
pub struct Computed {
    pub x: Tensor,
    pub dt: Tensor,
    pub a: Tensor,
    pub b: Tensor,
    pub c: Tensor,
    pub d: Tensor,
    pub z: Tensor,
    pub bias: Tensor,
    pub dt_a: Tensor,
    pub state: Tensor,
}

impl Computed {
    pub fn new(i: &Inputs, mut fresh: impl FnMut(&Tensor) -> Tensor) -> Self {
        let [x, dt, a, b, c] = [&i.x, &i.dt, &i.a, &i.b, &i.c].map(&mut fresh);
        let [d, z, bias, dt_a, state] = [&i.d, &i.z, &i.bias, &i.dt_a, &i.state].map(fresh);
        Computed { x, dt, a, b, c, d, z, bias, dt_a, state }
    }

    /// The gradients of a case on the host, each poisoned before. The inputs are on the executor's device.
    fn backward(case: &Case, inputs: &Inputs, exec: &Exec, saved: Option<&Tensor>) -> Self {
        Computed::by(case, inputs, exec, saved, |args, saved, grads| {
            selective_scan::backward(exec, args, saved, &inputs.cotangents(), grads).unwrap();
        })
    }

    /// The gradients by a pass that gets arguments, saved states and targets.
    pub fn by(
        case: &Case,
        inputs: &Inputs,
        exec: &Exec,
        saved: Option<&Tensor>,
        pass: impl FnOnce(&Args<'_>, Option<View<'_>>, &mut Gradients<'_>),
    ) -> Self {
        let (args, rng) = (inputs.args(case), &mut Rng::new(case.seed + 2));
        let saved = saved.map(|tensor| on(exec, tensor));
        let len = selective_scan::backward_workspace_len(exec, &args, saved.is_some()).unwrap();
        let mut scratch = on(exec, &poisoned(rng, DType::F32, &[len], Layout::Dense));
        let mut got = Computed::new(inputs, |like| on(exec, &poisoned(rng, like.dtype(), &like.shape(), case.layout)));
        let mut grads = got.targets(case).workspace(scratch.view_mut());
        let saved = saved.as_ref().map(|tensor| tensor.view());
        pass(&args, saved, &mut grads);
        let Computed { x, dt, a, b, c, d, z, bias, dt_a, state } = got;
        let [x, dt, a, b, c, d, z, bias, dt_a, state] = [x, dt, a, b, c, d, z, bias, dt_a, state].map(|tensor| home(&tensor));
        Computed { x, dt, a, b, c, d, z, bias, dt_a, state }
    }

    /// The gradients by name.
    pub fn all(&self) -> [(&'static str, &Tensor); 10] {
        [
            ("x", &self.x),
            ("dt", &self.dt),
            ("a", &self.a),
            ("b", &self.b),
            ("c", &self.c),
            ("d", &self.d),
            ("z", &self.z),
            ("dt_bias", &self.bias),
            ("dt_a", &self.dt_a),
            ("initial_state", &self.state),
        ]
    }

    /// The tensors that a case's gradients go to.
    pub fn targets(&mut self, case: &Case) -> Gradients<'_> {
        Gradients::default()
            .x(self.x.view_mut())
            .dt(self.dt.view_mut())
            .a(self.a.view_mut())
            .b(self.b.view_mut())
            .c(self.c.view_mut())
            .d(case.has(SKIP).then(|| self.d.view_mut()))
            .z(case.has(GATE).then(|| self.z.view_mut()))
            .dt_bias(case.has(BIAS).then(|| self.bias.view_mut()))
            .dt_a(case.has(OWN_DECAY_STEP).then(|| self.dt_a.view_mut()))
            .initial_state(self.state.view_mut())
    }
}
