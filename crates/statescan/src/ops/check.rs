//! The argument checks that every operation shares, those of one's own too. They run before anything is written.
//!
//! ```
//! use statescan::ops::check::{Checker, Kind};
//! use statescan::{Device, Result, View, ViewMut};
//!
//! fn halve(x: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
//!     let mut checker = Checker::new("halve", Device::Cpu);
//!     checker.read("x", &x, Kind::Real, &x.shape())?;
//!     checker.write("y", y, Kind::Exact(x.dtype()), &x.shape())?;
//!     checker.finish()
//!     // and the work
//! }
//! let (x, mut y) = ([1f32; 6], [0f32; 6]);
//! let refused = halve(View::new(&x, &[2, 3])?, &mut ViewMut::new(&mut y, &[3, 2])?).unwrap_err();
//! assert_eq!(refused.to_string(), "halve: `y` must have shape (2, 3), got (3, 2): it fits with its axes 0 and 1 exchanged");
//! # Ok::<(), statescan::Error>(())
//! ```

pub(super) mod reading;
mod sizes;

use super::advice;
use super::signature::{self, Complex, Role, Signature, fits};
use crate::error::{Error, Result};
use crate::tensor::{Argument, DType, Device, Shape, View, ViewMut, first_overlap, is_injective};
pub(super) use reading::Reading;
use reading::Unread;
pub(crate) use sizes::Sizes;
use std::collections::HashMap;

/// The types that an argument may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
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

/// The least that a size counts as in [`limit_sizes`]: the lanes of the widest vector, to which tiles are padded.
const LEAST_SIZE: usize = 16;
/// The largest product of the sizes of a call, each counted as at least [`LEAST_SIZE`].
const MOST_SIZES: f64 = (1u64 << 52) as f64;
/// The most states of a channel where kernels number them in 32 bits, along with the steps of a tile.
const MOST_STATES: usize = 1 << 20;

/// Refuses sizes that nobody has memory for. Strides of 0 let a view of a few bytes claim any size, and a length that wrapped around would
/// be memory too small for what is written to it. So this comes before anything that depends on sizes.
///
/// **It is enough.** Whatever an operation multiplies (lengths of scratch memory, partial sums, saved states and workspaces, numbers of jobs
/// and of slices of time), each size occurs in it once at most, divided by something or filled up to 16, which is less than twice what it
/// counts as here. Besides, there are constants, such as 64 steps of a tile, and each size that does not occur leaves room for a factor of
/// 16. How many bytes that makes for each unit of the product is the [`Limit`](super::signature::Limit) of each signature: 2^9 at most, and
/// a megabyte at most that depends on no size. So nothing comes to more than 2^62 bytes, which is less than an allocation may have.
/// Sequences count as steps where there are more of them: segments of time are then two for each step at most.
pub(crate) fn limit_sizes(op: &'static str, names: &'static str, sizes: impl IntoIterator<Item = usize>) -> Result<()> {
    // exact as far as it matters: no factor is less than 1, and integers up to 2^53 are not rounded
    let got: f64 = sizes.into_iter().map(|size| size.max(LEAST_SIZE) as f64).product();
    let expected = "at most 2^52 (each size counts as at least 16)";
    if got <= MOST_SIZES { Ok(()) } else { Err(Error::Value { op, argument: names, expected, got }) }
}

/// Refuses more states of a channel than [`MOST_STATES`].
pub(crate) fn limit_states(op: &'static str, dstate: usize) -> Result<()> {
    let error = Error::Value { op, argument: "dstate", expected: "at most 2^20", got: dstate as f64 };
    if dstate <= MOST_STATES { Ok(()) } else { Err(error) }
}

/// Checks the tensors of one call, and collects those that must be apart.
#[derive(Debug)]
pub struct Checker<'a> {
    op: &'static str,
    device: Device,
    read: Vec<Argument<'a>>,
    written: Vec<Argument<'a>>,
}

impl<'a> Checker<'a> {
    /// Nothing so far of a call of `op`, whose tensors are all on this device.
    pub fn new(op: &'static str, device: Device) -> Self {
        Checker { op, device, read: Vec::new(), written: Vec::new() }
    }

    /// One that knows arguments, which were checked: what is written has to be apart from them.
    pub(crate) fn of(op: &'static str, device: Device, signature: &'static Signature, views: &[Option<&'a View<'_>>]) -> Self {
        let given = signature.arguments.iter().zip(views).filter_map(|(argument, view)| Some((argument.field, (*view)?)));
        let read = given.map(|(name, view)| Argument::new(name, view)).collect();
        Checker { read, ..Self::new(op, device) }
    }

    pub(crate) fn op(&self) -> &'static str {
        self.op
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
            let (expected, got) = (Shape::of(shape), view.shape());
            return Err(Error::Shape { op, argument, expected, got, help: advice::exchanged(&expected, &got) });
        }
        Ok(())
    }

    /// Checks the arguments that are there by the layouts of a signature, states and bounds of sequences excepted: their shapes depend on
    /// how sequences are packed. Gives the sizes of the call.
    pub(crate) fn bind(&self, signature: &'static Signature, views: &[Option<&View<'_>>]) -> Result<Sizes> {
        #[cfg(feature = "testing")]
        crate::testing::checked();
        self.bind_shapes(signature, views).map_err(|error| advice::advised(error, signature, views))
    }

    fn bind_shapes(&self, signature: &'static Signature, views: &[Option<&View<'_>>]) -> Result<Sizes> {
        let given = || signature.arguments.iter().zip(views).enumerate().filter_map(|(at, (a, v))| Some((at, a, (*v)?)));
        let reading = Reading::of(signature, |at| views[at].map(|view| view.shape())).map_err(|unread| {
            let Unread { at, form, sizes } = unread;
            let argument = &signature.arguments[at];
            let possible = argument.layouts.iter().copied().filter(|layout| form.is_none_or(|form| fits(layout, form)));
            self.wrong_rank(argument.field, signature, possible, &sizes, views[at].map_or(Shape::of(&[]), |view| view.shape()))
        })?;
        for (at, argument, view) in given().filter(|(_, argument, _)| argument.role != Role::State) {
            let kind = match argument.role {
                Role::Index => Kind::Index,
                _ => Kind::float(may_be_complex(signature, argument, view, views)),
            };
            self.check(argument.field, view, kind, &reading.sizes.shape(reading.layouts[at], &view.shape()))?;
        }
        Ok(reading.sizes)
    }

    /// A rank that no layout has: an error with sizes, if they are known and there is one layout only.
    fn wrong_rank(
        &self,
        argument: &'static str,
        signature: &Signature,
        mut layouts: impl Iterator<Item = &'static str> + Clone,
        sizes: &Sizes,
        got: Shape,
    ) -> Error {
        let (op, all) = (self.op, layouts.clone());
        match (layouts.next().and_then(|layout| sizes.known_shape(layout)), layouts.next()) {
            (Some(expected), None) => Error::Shape { op, argument, expected, got, help: String::new() },
            _ => Error::Rank { op, argument, expected: signature.shapes(all), got, help: String::new() },
        }
    }

    /// Checks the state that is read, once its shape is known.
    pub(crate) fn bind_state(&self, signature: &'static Signature, views: &[Option<&View<'_>>], shape: &[usize]) -> Result<()> {
        for (argument, view) in signature.arguments.iter().zip(views).filter(|(argument, _)| argument.role == Role::State) {
            if let Some(view) = *view {
                self.check(argument.field, view, Kind::float(may_be_complex(signature, argument, view, views)), shape)?;
            }
        }
        Ok(())
    }

    /// Checks gradients, by position: each has the shape of its argument and is complex where that is. A state has a gradient even where it
    /// was left at zero; states of the call are complex or not, and have this shape.
    pub(crate) fn gradients(
        &mut self,
        signature: &'static Signature,
        views: &[Option<&View<'_>>],
        (states_are_complex, shape): (bool, &[usize]),
        gradients: &'a [Option<ViewMut<'_>>],
    ) -> Result<()> {
        let differentiable = signature.arguments.iter().zip(views).filter(|(argument, _)| argument.gradient);
        for ((argument, view), gradient) in differentiable.zip(gradients) {
            let Some(gradient) = gradient else { continue };
            let name = argument.gradient_name;
            match (argument.role, view) {
                (Role::State, view) => {
                    let own = view.filter(|_| !argument.carried_gradient).map(|view| view.dtype().is_complex());
                    self.write(name, gradient, Kind::exactly(own.unwrap_or(states_are_complex)), shape)?;
                }
                (_, Some(view)) => self.write(name, gradient, Kind::exactly(view.dtype().is_complex()), &view.shape())?,
                (_, None) => {
                    let expected = "was not given, so it has no gradient";
                    return Err(Error::Presence { op: self.op, argument: argument.field, expected });
                }
            }
        }
        Ok(())
    }

    /// An argument that is read.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::DType`] and [`Error::Shape`].
    pub fn read(&mut self, argument: &'static str, view: &'a View<'_>, kind: Kind, shape: &[usize]) -> Result<()> {
        self.check(argument, view, kind, shape)?;
        self.read.push(Argument::new(argument, view));
        Ok(())
    }

    /// An argument that was checked.
    pub(crate) fn reads(&mut self, argument: &'static str, view: &'a View<'_>) {
        self.read.push(Argument::new(argument, view));
    }

    /// An optional argument that is read.
    ///
    /// # Errors
    /// As [`Checker::read`].
    pub fn read_if(&mut self, argument: &'static str, view: &'a Option<View<'_>>, kind: Kind, shape: &[usize]) -> Result<()> {
        view.as_ref().map_or(Ok(()), |view| self.read(argument, view, kind, shape))
    }

    /// An argument that is written: its elements must be distinct.
    ///
    /// # Errors
    /// As [`Checker::read`]; [`Error::Stride`].
    pub fn write(&mut self, argument: &'static str, view: &'a ViewMut<'_>, kind: Kind, shape: &[usize]) -> Result<()> {
        let view = view.shared();
        self.check(argument, view, kind, shape)?;
        if !is_injective(view) {
            return Err(Error::Stride { op: self.op, argument, shape: view.shape(), strides: view.strides().to_vec() });
        }
        self.written.push(Argument::new(argument, view));
        Ok(())
    }

    /// An optional argument that is written.
    ///
    /// # Errors
    /// As [`Checker::write`].
    pub fn write_if(&mut self, argument: &'static str, view: &'a Option<ViewMut<'_>>, kind: Kind, shape: &[usize]) -> Result<()> {
        view.as_ref().map_or(Ok(()), |view| self.write(argument, view, kind, shape))
    }

    /// Refuses a tensor whose elements do not lie side by side, in row-major order.
    ///
    /// # Errors
    /// [`Error::Presence`].
    pub fn dense(&self, argument: &'static str, view: Option<View<'_>>) -> Result<()> {
        match view.is_none_or(|v| v.len() < 2 || v.strides()[..] == v.shape().row_major()[..]) {
            true => Ok(()),
            false => Err(Error::Presence { op: self.op, argument, expected: "must be dense" }),
        }
    }

    /// Scratch memory: dense, of so many `f32`.
    pub(crate) fn workspace(&mut self, view: &'a Option<ViewMut<'_>>, len: usize) -> Result<()> {
        self.write_if("workspace", view, Kind::Exact(DType::F32), &[len])?;
        self.dense("workspace", view.as_ref().map(|v| v.as_view()))
    }

    /// Scratch memory that must be there if any is needed.
    pub(crate) fn needed_workspace(&mut self, view: &'a Option<ViewMut<'_>>, len: usize) -> Result<()> {
        if view.is_none() && len > 0 {
            let expected = "is needed on CUDA";
            return Err(Error::Presence { op: self.op, argument: "workspace", expected });
        }
        self.workspace(view, len)
    }

    /// Written memory must be apart from all other memory of the call.
    ///
    /// # Errors
    /// [`Error::Overlap`].
    pub fn finish(self) -> Result<()> {
        match first_overlap(&self.written, &self.read) {
            Some((argument, other)) => Err(Error::Overlap { op: self.op, argument, other }),
            None => Ok(()),
        }
    }
}

/// Whether an argument may be complex in this call; the others are looked at only where it is.
fn may_be_complex(signature: &Signature, argument: &signature::Argument, view: &View<'_>, views: &[Option<&View<'_>>]) -> bool {
    match argument.complex {
        Complex::Never | Complex::Without(_) => false,
        Complex::Always => true,
        Complex::As(names) if view.dtype().is_complex() => names.iter().any(|name| {
            let other = signature.argument(name).and_then(|at| views[at]);
            other.is_some_and(|other| other.dtype().is_complex())
        }),
        Complex::As(_) => false,
    }
}

/// Refuses groups that do not divide what they group.
///
/// # Errors
/// [`Error::Value`].
pub fn check_groups(op: &'static str, argument: &'static str, groups: usize, whole: usize) -> Result<()> {
    match groups == 0 || !whole.is_multiple_of(groups) {
        true => {
            let expected = "in groups whose number divides that of channels or heads";
            Err(Error::Value { op, argument, expected, got: groups as f64 })
        }
        false => Ok(()),
    }
}

/// Refuses limits that are no interval.
pub(crate) fn check_interval(op: &'static str, argument: &'static str, (low, high): (f64, f64)) -> Result<()> {
    match low.is_nan() || high.is_nan() || low > high {
        true => Err(Error::Limits { op, argument, low, high }),
        false => Ok(()),
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

/// The slots that sequences read, which others must not write: `written` are the slots that are, and `writer` says by which sequence.
pub(crate) fn read_slots(
    op: &'static str,
    argument: &'static str,
    read: &View<'_>,
    slots: usize,
    written: &[Option<usize>],
    writer: impl Fn(usize) -> usize,
) -> Result<Vec<Option<usize>>> {
    let writers: HashMap<_, _> = written.iter().enumerate().filter_map(|(at, slot)| Some(((*slot)?, writer(at)))).collect();
    let mut all = Vec::with_capacity(read.len());
    for (position, got) in read.to_indices().into_iter().enumerate() {
        let slot = usize::try_from(got).ok();
        if slot.is_some_and(|slot| slot >= slots) {
            let (expected, bound) = ("less than the number of slots,", slots as i64);
            return Err(Error::Index { op, argument, position, expected, bound, got });
        }
        let writer = slot.and_then(|slot| writers.get(&slot)).filter(|writer| **writer != position);
        if let Some(&other) = writer {
            let (expected, bound) = ("a slot that no other sequence writes, as does the one at position", other as i64);
            return Err(Error::Index { op, argument, position, expected, bound, got });
        }
        all.push(slot);
    }
    Ok(all)
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
