//! Training: what is learned, and going on after a save with the same bits.

use statescan::Exec;
use statescan_models::{Model, Options, Trainer};

fn options() -> Options {
    Options { dim: 16, layers: 2, batch: 4, seqlen: 32, steps: 40, rate: 1e-2, ..Options::default() }
}

fn text() -> Vec<u8> {
    b"the cat sat on the mat and the dog lay by the door; ".repeat(40)
}

#[test]
fn a_text_is_learned() {
    let (exec, mut trainer) = (Exec::cpu(2), Trainer::new(options(), &text()).unwrap());
    let before = trainer.held_out(&exec).unwrap();
    assert!((7.0..9.0).contains(&before), "{before} bits for a byte of nothing known");
    let losses: Vec<f64> = (0..40).map(|_| trainer.step(&exec).unwrap()).collect();
    assert!((losses[0] - before).abs() < 0.5, "{} beside {before}", losses[0]);
    let after = trainer.held_out(&exec).unwrap();
    assert!(after < 0.6 * before, "{before} to {after}");
}

#[test]
fn a_trainer_that_was_saved_goes_on_with_the_same_bits() {
    let (exec, folder) = (Exec::cpu(1), tempfile::tempdir().unwrap());
    let [mut whole, mut first] = [(); 2].map(|()| Trainer::new(options(), &text()).unwrap());
    for _ in 0..8 {
        whole.step(&exec).unwrap();
    }
    for _ in 0..3 {
        first.step(&exec).unwrap();
    }
    first.save(folder.path()).unwrap();
    let mut second = Trainer::resume(folder.path(), &text()).unwrap();
    assert_eq!(second.options(), &options());
    for _ in 0..5 {
        second.step(&Exec::cpu(2)).unwrap();
    }
    let bits = |trainer: &Trainer| trainer.losses().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&second), bits(&whole));
    let logits = |model: Model| model.forward(&exec, &[1, 2, 3]).unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(logits(second.model().unwrap()), logits(whole.model().unwrap()));
    second.save(folder.path()).unwrap();
    assert_eq!(logits(Model::load(folder.path()).unwrap()), logits(whole.model().unwrap()), "the folder is a model");
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "training.safetensors"]);
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let refused = |options: Options, text: &[u8], with: &str| {
        let error = Trainer::new(options, text).err().unwrap().to_string();
        assert!(error.contains(with), "{error}");
    };
    refused(options(), b"short", "`text` must be at least ten rows long");
    refused(Options { dim: 0, ..options() }, &text(), "`dim` must be");
    refused(Options { steps: 0, ..options() }, &text(), "`steps` must be");
    refused(Options { rate: f64::NAN, ..options() }, &text(), "`rate` must be a positive number");
    refused(Options { clip: 0.0, ..options() }, &text(), "`clip` must be");
    refused(Options { weight_decay: -1.0, ..options() }, &text(), "`weight decay` must be");
}

#[test]
fn folders_that_cannot_be_resumed_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |text: &[u8], with: &str| {
        let error = Trainer::resume(folder.path(), text).err().unwrap().to_string();
        assert!(error.contains(with), "{error}");
    };
    refused(&text(), "training.safetensors: No such file");
    Trainer::new(options(), &text()).unwrap().save(folder.path()).unwrap();
    let path = folder.path().join("training.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    refused(&text()[1..], "it was trained on another text");
    for len in [0, 7, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..len]).unwrap();
        refused(&text(), "it is not a saved training");
    }
    std::fs::copy(folder.path().join("model.safetensors"), &path).unwrap();
    refused(&text(), "it does not say its options");
}
