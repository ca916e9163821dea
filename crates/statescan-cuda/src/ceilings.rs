//! The highest rates of a device: memory copied, multiply-adds and exponentials for each nanosecond.

use crate::{Address, AsStream, COMMON, Config, DeviceMemory, Launch, Program, Result, Stream, elapsed, params};

static PROGRAM: Program<Params> = Program::new("ceilings", &[COMMON], include_str!("ceilings.cu"));

/// Rates of a device, for each nanosecond.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceilings {
    /// Bytes read and written by a copy that no cache holds.
    pub bytes: f64,
    /// Additions and multiplications in f32, by fused multiply-adds.
    pub flops: f64,
    /// Exponentials in f32, by the instruction for them.
    pub exps: f64,
}

params! {
    /// Parameters of `ceilings`.
    struct Params {
        out: Address<f32>,
        value: f32,
        rounds: i64,
    }
}

const THREADS: usize = 256;
const CHAINS: usize = 16;
const ROUNDS: usize = 4096;
/// Bytes of the array that is copied.
const COPIED: usize = 1 << 30;

impl Ceilings {
    /// Measures them: some milliseconds, and two gigabytes of the device's memory.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) if there is no stream; [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn measure<S: AsStream>(on: &S) -> Result<Self, S::Error> {
        Ok(Self::of(on.as_stream()?)?)
    }

    fn of(stream: &Stream) -> Result<Self> {
        let (from, to) = (DeviceMemory::new(stream, COPIED)?, DeviceMemory::new(stream, COPIED)?);
        // SAFETY: both arrays have so many bytes.
        let copy = || unsafe { stream.copy(to.address(), from.address(), COPIED) };
        let bytes = 2.0 * COPIED as f64 / best(stream, copy)?;
        let blocks = 16 * stream.numbers().multiprocessors;
        let done = (blocks * THREADS * CHAINS * ROUNDS) as f64;
        let rate = |exp: bool| {
            let config = Config::default().flag("EXP", exp).int("THREADS", THREADS);
            let launch = Launch::line(blocks as u32, THREADS as u32, 0);
            let params = Params { out: Address::new(to.address()), value: 0.5, rounds: ROUNDS as i64 };
            // SAFETY: the kernel writes one number at most, into an array of ours.
            let time = best(stream, || unsafe { stream.launch(&PROGRAM, &config, launch, &params) })?;
            Ok::<f64, crate::Error>(done / time)
        };
        Ok(Ceilings { bytes, flops: 2.0 * rate(false)?, exps: rate(true)? })
    }
}

/// The shortest of a few times, in nanoseconds.
fn best(stream: &Stream, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut shortest = f64::INFINITY;
    for _ in 0..6 {
        shortest = shortest.min(elapsed(stream, &mut work)?.as_secs_f64() * 1e9);
    }
    Ok(shortest)
}
