//! [`S5`]: the layer of Smith, Warrington and Linderman.

use super::{Layer, LayerGradients, check, sequences, sizes};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::random::Random;
use crate::state::{LayerState, StateShape};
use crate::tensors::{Array, Tensors};
use bytemuck::{cast_slice, cast_slice_mut};
use num_complex::Complex32;
use statescan::ops::simplified_scan::{Args, Cotangents, Gradients, Outputs, backward, forward};
use statescan::{Discretization, Exec, View, ViewMut};

const NAME: &str = "s5";

/// Sizes and options of a layer of S5.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq)]
pub struct S5Config {
    /// Width of the rows.
    pub dim: usize,
    /// Complex states.
    pub dstate: usize,
    /// How the continuous system becomes a recurrence.
    pub discretization: Discretization,
    /// Whether the states stand for conjugate pairs, of which one each is kept.
    pub conj_sym: bool,
    /// Multiplies step sizes.
    pub step_rescale: f32,
}

impl S5Config {
    /// Zero-order hold, conjugate pairs.
    pub fn new(dim: usize, dstate: usize) -> Self {
        S5Config { dim, dstate, discretization: Discretization::Zoh, conj_sym: true, step_rescale: 1.0 }
    }

    /// The names and shapes of the weights; a last axis of 2 has real and imaginary parts.
    pub fn tensors(&self) -> [(&'static str, Vec<usize>); 5] {
        let (dim, dstate) = (self.dim, self.dstate);
        [
            ("A", vec![dstate, 2]),
            ("B", vec![dstate, dim, 2]),
            ("C", vec![dim, dstate, 2]),
            ("D", vec![dim]),
            ("log_dt", vec![dstate]),
        ]
    }
}

/// The layer of S5, `y = f Re(C x) + D u` of a scan whose inputs and outputs are all channels, with f = 2 for conjugate pairs. Step sizes are
/// `exp(log_dt) step_rescale`. Names and shapes of weights are those of `statescan.nn.S5` in Python.
pub struct S5 {
    config: S5Config,
    weights: Tensors,
    dt: Vec<f32>,
}

impl S5 {
    /// A layer of weights that the process has; they are copied.
    ///
    /// # Errors
    /// Sizes of zero, tensors or shapes that are not those of the configuration, weights that are NaN or infinite.
    pub fn new(config: S5Config, weights: &Tensors) -> Result<Self> {
        if config.dim == 0 || config.dstate == 0 {
            return Err(Error::Size { layer: NAME, argument: "config", shape: "of sizes above zero", expected: 1, got: 0 });
        }
        let mut from = Checkpoint::of(weights)?;
        for (name, shape) in config.tensors() {
            from.take(name, &shape)?;
        }
        from.finish(NAME)?;
        let dt = weights["log_dt"].data.iter().map(|log| log.exp() * config.step_rescale).collect();
        Ok(S5 { config, weights: weights.clone(), dt })
    }

    /// A layer of random weights: decays of a half with the frequencies 0, 1, .. times pi, step sizes between 0.001 and 0.1.
    ///
    /// # Errors
    /// Sizes of zero.
    pub fn random(config: S5Config, seed: u64) -> Result<Self> {
        let mut random = Random::new(seed);
        let weight = |(name, shape): (&str, Vec<usize>)| {
            let (len, bound) = (shape.iter().product::<usize>(), (shape.get(1).copied().unwrap_or(1) as f64).sqrt().recip());
            let element = |i: usize| match name {
                "A" if i.is_multiple_of(2) => -0.5,
                "A" => std::f64::consts::PI * (i / 2) as f64,
                "log_dt" => random.uniform(0.001f64.ln(), 0.1f64.ln()),
                "D" => 0.1 * random.normal(),
                _ => random.uniform(-bound, bound),
            };
            let data = (0..len).map(element).map(|x| x as f32).collect();
            (name.to_owned(), Array { shape, data })
        };
        let weights = config.tensors().map(weight);
        Self::new(config, &Tensors::from(weights))
    }

    /// Sizes and options.
    pub fn config(&self) -> &S5Config {
        &self.config
    }

    /// The call for rows and a state.
    fn args<'a>(&'a self, x: &'a [f32], state: &'a LayerState, [batch, seqlen]: [usize; 2]) -> Result<Args<'a>> {
        let S5Config { dim, dstate, discretization, conj_sym, .. } = self.config;
        let complex = |name: &str, shape: &[usize]| View::new(cast_slice::<f32, Complex32>(&self.weights[name].data), shape);
        let d = View::new(&self.weights["D"].data, &[dim])?;
        let args = Args::new(
            View::strided(x, 0, &[batch, dim, seqlen], &strides(dim, seqlen))?,
            View::new(&self.dt, &[dstate])?,
            complex("A", &[dstate])?,
            complex("B", &[dstate, dim])?,
            complex("C", &[dim, dstate])?,
        );
        let initial = pairs(state, [batch, dstate])?;
        Ok(args.discretization(discretization).d(d).conj_sym(conj_sym).initial_state(initial))
    }
}

/// Pairs of real and imaginary parts, to be written.
fn complex_mut(pairs: &mut Array) -> statescan::Result<ViewMut<'_>> {
    let Array { shape, data } = pairs;
    ViewMut::new(cast_slice_mut::<f32, Complex32>(data), &shape[..shape.len() - 1])
}

/// States as complex numbers.
fn pairs(state: &LayerState, shape: [usize; 2]) -> statescan::Result<View<'_>> {
    View::new(cast_slice::<f32, Complex32>(state.all().next().unwrap_or_default()), &shape)
}

/// States as complex numbers, to be written.
fn pairs_mut(state: &mut LayerState, shape: [usize; 2]) -> statescan::Result<ViewMut<'_>> {
    let numbers = state.all_mut().next().map(|numbers| &mut numbers[..]);
    ViewMut::new(cast_slice_mut::<f32, Complex32>(numbers.unwrap_or_default()), &shape)
}

/// Rows (batch, seqlen, dim) as (batch, dim, seqlen).
fn strides(dim: usize, seqlen: usize) -> [isize; 3] {
    [(dim * seqlen) as isize, 1, dim as isize]
}

impl Layer for S5 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn dim(&self) -> usize {
        self.config.dim
    }

    fn state(&self, batch: usize) -> LayerState {
        LayerState::new(&[StateShape { name: "scan", shape: [self.config.dstate, 2], grows: false }], batch)
    }

    fn forward_from(&self, exec: &Exec, x: &[f32], state: &mut LayerState, y: &mut [f32]) -> Result<()> {
        let [batch, seqlen] = sizes(self, x, state, ("y", y.len()))?;
        let (mut next, dim, dstate) = (self.state(batch), self.config.dim, self.config.dstate);
        let last = pairs_mut(&mut next, [batch, dstate])?;
        let out = Outputs::default().y(ViewMut::strided(y, 0, &[batch, dim, seqlen], &strides(dim, seqlen))?);
        forward(exec, &self.args(x, state, [batch, seqlen])?, &mut out.last_state(last))?;
        *state = next;
        Ok(())
    }

    fn backward(
        &self,
        exec: &Exec,
        x: &[f32],
        initial: &LayerState,
        dy: &[f32],
        dlast: Option<&LayerState>,
    ) -> Result<LayerGradients> {
        let [batch, seqlen] = sizes(self, x, initial, ("dy", dy.len()))?;
        let S5Config { dim, dstate, .. } = self.config;
        let mut cotangents = Cotangents::default().y(View::strided(dy, 0, &[batch, dim, seqlen], &strides(dim, seqlen))?);
        if let Some(dlast) = dlast {
            check(NAME, "dlast", "of as many sequences", batch, sequences(self, dlast)?)?;
            cotangents = cotangents.last_state(pairs(dlast, [batch, dstate])?);
        }
        let (mut dx, mut first) = (vec![0.0; x.len()], self.state(batch));
        let [mut a, mut b, mut c, mut d, mut log_dt] = self.config.tensors().map(|(_, shape)| {
            let data = vec![0.0; shape.iter().product()];
            Array { shape, data }
        });
        let mut grads = Gradients::default()
            .u(ViewMut::strided(&mut dx, 0, &[batch, dim, seqlen], &strides(dim, seqlen))?)
            .a(complex_mut(&mut a)?)
            .b(complex_mut(&mut b)?)
            .c(complex_mut(&mut c)?)
            .d(ViewMut::new(&mut d.data, &[dim])?)
            .delta(ViewMut::new(&mut log_dt.data, &[dstate])?)
            .initial_state(pairs_mut(&mut first, [batch, dstate])?);
        backward(exec, &self.args(x, initial, [batch, seqlen])?, None, &cotangents, &mut grads)?;
        // dt = exp(log_dt) step_rescale is its own derivative
        log_dt.data.iter_mut().zip(&self.dt).for_each(|(gradient, dt)| *gradient *= dt);
        let names = self.config.tensors().map(|(name, _)| name.to_owned());
        let weights = names.into_iter().zip([a, b, c, d, log_dt]).collect();
        Ok(LayerGradients { x: dx, initial: first, weights })
    }
}
