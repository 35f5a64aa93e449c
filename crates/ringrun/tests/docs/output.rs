//! Compares the output that a document shows with the output that was printed. May touch: nothing.

/// Stands for anything within a line or, alone on a line, for further lines.
const ELLIPSIS: &str = "...";

/// Compares the lines shown with the lines printed, in any order: ranks print when they like. Empty
/// lines do not count.
pub(crate) fn compare(shown: &[String], printed: &str) -> Result<(), String> {
    let mut rest: Vec<&str> = printed.lines().filter(|line| !line.trim().is_empty()).collect();
    let patterns = shown.iter().filter(|line| *line != ELLIPSIS && !line.trim().is_empty());
    for pattern in patterns {
        let Some(at) = rest.iter().position(|line| matches(pattern, line)) else {
            return Err(format!("no line is `{pattern}` of:\n{printed}"));
        };
        rest.remove(at);
    }
    if rest.is_empty() || shown.iter().any(|line| line == ELLIPSIS) {
        return Ok(());
    }
    Err(format!("the document does not show:\n{}", rest.join("\n")))
}

fn matches(pattern: &str, line: &str) -> bool {
    let Some((first, middle)) = pattern.trim_end().split_once(ELLIPSIS) else {
        return pattern.trim_end() == line.trim_end();
    };
    let Some(mut rest) = line.trim_end().strip_prefix(first) else { return false };
    let (middle, last) = middle.rsplit_once(ELLIPSIS).unwrap_or(("", middle));
    for part in middle.split(ELLIPSIS) {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    fn lines_match_in_any_order() {
        for (shown, printed, is_fine) in [
            ("a\nb", "b\na\n", true),
            ("a", "a\n\nb\n", false),
            ("a\n\nb\n", "a\nb\n", true),
            ("a\n...", "x\na\n", true),
            ("a\na", "a\n", false),
            ("pid ... of ...: done", "pid 7 of 9: done\n", true),
            ("pid ... of ...: done", "pid 7 of 9: lost\n", false),
            ("for ... s...", "for 1 s, step 2\n", true),
            ("a", "a b", false),
        ] {
            let shown: Vec<String> = shown.lines().map(str::to_owned).collect();
            assert_eq!(compare(&shown, printed).is_ok(), is_fine, "{shown:?} {printed:?}");
        }
    }
}
