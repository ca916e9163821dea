//! Bytes as a file: whatever they are, reading, checking and (at tiny sizes) running them must not panic.
//!
//! Half of the inputs are taken as they come; the other half are changes to a file that is right, which gets past the header.
#![no_main]

use libfuzzer_sys::fuzz_target;
use statescan::Exec;
use statescan_cases::case::Case;
use statescan_cases::memory::Limits;
use statescan_cases::ops::{Options, all};
use statescan_cases::{format, verify, work};
use std::sync::LazyLock;

/// One thread: what is looked for does not depend on their number.
static EXEC: LazyLock<Exec> = LazyLock::new(|| Exec::cpu(1));

macro_rules! vectors {
    ($($name:literal),* $(,)?) => {
        [$(include_bytes!(concat!("../../crates/statescan-cli/tests/vectors/", $name, ".safetensors")) as &[u8]),*]
    };
}

static VECTORS: [&[u8]; 9] = vectors![
    "selective_scan_complex",
    "selective_scan_packed",
    "selective_scan_seq_idx",
    "ssd_own_decay_step",
    "linear_scan_complex",
    "causal_conv1d_update",
    "s5_inner_real_u",
    "selective_state_update_heads",
    "gated_delta_rule_packed",
];

/// The bytes as they come, or a good file with some of its bytes changed.
fn file(data: &[u8]) -> Vec<u8> {
    let Some((&choice, rest)) = data.split_first() else { return Vec::new() };
    if choice & 1 == 0 {
        return rest.to_vec();
    }
    let mut bytes = VECTORS[usize::from(choice >> 1) % VECTORS.len()].to_vec();
    for change in rest.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        if let Some(byte) = bytes.get_mut(at) {
            *byte = change[2];
        }
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    let bytes = file(data);
    let Ok(content) = format::read(&bytes) else { return };
    drop(content);
    // once as it says, and once as each operation
    for op in std::iter::once(None).chain(all().map(Some)) {
        let Ok(content) = format::read(&bytes) else { return };
        let Ok(case) = Case::from_file(content, op, &Options::new(), &[]) else { continue };
        if work::oracle_cost(case.call.op, &case.call.sizes()) > 1e5 {
            continue;
        }
        let limits = Limits { bytes: 1 << 20 };
        let _ = verify::check(&case, Some(&EXEC), limits);
        let _ = verify::check(&case, None, limits);
    }
});
