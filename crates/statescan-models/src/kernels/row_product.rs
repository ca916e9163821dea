//! One row times a matrix, at the rate of memory.

use super::LAYERS;
use super::dense::check_dense;
use super::rows::Rows;
use core::ffi::c_void;
use statescan::Exec;
use statescan::cuda::STEP_SIZE;
use statescan::error::{Error, Result};
use statescan::ops::check::{Checker, Kind, check_groups};
use statescan::tensor::{DType, View, ViewMut};
use statescan_cuda::{Address, AsStream, COMMON, Config, Kernel, Launch, Numbers, Program, Value, params};

const OP: &str = "row_product";
const THREADS: usize = 256;
const WARPS: usize = THREADS / 32;
/// Rows of inputs are staged in so much shared memory, or a multiple of it.
const ROOM: usize = 16 << 10;
/// The most inputs that a thread stages at the same time.
const AT_ONCE: usize = 8;
/// Warps of a multiprocessor that keep its memory busy.
const BUSY: usize = 8;

pub(super) static ROW_PRODUCT: Program<Params> = Program::new(OP, &[COMMON, STEP_SIZE, LAYERS], include_str!("row_product.cu"));

params! {
    /// A step of the convolution in front of a scan.
    pub(super) struct ConvParams {
        input: Address<f32>,
        state: Address<f32>,
        weight: Address<f32>,
        bias: Address<f32>,
    }
}

params! {
    /// Parameters of `row_product`.
    pub(super) struct Params {
        weight: Address<c_void>,
        bias: Address<c_void>,
        x: Address<f32>,
        norm: Address<f32>,
        y: Address<f32>,
        conv: ConvParams,
        pitch: i64,
        inputs: u32,
        outputs: u32,
        group: u32,
        /// Channels whose state moves on.
        moving: u32,
        eps: f32,
        factor: f32,
    }
}

/// A step of the causal convolution in front of a scan, with SiLU. Everything is dense and in f32; the state is given beside it, the inputs before
/// this step, (channels, width - 1), the latest last.
#[derive(Debug, Clone, Copy)]
pub struct Conv<'a> {
    /// The inputs of this step, (channels).
    pub input: View<'a>,
    /// Filters, (channels, width).
    pub weight: View<'a>,
    /// Added to the sum, (channels).
    pub bias: Option<View<'a>>,
}

impl<'a> Conv<'a> {
    /// Channels and taps.
    pub(super) fn check(&'a self, op: &'static str, checker: &mut Checker<'a>) -> Result<[usize; 2]> {
        let [channels, width @ 2..=8] = self.weight.shape()[..] else {
            let expected = "(channels, 2 to 8)".into();
            return Err(Error::Rank { op, argument: "conv.weight", expected, got: self.weight.shape(), help: String::new() });
        };
        let read = [("conv.input", &self.input, &[channels][..]), ("conv.weight", &self.weight, &[channels, width])];
        check_dense(checker, &read, &[])?;
        if let Some(bias) = &self.bias {
            check_dense(checker, &[("conv.bias", bias, &[channels])], &[])?;
        }
        Ok([channels, width])
    }

    pub(super) fn params(&self, state: View<'_>) -> ConvParams {
        let address = |view: &View<'_>| Address::new(view.as_ptr() as u64);
        ConvParams {
            input: address(&self.input),
            state: address(&state),
            weight: address(&self.weight),
            bias: self.bias.as_ref().map_or(Address::NULL, address),
        }
    }
}

/// The operation on the row before the product.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::large_enum_variant)] // it lives for one call
pub enum Before<'a> {
    /// Nothing.
    #[default]
    Nothing,
    /// RMSNorm of so many groups of it.
    Norm {
        /// Weights, (inputs) in f32.
        weight: View<'a>,
        /// Groups that are normalized on their own.
        groups: usize,
        /// Added to the mean square.
        eps: f32,
    },
    /// The row is that of the convolution's results, from this state, which stays as it is.
    Conv(Conv<'a>, View<'a>),
}

/// The arguments of [`row_product`].
#[derive(Debug, Clone, Copy)]
pub struct RowProduct<'a> {
    /// Weights, (outputs, inputs) in f32, bf16 or f16.
    pub weight: View<'a>,
    /// The row, (inputs) in f32; it is not read where a convolution makes it.
    pub x: View<'a>,
    /// The operation on the row before the product.
    pub before: Before<'a>,
    /// Multiplies the product.
    pub factor: f32,
    /// Added to it then, (outputs) in f32, bf16 or f16.
    pub bias: Option<View<'a>>,
    /// Whether that is added to `y`.
    pub add: bool,
}

impl<'a> RowProduct<'a> {
    /// The product of a row alone.
    pub fn new(weight: View<'a>, x: View<'a>) -> Self {
        RowProduct { weight, x, before: Before::Nothing, factor: 1.0, bias: None, add: false }
    }
}

/// Computes `y = factor W f(x) + bias`, or adds it to `y`, (outputs) in f32. Sums are f32. `moved` is the input, (channels), and the state, (channels, width - 1),
/// of a convolution whose state moves on by it at the same time.
///
/// # Errors
/// Arguments of wrong shapes, types or devices, rows that are not neighbours, what is written overlapping something; a row that has no room in shared
/// memory; an executor that is not a CUDA one. Nothing is written then.
pub fn row_product(
    exec: &Exec,
    args: &RowProduct<'_>,
    moved: Option<(View<'_>, &mut ViewMut<'_>)>,
    y: &mut ViewMut<'_>,
) -> Result<()> {
    let stream = exec.as_stream()?;
    let kernel = checked(exec, args, moved, y, stream.numbers())?;
    if kernel.launch.blocks() == 0 {
        return Ok(());
    }
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configuration describes
    // their types.
    unsafe { stream.launch_early(&ROW_PRODUCT, &kernel.config, kernel.launch, &kernel.params) }.map_err(Into::into)
}

fn checked(
    exec: &Exec,
    args: &RowProduct<'_>,
    moved: Option<(View<'_>, &mut ViewMut<'_>)>,
    y: &mut ViewMut<'_>,
    numbers: Numbers,
) -> Result<Kernel<Params>> {
    let (moved_input, moved_state) = moved.unzip();
    let weight = Rows::of(OP, "weight", &args.weight)?;
    let (mut checker, single) = (Checker::new(OP, exec.device()), Kind::Exact(DType::F32));
    checker.read("weight", &args.weight, Kind::Real, &[weight.rows, weight.columns])?;
    checker.read_if("bias", &args.bias, Kind::Real, &[weight.rows])?;
    checker.dense("bias", args.bias)?;
    let mut extra = Extra { conv: NO_CONV, norm: None, width: 2, moving: 0 };
    match &args.before {
        Before::Nothing => {}
        Before::Norm { weight: norm, groups, eps } => {
            checker.read("norm.weight", norm, single, &[weight.columns])?;
            checker.dense("norm.weight", Some(*norm))?;
            check_groups(OP, "norm.groups", *groups, weight.columns)?;
            extra.norm = Some((norm.as_ptr() as u64, *groups, *eps));
        }
        Before::Conv(conv, state) => {
            let [channels, width] = conv.check(OP, &mut checker)?;
            checker.read("conv.state", state, single, &[channels, width - 1])?;
            checker.dense("conv.state", Some(*state))?;
            if channels != weight.columns {
                let expected = statescan::tensor::Shape::new(&[weight.rows, channels])?;
                return Err(Error::Shape { op: OP, argument: "weight", expected, got: args.weight.shape(), help: String::new() });
            }
            (extra.conv, extra.width) = (conv.params(*state), width);
        }
    }
    if !matches!(args.before, Before::Conv(..)) {
        checker.read("x", &args.x, single, &[weight.columns])?;
        checker.dense("x", Some(args.x))?;
    }
    if let Some((input, state)) = moved_input.as_ref().zip(moved_state.as_ref()) {
        let past = state.shape().last().copied().unwrap_or(0);
        checker.read("moved.input", input, single, &[input.len()])?;
        checker.dense("moved.input", Some(*input))?;
        checker.write("moved.state", state, single, &[input.len(), past.clamp(1, 7)])?;
        checker.dense("moved.state", Some(state.as_view()))?;
        extra.conv = ConvParams {
            input: Address::new(input.as_ptr() as u64),
            state: Address::new(state.as_view().as_ptr() as u64),
            ..NO_CONV
        };
        (extra.moving, extra.width) = (input.len(), past + 1);
    }
    checker.write("y", y, single, &[weight.rows])?;
    checker.dense("y", Some(y.as_view()))?;
    checker.finish()?;
    if extra.moving > 0 && matches!(args.before, Before::Conv(..)) {
        return Err(Error::Presence { op: OP, argument: "moved", expected: "must be absent where a convolution makes the row" });
    }
    kernel(args, &weight, &extra, y.as_view().as_ptr() as u64, numbers)
}

const NO_CONV: ConvParams = ConvParams { input: Address::NULL, state: Address::NULL, weight: Address::NULL, bias: Address::NULL };

/// The parameters beside those of the product.
pub(super) struct Extra {
    pub(super) conv: ConvParams,
    /// Weights, groups and what is added to the mean square.
    pub(super) norm: Option<(u64, usize, f32)>,
    /// Taps of the convolution.
    pub(super) width: usize,
    /// Channels whose state moves on.
    pub(super) moving: usize,
}

pub(super) fn kernel(args: &RowProduct<'_>, weight: &Rows, extra: &Extra, y: u64, numbers: Numbers) -> Result<Kernel<Params>> {
    let plan = Plan::new(weight, matches!(args.before, Before::Conv(..)), numbers.multiprocessors);
    let name = match args.before {
        Before::Nothing => "Nothing",
        Before::Norm { .. } => "Norm",
        Before::Conv(..) => "Conv",
    };
    let (norm, groups, eps) = extra.norm.unwrap_or((0, 1, 0.0));
    let room = (4 * weight.columns).next_multiple_of(ROOM);
    let config = Config::default()
        .dtype("W", weight.dtype)
        .dtype("B", args.bias.map_or(DType::F32, |bias| bias.dtype()))
        .int("PIECE", plan.piece)
        .int("PIECES", plan.pieces)
        .int("OUTPUTS", plan.outputs)
        .int("PARTS", plan.parts)
        .int("RESIDENT", plan.resident)
        .int("THREADS", THREADS)
        .int("ROOM", room)
        .int("AT_ONCE", plan.at_once)
        .int("WIDTH", extra.width)
        .set("BEFORE", Value::Name("Before", name))
        .flag("GROUPED", groups > 1)
        .flag("MOVES", extra.moving > 0)
        .flag("HAS_BIAS", args.bias.is_some())
        .flag("SCALED", args.factor != 1.0)
        .flag("ADD", args.add);
    let launch = Launch { shared: room as u32, ..Launch::new(OP, Some(plan.blocks), THREADS)? };
    let params = Params {
        weight: Address::new(weight.address),
        bias: args.bias.map_or(Address::NULL, |bias| Address::new(bias.as_ptr() as u64)),
        x: Address::new(args.x.as_ptr() as u64),
        norm: Address::new(norm),
        y: Address::new(y),
        conv: extra.conv,
        pitch: weight.pitch as i64,
        inputs: weight.columns as u32,
        outputs: weight.rows as u32,
        group: (weight.columns / groups) as u32,
        moving: extra.moving as u32,
        eps,
        factor: args.factor,
    };
    Ok(Kernel { config, launch, params })
}

/// How a matrix is divided among warps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    /// Weights that a thread takes in one access.
    piece: usize,
    /// Accesses of a thread, for each output, before it waits for them.
    pieces: usize,
    /// Outputs of a warp at the same time.
    outputs: usize,
    /// Warps that share outputs.
    parts: usize,
    /// Blocks of a multiprocessor.
    resident: usize,
    /// Inputs that a thread stages at the same time.
    at_once: usize,
    blocks: usize,
}

impl Plan {
    fn new(weight: &Rows, convolves: bool, multiprocessors: usize) -> Self {
        let size = weight.dtype.size();
        let whole = [weight.address as usize, weight.columns * size, weight.pitch * size].iter().all(|n| n.is_multiple_of(16));
        let piece = if whole { 16 / size } else { 1 };
        let rounds = weight.columns.div_ceil(32 * piece).max(1);
        let busy = BUSY * multiprocessors;
        let outputs = if weight.rows >= 4 * busy { 2 } else { 1 };
        let parts = [1, 2, 4]
            .into_iter()
            .find(|parts| weight.rows * parts >= busy * outputs)
            .unwrap_or(8)
            .min(rounds.next_power_of_two());
        // as many accesses as divide a warp's part well
        let of_part = rounds.div_ceil(parts);
        let pieces = of_part.div_ceil(of_part.div_ceil(4));
        let inputs = weight.columns.div_ceil(THREADS).max(1);
        let at_once = inputs.div_ceil(inputs.div_ceil(AT_ONCE));
        // registers for weights on their way, and for the past of a convolution
        let few = outputs * pieces <= 4 && !(convolves && inputs > AT_ONCE);
        let resident = if few { 4 } else { 2 };
        let blocks = weight.rows.div_ceil(WARPS / parts * outputs).min(multiprocessors * resident);
        Plan { piece, pieces, outputs, parts, resident, at_once, blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_outputs_are_shared_by_warps() {
        let of = |rows, columns, dtype: DType| {
            let plan = Plan::new(&Rows { address: 1 << 20, dtype, rows, columns, pitch: columns }, false, 132);
            let Plan { piece, pieces, outputs, parts, resident, blocks, .. } = plan;
            [piece, pieces, outputs, parts, resident, blocks]
        };
        // the projections of mamba-130m, and its head
        assert_eq!(of(3072, 768, DType::BF16), [8, 3, 1, 1, 4, 384]);
        assert_eq!(of(80, 1536, DType::BF16), [8, 1, 1, 8, 4, 80]);
        assert_eq!(of(768, 1536, DType::BF16), [8, 3, 1, 2, 4, 192]);
        assert_eq!(of(50280, 768, DType::BF16), [8, 3, 2, 1, 2, 264]);
        // rows that do not begin at multiples of 16 bytes
        assert_eq!(of(24, 12, DType::BF16), [1, 1, 1, 1, 4, 3]);
        assert_eq!(of(0, 12, DType::F32)[5], 0);
        // the past of a long convolution needs registers, too
        let long = Rows { address: 1 << 20, dtype: DType::BF16, rows: 192, columns: 5120, pitch: 5120 };
        let of = |convolves| Plan::new(&long, convolves, 132);
        assert_eq!((of(false).resident, of(true).resident, of(true).at_once), (4, 2, 7));
    }
}
