//! Files that mean harm: every one is an error, none is a panic, and none makes the reader ask for memory that the file does not have.

use crate::common::{file, own_vectors, raw, small_scan};
use statescan_cases::case::Case;
use statescan_cases::compute;
use statescan_cases::format::{self, FormatError, read};
use statescan_cases::memory::{self, CotangentKind, Limits};
use statescan_cases::ops::{self, Options, all, find};
use statescan_cases::rng::Rng;
use statescan_cases::verify;

fn tensor(dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}}}"#)
}

#[test]
fn lengths_that_lie() {
    assert!(matches!(read(b""), Err(FormatError::Truncated { .. })));
    assert!(matches!(read(&[1, 2, 3]), Err(FormatError::Truncated { .. })));
    assert!(matches!(read(&u64::MAX.to_le_bytes()), Err(FormatError::HeaderTooLong { .. })));
    assert!(matches!(read(&(1u64 << 40).to_le_bytes()), Err(FormatError::HeaderTooLong { .. })));
    assert!(matches!(read(&1000u64.to_le_bytes()), Err(FormatError::Truncated { .. })));
    assert!(matches!(read(&raw("", b"")), Err(FormatError::Header(_))));
    assert!(read(&raw("{}", b"")).unwrap().tensors.is_empty());
}

#[test]
fn headers_that_are_none() {
    let deep = "[".repeat(100_000);
    let nested = format!(r#"{{"a":{}}}"#, "{\"b\":".repeat(50_000));
    for header in ["[]", "3", "{\"a\":3}", "{\"a\":{}}", "{\"__metadata__\":{\"a\":3}}", "{", "\u{0}", &deep, &nested] {
        assert!(matches!(read(&raw(header, b"")), Err(FormatError::Header(_))), "{:.40}", header);
    }
    let mut bytes = raw("{}", b"");
    bytes[8] = 0xff;
    assert!(matches!(read(&bytes), Err(FormatError::Header(_))));
}

#[test]
fn offsets_and_shapes_that_lie() {
    let zeros = [0u8; 16];
    for header in [
        tensor("F32", "[4]", 0, 20),
        tensor("F32", "[4]", 4, 20),
        tensor("F32", "[4]", 16, 0),
        tensor("F32", "[5]", 0, 16),
        tensor("F32", "[4]", 0, u64::MAX),
        tensor("F32", "[18446744073709551615, 2]", 0, 16),
        tensor("F32", "[4294967296, 4294967296, 4294967296]", 0, 16),
        tensor("F32", "[-4]", 0, 16),
        tensor("F32", "[4.5]", 0, 16),
        tensor("Q17", "[4]", 0, 16),
        tensor("U8", "[16]", 0, 16),
        tensor("BOOL", "[16]", 0, 16),
        tensor("F4", "[32]", 0, 16),
        tensor("F32", "[1,1,1,1,1,1,4]", 0, 16),
        // two tensors over the same bytes, and a hole
        r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#.into(),
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}"#.into(),
    ] {
        assert!(read(&raw(&header, &zeros)).is_err(), "{header}");
    }
    assert!(read(&raw(&tensor("F32", "[4]", 0, 16), &zeros)).is_ok());
    assert!(read(&raw(&tensor("F32", "[4]", 0, 16), &[0; 15])).is_err(), "one byte short");
    assert!(read(&raw(&tensor("F32", "[4]", 0, 16), &[0; 17])).is_err(), "one byte too many");
}

#[test]
fn names_that_repeat() {
    let one = r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    assert!(matches!(read(&raw(&format!("{{{one},{one}}}"), &[0; 4])), Err(FormatError::Duplicate(name)) if name == "a"));
    let other = r#""\u0061":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#;
    assert!(matches!(read(&raw(&format!("{{{one},{other}}}"), &[0; 8])), Err(FormatError::Duplicate(_))));
}

#[test]
fn empty_tensors_with_absurd_axes() {
    for shape in ["[18446744073709551615,0]", "[1099511627776,0]", "[0,4611686018427387904]", "[1048576,1048576,0]"] {
        // some of these overflow in the format's own check already
        assert!(read(&raw(&tensor("F32", shape, 0, 0), b"")).is_err(), "{shape}");
    }
    assert!(read(&raw(&tensor("F32", "[3,0,5]", 0, 0), b"")).is_ok());
}

#[test]
fn results_that_would_not_fit() {
    // all the inputs are empty or small, and the final state is batch x dim x dstate
    let tensors: Vec<(&str, &[usize], Vec<f32>)> = vec![
        ("x", &[20000, 8, 0], vec![]),
        ("dt", &[20000, 8, 0], vec![]),
        ("A", &[8, 64], vec![0.0; 512]),
        ("B", &[8, 64], vec![0.0; 512]),
        ("C", &[8, 64], vec![0.0; 512]),
        ("out.y", &[20000, 8, 0], vec![]),
    ];
    let bytes = file(Some(r#"{"op": "selective_scan"}"#), &tensors);
    let case = Case::from_file(read(&bytes).unwrap(), None, &Options::new(), &[]).unwrap();
    let exec = statescan::Exec::cpu(1);
    let error = verify::check(&case, Some(&exec), Limits { bytes: 1 << 20 }).unwrap_err();
    assert!(error.to_string().contains("`final_state` asks for shape (20000, 8, 64)"), "{error}");
    assert!(verify::check(&case, Some(&exec), Limits { bytes: 1 << 30 }).is_ok());
}

/// Reads a file, and runs it if it is one.
fn survive(bytes: &[u8]) {
    let Ok(file) = read(bytes) else { return };
    let Ok(case) = Case::from_file(file, None, &Options::new(), &[]) else { return };
    let limits = Limits { bytes: 1 << 20 };
    let _ = verify::check(&case, Some(&statescan::Exec::cpu(1)), limits);
}

#[test]
fn every_truncation_and_many_mutations() {
    let mut rng = Rng::new(7);
    let below = |rng: &mut Rng, n: usize| (rng.bits() % n as u64) as usize;
    for path in own_vectors() {
        let bytes = std::fs::read(&path).unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for _ in 0..40 {
            let end = below(&mut rng, bytes.len());
            assert!(read(&bytes[..end]).is_err(), "{} cut at {end}", path.display());
        }
        for _ in 0..150 {
            let mut mutated = bytes.clone();
            // mostly in the header, where it hurts: digits, letters, brackets
            for _ in 0..1 + below(&mut rng, 3) {
                let reach = if below(&mut rng, 4) == 0 { bytes.len() } else { header };
                let at = below(&mut rng, reach);
                let letters = b"0123456789[]{},:\"-eABCDFGin.";
                let digit = letters[below(&mut rng, letters.len())];
                mutated[at] = if below(&mut rng, 3) == 0 { rng.bits() as u8 } else { digit };
            }
            survive(&mutated);
        }
    }
}

#[test]
fn every_operation_survives_any_shapes() {
    let mut rng = Rng::new(8);
    let below = |rng: &mut Rng, n: usize| (rng.bits() % n as u64) as usize;
    for op in all() {
        for round in 0..200 {
            let mut tensors = Vec::new();
            for argument in ops::arguments(op) {
                if !ops::is_required(op, argument) && below(&mut rng, 3) > 0 {
                    continue;
                }
                let layout = argument.layouts[below(&mut rng, argument.layouts.len())];
                // sizes that often agree, and now and then a rank that is wrong
                let mut shape: Vec<usize> = layout
                    .chars()
                    .map(|letter| if below(&mut rng, 12) == 0 { below(&mut rng, 4) } else { (letter as usize + round) % 4 })
                    .collect();
                if below(&mut rng, 20) == 0 {
                    shape.push(2);
                }
                tensors.push((argument.name, shape));
            }
            let tensors: Vec<(&str, &[usize], Vec<f32>)> =
                tensors.iter().map(|(name, shape)| (*name, &shape[..], vec![0.5; shape.iter().product()])).collect();
            let bytes = file(None, &tensors);
            let Ok(mut case) = Case::from_file(read(&bytes).unwrap(), Some(op), &Options::new(), &[]) else { continue };
            let limits = Limits { bytes: 1 << 20 };
            let exec = statescan::Exec::cpu(1);
            let Ok(mut results) = memory::results(&case.call, true, limits) else { continue };
            if compute::forward(&exec, &case.call, &mut results).is_err() {
                continue;
            }
            if let Ok(mut grads) = memory::gradients(&case.call, limits) {
                case.cotangents = memory::cotangents(&case.call, CotangentKind::Ones, limits).unwrap();
                let _ = compute::backward(&exec, &case.call, &results, &case.cotangents, &mut grads);
            }
        }
    }
}

#[test]
fn a_round_trip_keeps_every_bit() {
    for path in own_vectors() {
        let bytes = std::fs::read(&path).unwrap();
        let file = read(&bytes).unwrap();
        let entries: Vec<_> = file.tensors.iter().map(|(name, buffer)| format::Entry::new(name.clone(), buffer)).collect();
        let mut again = Vec::new();
        format::write(&mut again, &entries, &file.metadata).unwrap();
        let back = read(&again).unwrap();
        assert_eq!(back.metadata, file.metadata);
        for (name, buffer) in &file.tensors {
            assert_eq!(back.tensors[name].bytes(), buffer.bytes(), "{name}");
            assert_eq!(back.tensors[name].shape(), buffer.shape(), "{name}");
        }
    }
}

#[test]
fn a_complex_file_type_is_read() {
    let bytes = raw(&tensor("C64", "[1, 2]", 0, 16), &[0; 16]);
    assert_eq!(read(&bytes).unwrap().tensors["a"].dtype(), statescan::DType::Complex64);
    let op = find("selective_scan").unwrap();
    let case = Case::from_file(read(&file(None, &small_scan())).unwrap(), Some(op), &Options::new(), &[]);
    assert!(case.is_ok());
}
