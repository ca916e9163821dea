//! Tells the linker the properties of a module that an interpreter will load.

fn main() {
    // the check is here and not in the module, so that it comes before the minutes in which the library is built
    if pyo3_build_config::get().is_free_threaded() {
        println!("cargo::error=statescan supports no free-threaded Python: install it for one with the global lock");
    }
    pyo3_build_config::add_extension_module_link_args();
}
