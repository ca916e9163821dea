//! [`Weight`]: a tensor that lies in a file, or that the process owns.

use half::{bf16, f16};
use safetensors::Dtype;
use statescan::{DType, Tensor, View};
use std::ops::Range;
use std::sync::Arc;

/// The types that weights have: here and in files.
pub(crate) const TYPES: [(DType, Dtype); 3] = [(DType::F32, Dtype::F32), (DType::BF16, Dtype::BF16), (DType::F16, Dtype::F16)];

/// The type in files of a type of weights.
pub(crate) fn file_dtype(dtype: DType) -> Option<Dtype> {
    TYPES.iter().find(|(own, _)| *own == dtype).map(|(_, file)| *file)
}

/// The bytes of a file, mapped or in memory.
pub(crate) type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A tensor of f32, bf16 or f16, row-major, read only. Clones share their memory.
#[derive(Clone)]
pub struct Weight {
    storage: Storage,
    dtype: DType,
    shape: Vec<usize>,
}

#[derive(Clone)]
enum Storage {
    File(Bytes, Range<usize>),
    Owned(Arc<Tensor>),
}

impl Weight {
    /// The tensor at these bytes of a file: used in place where it is aligned for its type, otherwise copied.
    pub(crate) fn of_file(file: &Bytes, bytes: Range<usize>, dtype: DType, shape: &[usize]) -> statescan::Result<Self> {
        let place = &(**file).as_ref()[bytes.clone()];
        let storage = match place.as_ptr().addr().is_multiple_of(dtype.size()) {
            true => Storage::File(file.clone(), bytes),
            false => {
                let mut copy = Tensor::host(dtype, shape)?;
                copy.bytes_mut()[..place.len()].copy_from_slice(place);
                Storage::Owned(Arc::new(copy))
            }
        };
        Ok(Weight { storage, dtype, shape: shape.to_vec() })
    }

    /// A tensor of numbers.
    ///
    /// # Errors
    /// If there are not as many as the shape says.
    pub fn from_slice<T: statescan::tensor::Element>(data: &[T], shape: &[usize]) -> statescan::Result<Self> {
        let owned = Tensor::from_slice(&statescan::Exec::cpu(1), data, shape)?;
        Ok(Weight { dtype: owned.dtype(), storage: Storage::Owned(Arc::new(owned)), shape: shape.to_vec() })
    }

    /// A tensor of numbers, rounded to a type of weights; f32 if it is none.
    pub(crate) fn rounded(data: &[f32], dtype: DType, shape: &[usize]) -> statescan::Result<Self> {
        match dtype {
            DType::BF16 => Self::from_slice(&data.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>(), shape),
            DType::F16 => Self::from_slice(&data.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>(), shape),
            _ => Self::from_slice(data, shape),
        }
    }

    /// The storage type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of bytes.
    pub fn size(&self) -> usize {
        self.len() * self.dtype.size()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::File(file, range) => &(**file).as_ref()[range.clone()],
            Storage::Owned(tensor) => &tensor.bytes()[..self.size()],
        }
    }

    /// The tensor as operations take it.
    pub fn view(&self) -> View<'_> {
        let (bytes, shape) = (self.bytes(), &self.shape[..]);
        let view = match self.dtype {
            DType::BF16 => View::new::<bf16>(bytemuck::cast_slice(bytes), shape),
            DType::F16 => View::new::<f16>(bytemuck::cast_slice(bytes), shape),
            _ => View::new::<f32>(bytemuck::cast_slice(bytes), shape),
        };
        view.expect("as many elements as the shape has")
    }

    /// Elements of a range in row-major order, as f32.
    ///
    /// # Panics
    /// If the range or the lengths do not fit.
    pub(crate) fn widen(&self, range: Range<usize>, into: &mut [f32]) {
        assert_eq!(range.len(), into.len(), "room for every element");
        let bytes = self.bytes();
        match self.dtype {
            DType::BF16 => widen::<bf16>(&bytemuck::cast_slice(bytes)[range], into, bf16::to_f32),
            DType::F16 => widen::<f16>(&bytemuck::cast_slice(bytes)[range], into, f16::to_f32),
            _ => into.copy_from_slice(&bytemuck::cast_slice::<u8, f32>(bytes)[range]),
        }
    }

    /// All elements as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut wide = vec![0.0; self.len()];
        self.widen(0..self.len(), &mut wide);
        wide
    }

    /// The first element that is NaN or infinite, and its position.
    pub(crate) fn first_not_finite(&self) -> Option<(usize, f64)> {
        let bytes = self.bytes();
        let found = match self.dtype {
            DType::BF16 => first(bytemuck::cast_slice::<u8, u16>(bytes), |x| x & 0x7f80 == 0x7f80),
            DType::F16 => first(bytemuck::cast_slice::<u8, u16>(bytes), |x| x & 0x7c00 == 0x7c00),
            _ => first(bytemuck::cast_slice::<u8, u32>(bytes), |x| x & 0x7f80_0000 == 0x7f80_0000),
        };
        found.map(|at| {
            let mut value = [0.0];
            self.widen(at..at + 1, &mut value);
            (at, f64::from(value[0]))
        })
    }
}

fn widen<T: Copy>(from: &[T], into: &mut [f32], convert: impl Fn(T) -> f32) {
    for (to, &from) in into.iter_mut().zip(from) {
        *to = convert(from);
    }
}

/// Position of the first number that is NaN or infinite.
pub(crate) fn first_not_finite(numbers: &[f32]) -> Option<usize> {
    first(numbers, |x| x.to_bits() & 0x7f80_0000 == 0x7f80_0000)
}

/// Position of the first number of rows whose square is too much for a norm, or that is NaN or infinite itself.
pub(crate) fn first_too_large(numbers: &[f32], columns: usize) -> Option<usize> {
    let most = (f32::MAX / columns.max(1) as f32).sqrt();
    first(numbers, |x| x.abs() > most || x.is_nan())
}

/// Position of the first element that something holds of; whole blocks are looked through without branches.
fn first<T: Copy>(data: &[T], holds: impl Fn(T) -> bool) -> Option<usize> {
    const BLOCK: usize = 4096;
    let block = data.chunks(BLOCK).position(|block| block.iter().fold(false, |any, &x| any | holds(x)))?;
    data[block * BLOCK..].iter().position(|&x| holds(x)).map(|at| block * BLOCK + at)
}
