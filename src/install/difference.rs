//! What is different between two texts, by lines. Pure.

use similar::TextDiff;

/// Lines around a change that are shown.
const AROUND: usize = 2;

/// Empty if nothing is.
pub fn difference(before: &str, after: &str) -> String {
    let lines = TextDiff::from_lines(before, after);
    let mut text = String::new();
    for (number, group) in lines.grouped_ops(AROUND).iter().enumerate() {
        if number > 0 {
            text += "  …\n";
        }
        for line in group.iter().flat_map(|part| lines.iter_changes(part)) {
            text += &format!("{} {line}", line.tag());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn what_is_different_is_shown_with_what_is_around_it() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), "");
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let new = "1\n2\n3\n4\nfive\n6\n7\n8\n9\nten\n";
        let shown = "  3\n  4\n- 5\n+ five\n  6\n  7\n  8\n  9\n+ ten\n";
        assert_eq!(difference(old, new), shown);
        assert_eq!(difference("", "a\n"), "+ a\n");
        let far = difference("1\n2\n3\n4\n5\n6\n7\n", "one\n2\n3\n4\n5\n6\nseven\n");
        assert_eq!(far, "- 1\n+ one\n  2\n  3\n  …\n  5\n  6\n- 7\n+ seven\n");
    }
}
