//! A step of the optimizer.

use super::super::LAYERS;
use crate::cuda::{Address, COMMON, Config, Kernel, Launch, Program, STEP_SIZE, params};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::ops::check::{Checker, Kind};
use crate::tensor::{DType, Tensor, View, ViewMut};
use core::ffi::c_void;

const OP: &str = "adamw";
const THREADS: usize = 256;
/// Blocks that sum squares of one tensor, at most, and numbers that are worth one.
const BLOCKS: usize = 256;
const NUMBERS: usize = 4096;

pub(super) static SQUARES: Program<Squares> =
    Program::new("sum_of_squares", &[COMMON, STEP_SIZE, LAYERS], include_str!("squares.cu"));
pub(super) static LENGTH: Program<Length> = Program::new("clip_factor", &[COMMON], include_str!("length.cu"));
pub(super) static ADAMW: Program<Params> = Program::new(OP, &[COMMON], include_str!("adamw.cu"));

params! {
    /// Parameters of `sum_of_squares`.
    pub(super) struct Squares {
        x: Address<f32>,
        terms: Address<f32>,
        count: i64,
    }
}

params! {
    /// Parameters of `clip_factor`.
    pub(super) struct Length {
        terms: Address<f32>,
        factor: Address<f32>,
        count: i64,
        longest: f32,
    }
}

params! {
    /// Parameters of `adamw`.
    pub(super) struct Params {
        weight: Address<f32>,
        gradient: Address<f32>,
        first: Address<f32>,
        second: Address<f32>,
        factor: Address<f32>,
        used: Address<c_void>,
        count: i64,
        rate: f32,
        /// What a step leaves of a weight.
        keep: f32,
        memory: f32,
        memory_of_squares: f32,
        correct_first: f32,
        correct_second: f32,
        eps: f32,
    }
}

/// The factor that makes gradients no longer than they may be, all of them together, on a device.
pub struct ClippedGradient {
    exec: Exec,
    terms: Tensor,
    factor: Tensor,
}

fn blocks(count: usize) -> usize {
    count.div_ceil(NUMBERS).min(BLOCKS)
}

impl ClippedGradient {
    /// Room for the sums of gradients with so many numbers each.
    ///
    /// # Errors
    /// An executor that is not a CUDA one; a device without room.
    pub fn new(exec: &Exec, counts: impl IntoIterator<Item = usize>) -> Result<Self> {
        exec.cuda_only()?;
        let terms: usize = counts.into_iter().map(blocks).sum();
        let (terms, factor) = (Tensor::empty(exec, DType::F32, &[terms])?, Tensor::empty(exec, DType::F32, &[1])?);
        Ok(ClippedGradient { exec: exec.clone(), terms, factor })
    }

    /// Finds the factor: one, or `longest` by the root of the sum of all squares where that is longer. The gradients are dense, f32, and those that
    /// there is room for.
    ///
    /// # Errors
    /// Arguments of wrong shapes, types or devices, or that are not dense.
    pub fn measure<'g>(&mut self, gradients: impl IntoIterator<Item = View<'g>>, longest: f64) -> Result<()> {
        let stream = self.exec.cuda_only()?;
        let (terms, room) = (self.terms.view().as_ptr() as u64, self.terms.shape()[0]);
        let mut taken = 0;
        for x in gradients {
            let mut checker = Checker::new("clip_gradients", self.exec.device());
            checker.read("gradients", &x, Kind::Exact(DType::F32), &x.shape())?;
            checker.dense("gradients", Some(x))?;
            checker.finish()?;
            if taken + blocks(x.len()) > room {
                return Err(Error::Presence {
                    op: "clip_gradients",
                    argument: "gradients",
                    expected: "must be those there is room for",
                });
            }
            let kernel = squares(x.as_ptr() as u64, terms + 4 * taken as u64, x.len());
            // SAFETY: as in `rms_norm_backward`; there is room for the terms.
            unsafe { kernel.launch(stream, &SQUARES)? };
            taken += blocks(x.len());
        }
        let kernel = length(terms, self.factor.view().as_ptr() as u64, taken, longest as f32);
        // SAFETY: so many terms were written.
        unsafe { kernel.launch(stream, &LENGTH) }
    }

    /// The factor, (1) in f32.
    pub fn factor(&self) -> View<'_> {
        self.factor.view()
    }
}

/// What a model computes with where a weight was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The weight, in the type of the copy.
    Same,
    /// `-exp` of it: a decay, of which the weight is the logarithm.
    Decay,
}

/// A step of AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, algorithm 2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// The learning rate.
    pub rate: f64,
    /// What a step takes away of a weight, by the learning rate.
    pub weight_decay: f64,
    /// What a step leaves of the means of gradients and of their squares.
    pub memory: [f64; 2],
    /// Added to the root of the mean square.
    pub eps: f64,
    /// Steps taken, with this one.
    pub taken: u32,
}

impl AdamW {
    /// Moves a weight by its gradient times a factor, (1), and both means; all are dense, of one shape, and f32. What the model computes with, `used`,
    /// is written too: as many numbers of any real type.
    ///
    /// # Errors
    /// Arguments of wrong shapes, types or devices, or that are not dense or overlap; an executor that is not a CUDA one. Nothing is written then.
    pub fn apply(
        &self,
        exec: &Exec,
        weight: &mut ViewMut<'_>,
        (gradient, factor): (View<'_>, View<'_>),
        [first, second]: [&mut ViewMut<'_>; 2],
        used: Option<(&mut ViewMut<'_>, Form)>,
    ) -> Result<()> {
        let stream = exec.cuda_only()?;
        let (shape, real) = (weight.as_view().shape(), Kind::Exact(DType::F32));
        let mut checker = Checker::new(OP, exec.device());
        checker.read("gradient", &gradient, real, &shape)?;
        checker.read("factor", &factor, real, &[1])?;
        checker.write("weight", weight, real, &shape)?;
        checker.write("first", first, real, &shape)?;
        checker.write("second", second, real, &shape)?;
        let views =
            [("weight", weight.as_view()), ("gradient", gradient), ("first", first.as_view()), ("second", second.as_view())];
        for (argument, view) in views {
            checker.dense(argument, Some(view))?;
        }
        let mut target = None;
        if let Some((used, form)) = used {
            let view = used.as_view();
            checker.write("used", used, Kind::Real, &view.shape())?;
            checker.dense("used", Some(view))?;
            if view.len() != gradient.len() {
                return Err(Error::Shape { op: OP, argument: "used", expected: shape, got: view.shape() });
            }
            target = Some((view.as_ptr() as u64, view.dtype(), form));
        }
        checker.finish()?;
        let views = views.map(|(_, view)| view.as_ptr() as u64);
        let kernel =
            self.kernel([views[0], views[1], views[2], views[3], factor.as_ptr() as u64], target, gradient.len(), true)?;
        // SAFETY: as in `rms_norm_backward`.
        unsafe { kernel.launch(stream, &ADAMW) }
    }

    /// Writes what a model computes with in the place of a weight, as [`AdamW::apply`] does after it has moved it.
    ///
    /// # Errors
    /// As [`AdamW::apply`].
    pub fn copy(exec: &Exec, weight: View<'_>, used: &mut ViewMut<'_>, form: Form) -> Result<()> {
        let stream = exec.cuda_only()?;
        let view = used.as_view();
        let mut checker = Checker::new(OP, exec.device());
        checker.read("weight", &weight, Kind::Exact(DType::F32), &weight.shape())?;
        checker.dense("weight", Some(weight))?;
        checker.write("used", used, Kind::Real, &view.shape())?;
        checker.dense("used", Some(view))?;
        if view.len() != weight.len() {
            return Err(Error::Shape { op: OP, argument: "used", expected: weight.shape(), got: view.shape() });
        }
        checker.finish()?;
        let none = AdamW { rate: 0.0, weight_decay: 0.0, memory: [0.0; 2], eps: 0.0, taken: 1 };
        let addresses = [weight.as_ptr() as u64, 0, 0, 0, 0];
        let kernel = none.kernel(addresses, Some((view.as_ptr() as u64, view.dtype(), form)), weight.len(), false)?;
        // SAFETY: as in `rms_norm_backward`; nothing but the weight is read.
        unsafe { kernel.launch(stream, &ADAMW) }
    }

    pub(super) fn kernel(
        &self,
        [weight, gradient, first, second, factor]: [u64; 5],
        used: Option<(u64, DType, Form)>,
        count: usize,
        moves: bool,
    ) -> Result<Kernel<Params>> {
        let config = Config::default()
            .dtype("USED", used.map_or(DType::F32, |(_, dtype, _)| dtype))
            .flag("MOVES", moves)
            .flag("HAS_USED", used.is_some())
            .flag("DECAYS", used.is_some_and(|(.., form)| form == Form::Decay))
            .int("THREADS", THREADS);
        let correct = |memory: f64| (1.0 / (1.0 - memory.powi(self.taken as i32))) as f32;
        let params = Params {
            weight: Address::new(weight),
            gradient: Address::new(gradient),
            first: Address::new(first),
            second: Address::new(second),
            factor: Address::new(factor),
            used: used.map_or(Address::NULL, |(address, ..)| Address::new(address)),
            count: count as i64,
            rate: self.rate as f32,
            keep: (1.0 - self.rate * self.weight_decay) as f32,
            memory: self.memory[0] as f32,
            memory_of_squares: self.memory[1] as f32,
            correct_first: correct(self.memory[0]),
            correct_second: correct(self.memory[1]),
            eps: self.eps as f32,
        };
        Ok(Kernel { config, launch: Launch::elementwise(OP, Some(count), THREADS)?, params })
    }
}

pub(super) fn squares(x: u64, terms: u64, count: usize) -> Kernel<Squares> {
    let params = Squares { x: Address::new(x), terms: Address::new(terms), count: count as i64 };
    let launch = Launch::line(blocks(count) as u32, THREADS as u32, 0);
    Kernel { config: Config::default().int("THREADS", THREADS), launch, params }
}

pub(super) fn length(terms: u64, factor: u64, count: usize, longest: f32) -> Kernel<Length> {
    let params = Length { terms: Address::new(terms), factor: Address::new(factor), count: count as i64, longest };
    Kernel { config: Config::default(), launch: Launch::line(1, 32, 0), params }
}
