//! The kernel of a product: the one for Hopper where it can take it.

use super::hopper::{self, HopperParams};
use super::product::{PRODUCT, Params, Product};
use crate::cuda::{Kernel, Launch, Numbers, Stream, Tiling};
use crate::error::Result;

impl Product<'_> {
    /// Which kernel takes the product: of types, sizes, layouts and a device's numbers alone.
    pub fn route(&self, numbers: Numbers) -> Result<Route> {
        Ok(match hopper::plan(self, numbers) {
            Some((kernel, streamed)) => Route::Hopper(kernel, streamed),
            None => Route::Portable(self.kernel()?),
        })
    }

    /// # Safety
    /// The views and terms are valid, and nothing is read that is written.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's contract; the configuration describes types and layouts.
        unsafe {
            match self.route(stream.numbers())? {
                Route::Hopper(mut kernel, streamed) => {
                    kernel.params.streamed = streamed.encode(stream)?;
                    Ok(kernel.launch(stream, &hopper::KERNEL)?)
                }
                Route::Portable(kernel) => Ok(kernel.launch(stream, &PRODUCT)?),
            }
        }
    }
}

/// The kernel of a product.
#[allow(clippy::large_enum_variant)] // one is made for a launch, and copied nowhere else
#[derive(Debug)]
pub(super) enum Route {
    /// By warpgroups, but for the tensor map of the streamed factor, whose tiles are these.
    Hopper(Kernel<HopperParams>, Tiling),
    /// By `mma.sync`.
    Portable(Kernel<Params>),
}

impl Route {
    /// The kernel's name, and its launch.
    pub fn launch(&self) -> (&'static str, Launch) {
        match self {
            Route::Hopper(kernel, _) => (hopper::KERNEL.kernel, kernel.launch),
            Route::Portable(kernel) => (PRODUCT.kernel, kernel.launch),
        }
    }
}
