//! The substitute of a stream in a build without a driver.

use crate::Error;
use core::convert::Infallible;

/// A value that cannot exist; only this module sees that, so that callers compile as they do with a driver.
#[derive(Debug, Clone)]
pub(crate) struct Absent(Infallible);

impl Absent {
    /// Ends a path that no value can reach.
    pub(crate) fn never(&self) -> ! {
        match self.0 {}
    }
}

/// Why there is no stream.
pub(crate) const ABSENT: Error =
    Error::Unavailable { what: "CUDA", why: "this program was built without the feature `cuda` (`driver` of statescan-cuda)" };
