//! How a thread computes with floating-point numbers.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;

/// As Rust and the library's own threads have it: to the nearest number, and numbers below the smallest normal one are kept. XLA's threads take
/// these for zero, so that the bits of a result would depend on which thread computes it.
#[cfg(target_arch = "x86_64")]
const USUAL: u64 = 0x1f80;
#[cfg(not(target_arch = "x86_64"))]
const USUAL: u64 = 0;

/// Makes the thread compute as usual until it goes out of scope.
pub struct Usual {
    before: u64,
}

impl Usual {
    pub fn new() -> Self {
        let before = read();
        write(USUAL);
        Usual { before }
    }
}

impl Drop for Usual {
    fn drop(&mut self) {
        write(self.before);
    }
}

#[cfg(target_arch = "x86_64")]
fn read() -> u64 {
    let mut control = 0_u32;
    // SAFETY: writes the thread's control register for vectors to a number of its size.
    unsafe { asm!("stmxcsr [{}]", in(reg) &mut control, options(nostack, preserves_flags)) };
    control.into()
}

#[cfg(target_arch = "x86_64")]
fn write(control: u64) {
    let control = control as u32;
    // SAFETY: the usual state, which Rust relies on, or the one that the caller of a handler had.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &control, options(nostack, preserves_flags, readonly)) };
}

#[cfg(target_arch = "aarch64")]
fn read() -> u64 {
    let control;
    // SAFETY: reads the thread's control register.
    unsafe { asm!("mrs {}, fpcr", out(reg) control, options(nostack, nomem, preserves_flags)) };
    control
}

#[cfg(target_arch = "aarch64")]
fn write(control: u64) {
    // SAFETY: the usual state, which Rust relies on, or the one that the caller of a handler had.
    unsafe { asm!("msr fpcr, {}", in(reg) control, options(nostack, preserves_flags)) };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn read() -> u64 {
    USUAL
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn write(_: u64) {}
