//! Text to tokens and back.

use statescan_models::Tokenizer;

#[test]
fn bytes_are_tokens_without_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    let text = "é\n\u{fffd}".as_bytes();
    let tokens = tokenizer.encode(text).unwrap();
    assert_eq!(tokens.len(), text.len());
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
