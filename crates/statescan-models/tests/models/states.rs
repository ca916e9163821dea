//! States as values: the same bits however a sequence is cut and whatever runs beside it; saved, loaded, branched and rolled back.

use crate::common::{FAMILIES, Folder, apart, bits, largest, models, tokens};
use serde_json::json;
use statescan::{Exec, Level};
use statescan_models::{Logits, Model, Session, State, Turn};

fn states(exec: &Exec, model: &Model, parts: &[&[u32]]) -> (Vec<f32>, State) {
    let (mut state, mut logits) = (model.state(), Vec::new());
    for part in parts {
        logits.extend(model.forward_from(exec, part, &mut state).unwrap());
    }
    (logits, state)
}

#[test]
fn a_prompt_cut_anywhere_gives_the_same_bits() {
    for (kind, model) in models() {
        let text = tokens(140, model.config().vocab);
        let levels: Vec<_> = Level::available().collect();
        // every cut at one level, where an odd number of levels brings each of them to all places in a vector
        let apart = if levels.len() % 2 == 1 { levels.len() } else { 1 };
        for (at, &level) in levels.iter().enumerate() {
            let exec = Exec::cpu(1).with_level(level).unwrap();
            let (logits, state) = states(&exec, &model, &[&text]);
            for cut in (at..=text.len()).step_by(apart) {
                let (first, second) = text.split_at(cut);
                let (got, end) = states(&exec, &model, &[first, second]);
                assert_eq!(bits(&got), bits(&logits), "{kind} {level} cut at {cut}");
                assert!(end == state, "{kind} {level} cut at {cut}: the state");
            }
            let steps: Vec<_> = text.chunks(1).collect();
            let (got, end) = states(&exec, &model, &steps);
            assert!(bits(&got) == bits(&logits) && end == state, "{kind} {level} step by step");
        }
    }
}

#[test]
fn a_prompt_longer_than_a_pass_gives_the_same_bits() {
    for (kind, model) in models() {
        let (exec, text) = (Exec::cpu(3), tokens(1100, model.config().vocab));
        let (logits, state) = states(&exec, &model, &[&text]);
        let parts: Vec<_> = text.chunks(333).collect();
        let (got, end) = states(&Exec::cpu(1), &model, &parts);
        assert!(bits(&got) == bits(&logits) && end == state, "{kind}");
        let last = model.prefill(&exec, &text, &mut model.state()).unwrap();
        assert_eq!(bits(&last), bits(&logits[logits.len() - model.config().vocab..]), "{kind}");
    }
}

#[test]
fn sequences_at_different_positions_go_on_together() {
    let exec = Exec::cpu(2);
    for (kind, model) in models() {
        let text = tokens(700, model.config().vocab);
        let (prompts, nexts) = ([&text[..0], &text[..17], &text[3..5]], [&text[..600], &text[20..20], &text[30..31]]);
        let mut together = prompts.map(|prompt| states(&exec, &model, &[prompt]).1);
        let alone = [0, 1, 2].map(|i| states(&exec, &model, &[prompts[i], nexts[i]]));
        let mut turns: Vec<_> = nexts.into_iter().zip(&mut together).map(|(tokens, state)| Turn { tokens, state }).collect();
        let logits = model.advance(&exec, &mut turns, Logits::All).unwrap();
        let vocab = model.config().vocab;
        let expected: Vec<f32> = (0..3).flat_map(|i| alone[i].0[prompts[i].len() * vocab..].to_vec()).collect();
        assert_eq!(bits(&logits), bits(&expected), "{kind}");
        assert!(together.iter().zip(&alone).all(|(state, (_, alone))| state == alone), "{kind}");
        let mut again = prompts.map(|prompt| states(&exec, &model, &[prompt]).1);
        let mut turns: Vec<_> = nexts.into_iter().zip(&mut again).map(|(tokens, state)| Turn { tokens, state }).collect();
        let last = model.advance(&exec, &mut turns, Logits::Last).unwrap();
        assert_eq!(bits(&last), bits(&[&expected[599 * vocab..600 * vocab], &expected[600 * vocab..]].concat()), "{kind}");
    }
}

#[test]
fn weights_in_sixteen_bits_are_the_same_numbers_in_place() {
    for kind in FAMILIES {
        for dtype in [safetensors::Dtype::BF16, safetensors::Dtype::F16] {
            let [narrow, wide] = [true, false].map(|stored| Folder::of(kind).rounded(dtype, stored).model());
            let (exec, text) = (Exec::cpu(1).with_exact_products(true), tokens(20, 30));
            assert_eq!(
                bits(&narrow.forward(&exec, &text).unwrap()),
                bits(&wide.forward(&exec, &text).unwrap()),
                "{kind} {dtype:?}"
            );
            assert!(narrow.bytes_per_step() < wide.bytes_per_step());
        }
    }
}

/// Rows are rounded where the processor has tiles of bf16; elsewhere both ways are one.
#[test]
fn weights_in_bf16_give_the_same_bits_however_a_prompt_is_cut() {
    for kind in FAMILIES {
        let model = Folder::of(kind).with_wide_norms().rounded(safetensors::Dtype::BF16, true).model();
        let (exec, text) = (Exec::cpu(1), tokens(40, 30));
        let (logits, state) = states(&exec, &model, &[&text]);
        let cuts = (0..=text.len()).map(|cut| vec![&text[..cut], &text[cut..]]);
        for parts in cuts.chain([text.chunks(1).collect()]) {
            let (got, end) = states(&exec, &model, &parts);
            assert!(bits(&got) == bits(&logits) && end == state, "{kind} in {} parts", parts.len());
        }
        let (exact, _) = states(&exec.with_exact_products(true), &model, &[&text]);
        let off = apart(&logits, &exact) / largest(exact.iter().copied());
        println!("{kind}: logits off by {off} of the largest");
        assert!(off < 0.08, "{kind}: rounding, as on a GPU");
    }
}

#[test]
fn a_saved_state_goes_on_as_the_one_in_memory() {
    let (exec, folder) = (Exec::cpu(1), tempfile::tempdir().unwrap());
    let path = folder.path().join("state.safetensors");
    for (kind, model) in models() {
        let text = tokens(50, model.config().vocab);
        let (_, mut state) = states(&exec, &model, &[&text]);
        model.save_state(&state, &path).unwrap();
        let mut loaded = model.load_state(&path).unwrap();
        assert!(loaded == state && loaded.position() == 50, "{kind}");
        let mut branch = state.clone();
        let logits = model.step(&exec, 3, &mut state).unwrap();
        assert_eq!(bits(&model.step(&exec, 3, &mut loaded).unwrap()), bits(&logits), "{kind}");
        assert_ne!(bits(&model.step(&exec, 4, &mut branch).unwrap()), bits(&logits), "{kind}: another branch");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside the file");
    }
}

#[test]
fn states_of_other_models_are_refused() {
    let (exec, folder) = (Exec::cpu(1), tempfile::tempdir().unwrap());
    let path = folder.path().join("state.safetensors");
    let [mamba, other] = ["mamba", "mamba2"].map(|kind| Folder::new(kind).model());
    let mut state = other.state();
    assert!(mamba.step(&exec, 1, &mut state).unwrap_err().to_string().contains("another model"));
    assert!(mamba.save_state(&state, &path).is_err() && !path.exists());
    other.save_state(&state, &path).unwrap();
    assert!(
        mamba
            .load_state(&path)
            .unwrap_err()
            .to_string()
            .contains("state.safetensors: the state's `model_type` must be mamba, got mamba2: it is of another model")
    );
    let bytes = std::fs::read(&path).unwrap();
    for len in [0, 7, 100, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..len]).unwrap();
        assert!(other.load_state(&path).unwrap_err().to_string().contains("it is not a saved state"), "{len} bytes");
    }
    std::fs::write(&path, Folder::bytes(&Folder::new("mamba2").tensors)).unwrap();
    assert!(other.load_state(&path).unwrap_err().to_string().contains("it does not say its position"));
    assert!(other.load_state(folder.path().join("none")).unwrap_err().to_string().contains("none: "));
}

#[test]
fn states_of_other_kinds_and_sizes_are_refused_by_name() {
    let (exec, folder) = (Exec::cpu(1), tempfile::tempdir().unwrap());
    let path = folder.path().join("state.safetensors");
    let mamba = Folder::new("mamba").model();
    // its states have the shapes of falcon_mamba's
    let falcon = Folder::new("falcon_mamba").model();
    let error = falcon.step(&exec, 1, &mut mamba.state()).unwrap_err().to_string();
    assert_eq!(error, "this call: the state's `model_type` must be falcon_mamba, got mamba: it is of another model");
    mamba.save_state(&mamba.state(), &path).unwrap();
    let error = falcon.load_state(&path).unwrap_err().to_string();
    assert!(error.ends_with("the state's `model_type` must be falcon_mamba, got mamba: it is of another model"), "{error}");
    let mut small = Folder::new("mamba");
    small.config["vocab_size"] = json!(29);
    let embedding = small.tensors.get_mut("backbone.embeddings.weight").unwrap();
    (embedding.1[0], embedding.2) = (29, embedding.2[..29 * 12 * 4].to_vec());
    let error = small.model().load_state(&path).unwrap_err().to_string();
    assert!(error.ends_with("the state's `vocab` must be 29, got 30: it is of another model"), "{error}");
}

#[test]
fn states_that_are_not_finite_are_refused_wherever_they_come_from() {
    let (exec, folder) = (Exec::cpu(1), tempfile::tempdir().unwrap());
    let path = folder.path().join("state.safetensors");
    for (kind, model) in models() {
        let mut state = model.state();
        model.prefill(&exec, &[1, 2, 3], &mut state).unwrap();
        for value in [f32::NAN, f32::INFINITY] {
            model.save_state(&state, &path).unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            let end = bytes.len();
            bytes[end - 4..].copy_from_slice(&value.to_le_bytes());
            std::fs::write(&path, bytes).unwrap();
            let error = model.load_state(&path).unwrap_err().to_string();
            let is_named = error.contains("state.safetensors: the tensor `layers.") && error.contains("must be finite, got ");
            assert!(is_named, "{kind}: {error}");
        }
    }
}

#[test]
fn weights_that_overflow_name_layer_and_step() {
    let exec = Exec::cpu(1);
    for kind in ["mamba", "falcon_mamba", "mamba2"] {
        for (tensor, says) in
            [("backbone.layers.1.mixer.out_proj.weight", "layer 1 gives "), ("backbone.norm_f.weight", "the head gives ")]
        {
            let mut folder = Folder::new(kind);
            let part = &mut folder.tensors.get_mut(tensor).unwrap().2;
            part.chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&3e38f32.to_le_bytes()));
            let (model, text) = (folder.model(), tokens(600, 30));
            let mut state = model.state();
            let error = model.forward_from(&exec, &text, &mut state).unwrap_err().to_string();
            assert!(error.starts_with(says) && error.contains(" at step "), "{kind} {tensor}: {error}");
            let expected: u64 = error.split(" at step ").nth(1).unwrap().split(':').next().unwrap().parse().unwrap();
            // the step is the same if tokens come one by one
            let mut state = model.state();
            let (at, one) =
                text.iter().enumerate().find_map(|(i, &token)| Some((i, model.step(&exec, token, &mut state).err()?))).unwrap();
            assert_eq!((at as u64, one.to_string()), (expected, error), "{kind} {tensor}");
            if says.starts_with("layer") {
                assert!(
                    model.save_state(&state, tempfile::tempdir().unwrap().path().join("state")).is_ok() || state.position() == 0
                );
            }
        }
    }
}

#[test]
fn keys_and_values_are_kept_of_every_token() {
    let (exec, folder) = (Exec::cpu(1), tempfile::tempdir().unwrap());
    let path = folder.path().join("state.safetensors");
    let model = Folder::of("bamba").model();
    let (_, state) = states(&exec, &model, &[&tokens(7, 30)]);
    // one head of 4 keys and as many values
    assert_eq!(state.size() - model.state().size(), 7 * 2 * 4 * size_of::<f32>());
    model.save_state(&state, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("layers.2.keys").unwrap().shape(), [7, 4]);
    // a position that the keys are not of
    let at = bytes.windows(14).position(|part| part == br#""position":"7""#).unwrap() + 12;
    let mut changed = bytes.clone();
    changed[at] = b'8';
    std::fs::write(&path, changed).unwrap();
    let error = model.load_state(&path).unwrap_err().to_string();
    assert!(error.contains("the state's `layers.2.keys` must have shape [8, 4], got [7, 4]"), "{error}");
}

#[test]
fn a_snapshot_has_the_logits_after_the_last_token() {
    let (exec, folder) = (Exec::cpu(1), tempfile::tempdir().unwrap());
    let path = folder.path().join("state.safetensors");
    for (kind, model) in models() {
        let mut state = model.state();
        let logits = model.prefill(&exec, &[1, 2, 3], &mut state).unwrap();
        model.save_snapshot(&state, &logits, &path).unwrap();
        let snapshot = model.load_snapshot(&path).unwrap();
        assert!(snapshot.state == state && model.load_state(&path).unwrap() == state, "{kind}");
        assert_eq!(bits(&snapshot.logits.unwrap()), bits(&logits), "{kind}");
        model.save_state(&state, &path).unwrap();
        assert!(model.load_snapshot(&path).unwrap().logits.is_none());
        let error = model.save_snapshot(&state, &logits[1..], &path).unwrap_err().to_string();
        assert_eq!(error, "save_snapshot: `logits` must be (vocab), 30 elements, got 29");
    }
}

#[test]
fn places_that_a_state_cannot_be_written_to_are_known_before() {
    let folder = tempfile::tempdir().unwrap();
    let model = Folder::new("mamba").model();
    model.check_path(folder.path().join("state")).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    assert!(model.check_path(folder.path()).unwrap_err().to_string().contains("it is a folder, expected a file"));
    assert!(model.check_path(folder.path().join("none/state")).unwrap_err().to_string().contains("No such file"));
}

#[test]
fn tokens_out_of_range_change_nothing() {
    let exec = Exec::cpu(1);
    for (kind, model) in models() {
        let mut state = model.state();
        model.step(&exec, 1, &mut state).unwrap();
        let before = state.clone();
        let error = model.forward_from(&exec, &[1, 2, 30], &mut state).unwrap_err().to_string();
        assert_eq!(error, "token 30 at position 2 must be less than the model's vocabulary of 30", "{kind}");
        assert!(model.prefill(&exec, &[], &mut state).unwrap_err().to_string().contains("at least one token"));
        assert!(model.forward_from(&exec, &[], &mut state).unwrap().is_empty());
        assert!(state == before, "{kind}");
    }
}

#[test]
fn steps_can_be_taken_back() {
    let exec = Exec::cpu(1);
    for (kind, model) in models() {
        let text = tokens(300, model.config().vocab);
        let (_, start) = states(&exec, &model, &[&text[..10]]);
        for kept in [0, 2, 100] {
            let mut session = Session::new(start.clone(), kept);
            session.read(&model, &exec, &text[10..100]).unwrap();
            session.read(&model, &exec, &text[100..]).unwrap();
            assert!(*session.state() == states(&exec, &model, &[&text]).1, "{kind}");
            for back in [0, 1, 30, 64, 65, 130] {
                session.roll_back(&model, &exec, back).unwrap();
                let left = 10 + session.tokens().len();
                assert!(*session.state() == states(&exec, &model, &[&text[..left]]).1, "{kind} {kept} to {left}");
            }
            assert!(session.read(&model, &exec, &[1, 99]).is_err() && session.tokens().is_empty());
            let error = session.roll_back(&model, &exec, 1).unwrap_err().to_string();
            assert_eq!(error, "1 steps cannot be taken back, as there were only 0");
        }
    }
}
