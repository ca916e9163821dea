//! Tensor maps: tiles of strided tensors for Hopper's copy engine, the tensor memory accelerator (TMA). Pure functions check the
//! limits of the hardware before the driver encodes a map.

#[cfg(feature = "driver")]
use crate::Declarations;
#[cfg(feature = "driver")]
use crate::driver::{call, check};
use crate::{Error, Layout, Parameter, Result, Scalar, Stream};
#[cfg(feature = "driver")]
use cudarc::driver::sys;

/// The most axes.
const AXES: usize = 5;

/// How the units of 16 bytes of a tile's lines change places in shared memory, so that neighbours of a column lie in different banks: within so
/// many bytes, by the bits of the line's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// As they lie in the tensor.
    None,
    /// Within 32 bytes.
    Bytes32,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes.
    Bytes128,
}

impl Swizzle {
    /// The most bytes of a line.
    fn longest_line(self) -> Option<usize> {
        match self {
            Swizzle::None => None,
            Swizzle::Bytes32 => Some(32),
            Swizzle::Bytes64 => Some(64),
            Swizzle::Bytes128 => Some(128),
        }
    }
}

/// Tiles of a tensor: what a tensor map is made from. Axes are those of the hardware, the innermost one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tiling {
    scalar: Scalar,
    rank: usize,
    address: u64,
    sizes: [u64; AXES],
    /// Bytes between neighbours along each axis but the innermost one.
    strides: [u64; AXES - 1],
    tile: [u32; AXES],
    swizzle: Swizzle,
}

impl Tiling {
    /// A tensor in tiles of a shape, both with the innermost axis last.
    ///
    /// A copy out of shared memory writes whole 16 bytes: where lines of the tensor are no multiple of them, it writes zeros behind their ends.
    /// So a tensor that is written needs such lines, or room behind them.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the rule that does not hold.
    pub fn new(tensor: &impl Layout, tile: &[usize], swizzle: Swizzle) -> Result<Tiling> {
        let unavailable = |why| Err(Error::Unavailable { what: "a tensor map", why });
        let (shape, steps) = (tensor.shape(), tensor.strides());
        let (rank, scalar, size) = (shape.len(), tensor.scalar(), tensor.scalar().size());
        if !(1..=AXES).contains(&rank) || tile.len() != rank {
            return unavailable("a tensor has one to five axes, and a tile as many");
        }
        if matches!(scalar, Scalar::Complex64 | Scalar::Complex128) {
            return unavailable("elements are real numbers or integers");
        }
        if !tensor.is_on_cuda() || !tensor.address().is_multiple_of(16) {
            return unavailable("a tensor begins at a multiple of 16 bytes in a device's memory");
        }
        if shape.iter().any(|&n| n == 0 || n as u64 > 1 << 32) {
            return unavailable("an axis has 1 to 2^32 elements");
        }
        if steps[rank - 1] != 1 && shape[rank - 1] > 1 {
            return unavailable("elements of the last axis lie side by side");
        }
        if tile.iter().any(|n| !(1..=256).contains(n)) {
            return unavailable("a tile has 1 to 256 elements along each axis");
        }
        let line = tile[rank - 1] * size;
        if !line.is_multiple_of(16) {
            return unavailable("a line of a tile is a multiple of 16 bytes");
        }
        if swizzle.longest_line().is_some_and(|longest| line > longest) {
            return unavailable("a line of a tile is no longer than its swizzle");
        }
        let mut tiling = Tiling {
            scalar,
            rank,
            address: tensor.address(),
            sizes: [1; AXES],
            strides: [0; AXES - 1],
            tile: [1; AXES],
            swizzle,
        };
        for (axis, from) in (0..rank).rev().enumerate() {
            tiling.sizes[axis] = shape[from] as u64;
            tiling.tile[axis] = tile[from] as u32;
            if axis == 0 {
                continue;
            }
            // nothing is that far along an axis of one element
            let bytes = if shape[from] == 1 {
                Some(16)
            } else {
                u64::try_from(steps[from]).ok().and_then(|n| n.checked_mul(size as u64))
            };
            match bytes {
                Some(bytes) if bytes.is_multiple_of(16) && bytes < 1 << 40 => tiling.strides[axis - 1] = bytes,
                _ => return unavailable("strides are multiples of 16 bytes from 0 to 2^40"),
            }
        }
        Ok(tiling)
    }

    /// Returns these tiles of memory that begins elsewhere, at a multiple of 16 bytes.
    pub fn at(self, address: u64) -> Tiling {
        debug_assert!(address.is_multiple_of(16), "{address:#x}");
        Tiling { address, ..self }
    }

    /// Bytes of a tile.
    pub fn bytes(&self) -> usize {
        self.tile.iter().fold(self.scalar.size(), |n, &along| n * along as usize)
    }

    /// How many tiles cover each axis.
    pub fn tiles(&self) -> [u32; AXES] {
        core::array::from_fn(|axis| self.sizes[axis].div_ceil(self.tile[axis].into()) as u32)
    }

    /// Elements of a tile along each axis.
    pub fn tile(&self) -> [u32; AXES] {
        self.tile
    }

    /// The tensor map. Elements outside of the tensor are read as zeros.
    ///
    /// # Errors
    /// [`Error::Unavailable`] on devices older than Hopper, [`Error::Cuda`].
    pub fn encode(&self, stream: &Stream) -> Result<TensorMap> {
        if stream.numbers().capability < (9, 0) {
            return Err(Error::Unavailable { what: "a tensor map", why: "the device is older than compute capability 9.0" });
        }
        stream.tensor_map(self)
    }
}

#[cfg_attr(not(feature = "driver"), allow(unused_variables))]
impl Stream {
    /// The driver's description of a tiling.
    fn tensor_map(&self, tiling: &Tiling) -> Result<TensorMap> {
        driven! { self =>
            use sys::CUtensorMapSwizzle_enum as Way;
            let swizzle = match tiling.swizzle {
                Swizzle::None => Way::CU_TENSOR_MAP_SWIZZLE_NONE,
                Swizzle::Bytes32 => Way::CU_TENSOR_MAP_SWIZZLE_32B,
                Swizzle::Bytes64 => Way::CU_TENSOR_MAP_SWIZZLE_64B,
                Swizzle::Bytes128 => Way::CU_TENSOR_MAP_SWIZZLE_128B,
            };
            // the driver checks the address against the current context
            let _current = self.enter()?;
            let mut map = core::mem::MaybeUninit::<sys::CUtensorMap>::uninit();
            // SAFETY: the driver is loaded, as a stream exists; every array has as many elements as the tensor has axes, and the map is valid
            // memory of its size.
            unsafe {
                call!(cuTensorMapEncodeTiled(
                    map.as_mut_ptr(),
                    data_type(tiling.scalar).expect("checked by `new`"),
                    tiling.rank as u32,
                    tiling.address as *mut core::ffi::c_void,
                    tiling.sizes.as_ptr(),
                    tiling.strides.as_ptr(),
                    tiling.tile.as_ptr(),
                    [1; AXES].as_ptr(),
                    sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
                    swizzle,
                    sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                    sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                ))?;
                Ok(TensorMap(map.assume_init().opaque))
            }
        }
    }
}

#[cfg(feature = "driver")]
fn data_type(scalar: Scalar) -> Option<sys::CUtensorMapDataType> {
    use sys::CUtensorMapDataType_enum as Type;
    Some(match scalar {
        Scalar::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        Scalar::F64 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
        Scalar::BF16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        Scalar::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        Scalar::I32 => Type::CU_TENSOR_MAP_DATA_TYPE_INT32,
        Scalar::I64 => Type::CU_TENSOR_MAP_DATA_TYPE_INT64,
        Scalar::Complex64 | Scalar::Complex128 => return None,
    })
}

/// A tensor map as a kernel takes it, by value among its parameters.
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TensorMap([u64; 16]);

impl Parameter for TensorMap {
    #[cfg(feature = "driver")]
    fn field(name: &str) -> String {
        format!("TensorMap {name}")
    }
    #[cfg(feature = "driver")]
    fn declare(to: &mut Declarations) {
        to.add_text("TensorMap", "struct alignas(128) TensorMap { u64 words[16]; };\n");
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::Described;

    fn refused(tensor: &Described, tile: &[usize], swizzle: Swizzle) -> &'static str {
        match Tiling::new(tensor, tile, swizzle) {
            Err(Error::Unavailable { what: "a tensor map", why }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tensor_maps_have_the_innermost_axis_first() {
        // (batch, step, head, channel) of heads side by side, seen as (batch, head, step, channel)
        let tensor = Described::dense(Scalar::BF16, &[2, 100, 3, 64]).permute(&[0, 2, 1, 3]);
        let tiling = Tiling::new(&tensor, &[1, 1, 64, 64], Swizzle::Bytes128).unwrap();
        assert_eq!(tiling.sizes, [64, 100, 3, 2, 1]);
        assert_eq!(tiling.strides, [3 * 64 * 2, 64 * 2, 100 * 3 * 64 * 2, 0]);
        assert_eq!((tiling.tile(), tiling.tiles()), ([64, 64, 1, 1, 1], [1, 2, 3, 2, 1]));
        assert_eq!(tiling.bytes(), 64 * 64 * 2);
        // a stride along an axis of one element is not looked at
        let odd = Described::dense(Scalar::F32, &[1, 7]).permute(&[0, 1]);
        assert_eq!(Tiling::new(&odd, &[1, 4], Swizzle::None).unwrap().strides[0], 16);
    }

    #[test]
    fn what_the_hardware_cannot_describe_is_refused() {
        let plain = Described::dense(Scalar::BF16, &[4, 100, 64]);
        let refused_as = |tensor: &Described, tile: &[usize], word: &str| {
            let why = refused(tensor, tile, Swizzle::Bytes128);
            assert!(why.contains(word), "{why}");
        };
        refused_as(&plain, &[64, 64], "as many");
        refused_as(&Described::dense(Scalar::BF16, &[1, 1, 1, 1, 1, 8]), &[1, 1, 1, 1, 1, 8], "five axes");
        refused_as(&Described::dense(Scalar::Complex64, &[4, 8]), &[4, 8], "real numbers");
        refused_as(&Described::dense(Scalar::BF16, &[4, 0, 64]), &[1, 1, 64], "2^32");
        refused_as(&plain.permute(&[0, 2, 1]), &[1, 64, 64], "side by side");
        refused_as(&plain, &[1, 257, 64], "256");
        refused_as(&plain, &[1, 0, 64], "256");
        refused_as(&plain, &[1, 64, 4], "multiple of 16 bytes");
        refused_as(&plain, &[1, 64, 128], "swizzle");
        refused_as(&Described::dense(Scalar::BF16, &[4, 100, 63]), &[1, 8, 8], "strides");
        refused_as(&plain.flip(0), &[1, 8, 8], "strides");
        let at = |address, on_cuda| Described { address, on_cuda, ..Described::dense(Scalar::F32, &[8, 8]) };
        refused_as(&at(4104, true), &[8, 8], "multiple of 16 bytes in");
        refused_as(&at(4096, false), &[8, 8], "device's memory");
        assert!(refused(&plain, &[1, 64, 64], Swizzle::Bytes64).contains("swizzle"));
        assert!(Tiling::new(&plain, &[1, 64, 32], Swizzle::Bytes64).is_ok());
        assert!(Tiling::new(&plain, &[1, 64, 16], Swizzle::Bytes32).is_ok());
    }
}
