//! Text to tokens and back.

use statescan_models::Tokenizer;
use tempfile::TempDir;

/// A folder with the settings of a model.
fn of_vocabulary(vocab: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(r#"{{"d_model": 8, "n_layer": 1, "vocab_size": {vocab}}}"#);
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    folder
}

#[test]
fn a_vocabulary_that_is_not_bytes_needs_a_file() {
    for (folder, says) in [
        (
            of_vocabulary(50277),
            "it has no tokenizer.json, and the 50280 tokens of its model are not bytes; name the folder of a tokenizer",
        ),
        (tempfile::tempdir().unwrap(), "it has no tokenizer.json; name the folder of a tokenizer"),
    ] {
        let error = Tokenizer::load(folder.path()).err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn bytes_are_tokens_without_a_file() {
    let folder = of_vocabulary(256);
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    assert!(tokenizer.is_bytes() && tokenizer.special(0).is_none());
    let text = "é\n\u{fffd}".as_bytes();
    let tokens = tokenizer.encode(text).unwrap();
    assert_eq!(tokens.len(), text.len());
    assert_eq!(tokenizer.encode_whole(text).unwrap(), tokens);
    let mut decoder = tokenizer.decoder();
    assert_eq!(tokens.into_iter().flat_map(|token| decoder.push(token)).collect::<Vec<_>>(), text);
    assert!(decoder.push(256).is_empty());
}

#[test]
fn a_file_that_is_no_tokenizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    let error = Tokenizer::load(folder.path()).err().unwrap().to_string();
    let why = if cfg!(feature = "tokenizers") { "tokenizer.json: it " } else { "lacks the feature `tokenizers`" };
    assert!(error.contains(why), "{error}");
}

#[cfg(feature = "tokenizers")]
#[test]
fn a_library_that_fails_is_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    // a trie of one node that leads beyond itself
    let json = r#"{"version": "1.0", "added_tokens": [], "post_processor": null, "pre_tokenizer": null, "decoder": null,
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="},
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#;
    std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
    let tokenizer = Tokenizer::load(folder.path());
    let error = tokenizer.and_then(|tokenizer| tokenizer.encode(b"a")).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json: the library that reads it has failed: "), "{error}");
}

#[cfg(feature = "tokenizers")]
#[test]
fn tokens_of_a_file_become_the_text_again() {
    let folder = tempfile::tempdir().unwrap();
    let json = r#"{"version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ã": 4, "©": 5}, "merges": ["a b"]}}"#;
    std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    let tokens = tokenizer.encode("ab éb".as_bytes()).unwrap();
    assert_eq!(tokens, [2, 3, 4, 5, 1]);
    let mut decoder = tokenizer.decoder();
    let parts: Vec<_> = tokens.into_iter().map(|token| String::from_utf8(decoder.push(token)).unwrap()).collect();
    assert_eq!(parts, ["ab", " ", "", "é", "b"]);
}

/// A tokenizer of three letters with a token before and one behind a text, and what `save_pretrained` leaves of calls that cut and padded.
#[cfg(feature = "tokenizers")]
fn of_calls() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let special = |id: u32, content: &str| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    };
    let sequence = serde_json::json!({"Sequence": {"id": "A", "type_id": 0}});
    let piece = |id: &str| serde_json::json!({"SpecialToken": {"id": id, "type_id": 0}});
    let one = |id: &str, number: u32| serde_json::json!({"id": id, "ids": [number], "tokens": [id]});
    let json = serde_json::json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 16}, "direction": "Left", "pad_to_multiple_of": null, "pad_id": 4, "pad_type_id": 0,
            "pad_token": "<end>"},
        "added_tokens": [special(3, "<begin>"), special(4, "<end>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": false},
        "post_processor": {"type": "TemplateProcessing", "single": [piece("<begin>"), sequence, piece("<end>")],
            "pair": [sequence, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<begin>": one("<begin>", 3), "<end>": one("<end>", 4)}},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2}, "unk_token": "a"},
    });
    std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    folder
}

#[cfg(feature = "tokenizers")]
#[test]
fn a_whole_text_has_the_tokens_that_are_added_and_is_not_cut_or_padded() {
    let folder = of_calls();
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    assert_eq!(tokenizer.encode(b"abcabc").unwrap(), [0, 1, 2, 0, 1, 2]);
    assert_eq!(tokenizer.encode_whole(b"abcabc").unwrap(), [3, 0, 1, 2, 0, 1, 2, 4]);
    assert_eq!([0, 3, 4, 5].map(|token| tokenizer.special(token)), [None, Some("<begin>"), Some("<end>"), None]);
    let error = tokenizer.encode(b"ab\xff").unwrap_err().to_string();
    assert_eq!(error, "the text must be UTF-8, which it is not from byte 2 on");
    // this class of `transformers` adds nothing
    std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"tokenizer_class": "GPTNeoXTokenizer"}"#).unwrap();
    assert_eq!(Tokenizer::load(folder.path()).unwrap().encode_whole(b"abc").unwrap(), [0, 1, 2]);
}
