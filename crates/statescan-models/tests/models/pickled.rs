//! Weights as PyTorch pickles them.

use crate::common::own;
#[cfg(feature = "pytorch")]
use crate::vectors::check_logits;
use statescan_models::Model;

#[cfg(feature = "pytorch")]
#[test]
fn a_pickled_model_gives_the_logits_of_transformers() {
    let model = check_logits(&own("mamba_pickled"));
    // it is the same as safetensors, bit by bit
    let folder = tempfile::tempdir().unwrap();
    model.save(folder.path()).unwrap();
    let saved = Model::load(folder.path()).unwrap();
    assert!(saved.weights().iter().zip(model.weights()).all(|(a, b)| a.0 == b.0 && a.1.to_f32() == b.1.to_f32()));
    assert!(saved.weights().len() == model.weights().len());
}

#[cfg(feature = "pytorch")]
#[test]
fn a_pickle_runs_no_code() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(own("mamba_pickled").join("config.json"), folder.path().join("config.json")).unwrap();
    let trace = folder.path().join("trace");
    // a pickle that calls os.system("touch trace") where it is loaded
    let call = format!("cos\nsystem\n(Stouch {}\ntR.", trace.display()).replacen("(S", "(S'", 1).replacen("\ntR.", "'\ntR.", 1);
    for bytes in [call.as_bytes(), &[b"\x80\x02", call.as_bytes()].concat(), b"", b"PK\x03\x04", b"\x80\x02}."] {
        std::fs::write(folder.path().join("pytorch_model.bin"), bytes).unwrap();
        let error = Model::load(folder.path()).expect_err("no model").to_string();
        assert!(
            error.contains("pytorch_model.bin: it is not a file of pickled tensors") || error.contains("is missing"),
            "{error}"
        );
        assert!(!error.contains('\n') && !trace.exists(), "{error}");
    }
}

#[cfg(feature = "pytorch")]
#[test]
fn pickles_that_are_cut_short_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(own("mamba_pickled").join("config.json"), folder.path().join("config.json")).unwrap();
    let bytes = std::fs::read(own("mamba_pickled").join("pytorch_model.bin")).unwrap();
    for len in [1, 7, 100, bytes.len() / 3, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(folder.path().join("pytorch_model.bin"), &bytes[..len]).unwrap();
        let error = Model::load(folder.path()).expect_err("no model").to_string();
        assert!(error.contains("it is not a file of pickled tensors"), "{len} bytes: {error}");
    }
}

#[cfg(not(feature = "pytorch"))]
#[test]
fn a_build_without_pytorch_says_so() {
    let error = Model::load(own("mamba_pickled")).err().unwrap().to_string();
    assert!(error.contains("it lacks the feature `pytorch` (cargo build --release --features pytorch)"), "{error}");
}
