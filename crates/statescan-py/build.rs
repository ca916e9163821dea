//! What a linker needs to know of a module that an interpreter will load.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
    // `Py_GIL_DISABLED`, for a refusal in words
    pyo3_build_config::use_pyo3_cfgs();
}
