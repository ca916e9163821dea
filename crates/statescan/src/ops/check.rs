//! The argument checks that every operation shares. They run before anything is written.

use crate::error::{Error, Result};
use crate::tensor::{Argument, DType, Device, Shape, View, ViewMut, first_overlap, is_injective};

/// The types that an argument may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// f32, f64, bf16, f16.
    Real,
    /// complex64, complex128.
    Complex,
    /// Real or complex.
    Float,
    /// f32 or f64 (workspaces that keep the compute type).
    Exact(DType),
    /// i32, i64.
    Index,
}

impl Kind {
    fn accepts(self, dtype: DType) -> bool {
        match self {
            Kind::Real => dtype.is_real(),
            Kind::Complex => dtype.is_complex(),
            Kind::Float => dtype.is_real() || dtype.is_complex(),
            Kind::Exact(exact) => dtype == exact,
            Kind::Index => dtype.is_index(),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Kind::Real => "real (f32, f64, bf16 or f16)",
            Kind::Complex => "complex (complex64 or complex128)",
            Kind::Float => "real or complex",
            Kind::Exact(DType::F64) => "f64",
            Kind::Exact(_) => "f32",
            Kind::Index => "i32 or i64",
        }
    }

    /// `Float` if complex numbers are allowed there, else `Real`.
    pub(crate) fn float(complex: bool) -> Self {
        if complex { Kind::Float } else { Kind::Real }
    }

    /// `Complex` or `Real`.
    pub(crate) fn exactly(complex: bool) -> Self {
        if complex { Kind::Complex } else { Kind::Real }
    }
}

/// What sizes count as in [`limit_sizes`] at least: lanes of the widest vector, which tiles are filled up to.
const LEAST_SIZE: usize = 16;
/// The largest product of the sizes of a call, each counted as at least [`LEAST_SIZE`].
const MOST_SIZES: f64 = (1u64 << 52) as f64;
/// The most states of a channel where kernels number them in 32 bits, along with the steps of a tile.
const MOST_STATES: usize = 1 << 20;

/// Refuses sizes that nobody has memory for. Strides of 0 let a view of a few bytes claim any size, and a length that wrapped around would
/// be memory too small for what is written to it. So this comes before anything that depends on sizes.
///
/// **It is enough.** Whatever an operation multiplies (lengths of scratch memory, partial sums, saved states and workspaces, numbers of jobs
/// and of pieces of time), each size occurs in it once at most, divided by something or filled up to 16, which is less than twice what it
/// counts as here. Besides, there are constants, such as 64 steps of a tile, and each size that does not occur leaves room for a factor of
/// 16. In bytes for each unit of the product, at the most:
///
/// | operation | bytes | where |
/// |---|---|---|
/// | selective_scan | 2^6 | partial gradients of B and C, each of two parts, by batch, channel, step and state |
/// | ssd | 2^3 | twenty tiles of 64 steps and all columns of all heads, where batch, steps and states count 2^12 |
/// | simplified_scan | 2^4 | 512 steps of inputs, states and outputs, where the other sizes count 2^12 |
/// | linear_scan | 2^5 | states of all steps, or of 128 channels before each tile |
/// | causal_conv1d | 2^9 | nine sums of a channel for each group of pieces, of which there are three for each step at most |
/// | updates | 2^4 | two tiles of all states of 16 channels, where rows and channels count 2^8 |
///
/// and a megabyte at most that depends on no size. So nothing comes to more than 2^62 bytes, which is less than an allocation may have.
/// Sequences count as steps where there are more of them: segments of time are then two for each step at most.
pub(crate) fn limit_sizes(op: &'static str, names: &'static str, sizes: impl IntoIterator<Item = usize>) -> Result<()> {
    // exact as far as it matters: no factor is less than 1, and integers up to 2^53 are not rounded
    let got: f64 = sizes.into_iter().map(|size| size.max(LEAST_SIZE) as f64).product();
    let expected = "at most 2^52, each size counted as at least 16,";
    if got <= MOST_SIZES { Ok(()) } else { Err(Error::Value { op, argument: names, expected, got }) }
}

/// Refuses more states of a channel than [`MOST_STATES`].
pub(crate) fn limit_states(op: &'static str, dstate: usize) -> Result<()> {
    let error = Error::Value { op, argument: "dstate", expected: "at most 2^20", got: dstate as f64 };
    if dstate <= MOST_STATES { Ok(()) } else { Err(error) }
}

/// Collects the arguments of one call while checking each.
pub(crate) struct Checker<'a> {
    op: &'static str,
    device: Device,
    read: Vec<Argument<'a>>,
    written: Vec<Argument<'a>>,
}

impl<'a> Checker<'a> {
    pub(crate) fn new(op: &'static str, device: Device) -> Self {
        // room for the arguments of any operation
        Checker { op, device, read: Vec::with_capacity(12), written: Vec::with_capacity(12) }
    }

    /// Where the arguments must be.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    fn check(&self, argument: &'static str, view: &View<'_>, kind: Kind, shape: &[usize]) -> Result<()> {
        let op = self.op;
        if view.device() != self.device {
            return Err(Error::Device { op, argument, expected: self.device, got: view.device() });
        }
        if !kind.accepts(view.dtype()) {
            return Err(Error::DType { op, argument, expected: kind.words(), got: view.dtype() });
        }
        if view.shape()[..] != *shape {
            return Err(Error::Shape { op, argument, expected: Shape::of(shape), got: view.shape() });
        }
        Ok(())
    }

    /// An argument that is read.
    pub(crate) fn read(&mut self, argument: &'static str, view: &'a View<'_>, kind: Kind, shape: &[usize]) -> Result<()> {
        self.check(argument, view, kind, shape)?;
        self.read.push(Argument::new(argument, view));
        Ok(())
    }

    /// An optional argument that is read.
    pub(crate) fn read_if(
        &mut self,
        argument: &'static str,
        view: &'a Option<View<'_>>,
        kind: Kind,
        shape: &[usize],
    ) -> Result<()> {
        view.as_ref().map_or(Ok(()), |view| self.read(argument, view, kind, shape))
    }

    /// An argument that is written: its elements must be distinct.
    pub(crate) fn write(&mut self, argument: &'static str, view: &'a ViewMut<'_>, kind: Kind, shape: &[usize]) -> Result<()> {
        let view = view.shared();
        self.check(argument, view, kind, shape)?;
        if !is_injective(view) {
            return Err(Error::Stride { op: self.op, argument, shape: view.shape(), strides: view.strides().to_vec() });
        }
        self.written.push(Argument::new(argument, view));
        Ok(())
    }

    /// An optional argument that is written.
    pub(crate) fn write_if(
        &mut self,
        argument: &'static str,
        view: &'a Option<ViewMut<'_>>,
        kind: Kind,
        shape: &[usize],
    ) -> Result<()> {
        view.as_ref().map_or(Ok(()), |view| self.write(argument, view, kind, shape))
    }

    /// Saved states are read and written as one piece of memory.
    pub(crate) fn dense(&self, argument: &'static str, view: Option<View<'_>>) -> Result<()> {
        match view.is_none_or(|v| v.len() < 2 || v.strides()[..] == v.shape().row_major()[..]) {
            true => Ok(()),
            false => Err(Error::Presence { op: self.op, argument, expected: "must be dense" }),
        }
    }

    /// Asking for the gradient of an argument that was not given is an error.
    pub(crate) fn gradient_of(&self, argument: &'static str, given: bool, asked: bool) -> Result<()> {
        match asked && !given {
            true => Err(Error::Presence { op: self.op, argument, expected: "was not given, so it has no gradient" }),
            false => Ok(()),
        }
    }

    /// Written memory must be apart from all other memory of the call.
    pub(crate) fn finish(self) -> Result<()> {
        match first_overlap(&self.written, &self.read) {
            Some((argument, other)) => Err(Error::Overlap { op: self.op, argument, other }),
            None => Ok(()),
        }
    }
}

/// The state that each row of a step uses: its own number, or what an index tensor (already checked for type and shape) says; negative for
/// none. An index out of range, or used by two rows, is an error.
pub(crate) fn state_rows(
    op: &'static str,
    argument: &'static str,
    indices: Option<&View<'_>>,
    batch: usize,
    states: usize,
) -> Result<Vec<Option<usize>>> {
    let Some(indices) = indices else { return Ok((0..batch).map(Some).collect()) };
    let values = indices.to_indices();
    let mut used: Vec<(i64, usize)> = Vec::with_capacity(batch);
    for (position, &got) in values.iter().enumerate() {
        if got >= states as i64 {
            let bound = states as i64;
            return Err(Error::Index { op, argument, position, expected: "less than the number of states,", bound, got });
        }
        if got >= 0 {
            used.push((got, position));
        }
    }
    used.sort_unstable();
    if let Some(pair) = used.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let (got, position) = pair[1];
        let (expected, bound) = ("used by one row only; also at position", pair[0].1 as i64);
        return Err(Error::Index { op, argument, position, expected, bound, got });
    }
    Ok(values.into_iter().map(|v| usize::try_from(v).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_exact_and_counts_small_sizes_as_vectors() {
        let fits = |sizes: &[usize]| limit_sizes("test", "sizes", sizes.iter().copied()).is_ok();
        assert!(fits(&[1 << 40, 1, 0, 16]) && !fits(&[1 << 40, 1, 0, 17]) && !fits(&[(1 << 40) + 1, 1, 0, 16]));
        assert!(!fits(&[usize::MAX; 6]) && !fits(&[0, usize::MAX]) && fits(&[]));
        assert!(limit_states("test", MOST_STATES).is_ok() && limit_states("test", MOST_STATES + 1).is_err());
    }
}
