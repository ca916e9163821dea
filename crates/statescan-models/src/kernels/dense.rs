//! The check of what steps of one row share: arguments that are dense and in f32.

use statescan::error::Result;
use statescan::ops::check::{Checker, Kind};
use statescan::tensor::{DType, View, ViewMut};

/// An argument and its shape.
type Read<'a, 's> = (&'static str, &'a View<'a>, &'s [usize]);
type Written<'a, 's> = (&'static str, &'a ViewMut<'a>, &'s [usize]);

/// Checks dense arguments in f32 that are read, and those that are written.
pub(super) fn check_dense<'a>(checker: &mut Checker<'a>, read: &[Read<'a, '_>], written: &[Written<'a, '_>]) -> Result<()> {
    let single = Kind::Exact(DType::F32);
    for &(argument, view, shape) in read {
        checker.read(argument, view, single, shape)?;
        checker.dense(argument, Some(*view))?;
    }
    for &(argument, view, shape) in written {
        checker.write(argument, view, single, shape)?;
        checker.dense(argument, Some(view.as_view()))?;
    }
    Ok(())
}
