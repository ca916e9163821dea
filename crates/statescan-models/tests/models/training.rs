//! Training: what is learned, and going on after a save with the same bits.

use statescan::{DType, Exec};
use statescan_models::{Model, Options, Trainer};

fn options() -> Options {
    let small = Options { dim: 16, layers: 2, batch: 4, seqlen: 32, steps: 40, ..Options::default() };
    Options { rate: 1e-2, weight_decay: 0.1, dropout: 0.1, ..small }
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
fn the_model_is_written_in_the_type_that_is_asked_for() {
    let (exec, tokens) = (Exec::cpu(1), [1, 2, 3]);
    for (dtype, most) in [(DType::F32, 0.0), (DType::BF16, 0.02), (DType::F16, 0.003)] {
        let folder = tempfile::tempdir().unwrap();
        let mut trainer = Trainer::new(Options { dtype, ..options() }, &text()).unwrap();
        trainer.step(&exec).unwrap();
        trainer.save(folder.path()).unwrap();
        assert_eq!(Trainer::resume(folder.path(), &text()).unwrap().options().dtype, dtype);
        let loaded = Model::load(folder.path()).unwrap().forward(&exec, &tokens).unwrap();
        let exact = trainer.model().unwrap().forward(&exec, &tokens).unwrap();
        let largest = exact.iter().fold(0f32, |most, x| most.max(x.abs()));
        let worst = loaded.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= most * largest && (worst > 0.0) == (most > 0.0), "{dtype}: {worst} of {largest}");

        let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
        let config = String::from_utf8(read("config.json")).unwrap();
        let again = Model::from_bytes(&config, read("model.safetensors")).unwrap();
        assert_eq!(again.forward(&exec, &tokens).unwrap(), loaded, "from bytes");
        let cut = read("model.safetensors").split_last().unwrap().1.to_vec();
        let error = Model::from_bytes(&config, cut).err().unwrap().to_string();
        assert!(error.contains("it is not a whole safetensors file"), "{error}");
    }
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
    refused(Options { dropout: 0.95, ..options() }, &text(), "`dropout` must be");
    refused(Options { dtype: DType::F64, ..options() }, &text(), "`type of weights` must be f32, bf16 or f16");
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
