//! A kernel of one's own from beginning to end: its text is `axpby.cu`, everything else is here. `cargo run --example axpby` runs it on the first GPU;
//! `cargo test --example axpby --features testing` compiles it for every architecture, which needs no GPU.

use core::ffi::c_void;
use statescan_cuda::{Address, COMMON, Config, DeviceMemory, Kernel, Launch, Program, Result, Scalar, Stream, params};

const THREADS: usize = 256;

params! {
    /// The parameters that the kernel takes by value: here a struct of Rust, there one of C++, whose size and offsets the
    /// compiler compares with these.
    struct Params {
        x: Address<c_void>,
        y: Address<c_void>,
        out: Address<c_void>,
        count: i64,
        a: f32,
        b: f32,
    }
}

/// The text: what it is built from, then the lines of a configuration, then the kernel.
static AXPBY: Program<Params> = Program::new("axpby", &[COMMON], include_str!("axpby.cu"));

/// The plan: a pure function of types and sizes, which needs no device.
fn plan([input, output]: [Scalar; 2], [x, y, out]: [u64; 3], [a, b]: [f32; 2], count: usize) -> Result<Kernel<Params>> {
    Ok(Kernel {
        config: Config::default().dtype("X", input).dtype("OUT", output).int("THREADS", THREADS),
        launch: Launch::elementwise("axpby", Some(count), THREADS)?,
        params: Params { x: Address::new(x), y: Address::new(y), out: Address::new(out), count: count as i64, a, b },
    })
}

fn main() -> Result<()> {
    let stream = match Stream::own(0) {
        Ok(stream) => stream,
        Err(error) => {
            println!("nothing to run on: {error}");
            return Ok(());
        }
    };
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
    let [x, y] =
        [DeviceMemory::from_host(&stream, &bytes(&[1.0, 2.0, 3.0]))?, DeviceMemory::from_host(&stream, &bytes(&[4.0; 3]))?];
    let out = DeviceMemory::new(&stream, x.len())?;
    let kernel = plan([Scalar::F32; 2], [x.address(), y.address(), out.address()], [2.0, 0.5], 3)?;
    // SAFETY: the three arrays have three numbers of the types that the kernel is compiled for.
    unsafe { kernel.launch(&stream, &AXPBY)? };
    let mut result = vec![0; out.len()];
    out.download(&mut result)?;
    let result: Vec<f32> =
        result.chunks_exact(4).map(|value| f32::from_ne_bytes(value.try_into().expect("four bytes"))).collect();
    assert_eq!(result, [4.0, 6.0, 8.0]);
    println!("2 x + y / 2 = {result:?}");
    Ok(())
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use statescan_cuda::testing::Suite;

    #[test]
    fn every_type_compiles() {
        let Some(mut suite) = Suite::new() else { return };
        for types in [[Scalar::F32; 2], [Scalar::BF16, Scalar::F32], [Scalar::F16; 2]] {
            let kernel = plan(types, [1 << 20; 3], [1.0, 1.0], 1000).unwrap();
            suite.add(&AXPBY, &kernel.config, kernel.launch.shared as usize);
        }
        suite.compile();
    }

    #[test]
    fn blocks_cover_the_elements() {
        assert_eq!(plan([Scalar::F32; 2], [0; 3], [1.0, 1.0], 1000).unwrap().launch.blocks(), 4);
    }
}
