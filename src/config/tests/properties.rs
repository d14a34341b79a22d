//! Whatever the file contains: an answer, in bounded time and memory, in one line for each problem.

use proptest::prelude::*;

use super::*;

/// Pieces that YAML and the configuration are made of.
fn yaml_like() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "serving",
        "etcd",
        "endpoints",
        "bindAddress",
        "delay",
        "mode",
        "q",
        ": ",
        ":",
        "\n",
        "\n  ",
        "\n    ",
        "- ",
        ", ",
        "[",
        "]",
        "{",
        "}",
        "&a ",
        "*a",
        "<<",
        "!t ",
        "!!str ",
        "'",
        "\"",
        "\\",
        "#",
        "|",
        ">",
        "?",
        "\t",
        "---",
        "...",
        "~",
        "true",
        "1",
        "1e9",
        "0x",
        ".inf",
        "1s",
        "10.0.0.1:1",
        "\u{0}",
        "é",
        "\u{feff}",
        "%",
        "@",
    ]);
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

fn check(text: &str) {
    if let Err(problems) = parse(text) {
        assert!(!problems.is_empty(), "refused without a reason: {text:?}");
        // The line breaks of YAML; an error at the end is said to be on the line behind it.
        let lines = 2 + text
            .matches(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'])
            .count();
        for problem in problems {
            assert_eq!(problem.to_string().lines().count(), 1, "{problem:?}");
            assert!(
                problem.line.is_none_or(|line| (1..=lines).contains(&line)),
                "{problem:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_text_makes_it_panic(text in any::<String>()) {
        check(&text);
    }

    #[test]
    fn no_yaml_makes_it_panic(text in yaml_like()) {
        check(&text);
        check(&format!("{MINIMAL}{text}"));
    }

    #[test]
    fn no_damage_makes_it_panic(at in 0..MINIMAL.len(), length in 0..40_usize, piece in yaml_like()) {
        let end = (at + length).min(MINIMAL.len());
        check(&format!("{}{piece}{}", &MINIMAL[..at], &MINIMAL[end..]));
    }
}

#[test]
fn aliases_that_multiply_are_refused() {
    let mut nested = String::from("a0: &a0 [x, x]\n");
    for level in 1..60 {
        let below = level - 1;
        nested += &format!("a{level}: &a{level} [*a{below}, *a{below}]\n");
    }
    let wide = format!(
        "a: &a [{}]\nb: [{}]\n",
        "x,".repeat(10_000),
        "*a,".repeat(10_000)
    );
    let long = format!(
        "a: &a '{}'\nb: [{}]\n",
        "x".repeat(30_000),
        "*a,".repeat(10_000)
    );
    for text in [nested, wide, long] {
        let problems = problems(&text);
        assert_eq!(problems.len(), 1);
        let refused = ["too large with its aliases", "repetition limit exceeded"];
        assert!(
            refused.iter().any(|reason| problems[0].contains(reason)),
            "{problems:?}"
        );
    }
}

#[test]
fn deep_and_endless_structures_are_refused() {
    for text in [
        "[".repeat(64_000),
        "{a: ".repeat(16_000),
        "- ".repeat(32_000),
        "a: &a [*a]\n".to_owned(),
        "a: &a {b: *a}".to_owned(),
    ] {
        assert_eq!(problems(&text).len(), 1);
    }
}

#[test]
fn large_files_are_answered_in_time() {
    let many = (0..8_000)
        .map(|key| format!("k{key}:\n"))
        .collect::<String>();
    assert_eq!(problems(&many).len(), 8_000 + 13);
    let same = "q:\n".repeat(20_000);
    assert_eq!(problems(&same).len(), 20_000 + 13);
    let too_large = "#".repeat(64 * 1024 + 1);
    assert_eq!(
        problems(&too_large),
        ["the file is larger than 65536 bytes: is it the configuration?"]
    );
}
