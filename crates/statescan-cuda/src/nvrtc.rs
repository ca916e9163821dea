//! NVRTC: CUDA C++ text to machine code for one architecture.

use super::library;
use crate::{Error, Header, Result, Source};
use core::ffi::{c_char, c_int};
use cudarc::nvrtc::sys;
use std::ffi::CString;
use std::sync::OnceLock;

/// The version of NVRTC, (major, minor).
///
/// # Errors
/// [`Error::Unavailable`] without the library.
pub fn version() -> Result<(i32, i32)> {
    static FOUND: OnceLock<Option<(i32, i32)>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        if !library::is_present(library::NVRTC) && !library::load_from_toolkit(library::NVRTC) {
            return None;
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is there, and both are valid places for an integer.
        let status = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
        (status == sys::nvrtcResult::NVRTC_SUCCESS).then_some((major, minor))
    });
    let why = "NVRTC was not found: it comes with the CUDA toolkit, or as the Python package nvidia-cuda-nvrtc";
    found.ok_or(Error::Unavailable { what: "CUDA", why })
}

/// A program that is destroyed when it goes out of scope.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by `nvrtcCreateProgram`, destroyed once.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// Options that every program is compiled with, besides the architecture.
pub const OPTIONS: &[&str] = &["--std=c++17", "-default-device", "--diag-suppress=177"];

/// Compiles a program for an architecture such as `sm_90a` with some more options: machine code, and what compiler and assembler said.
///
/// # Errors
/// [`Error::Unavailable`] without the library, [`Error::Compile`] with its log.
pub fn compile(kernel: &'static str, source: &Source, architecture: &str, extra: &[&str]) -> Result<(Vec<u8>, String)> {
    version()?;
    let string =
        |text: &str| CString::new(text).map_err(|_| Error::Compile { kernel, log: "the text has a zero byte".to_string() });
    let strings =
        |of: fn(&Header) -> &'static str| source.headers.iter().map(|header| string(of(header))).collect::<Result<Vec<_>>>();
    let (text, texts, names) = (string(&source.text)?, strings(|header| header.text)?, strings(|header| header.name)?);
    let mut program = Program(core::ptr::null_mut());
    let architecture = format!("--gpu-architecture={architecture}");
    let options: Vec<CString> = [architecture.as_str()]
        .iter()
        .chain(OPTIONS)
        .chain(extra)
        .map(|option| CString::new(*option).expect("options have no zero byte"))
        .collect();
    let pointers = |of: &[CString]| of.iter().map(|string| string.as_ptr()).collect::<Vec<*const c_char>>();
    let (texts, names, options) = (pointers(&texts), pointers(&names), pointers(&options));
    let failed = |status: sys::nvrtcResult, log: String| Error::Compile { kernel, log: format!("{status:?}\n{log}") };
    let check = |status: sys::nvrtcResult| match status {
        sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
        status => Err(failed(status, String::new())),
    };
    // SAFETY: every pointer is to memory that outlives the call, sized as the library says.
    unsafe {
        // the compiler's last line names the program; errors name the file that they are in
        let (name, count) = (string(&format!("{kernel}.cu"))?, texts.len() as c_int);
        check(sys::nvrtcCreateProgram(&mut program.0, text.as_ptr(), name.as_ptr(), count, texts.as_ptr(), names.as_ptr()))?;
        let status = sys::nvrtcCompileProgram(program.0, options.len() as c_int, options.as_ptr());
        let mut size = 0;
        check(sys::nvrtcGetProgramLogSize(program.0, &mut size))?;
        let mut log = vec![0u8; size];
        check(sys::nvrtcGetProgramLog(program.0, log.as_mut_ptr().cast()))?;
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_string();
        if status != sys::nvrtcResult::NVRTC_SUCCESS {
            return Err(failed(status, log));
        }
        check(sys::nvrtcGetCUBINSize(program.0, &mut size))?;
        let mut cubin = vec![0u8; size];
        check(sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()))?;
        Ok((cubin, log))
    }
}
