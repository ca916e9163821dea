//! Numbers that are not finite: results are right that have them where the oracle does, and what fails says why.

use crate::common::{file, statescan, status, stdout, text};

const INF: f32 = f32::INFINITY;

/// A linear scan of halves, and what is expected of it.
fn scan(b: &[f32; 4], h: &[f32; 4]) -> tempfile::NamedTempFile {
    let tensors: [(&str, &[usize], Vec<f32>); 3] =
        [("in.a", &[1, 4], vec![0.5; 4]), ("in.b", &[1, 4], b.to_vec()), ("out.h", &[1, 4], h.to_vec())];
    let path = tempfile::Builder::new().suffix(".safetensors").tempfile().unwrap();
    std::fs::write(path.path(), file(Some(r#"{"op": "linear_scan"}"#), &tensors)).unwrap();
    path
}

#[test]
fn an_infinite_input_passes_everywhere() {
    let path = scan(&[INF, 1.0, 1.0, 1.0], &[INF; 4]);
    for args in [vec!["run", "linear_scan"], vec!["run", "linear_scan", "--grad"], vec!["verify"], vec!["verify", "--oracle"]] {
        let output = statescan(&[&args[..], &[text(path.path())]].concat());
        assert_eq!(status(&output), 0, "{args:?}: {}", stdout(&output));
        assert!(!stdout(&output).contains("FAIL"), "{args:?}: {}", stdout(&output));
    }
}

/// Kernels of SSD spread an infinity of x over its chunk, as their documentation says: these elements are left out, and counted.
#[test]
fn an_infinite_input_of_ssd_passes_but_for_its_chunk() {
    let numbers = |values: [f32; 4]| values.to_vec();
    let tensors: [(&str, &[usize], Vec<f32>); 6] = [
        ("in.x", &[1, 4, 1, 1], numbers([1.0, 2.0, INF, 1.0])),
        ("in.dt", &[1, 4, 1], numbers([1.0; 4])),
        ("in.A", &[1], vec![0.0]),
        ("in.B", &[1, 4, 1], numbers([1.0; 4])),
        ("in.C", &[1, 4, 1], numbers([1.0; 4])),
        ("out.y", &[1, 4, 1, 1], numbers([1.0, 3.0, INF, INF])),
    ];
    let path = tempfile::Builder::new().suffix(".safetensors").tempfile().unwrap();
    std::fs::write(path.path(), file(Some(r#"{"op": "ssd"}"#), &tensors)).unwrap();
    for args in [vec!["run", "ssd"], vec!["run", "ssd", "--grad"], vec!["verify"], vec!["verify", "--oracle"]] {
        let output = statescan(&[&args[..], &[text(path.path())]].concat());
        // tables wrap their words
        let words: Vec<_> = stdout(&output).split_whitespace().map(String::from).collect();
        let told = words.join(" ").contains("that are not finite are not compared");
        assert_eq!((status(&output), told), (0, !args.contains(&"--oracle")), "{args:?}: {}", stdout(&output));
    }
}

#[test]
fn a_failure_says_which_element_and_why() {
    let path = scan(&[1.0, 0.0, f32::NAN, 1.0], &[1.0, 0.5, INF, INF]);
    for oracle in [&[][..], &["--oracle"]] {
        let output = statescan(&[&["verify"], oracle, &[text(path.path())]].concat());
        assert_eq!(status(&output), 1);
        let why = "out.h: NaN at [0, 2], expected inf; 2 of 4 elements are outside";
        assert!(stdout(&output).contains(why), "{}", stdout(&output));
        let output = statescan(&[&["verify", "--json"], oracle, &[text(path.path())]].concat());
        let line: serde_json::Value = serde_json::from_str(stdout(&output).lines().next().unwrap()).unwrap();
        assert_eq!((&line["why"], &line["max_abs"]), (&why.into(), &"inf".into()));
    }
    let path = scan(&[1.0; 4], &[1.0, 1.5, 1.75, 1.0]);
    let output = statescan(&["verify", text(path.path())]);
    assert!(stdout(&output).contains("out.h: 1.875e0 at [0, 3], expected 1e0; 1 of 4"), "{}", stdout(&output));
    let output = statescan(&["verify", "--json", text(scan(&[1.0; 4], &[1.0, 1.5, 1.75, 1.875]).path())]);
    assert!(stdout(&output).contains("\"why\":null"), "{}", stdout(&output));
}
