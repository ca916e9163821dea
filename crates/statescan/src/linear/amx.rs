//! Products with weights in bf16 on processors with AMX, one instruction of which multiplies 16 outputs by 16 rows over 32 inputs.
//!
//! Rows are rounded to bf16, as PyTorch has them; sums are f32. The weights are the left factor, whose tiles are loaded as they lie in memory: one row
//! reads each weight once, as fast as memory gives them. The rows are the right factor, in which the two inputs of a pair are neighbours ([`pack_rows`]).
//! A sum takes 32 inputs at a time, from the first ones on, and an element of a tile depends on its own row and output alone: so a row has the
//! same bits whatever is beside it.
//!
//! Rust has no stable functions for these instructions, so that they are written in assembly: [`configure`], [`multiply`].

use super::kernel::Rows;
use crate::cpu::simd::Isa;
use crate::cpu::{Arena, Array, ArrayMut, Divided, Level};
use crate::exec::Exec;
use core::arch::asm;
use core::arch::x86_64::*;
use core::ops::Range;
use half::bf16;
use pulp::x86::V4;
use std::sync::OnceLock;

/// Outputs, and rows, of a tile of sums.
const TILE: usize = 16;
/// Inputs of a tile of either factor.
const STEP: usize = 32;
/// Tiles of outputs, and of rows, whose sums are in registers at a time.
const TILES: usize = 2;
/// Outputs whose sums are in registers at a time.
const BLOCK: usize = TILES * TILE;
/// Outputs and rows of a job.
const OUTPUTS_PER_JOB: usize = 2 * BLOCK;
const ROWS_PER_JOB: usize = 512;
/// Rows from which on a job copies its weights to where their tiles are lines of a cache one behind another.
const MANY_ROWS: usize = 128;
/// Bytes of a row of a tile of weights.
const LINE: usize = STEP * size_of::<bf16>();

/// Whether the processor has the instructions and the system lets this process use them, which it asks for at the first call.
pub(super) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        const AMX_BF16: u32 = 1 << 22;
        const AMX_TILE: u32 = 1 << 24;
        // SAFETY: a processor with AVX-512 has this leaf; newer compilers know that the function is safe.
        #[allow(unused_unsafe)]
        let described = || unsafe { __cpuid_count(7, 0) }.edx & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE;
        Level::Avx512.is_available() && std::is_x86_feature_detected!("avx512bf16") && described() && permitted()
    })
}

/// Asks the system for the registers, which are larger than what programs expect to find saved on a signal's stack: for this process and
/// all of its threads, once and for all.
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers, and gives an error where the system does not know it.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Runs a product on the threads of an executor.
///
/// # Panics
/// If the instructions are not [`available`], or there are no inputs.
pub(super) fn product(exec: &Exec, of: &Rows<'_, bf16>) {
    assert!(available() && of.x.columns > 0, "AMX, and something to add up");
    let (count, outputs, inputs) = (of.x.rows, of.weight.rows, of.x.columns);
    let sizes = Sizes { width: count.min(TILE), steps: inputs.div_ceil(STEP) };
    let (groups, token) = (count.div_ceil(TILE), V4::try_new().expect("processors with AMX have AVX-512"));
    let mut packed = exec.workspace().lend::<f32>(groups * sizes.group());
    let to = Divided::of(packed.as_mut_slice());
    exec.for_work(count * inputs).for_each(
        groups,
        || (),
        |(), group| {
            // SAFETY: no other job has this group, and the processor has the instructions.
            unsafe { pack_rows(token, of, group, sizes, to.part(group * sizes.group())) }
        },
    );
    let packed = Array::of(packed.as_slice());
    let (across, down) = (outputs.div_ceil(OUTPUTS_PER_JOB), count.div_ceil(ROWS_PER_JOB));
    exec.for_work(count * outputs * inputs).for_each(across * down, Arena::default, |arena, job| {
        let (o, r) = (job / down * OUTPUTS_PER_JOB, job % down * ROWS_PER_JOB);
        let (outputs, rows) = (o..outputs.min(o + OUTPUTS_PER_JOB), r..count.min(r + ROWS_PER_JOB));
        // SAFETY: the processor has the instructions.
        unsafe { Job { of, sizes, packed, outputs, rows }.run(token, arena) };
    });
}

/// Sizes of packed rows: for each group of up to 16, and each step of 32 inputs, 16 times as many pairs of inputs as a group has rows. A pair of bf16 takes
/// the place of an f32.
#[derive(Clone, Copy)]
struct Sizes {
    /// Rows of a group.
    width: usize,
    steps: usize,
}

impl Sizes {
    /// Pairs of a step.
    fn step(self) -> usize {
        STEP / 2 * self.width
    }

    /// Pairs of a group.
    fn group(self) -> usize {
        self.steps * self.step()
    }
}

/// Rounds the rows of a group and lays them out; rows and inputs that are not there are zeros.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16")]
fn pack_rows(token: V4, of: &Rows<'_, bf16>, group: usize, sizes: Sizes, mut to: ArrayMut<'_, f32>) {
    let (mut block, mut pairs) = ([_mm512_setzero_ps(); TILE], [0f32; TILE * TILE]);
    let rows = group * TILE..of.x.rows.min((group + 1) * TILE);
    for step in 0..sizes.steps {
        let inputs = step * STEP..of.x.columns.min((step + 1) * STEP);
        for (pairs, row) in block.iter_mut().zip(rows.clone()) {
            let row = &of.x.row(row)[inputs.clone()];
            let mut padded = [0f32; STEP];
            let whole: &[f32; STEP] = row.try_into().unwrap_or_else(|_| {
                padded[..row.len()].copy_from_slice(row);
                &padded
            });
            let [low, high]: [__m512; 2] = pulp::cast(*whole);
            *pairs = pulp::cast(_mm512_cvtne2ps_pbh(high, low));
        }
        let to = to.slice(step * sizes.step(), sizes.step());
        let turned = if sizes.width == TILE { to.as_mut_ptr() } else { pairs.as_mut_ptr() };
        // SAFETY: sixteen vectors of sixteen pairs, and room for as many.
        unsafe { token.transpose_f32(block.as_ptr().cast(), 16, turned, 16) };
        if sizes.width < TILE {
            for (to, pairs) in to.chunks_exact_mut(sizes.width).zip(pairs.as_chunks::<TILE>().0) {
                to.copy_from_slice(&pairs[..sizes.width]);
            }
        }
    }
}

/// Some outputs of some rows, which nobody else writes; the rows begin with a group.
struct Job<'j, 'p> {
    of: &'j Rows<'p, bf16>,
    sizes: Sizes,
    packed: Array<'j, f32>,
    outputs: Range<usize>,
    rows: Range<usize>,
}

impl Job<'_, '_> {
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    fn run(self, token: V4, arena: &mut Arena<f32>) {
        let lens = [BLOCK * self.sizes.steps * STEP / 2, BLOCK * BLOCK, TILE * TILE];
        let configured = Configured::new(self.sizes.width);
        arena.lend(
            |room| lens.map(|len| room.array(len)),
            |[mut copied, mut sums, mut turned]| {
                for first in self.outputs.clone().step_by(BLOCK) {
                    let outputs = first..self.outputs.end.min(first + BLOCK);
                    let weights = self.weights(&outputs, &mut copied);
                    for row in self.rows.clone().step_by(BLOCK) {
                        let both = row + TILE < self.rows.end;
                        let groups = [row / TILE, row / TILE + usize::from(both)];
                        let first = groups.map(|group| self.packed.at(group * self.sizes.group(), self.sizes.group()).cast());
                        let size = size_of::<f32>() * self.sizes.width;
                        let rows = Tiles { first, row: size, step: size * STEP / 2 };
                        let to = sums.at_mut(0, BLOCK * BLOCK);
                        // SAFETY: all tiles of both factors are there, and room for four of sums; the registers are configured.
                        unsafe { multiply(&configured, weights, rows, both, self.sizes.steps, to) };
                        self.write(token, &outputs, row, sums.read(), &mut turned);
                    }
                }
            },
        );
    }

    /// The tiles of a block of weights: where they lie, or where outputs or inputs are missing, and for many rows, copied, with zeros.
    fn weights(&self, outputs: &Range<usize>, copied: &mut ArrayMut<'_, f32>) -> Tiles {
        let (weight, steps) = (&self.of.weight, self.sizes.steps);
        if outputs.len() == BLOCK && weight.columns == steps * STEP && self.rows.len() < MANY_ROWS {
            let first = [0, 1].map(|next| weight.at(outputs.start + next * TILE, 0).ptr().cast());
            return Tiles { first, row: weight.pitch as usize * size_of::<bf16>(), step: LINE };
        }
        let to: &mut [bf16] = bytemuck::cast_slice_mut(copied.slice(0, BLOCK * steps * STEP / 2));
        for (o, to) in to.chunks_exact_mut(TILE * steps * STEP).enumerate() {
            for r in 0..TILE {
                let o = outputs.start + o * TILE + r;
                let row = if o < outputs.end { weight.row(o) } else { &[] };
                let (whole, rest) = row.as_chunks::<STEP>();
                let (to, _) = to[r * STEP..].as_chunks_mut::<STEP>();
                let mut to = to.iter_mut().step_by(TILE);
                whole.iter().zip(to.by_ref()).for_each(|(from, to)| *to = *from);
                for to in to {
                    *to = [bf16::ZERO; STEP];
                    to[..rest.len()].copy_from_slice(rest);
                }
            }
        }
        let tiles = TILE * LINE * steps;
        let first = copied.at_mut(0, BLOCK * steps * STEP / 2).cast::<u8>();
        Tiles { first: [first.cast_const(), first.wrapping_add(tiles)], row: LINE, step: TILE * LINE }
    }

    /// Writes the sums of up to four tiles, each of outputs times rows.
    #[inline(always)]
    fn write(&self, token: V4, outputs: &Range<usize>, row: usize, sums: Array<'_, f32>, turned: &mut ArrayMut<'_, f32>) {
        let y = &self.of.y;
        for (i, output) in outputs.clone().step_by(TILE).enumerate() {
            let count = TILE.min(outputs.end - output);
            let bias = self.of.bias.map(|bias| {
                let mut padded = [0f32; TILE];
                padded[..count].copy_from_slice(&bias[output..output + count]);
                padded
            });
            for (j, first) in (row..self.rows.end.min(row + BLOCK)).step_by(TILE).enumerate() {
                let tile = sums.at((TILES * i + j) * TILE * TILE, TILE * TILE);
                // SAFETY: a tile and room for one.
                unsafe { token.transpose_f32(tile, 16, turned.at_mut(0, TILE * TILE), 16) };
                for (r, row) in (first..self.rows.end.min(first + TILE)).enumerate() {
                    let mut sums: [f32; TILE] = turned.read().group(r * TILE);
                    if let Some(bias) = &bias {
                        sums.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
                    }
                    let place = y.elements.moved(row as isize * y.pitch + (y.first + output) as isize);
                    // SAFETY: no other job has these outputs of these rows.
                    let mut place = unsafe { place.part(0) };
                    match count {
                        TILE => place.set_group(0, sums),
                        _ => place.slice(0, count).copy_from_slice(&sums[..count]),
                    }
                }
            }
        }
    }
}

/// Tiles of a factor, two beside one another in each step: bytes from row to row and from step to step.
#[derive(Clone, Copy)]
struct Tiles {
    first: [*const u8; TILES],
    row: usize,
    step: usize,
}

/// The tile registers of this thread, until it is dropped: 0 to 3 for sums, 4 and 5 for weights, 6 and 7 for rows.
struct Configured;

impl Configured {
    /// # Panics
    /// If the instructions are not [`available`].
    fn new(width: usize) -> Self {
        #[repr(C, align(64))]
        struct Palette([u8; 64]);
        assert!(available(), "AMX");
        let mut palette = Palette([0; 64]);
        palette.0[0] = 1;
        for register in 0..8 {
            let bytes = if register == 4 || register == 5 { LINE } else { width * size_of::<f32>() };
            palette.0[16 + 2 * register] = bytes as u8;
            palette.0[48 + register] = TILE as u8;
        }
        // SAFETY: the instruction is there and reads 64 bytes, which describe registers of at most 16 rows of at most 64 bytes. Compiled code uses none of
        // them.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const palette, options(nostack, readonly, preserves_flags)) };
        Configured
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the instruction is there. Without it the system would go on saving eight kilobytes of this thread whenever another one has its turn.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// The sums of two tiles of weights times two of rows, or times the first one alone: four tiles with a row of 64 bytes for each output, those of the first
/// weights, then those of the second. Few rows wait for weights: while there is one tile of them, the outputs behind these are fetched into the second cache,
/// line by line, which for tiles whose rows lie apart the processor does not do by itself.
///
/// # Safety
/// - Every tile of both factors that is multiplied can be read, and there is at least one step.
/// - There is room for `BLOCK * BLOCK` sums.
/// - Nobody writes to the factors, and the sums are apart from them.
unsafe fn multiply(_: &Configured, weights: Tiles, rows: Tiles, both: bool, steps: usize, sums: *mut f32) {
    debug_assert!(steps > 0);
    let next = weights.first[TILES - 1].wrapping_add(TILE * weights.row);
    macro_rules! multiply {
        ($second_rows:literal, $second_sums:literal) => {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{w0} + {wr}]",
                "tileloadd tmm6, [{x0} + {xr}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                $second_rows,
                "tileloadd tmm5, [{w1} + {wr}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                $second_sums,
                "add {w0}, {ws}",
                "add {w1}, {ws}",
                "add {x0}, {xs}",
                "add {x1}, {xs}",
                "add {next}, 2048",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {line}], tmm0",
                "tilestored [{sums} + {line} + 1024], tmm1",
                "tilestored [{sums} + {line} + 2048], tmm2",
                "tilestored [{sums} + {line} + 3072], tmm3",
                w0 = inout(reg) weights.first[0] => _,
                w1 = inout(reg) weights.first[1] => _,
                wr = in(reg) weights.row,
                ws = in(reg) weights.step,
                x0 = inout(reg) rows.first[0] => _,
                x1 = inout(reg) rows.first[1] => _,
                xr = in(reg) rows.row,
                xs = in(reg) rows.step,
                next = inout(reg) next => _,
                steps = inout(reg) steps => _,
                sums = in(reg) sums,
                line = in(reg) TILE * size_of::<f32>(),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            )
        };
    }
    // SAFETY: the contract above; the registers are configured. Only they, the operands and the sums are written.
    unsafe {
        match both {
            true => multiply!("tileloadd tmm7, [{x1} + {xr}]\ntdpbf16ps tmm1, tmm4, tmm7", "tdpbf16ps tmm3, tmm5, tmm7"),
            false => multiply!(
                "",
                ".irp line,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
                prefetcht1 [{next} + 64 * \\line]
                .endr"
            ),
        }
    }
}
