//! Chat templates: every form that is read, and everything that can be wrong with one, as a sentence.

use serde_json::json;
use statescan_models::ChatTemplate;
use tempfile::TempDir;

fn folder(config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    folder
}

fn error(folder: &TempDir) -> String {
    let error = ChatTemplate::load(folder).expect_err("a folder that is refused").to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn a_folder_may_have_no_template() {
    assert!(ChatTemplate::load(tempfile::tempdir().unwrap()).unwrap().is_none());
    assert!(ChatTemplate::load(folder(&json!({"bos_token": "<s>"}).to_string())).unwrap().is_none());
}

#[test]
fn settings_that_are_none_are_refused() {
    assert!(error(&folder("{")).contains("tokenizer_config.json: it is no JSON"));
    for template in [json!(3), json!([]), json!([{"name": "tools", "template": "a"}])] {
        assert!(error(&folder(&json!({"chat_template": template}).to_string())).contains("its `chat_template` is no text"));
    }
}

#[cfg(not(feature = "templates"))]
#[test]
fn a_build_without_templates_says_so() {
    assert!(error(&folder(&json!({"chat_template": "a"}).to_string())).contains("lacks the feature `templates`"));
}

#[cfg(feature = "templates")]
mod rendering {
    use super::*;
    use statescan_models::Message;

    const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}\n    [{{ m['role'] }}] {{ m.content.strip() }}\n{% endfor %}\n\
        {% if add_generation_prompt %}[assistant]{% endif %}";

    fn rendered(folder: &TempDir, content: &str) -> Result<String, String> {
        let template = ChatTemplate::load(folder).unwrap().unwrap();
        template.render(&[Message { role: "user", content }]).map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_gives_the_same_text() {
        let forms = [json!(TEMPLATE), json!([{"name": "tools", "template": "a"}, {"name": "default", "template": TEMPLATE}])];
        for form in forms {
            for token in [json!("<s>"), json!({"content": "<s>", "lstrip": false})] {
                let folder = folder(&json!({"bos_token": token, "chat_template": form}).to_string());
                assert_eq!(rendered(&folder, " hello ").unwrap(), "<s>    [user] hello\n[assistant]");
            }
        }
        let folder = folder(&json!({"chat_template": "of the settings"}).to_string());
        std::fs::write(folder.path().join("chat_template.jinja"), "alone {{ messages|length }}").unwrap();
        assert_eq!(rendered(&folder, "a").unwrap(), "alone 1");
    }

    #[test]
    fn what_follows_an_answer_is_what_the_model_has_not_read() {
        let turns = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>\n{% endfor %}\
            {% if add_generation_prompt %}<assistant>{% endif %}";
        let with = |template: &str| {
            let folder = folder(&json!({"bos_token": "<s>", "chat_template": template}).to_string());
            ChatTemplate::load(&folder).unwrap().unwrap()
        };
        let (template, user) = (with(turns), |content| Message { role: "user", content });
        for answer in ["fine", " fine\n", "", "a<end>b"] {
            let next = template.render_next("how are you", answer, "good").unwrap();
            assert_eq!(next, "<end>\n<user>good<end>\n<assistant>", "{answer:?}");
        }
        let whole = [user("a"), Message { role: "assistant", content: "b" }, user("c")];
        let next = template.render(&whole[..1]).unwrap() + "b" + &template.render_next("a", "b", "c").unwrap();
        assert_eq!(next, template.render(&whole).unwrap());
        let error = with("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}").render_next("a", "b", "c");
        assert!(error.unwrap_err().to_string().contains("what comes later changes the text"));
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        let of = |template: &str, content: &str| {
            let folder = folder(&json!({"bos_token": "<s>", "chat_template": template}).to_string());
            rendered(&folder, content).unwrap()
        };
        for (template, expected) in [
            ("{{ messages[0] | tojson }}", r#"{"role": "user", "content": "<b> & 'é\n"}"#),
            ("{{ {'b': 1, 'a': [true, none, 1.5]} | tojson }}", r#"{"b": 1, "a": [true, null, 1.5]}"#),
            ("{{ {'b': 1, 'a': []} | tojson(indent=2) }}", "{\n  \"b\": 1,\n  \"a\": []\n}"),
            ("{{ {'b': [1, 2], 'a': {}} | tojson(separators=(',', ':'), sort_keys=true) }}", r#"{"a":{},"b":[1,2]}"#),
            ("{{ 'é🦀' | tojson(ensure_ascii=true) }}", r#""\u00e9\ud83e\udd80""#),
            ("{% for key in {'z': 1, 'y': 2, 'x': 3} %}{{ key }}{% endfor %}", "zyx"),
            (
                "{{ [none is iterable, 'a' is iterable, 'a' is sequence, {} is sequence, 1 is sequence] }}",
                "[False, True, True, True, False]",
            ),
            ("{{ tools is none }} {{ documents is none }} {{ tool is defined }} {{ eos_token }}", "True True False "),
            ("a{%- generation -%} b {%- endgeneration %}c\n  {% generation %}\nd\n  {% endgeneration %}\ne", "abc\nd\ne"),
            ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21"),
        ] {
            assert_eq!(of(template, "<b> & 'é\n"), expected, "{template}");
        }
        let year: i32 = of("{{ strftime_now('%Y') }}", "").parse().unwrap();
        assert!((2025..3000).contains(&year) && of("{{ strftime_now('%d %B') }}", "").len() > 5);
    }

    #[test]
    fn tokens_of_older_folders_come_from_a_file_of_their_own() {
        let folder = folder(
            &json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ bos_token }}{{ eos_token }}"}).to_string(),
        );
        std::fs::write(folder.path().join("special_tokens_map.json"), r#"{"bos_token": {"content": "<begin>"}}"#).unwrap();
        assert_eq!(rendered(&folder, "a").unwrap(), "<begin></s>");
    }

    #[test]
    fn templates_that_mean_harm_are_refused() {
        let with = |template: &str| folder(&json!({"chat_template": template}).to_string());
        assert!(error(&with("{% for %}")).contains("the chat template: syntax error"));
        assert!(error(&with("{% include '/etc/passwd' %}")).contains("unknown statement include"));
        for (template, says) in [
            ("{{ raise_exception('no system prompt') }}", "no system prompt"),
            ("{{ messages[0].nothing.more }}", "undefined value"),
            (
                "{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
                "200 levels",
            ),
            ("{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}", "fuel"),
        ] {
            let error = rendered(&with(template), "a").unwrap_err();
            assert!(error.contains("tokenizer_config.json: the chat template: ") && error.contains(says), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
