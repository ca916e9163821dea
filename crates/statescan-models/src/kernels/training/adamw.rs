//! A step of the optimizer: all weights in one launch, by a table of where they lie.

use super::super::LAYERS;
use core::ffi::c_void;
use statescan::Exec;
use statescan::cuda::STEP_SIZE;
use statescan::error::{Error, Result};
use statescan::ops::check::{Checker, Kind};
use statescan::tensor::{DType, Tensor, View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Parameter, Program, params};

const OP: &str = "adamw";
const THREADS: usize = 256;
/// Numbers of a weight that a block has.
const PART: usize = 8192;
/// Threads that add up what blocks leave.
const ADDING: usize = 1024;

pub(super) static SQUARES: Program<Squares> =
    Program::new("sum_of_squares", &[COMMON, STEP_SIZE, LAYERS], include_str!("squares.cu"));
pub(super) static LENGTH: Program<Length> = Program::new("clip_factor", &[COMMON], include_str!("length.cu"));
pub(super) static ADAMW: Program<Params> = Program::new(OP, &[COMMON], include_str!("adamw.cu"));

params! {
    /// A weight in the table of a device. All fields have eight bytes.
    #[derive(Default)]
    pub(super) struct Entry {
        weight: Address<f32>,
        gradient: Address<f32>,
        first: Address<f32>,
        second: Address<f32>,
        used: Address<c_void>,
        count: i64,
        /// Its blocks begin here among those of all weights.
        first_block: i64,
        /// See [`form`].
        form: i64,
    }
}

params! {
    /// Parameters of `sum_of_squares`.
    pub(super) struct Squares {
        entries: Address<Entry>,
        /// The entry of each block.
        owners: Address<i64>,
        terms: Address<f32>,
    }
}

params! {
    /// Parameters of `clip_factor`.
    pub(super) struct Length {
        terms: Address<f32>,
        factor: Address<f32>,
        count: i64,
        max_grad_norm: f32,
    }
}

params! {
    /// Parameters of `adamw`.
    pub(super) struct Params {
        entries: Address<Entry>,
        owners: Address<i64>,
        factor: Address<f32>,
        rate: f32,
        /// The share of a weight that a step leaves where it decays.
        shrinking: f32,
        beta1: f32,
        beta2: f32,
        correct_first: f32,
        correct_second: f32,
        eps: f32,
    }
}

/// The form in which a model computes with a weight after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The weight, in the type of the copy.
    Same,
    /// `-exp` of it: a decay, of which the weight is the logarithm.
    Decay,
    /// One more: the weight of a norm that is stored less 1.
    OnePlus,
}

/// A parameter and what a step changes it by: f32, dense and of one shape.
#[derive(Debug)]
pub struct Param<'m> {
    /// The weight.
    pub weight: ViewMut<'m>,
    /// Its gradient.
    pub gradient: View<'m>,
    /// Its moments: the means of its gradients and of their squares.
    pub moments: [ViewMut<'m>; 2],
    /// The tensor that the model uses in its place, which is written too: dense, with as many numbers, in f32, bf16 or f16.
    pub used: Option<(ViewMut<'m>, Form)>,
    /// Whether a step takes something away of it.
    pub decays: bool,
}

/// A step of AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, algorithm 2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// The learning rate.
    pub rate: f64,
    /// The weight decay: the share of a weight that a step subtracts, times the learning rate.
    pub weight_decay: f64,
    /// The decay rates of the moments of gradients and of their squares: beta1 and beta2.
    pub betas: [f64; 2],
    /// Added to the root of the mean square.
    pub eps: f64,
    /// Steps taken, with this one.
    pub taken: u32,
}

/// Changes all weights of a model on a device. It keeps a table of where they lie, which is made again when they lie elsewhere.
#[derive(Debug)]
pub struct Optimizer {
    exec: Exec,
    /// The table as numbers, and on the device: entries, then the entry of each block.
    known: Vec<i64>,
    table: Tensor,
    entries: usize,
    terms: Tensor,
    factor: Tensor,
}

impl Optimizer {
    /// One without weights.
    ///
    /// # Errors
    /// An executor that is not a CUDA one; a device without room.
    pub fn new(exec: &Exec) -> Result<Self> {
        exec.as_stream()?;
        let [table, terms, factor] = [(DType::I64, 0), (DType::F32, 0), (DType::F32, 1)].map(|(dtype, len)| {
            // the first copy of the weights is made without a step, and reads no factor
            Tensor::zeros(exec, dtype, &[len])
        });
        Ok(Optimizer { exec: exec.clone(), known: Vec::new(), table: table?, entries: 0, terms: terms?, factor: factor? })
    }

    /// Changes weights by their gradients, which are scaled down where the norm of all of them together is more than `max_grad_norm`.
    ///
    /// # Errors
    /// Views of wrong shapes, types or devices, or that are not dense or overlap; a device without room. Nothing is written then.
    pub fn step(&mut self, step: AdamW, max_grad_norm: f64, weights: &mut [Param<'_>]) -> Result<()> {
        self.lay_out(weights)?;
        let (stream, blocks) = (self.exec.as_stream()?, self.blocks());
        let kernels = (squares(self.place(), self.terms.view().as_ptr() as u64, blocks)?, self.length(max_grad_norm)?);
        // SAFETY: the table has what the views say, which were checked and are borrowed; there is a term for each block, written before it is read.
        unsafe {
            kernels.0.launch(stream, &SQUARES)?;
            kernels.1.launch(stream, &LENGTH)?;
            Ok(step.kernel(self.place(), self.factor.view().as_ptr() as u64, blocks, true)?.launch(stream, &ADAMW)?)
        }
    }

    /// Writes what a model computes with in the places of weights, as [`Optimizer::step`] does after it has changed them.
    ///
    /// # Errors
    /// As [`Optimizer::step`].
    pub fn copy(&mut self, weights: &mut [Param<'_>]) -> Result<()> {
        self.lay_out(weights)?;
        let none = AdamW { rate: 0.0, weight_decay: 0.0, betas: [0.0; 2], eps: 0.0, taken: 1 };
        let kernel = none.kernel(self.place(), self.factor.view().as_ptr() as u64, self.blocks(), false)?;
        // SAFETY: as in `step`.
        unsafe { kernel.launch(self.exec.as_stream()?, &ADAMW) }.map_err(Into::into)
    }

    /// The factor of gradients in the last step, (1) in f32 on the device.
    pub fn factor(&self) -> View<'_> {
        self.factor.view()
    }

    fn blocks(&self) -> usize {
        self.known.len() - self.entries * WORDS
    }

    /// Returns the addresses of the entries, and of the owners of blocks.
    fn place(&self) -> [u64; 2] {
        let entries = self.table.view().as_ptr() as u64;
        [entries, entries + (8 * self.entries * WORDS) as u64]
    }

    fn length(&self, max_grad_norm: f64) -> Result<Kernel<Length>> {
        length(self.terms.view().as_ptr() as u64, self.factor.view().as_ptr() as u64, self.blocks(), max_grad_norm as f32)
    }

    /// Makes the table, unless it is that of the last call.
    fn lay_out(&mut self, weights: &mut [Param<'_>]) -> Result<()> {
        let (mut table, mut owners) = (Vec::with_capacity(self.known.len()), Vec::new());
        for (at, param) in weights.iter().enumerate() {
            let entry = Entry { first_block: owners.len() as i64, ..param.entry()? };
            table.extend(entry.words());
            owners.resize(owners.len() + param.gradient.len().div_ceil(PART), at as i64);
        }
        let blocks = owners.len();
        table.append(&mut owners);
        if table != self.known {
            weights.iter().try_for_each(|param| param.check(&self.exec))?;
            // a table that could not be copied is not known
            self.known.clear();
            self.table = Tensor::from_slice(&self.exec, &table, &[table.len()])?;
            self.terms = Tensor::empty(&self.exec, DType::F32, &[blocks])?;
            (self.known, self.entries) = (table, weights.len());
        }
        Ok(())
    }
}

/// Numbers of eight bytes in an entry.
const WORDS: usize = size_of::<Entry>() / 8;

impl Entry {
    fn words(&self) -> [i64; WORDS] {
        // SAFETY: eight fields of eight bytes each, in the order of C, without bytes between them; any bits are numbers.
        unsafe { core::mem::transmute_copy(self) }
    }
}

impl Param<'_> {
    /// All of its views but the last by their names.
    fn views(&self) -> [(&'static str, View<'_>); 4] {
        let [first, second] = &self.moments;
        [("weight", self.weight.as_view()), ("gradient", self.gradient), ("first", first.as_view()), ("second", second.as_view())]
    }

    /// The entry of the table, whose blocks are not known yet; refuses what does not lie there as the table says.
    fn entry(&self) -> Result<Entry> {
        let (shape, views) = (self.gradient.shape(), self.views());
        for (argument, view) in views {
            dense(argument, &view)?;
            if view.dtype() != DType::F32 {
                return Err(Error::DType { op: OP, argument, expected: "f32", got: view.dtype() });
            }
            if view.shape() != shape {
                return Err(Error::Shape { op: OP, argument, expected: shape, got: view.shape(), help: String::new() });
            }
        }
        let used = self.used.as_ref().map(|(used, form)| (used.as_view(), *form));
        if let Some((used, _)) = &used {
            dense("used", used)?;
            if used.len() != shape.iter().product::<usize>() {
                return Err(Error::Shape { op: OP, argument: "used", expected: shape, got: used.shape(), help: String::new() });
            }
        }
        let address = |view: &View<'_>| view.as_ptr() as u64;
        let [weight, gradient, first, second] = views.map(|(_, view)| address(&view));
        let of_used = used.as_ref().map_or(0, |(used, _)| address(used));
        let aligned = [weight, gradient, first, second, of_used].into_iter().all(|address| address.is_multiple_of(16));
        Ok(Entry {
            weight: Address::new(weight),
            gradient: Address::new(gradient),
            first: Address::new(first),
            second: Address::new(second),
            used: Address::new(of_used),
            count: self.gradient.len() as i64,
            form: form(used.map(|(used, form)| (used.dtype(), form)), aligned, self.decays)?,
            first_block: 0,
        })
    }

    /// Refuses views of other devices, and those that overlap.
    fn check(&self, exec: &Exec) -> Result<()> {
        let mut checker = Checker::new(OP, exec.device());
        let (shape, single) = (self.gradient.shape(), Kind::Exact(DType::F32));
        checker.read("gradient", &self.gradient, single, &shape)?;
        checker.write("weight", &self.weight, single, &shape)?;
        checker.write("first", &self.moments[0], single, &shape)?;
        checker.write("second", &self.moments[1], single, &shape)?;
        if let Some((used, _)) = &self.used {
            checker.write("used", used, Kind::Real, &used.shape())?;
        }
        checker.finish()
    }
}

fn dense(argument: &'static str, view: &View<'_>) -> Result<()> {
    let (shape, strides, dense) = (view.shape(), view.strides(), view.shape().row_major());
    match (0..view.rank()).all(|axis| shape[axis] < 2 || strides[axis] == dense[axis]) {
        true => Ok(()),
        false => Err(Error::Presence { op: OP, argument, expected: "must be dense" }),
    }
}

/// Facts of a weight for the kernels, bit by bit as adamw.cu has it: the type of what the model computes with, whether that is a decay, whether four
/// numbers can be read at once, whether a step takes something away, whether one is added.
fn form(used: Option<(DType, Form)>, aligned: bool, shrinks: bool) -> Result<i64> {
    let dtype = match used.map(|(dtype, _)| dtype) {
        None => 0,
        Some(DType::F32) => 1,
        Some(DType::BF16) => 2,
        Some(DType::F16) => 3,
        Some(got) => return Err(Error::DType { op: OP, argument: "used", expected: "f32, bf16 or f16", got }),
    };
    let has = |form| i64::from(used.is_some_and(|(_, used)| used == form));
    let facts = i64::from(aligned) << 3 | i64::from(shrinks) << 4;
    Ok(dtype | has(Form::Decay) << 2 | facts | has(Form::OnePlus) << 5)
}

fn configured<P: Parameter>(threads: usize, blocks: usize, params: P) -> Result<Kernel<P>> {
    let config = Config::default().int("THREADS", threads).int("PART", PART);
    Ok(Kernel { config, launch: Launch::new(OP, Some(blocks), threads)?, params })
}

impl AdamW {
    pub(super) fn kernel(&self, [entries, owners]: [u64; 2], factor: u64, blocks: usize, moves: bool) -> Result<Kernel<Params>> {
        let correct = |beta: f64| (1.0 / (1.0 - beta.powi(self.taken as i32))) as f32;
        let params = Params {
            entries: Address::new(entries),
            owners: Address::new(owners),
            factor: Address::new(factor),
            rate: self.rate as f32,
            shrinking: (1.0 - self.rate * self.weight_decay) as f32,
            beta1: self.betas[0] as f32,
            beta2: self.betas[1] as f32,
            correct_first: correct(self.betas[0]),
            correct_second: correct(self.betas[1]),
            eps: self.eps as f32,
        };
        let kernel = configured(THREADS, blocks, params)?;
        Ok(Kernel { config: kernel.config.flag("MOVES", moves), ..kernel })
    }
}

pub(super) fn squares([entries, owners]: [u64; 2], terms: u64, blocks: usize) -> Result<Kernel<Squares>> {
    let params = Squares { entries: Address::new(entries), owners: Address::new(owners), terms: Address::new(terms) };
    configured(THREADS, blocks, params)
}

pub(super) fn length(terms: u64, factor: u64, count: usize, max_grad_norm: f32) -> Result<Kernel<Length>> {
    let params = Length { terms: Address::new(terms), factor: Address::new(factor), count: count as i64, max_grad_norm };
    configured(ADDING, 1, params)
}
