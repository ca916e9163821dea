//! The native half of the Python package: one function for each kind of pass, called by `python/statescan` with outputs that it
//! has allocated, or, beside tensors of PyTorch, with True for outputs that are to be made here.
//!
//! All passes have the same signature, `(number, inputs, outputs, place)`: the operation's number, two tuples in the order of its
//! signature, which Python reads too ([`describe`]), and where the call runs ([`exec::Place`]). Tensors come through two doors:
//! those of PyTorch are read by their attributes ([`torch`]), all others by DLPack ([`dlpack`]). Parts of PyTorch's need no view
//! of theirs ([`rows`]). A layer's work between its projections is one call, of several passes ([`layers`]).

mod call;
mod describe;
mod described;
mod dlpack;
mod error;
mod exec;
mod layers;
#[cfg(target_os = "linux")]
mod openmp;
mod passes;
mod rows;
mod tensor;
mod torch;
mod xla;

/// The module that `import statescan._native` gives.
#[pyo3::pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::describe::operations;
    #[pymodule_export]
    use crate::described::Described;
    #[pymodule_export]
    use crate::exec::{Unobserved, choose_threads, chosen_threads, cores, cuda_devices};
    #[pymodule_export]
    use crate::layers::{layer_backward, layer_forward};
    #[pymodule_export]
    use crate::passes::{backward, backward_ends, backward_rest, ends_len, forward, forward_ends, forward_rest, summary, update};
    #[pymodule_export]
    use crate::xla::handlers;
    #[pymodule_export]
    use crate::xla::plan::{plan, scratch};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        #[cfg(target_os = "linux")]
        crate::openmp::import();
        module.add("UnknownArgument", module.py().get_type::<crate::error::UnknownArgument>())?;
        module.add("MAX_ARGUMENTS", statescan::ops::signature::MAX_ARGUMENTS)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
