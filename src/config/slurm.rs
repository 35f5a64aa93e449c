//! Slurm's notation for lists of hosts and of numbers. Pure.

/// The first host of a list such as `n[1-3,7],login`; `None` if `list` is malformed.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let at = rest.find(['[', ',', ']']).unwrap_or(rest.len());
        host.push_str(&rest[..at]);
        rest = &rest[at..];
        if !rest.starts_with('[') {
            break;
        }
        let (run_length_lists_are_indexed, after) = rest[1..].split_once(']')?;
        let first = run_length_lists_are_indexed.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = after;
    }
    (!host.is_empty() && (rest.is_empty() || rest.starts_with(','))).then_some(host)
}

/// Element `index` of a run-length list such as `4(x2),3`.
pub(super) fn run_length(list: &str, mut index: usize) -> Option<usize> {
    for part in list.split(',') {
        let (value, times) = match part.split_once("(x") {
            Some((value, times)) => (value, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if index < times {
            return value.parse().ok();
        }
        index -= times;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{first_host, run_length};

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, first) in [
            ("n1", Some("n1")),
            ("n[1-3,7]", Some("n1")),
            ("n[007,009-012]", Some("n007")),
            ("a,b", Some("a")),
            ("rack[2-3]n[05-06].site,x", Some("rack2n05.site")),
            ("", None),
            ("n[", None),
            ("n[]", None),
            ("n]", None),
            ("n[a-b]", None),
        ] {
            assert_eq!(first_host(list).as_deref(), first, "{list}");
        }
    }

    #[test]
    fn run_length_lists_are_indexed() {
        for (list, index, value) in [
            ("4(x2),3", 0, Some(4)),
            ("4(x2),3", 1, Some(4)),
            ("4(x2),3", 2, Some(3)),
            ("4(x2),3", 3, None),
            ("2", 0, Some(2)),
            ("", 0, None),
            ("4(x", 0, None),
            ("4(xq)", 0, None),
        ] {
            assert_eq!(run_length(list, index), value, "{list} {index}");
        }
    }
}
