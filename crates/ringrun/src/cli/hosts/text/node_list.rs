//! Slurm's notation for lists of hosts and of numbers. Pure.

use super::MAX_NAME_LEN;

pub(super) const TOO_MANY: &str = "these are too many hosts";

/// The words of a list, separated by commas; the commas within brackets belong to the words.
pub(crate) fn words(list: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let separates = |letter: char| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    };
    list.split(separates).map(str::trim).collect()
}

/// The names of a word such as `rack[1-2]node[01-03,7]`: every number of the first brackets with
/// every number of the next.
///
/// # Errors
/// The reason, without the word.
pub(crate) fn expand(word: &str, most: usize) -> Result<Vec<String>, String> {
    if most == 0 {
        return Err(TOO_MANY.into());
    }
    let mut names = vec![String::new()];
    let mut rest = word;
    while let Some((literal, after)) = rest.split_once('[') {
        let (ranges, after) = after.split_once(']').ok_or("a bracket is not closed")?;
        check_length(&names, literal)?;
        let numbers = numbers(ranges, most / names.len())?;
        let with_numbers =
            |name: &String| numbers.iter().map(move |it| format!("{name}{literal}{it}")).collect();
        names = names.iter().flat_map(|name| -> Vec<_> { with_numbers(name) }).collect();
        rest = after;
    }
    check_length(&names, rest)?;
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

/// Refuses a word that stands for many names too long for any host.
fn check_length(names: &[String], more: &str) -> Result<(), String> {
    match names.iter().all(|name| name.len() + more.len() <= MAX_NAME_LEN) {
        true => Ok(()),
        false => Err(format!("a name has at most {MAX_NAME_LEN} characters")),
    }
}

/// The numbers of `01-03,7`, as long as the first number of their range is written.
fn numbers(ranges: &str, most: usize) -> Result<Vec<String>, String> {
    let wrong =
        |range: &str| format!("{range:?}: expected numbers and ranges, as in node[01-03,7]");
    let number = |digits: &str| {
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<usize>().ok().filter(|_| is_number)
    };
    let mut all = vec![];
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = number(low).zip(number(high)).ok_or_else(|| wrong(range))?;
        let more = last.checked_sub(first).ok_or_else(|| wrong(range))?;
        if more >= most - all.len() || low.len() > MAX_NAME_LEN {
            return Err(TOO_MANY.into());
        }
        let width = low.len();
        all.extend((first..=last).map(|number| format!("{number:0width$}")));
    }
    Ok(all)
}

/// The numbers of a run-length list such as `4(x2),1`, which is 4, 4, 1; `None` if it is malformed
/// or has more than `most` numbers.
pub(crate) fn run_lengths(list: &str, most: usize) -> Option<Vec<usize>> {
    let mut all = vec![];
    for part in list.split(',') {
        let (value, times) = match part.split_once("(x") {
            Some((value, times)) => (value, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1_usize),
        };
        if times > most - all.len() {
            return None;
        }
        all.extend(std::iter::repeat_n(value.parse::<usize>().ok()?, times));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_within_brackets_separate_no_words() {
        assert_eq!(words("a, b[1,2],c"), ["a", "b[1,2]", "c"]);
        assert_eq!(words("a],b"), ["a]", "b"]);
        assert_eq!(words("a[1,b"), ["a[1,b"]);
        assert_eq!(words(""), [""]);
    }

    #[test]
    fn brackets_are_expanded() {
        for (word, names) in [
            ("n1", "n1"),
            ("n[1-3,7]", "n1 n2 n3 n7"),
            ("n[007,009-011]", "n007 n009 n010 n011"),
            ("n[9-11]", "n9 n10 n11"),
            ("n[5-5].site", "n5.site"),
            ("rack[1-2]n[3-4]x", "rack1n3x rack1n4x rack2n3x rack2n4x"),
        ] {
            assert_eq!(expand(word, 64).unwrap().join(" "), names, "{word}");
        }
        assert_eq!(expand("n[1-65536]", 1 << 16).unwrap().len(), 1 << 16);
        for wrong in [
            "n[",
            "n[]",
            "n[1",
            "n[a-b]",
            "n[3-1]",
            "n[1-]",
            "n[-1]",
            "n[1,]",
            "n[+1-2]",
            "n[1-2-3]",
            "n[[1]]",
            "n[0-65536]",
            "n[1-60000,1-60000]",
            "n[0-999]m[0-999]",
            "n[0-18446744073709551615]",
            "n[0-18446744073709551616]",
            &format!("n[{}1]", "0".repeat(300)),
            &format!("{}[1-60000]", "n".repeat(300)),
            &format!("[1-60000]{}", "n".repeat(300)),
        ] {
            assert!(expand(wrong, 1 << 16).is_err(), "{wrong}");
        }
    }

    #[test]
    fn run_lengths_are_written_out() {
        assert_eq!(run_lengths("4(x2),1", 3), Some(vec![4, 4, 1]));
        assert_eq!(run_lengths("2", 3), Some(vec![2]));
        for wrong in
            ["", "4(x", "4(xq)", "4(x2", "4,", "x", "-1", "4(x99999999)", "4(2)", "1(x63),1,1"]
        {
            assert_eq!(run_lengths(wrong, 64), None, "{wrong}");
        }
    }
}
