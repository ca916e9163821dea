//! The shared libraries of CUDA, looked for before anything of them is called: a call would end the process without them.

/// The driver's names. Every name here is one that cudarc looks for.
pub(crate) const DRIVER: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };
/// NVRTC's names.
pub(crate) const NVRTC: &[&str] =
    if cfg!(windows) { &["nvrtc64_130_0.dll"] } else { &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"] };
/// cuBLASLt's names.
pub(crate) const BLASLT: &[&str] =
    if cfg!(windows) { &["cublasLt64_13.dll"] } else { &["libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12"] };
/// Folders in which toolkits put libraries that are not in the loader's path.
const FOLDERS: &[&str] = &["/usr/local/cuda/lib64", "/usr/local/cuda/lib", "/opt/cuda/lib64"];

/// Whether the loader finds a library by one of its names.
pub(crate) fn is_present(names: &[&str]) -> bool {
    // SAFETY: asks the loader only; neither library has a constructor that matters.
    names.iter().any(|name| unsafe { libloading::Library::new(*name) }.is_ok())
}

/// Loads a library from a toolkit's folder, after which the loader finds it by its name.
pub(crate) fn load_from_toolkit(names: &[&str]) -> bool {
    let paths = FOLDERS.iter().flat_map(|folder| names.iter().map(move |name| std::path::Path::new(folder).join(name)));
    for path in paths {
        // SAFETY: as in `is_present`.
        if let Ok(library) = unsafe { libloading::Library::new(path) } {
            // kept for the life of the process
            core::mem::forget(library);
            return is_present(names);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cudarc_looks_for_the_same_names() {
        let candidates =
            |names: &[&str]| -> Vec<String> { names.iter().flat_map(|name| cudarc::get_lib_name_candidates(name)).collect() };
        for (names, known) in
            [(DRIVER, candidates(&["cuda", "nvcuda"])), (NVRTC, candidates(&["nvrtc"])), (BLASLT, candidates(&["cublasLt"]))]
        {
            assert!(names.iter().all(|name| known.iter().any(|k| k == name)), "{names:?} {known:?}");
        }
    }

    #[test]
    fn what_is_not_installed_is_absent() {
        assert!(!is_present(&["libstatescan-does-not-exist.so"]) && !load_from_toolkit(&["libstatescan-does-not-exist.so"]));
    }
}
