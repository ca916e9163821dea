//! Products on tensor cores against those of the host in f64: those of warps on every architecture, those of warpgroups on Hopper.

use super::device::{download, gpu, upload, view};
use super::suite::{ARCHITECTURES, Suite};
use crate::Scalar;
use crate::{
    Address, COMMON, Config, DeviceMemory, HOPPER, Header, Launch, MMA, Program, Stream, Swizzle, TensorMap, Tiling, Value,
    params,
};
use core::ffi::c_void;
use half::{bf16, f16};

params! {
    struct ProductParams {
        a: Address<c_void>,
        b: Address<c_void>,
        c: Address<f32>,
        /// Rows of B that count.
        depth: u32,
    }
}

params! {
    struct WarpgroupParams {
        a_map: TensorMap,
        b_map: TensorMap,
        c: Address<f32>,
    }
}

const KINDS: Header = Header::new("kinds.cuh", "enum class Product { Exact, Tf32, SplitTf32, SplitBf16 };\n");

static PRODUCT: Program<ProductParams> = Program::new("tensor_cores", &[COMMON, MMA, KINDS], include_str!("mma.cu"));
static WARPGROUP: Program<WarpgroupParams> =
    Program::new("tensor_cores_of_a_warpgroup", &[COMMON, MMA, HOPPER], include_str!("wgmma.cu"));

/// How a product of a warp is formed, and how its operands lie.
#[derive(Debug, Clone, Copy)]
struct Case {
    product: &'static str,
    dtype: Scalar,
    a_transposed: bool,
    b_transposed: bool,
    /// The error that a product may have, relative to the sum of the sizes of its terms.
    rounding: f64,
    /// Additions to a sum.
    additions: i32,
}

const ROWS: usize = 64;
const COLUMNS: usize = 32;
const DEPTH: usize = 64;
/// An addition on tensor cores cuts off what is this small.
const ADDITION: f64 = 1.0 / (1 << 22) as f64;

/// Products of 16-bit numbers are exact in f32; f32 is rounded to 10 bits after the point, or split into terms that keep all of them but two,
/// or all.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [Scalar::BF16, Scalar::F16] {
        for (a_transposed, b_transposed) in [(false, false), (true, false), (false, true), (true, true)] {
            cases.push(Case { product: "Exact", dtype, a_transposed, b_transposed, rounding: 0.0, additions: 4 });
        }
    }
    let f32 = |product, rounding, additions| Case {
        product,
        dtype: Scalar::F32,
        a_transposed: false,
        b_transposed: false,
        rounding,
        additions,
    };
    cases.extend([f32("Tf32", 2f64.powi(-10), 8), f32("SplitTf32", 2f64.powi(-20), 24), f32("SplitBf16", 2f64.powi(-22), 24)]);
    cases
}

impl Case {
    fn config(&self) -> Config {
        Config::default()
            .dtype("E", self.dtype)
            .set("PRODUCT", Value::Name("Product", self.product))
            .flag("A_TRANSPOSED", self.a_transposed)
            .flag("B_TRANSPOSED", self.b_transposed)
            .int("ROWS", ROWS)
            .int("COLUMNS", COLUMNS)
            .int("DEPTH", DEPTH)
    }
}

/// A product of a warpgroup: columns, whether B lies as lines of rows, whether A comes from registers.
type Warpgroup = (usize, bool, bool);

const WARPGROUP_DEPTH: usize = 192;

fn warpgroups() -> impl Iterator<Item = Warpgroup> {
    [64, 128].into_iter().flat_map(|columns| {
        [(false, false), (false, true), (true, false), (true, true)]
            .map(|(transposed, registers)| (columns, transposed, registers))
    })
}

fn warpgroup_config((columns, b_transposed, a_in_registers): Warpgroup) -> Config {
    Config::default()
        .flag("B_TRANSPOSED", b_transposed)
        .flag("A_IN_REGISTERS", a_in_registers)
        .int("COLUMNS", columns)
        .int("DEPTH", WARPGROUP_DEPTH)
}

#[test]
fn tensor_cores_compile() {
    let Some(mut suite) = Suite::new() else { return };
    for case in cases() {
        ARCHITECTURES.iter().for_each(|&architecture| suite.add_for(&[architecture], &PRODUCT, &case.config()));
    }
    warpgroups().for_each(|warpgroup| suite.add_for(&["sm_90a"], &WARPGROUP, &warpgroup_config(warpgroup)));
    suite.compile();
}

/// A dense matrix of numbers between -1 and 1, as a type stores them.
struct Matrix {
    lines: usize,
    length: usize,
    numbers: Vec<f64>,
    device: DeviceMemory,
}

impl Matrix {
    fn new(stream: &Stream, seed: u64, dtype: Scalar, lines: usize, length: usize) -> Self {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let raw: Vec<f32> = (0..lines * length).map(|_| next()).collect();
        let (device, numbers) = match dtype {
            Scalar::BF16 => {
                let stored: Vec<bf16> = raw.iter().map(|&v| bf16::from_f32(v)).collect();
                (upload(stream, &stored), stored.iter().map(|v| v.to_f64()).collect())
            }
            Scalar::F16 => {
                let stored: Vec<f16> = raw.iter().map(|&v| f16::from_f32(v)).collect();
                (upload(stream, &stored), stored.iter().map(|v| v.to_f64()).collect())
            }
            _ => (upload(stream, &raw), raw.iter().map(|&v| v.into()).collect()),
        };
        Matrix { lines, length, numbers, device }
    }

    fn at(&self, i: usize, j: usize, transposed: bool) -> f64 {
        let (line, place) = if transposed { (j, i) } else { (i, j) };
        assert!(line < self.lines && place < self.length);
        self.numbers[line * self.length + place]
    }
}

/// Compares a product with that of the host; `a(i, k)` and `b(k, j)` are its operands.
fn compare(
    what: &str,
    product: &[f32],
    [rows, columns, depth]: [usize; 3],
    bound: f64,
    a: impl Fn(usize, usize) -> f64,
    b: impl Fn(usize, usize) -> f64,
) {
    assert_eq!(product.len(), rows * columns);
    let mut worst = 0f64;
    for i in 0..rows {
        for j in 0..columns {
            let terms = (0..depth).map(|k| a(i, k) * b(k, j));
            let (exact, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            let error = (f64::from(product[i * columns + j]) - exact).abs() / size;
            assert!(error <= bound, "{what}: ({i}, {j}) is {} rather than {exact}", product[i * columns + j]);
            worst = worst.max(error);
        }
    }
    println!("{what}: {worst:.1e} of {bound:.1e}");
}

#[test]
fn tensor_cores_multiply_as_the_host_does() {
    let Some(stream) = gpu("8.0", |capability| capability >= (8, 0)) else { return };
    for case in cases() {
        let Case { dtype, a_transposed, b_transposed, .. } = case;
        let extent = |transposed, other| if transposed { (DEPTH, other) } else { (other, DEPTH) };
        let ((a_lines, a_length), (b_lines, b_length)) = (extent(a_transposed, ROWS), extent(b_transposed, COLUMNS));
        let (a, b) = (Matrix::new(&stream, 1, dtype, a_lines, a_length), Matrix::new(&stream, 2, dtype, b_lines, b_length));
        let c = upload(&stream, &[f32::NAN; ROWS * COLUMNS]);
        // numbers behind the depth count as zero
        for depth in [DEPTH, DEPTH - 8] {
            let params = ProductParams {
                a: Address::new(a.device.address()),
                b: Address::new(b.device.address()),
                c: Address::new(c.address()),
                depth: depth as u32,
            };
            let launch = Launch::line(1, (ROWS / 16 * 32) as u32, 0);
            // SAFETY: the matrices have the sizes of the configuration.
            unsafe { stream.launch(&PRODUCT, &case.config(), launch, &params).unwrap() };
            let bound = case.rounding + f64::from(case.additions) * ADDITION;
            let (of_a, of_b) = (|i, k| a.at(i, k, a_transposed), |k, j| b.at(j, k, b_transposed));
            compare(&format!("{case:?}"), &download(&c), [ROWS, COLUMNS, depth], bound, of_a, of_b);
        }
    }
}

#[test]
fn tensor_cores_of_a_warpgroup_multiply_as_the_host_does() {
    let Some(stream) = gpu("9.0", |capability| capability == (9, 0)) else { return };
    for warpgroup @ (columns, b_transposed, _) in warpgroups() {
        let depth = WARPGROUP_DEPTH;
        let (b_lines, b_length) = if b_transposed { (depth, columns) } else { (columns, depth) };
        let a = Matrix::new(&stream, 3, Scalar::BF16, 64, depth);
        let b = Matrix::new(&stream, 4, Scalar::BF16, b_lines, b_length);
        let c = upload(&stream, &vec![f32::NAN; 64 * columns]);
        let map = |matrix: &Matrix, lines| {
            let view = view(&matrix.device, Scalar::BF16, &[matrix.lines, matrix.length], &[matrix.length as isize, 1]);
            Tiling::new(&view, &[lines, 64], Swizzle::Bytes128).unwrap().encode(&stream).unwrap()
        };
        let b_tile = if b_transposed { 64 } else { columns };
        let params = WarpgroupParams { a_map: map(&a, 64), b_map: map(&b, b_tile), c: Address::new(c.address()) };
        // SAFETY: the matrices have the sizes of the configuration, and their tiles those that the kernel copies.
        unsafe { stream.launch(&WARPGROUP, &warpgroup_config(warpgroup), Launch::line(1, 128, 0), &params).unwrap() };
        let (of_a, of_b) = (|i, k| a.at(i, k, false), |k, j| b.at(j, k, b_transposed));
        let bound = (depth / 16) as f64 * ADDITION;
        compare(&format!("{warpgroup:?}"), &download(&c), [64, columns, depth], bound, of_a, of_b);
    }
}
