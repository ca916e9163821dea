//! States as values: the same bits however a sequence is cut and whatever runs beside it; saved, loaded, branched and rolled back.

use crate::common::{Folder, bits, models, tokens};
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
        for level in Level::available() {
            let exec = Exec::cpu(1).with_level(level).unwrap();
            let (logits, state) = states(&exec, &model, &[&text]);
            for cut in 0..=text.len() {
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
    for kind in ["mamba", "falcon_mamba", "mamba2"] {
        for dtype in [safetensors::Dtype::BF16, safetensors::Dtype::F16] {
            let [narrow, wide] = [true, false].map(|stored| Folder::new(kind).rounded(dtype, stored).model());
            let (exec, text) = (Exec::cpu(1), tokens(20, 30));
            assert_eq!(
                bits(&narrow.forward(&exec, &text).unwrap()),
                bits(&wide.forward(&exec, &text).unwrap()),
                "{kind} {dtype:?}"
            );
            assert!(narrow.bytes_per_step() < wide.bytes_per_step());
        }
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
    let [(_, mamba), _, (_, other)] = <[_; 3]>::try_from(models().collect::<Vec<_>>()).ok().unwrap();
    let mut state = other.state();
    assert!(mamba.step(&exec, 1, &mut state).unwrap_err().to_string().contains("another model"));
    assert!(mamba.save_state(&state, &path).is_err() && !path.exists());
    other.save_state(&state, &path).unwrap();
    assert!(mamba.load_state(&path).unwrap_err().to_string().contains("state.safetensors: the state's `layers.0.conv`"));
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
