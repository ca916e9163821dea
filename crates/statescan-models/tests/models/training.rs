//! Training: what is learned, and going on after a save with the same bits.

use crate::common::{FAMILIES, Folder, apart, largest};
use statescan::{DType, Exec};
use statescan_models::{Config, Corpus, Lora, Model, Options, Trainer};

fn options() -> Options {
    let small = Options { dim: 16, layers: 2, batch: 4, seqlen: 32, steps: 40, ..Options::default() };
    Options { rate: 1e-2, weight_decay: 0.1, dropout: 0.1, ..small }
}

fn text() -> Vec<u8> {
    b"the cat sat on the mat and the dog lay by the door; ".repeat(40)
}

#[test]
fn a_text_is_learned() {
    let (exec, mut trainer) = (Exec::cpu(2), Trainer::new(options(), text()).unwrap());
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
    let [mut whole, mut first] = [(); 2].map(|()| Trainer::new(options(), text()).unwrap());
    for _ in 0..8 {
        whole.step(&exec).unwrap();
    }
    for _ in 0..3 {
        first.step(&exec).unwrap();
    }
    first.save(folder.path()).unwrap();
    let mut second = Trainer::resume(folder.path(), text()).unwrap();
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
        let mut trainer = Trainer::new(Options { dtype, ..options() }, text()).unwrap();
        trainer.step(&exec).unwrap();
        trainer.save(folder.path()).unwrap();
        assert_eq!(Trainer::resume(folder.path(), text()).unwrap().options().dtype, dtype);
        let loaded = Model::load(folder.path()).unwrap().forward(&exec, &tokens).unwrap();
        let exact = trainer.model().unwrap().forward(&exec, &tokens).unwrap();
        let (worst, largest) = (apart(&loaded, &exact), largest(exact.iter().copied()));
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
    refused(options(), b"short", "the text must have at least 340 bytes, which is ten rows and what follows each, got 5");
    refused(Options { layers: 1025, ..options() }, &text(), "`layers` must be from 1 to 1024, got 1025");
    refused(Options { dim: 0, ..options() }, &text(), "`dim` must be");
    refused(Options { steps: 0, ..options() }, &text(), "`steps` must be");
    refused(Options { rate: f64::NAN, ..options() }, &text(), "`rate` must be a positive number");
    refused(Options { accumulate: 0, ..options() }, &text(), "`accumulate` must be");
    refused(Options { warmup: Some(41), ..options() }, &text(), "`warmup` must be at most as many as steps, got 41");
    refused(Options { layers: usize::MAX, ..options() }, &text(), "`layers` must be");
    refused(Options { max_grad_norm: 0.0, ..options() }, &text(), "`max_grad_norm` must be");
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
    Trainer::new(options(), text()).unwrap().save(folder.path()).unwrap();
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

fn run(trainer: &mut Trainer, steps: usize) {
    (0..steps).for_each(|_| _ = trainer.step(&Exec::cpu(1)).unwrap());
}

fn bits(losses: &[f32]) -> Vec<u32> {
    losses.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_training_that_has_ended_can_be_prolonged() {
    let folder = tempfile::tempdir().unwrap();
    let short = Options { steps: 4, ..options() };
    let mut trainer = Trainer::new(short, text()).unwrap();
    run(&mut trainer, 4);
    trainer.save(folder.path()).unwrap();
    assert!(trainer.prolong(3).unwrap_err().to_string().contains("`steps` must be at least as many as were done, got 3"));
    trainer.prolong(9).unwrap();
    run(&mut trainer, 5);
    let mut resumed = Trainer::resume(folder.path(), text()).unwrap();
    resumed.prolong(9).unwrap();
    run(&mut resumed, 5);
    assert_eq!(bits(resumed.losses()), bits(trainer.losses()));
    // from the step on where it was prolonged it is on the cosine of all nine
    let mut whole = Trainer::new(Options { steps: 9, ..options() }, text()).unwrap();
    run(&mut whole, 9);
    assert_eq!(bits(&whole.losses()[..2]), bits(&trainer.losses()[..2]), "the first step is that of any number of steps");
    assert_ne!(bits(whole.losses()), bits(trainer.losses()));
}

#[test]
fn tokens_are_learned_by_a_model_of_any_kind() {
    let tokens: Vec<u32> = (0..2000).map(|i| [7, 3, 30, 12, 9][i % 5]).collect();
    let mut config = Config::mamba2(31, 16, 1, 4);
    config.dstate = 8;
    let folder = tempfile::tempdir().unwrap();
    let options = Options { weight_decay: 0.0, dropout: 0.0, ..options() };
    let mut trainer = Trainer::of_config(options, config.clone(), tokens.clone()).unwrap();
    assert_eq!((trainer.unit(), trainer.config(), trainer.held_out_len()), ("token", &config, 200));
    let before = trainer.evaluate(&Exec::cpu(1)).unwrap();
    run(&mut trainer, 6);
    trainer.save(folder.path()).unwrap();
    let mut resumed = Trainer::resume(folder.path(), tokens.clone()).unwrap();
    assert_eq!(resumed.evaluations(), [(0, before as f32)]);
    [&mut trainer, &mut resumed].into_iter().for_each(|trainer| run(trainer, 24));
    assert_eq!(bits(resumed.losses()), bits(trainer.losses()));
    let after = trainer.evaluate(&Exec::cpu(1)).unwrap();
    assert!(after < 0.5 * before, "{before} to {after}");
    assert_eq!(Model::load(folder.path()).unwrap().config(), &config);
    let error = Trainer::resume(folder.path(), text()).err().unwrap().to_string();
    assert!(error.contains("it was trained on another text"), "{error}");
    let error = Trainer::of_config(Options::default(), config, vec![31u32; 3000]).err().unwrap().to_string();
    assert!(error.contains("token 31 at position 0 must be less than"), "{error}");
}

#[test]
fn a_model_goes_on_learning_from_its_own_weights() {
    for kind in FAMILIES {
        let folder = Folder::of(kind);
        let model = folder.model();
        let tokens: Vec<u32> = (0..1500).map(|i| (i * i % 29) as u32).collect();
        let mut trainer = Trainer::from_model(Options { dropout: 0.0, ..options() }, &model, tokens.clone()).unwrap();
        let exec = Exec::cpu(1);
        let held_out = model.bits_per_token(&exec, &tokens[1350..]).unwrap();
        assert_eq!(trainer.held_out(&exec).unwrap(), held_out, "{kind}: nothing is learned yet");
        run(&mut trainer, 3);
        assert_ne!(trainer.held_out(&exec).unwrap(), held_out);
        let saved = tempfile::tempdir().unwrap();
        trainer.save(saved.path()).unwrap();
        assert_eq!(Model::load(saved.path()).unwrap().config(), model.config(), "{kind}");
    }
}

#[test]
fn an_evaluation_reads_a_sample_of_a_large_set_and_all_of_a_small_one() {
    let exec = Exec::cpu(2);
    let small = Options { dim: 8, layers: 1, ..options() };
    let mut trainer = Trainer::new(small.clone(), text()).unwrap();
    assert_eq!((trainer.sample_len(), trainer.held_out_len()), (208, 208));
    assert_eq!(trainer.evaluate(&exec).unwrap(), trainer.held_out(&exec).unwrap());
    let mut trainer = Trainer::new(small, text().repeat(200)).unwrap();
    assert_eq!((trainer.sample_len(), trainer.held_out_len()), (1 << 14, 41600));
    let (sample, mut told) = (trainer.evaluate(&exec).unwrap(), Vec::new());
    let all = trainer
        .held_out_with(&exec, |read| {
            told.push(read);
            true
        })
        .unwrap();
    assert!((sample - all).abs() < 0.05 && sample != all, "{sample} of {all}");
    assert!(told.len() > 30 && told.is_sorted() && told.last() == Some(&41599), "{told:?}");
}

#[test]
fn a_text_that_validates_is_held_out_and_all_of_the_other_is_learned() {
    let (exec, folder) = (Exec::cpu(1), tempfile::tempdir().unwrap());
    let other = b"a dog, a cat, a door".repeat(9);
    let corpus = || Corpus::from(text()).validated_by(other.clone());
    let mut trainer = Trainer::new(options(), corpus()).unwrap();
    assert_eq!((trainer.held_out_len(), trainer.is_divided()), (180, false));
    run(&mut trainer, 2);
    let tokens: Vec<u32> = other.iter().map(|&byte| u32::from(byte)).collect();
    let expected = trainer.model().unwrap().bits_per_token(&exec, &tokens).unwrap();
    assert_eq!(trainer.evaluate(&exec).unwrap(), expected);
    assert_eq!(trainer.best(), Some((2, expected as f32)));
    trainer.save(folder.path()).unwrap();
    let mut resumed = Trainer::resume(folder.path(), corpus()).unwrap();
    assert_eq!(resumed.best(), trainer.best());
    [&mut trainer, &mut resumed].into_iter().for_each(|trainer| run(trainer, 2));
    assert_eq!(bits(resumed.losses()), bits(trainer.losses()));
    for other in [Corpus::from(text()), Corpus::from(text()).validated_by(text())] {
        let error = Trainer::resume(folder.path(), other).err().unwrap().to_string();
        assert!(error.contains("it was trained on another text"), "{error}");
    }
    let error = Trainer::new(options(), Corpus::from(text()).validated_by(vec![7u8])).err().unwrap().to_string();
    assert!(error.contains("`validation` must be at least two tokens long"), "{error}");
}

#[test]
fn an_evaluation_can_be_interrupted_and_has_the_same_bits_for_any_number_of_threads() {
    let trainer = Trainer::new(Options { dim: 8, layers: 1, ..options() }, text().repeat(300)).unwrap();
    let one = trainer.held_out(&Exec::cpu(1)).unwrap();
    assert_eq!(one, trainer.held_out(&Exec::cpu(3)).unwrap());
    let mut left = 3;
    let stopped = trainer.held_out_with(&Exec::cpu(2), |_| {
        left -= 1;
        left > 0
    });
    assert!(matches!(stopped, Err(statescan_models::Error::Interrupted)) && left <= 0);
}

#[test]
fn projections_move_by_small_matrices_alone() {
    let tokens: Vec<u32> = (0..1500).map(|i| (i * i % 29) as u32).collect();
    for kind in FAMILIES {
        let model = Folder::of(kind).model();
        let lora = Some(Lora { rank: 1, alpha: 3.0 });
        let options = Options { dropout: 0.0, lora, ..options() };
        let mut trainer = Trainer::from_model(options, &model, tokens.clone()).unwrap();
        assert!(trainer.learned_count() < trainer.count());
        let weights = |model: &Model| model.weights().iter().map(|(name, w)| (name.clone(), w.to_f32())).collect::<Vec<_>>();
        assert_eq!(weights(&trainer.model().unwrap()), weights(&model), "{kind}: nothing is moved yet");
        run(&mut trainer, 3);
        let folder = tempfile::tempdir().unwrap();
        trainer.save(folder.path()).unwrap();
        let moved = Model::load(folder.path()).unwrap();
        assert_eq!(weights(&moved), weights(&trainer.model().unwrap()), "{kind}: the matrices are merged");
        for ((name, before), (_, after)) in weights(&model).into_iter().zip(weights(&moved)) {
            let projection = name.ends_with(".weight") && ["proj", "_linear."].iter().any(|part| name.contains(part));
            assert_eq!(before != after, projection, "{kind}: {name}");
            if projection {
                // a product of a column and a row: two rows are multiples of one another
                let columns = model.weights()[&name].shape()[1];
                let change: Vec<f64> = after.iter().zip(&before).map(|(a, b)| f64::from(a - b)).collect();
                let rows: Vec<_> = change.chunks_exact(columns).collect();
                let most = largest(change.iter().copied());
                let minor = |i: usize, j: usize| rows[0][i] * rows[1][j] - rows[0][j] * rows[1][i];
                let worst = largest((0..columns).map(|i| minor(i, (i + 1) % columns)));
                assert!(worst < 1e-4 * most * most, "{kind}: {name}: {worst} beside {most}");
            }
        }
        let mut resumed = Trainer::resume(folder.path(), tokens.clone()).unwrap();
        [&mut trainer, &mut resumed].into_iter().for_each(|trainer| run(trainer, 3));
        assert_eq!(bits(resumed.losses()), bits(trainer.losses()), "{kind}");
        assert!(trainer.losses()[5] < trainer.losses()[0], "{kind}: {:?}", trainer.losses());
    }
}

#[test]
fn trainings_of_absurd_sizes_are_refused_in_time() {
    let absurd = Options { dim: 1 << 14, layers: 1 << 10, ..options() };
    let error = Trainer::new(absurd.clone(), text()).err().unwrap().to_string();
    assert!(error.starts_with("this training: it needs 34405.9 GB of memory"), "{error}");
    let rows = Options { batch: 1 << 14, seqlen: 1 << 16, ..options() };
    let error = Trainer::new(rows, b"a".repeat(700_000)).err().unwrap().to_string();
    assert!(error.contains("GB of memory"), "{error}");
    // a small file that says the same
    let folder = tempfile::tempdir().unwrap();
    Trainer::new(options(), text()).unwrap().save(folder.path()).unwrap();
    let path = folder.path().join("training.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    for (from, to) in [(r#"hidden_size\":16"#, r#"hidden_size\":99"#), (r#"num_hidden_layers\":2"#, r#"num_hidden_layers\":9"#)] {
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        let mut changed = bytes.clone();
        changed[at..at + from.len()].copy_from_slice(to.as_bytes());
        std::fs::write(&path, changed).unwrap();
        let error = Trainer::resume(folder.path(), text()).err().unwrap().to_string();
        assert!(error.contains("training.safetensors: the tensor `weights."), "{error}");
    }
}
