//! Hosts as words name them, such as `node[1-3]:4` or `alice@[fd00::7]`, in lists and in files.
//! Pure, and without the rest of ringrun, so that the fuzzer can build it.
//! Law: a name that comes out is no option of a command and has no meaning in a shell.

mod file;
pub(crate) mod node_list;

use std::net::Ipv6Addr;

pub(crate) use file::mentions_of_file;

/// The longest name of a host, as DNS has it.
const MAX_NAME_LEN: usize = 255;
/// More slots than any host has; sums of them do not overflow.
pub(crate) const MAX_SLOTS: usize = 1 << 24;

/// One mention of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mention {
    pub(crate) name: String,
    pub(crate) slots: Option<usize>,
    pub(crate) max_slots: Option<usize>,
}

/// The hosts of a list such as `node[1-3]:4,localhost`. More than `most` of them are an error, here
/// and below.
pub(crate) fn mentions_of_list(list: &str, most: usize) -> Result<Vec<Mention>, String> {
    let mut all = vec![];
    for word in node_list::words(list) {
        all.extend(mentions(word, most.saturating_sub(all.len()))?);
    }
    Ok(all)
}

/// The hosts of one word, which may be several by its brackets.
fn mentions(word: &str, most: usize) -> Result<Vec<Mention>, String> {
    // The colons in "[::1]:4" and "::1" belong to the address.
    let (host, count) = match word.rsplit_once(':') {
        Some((host, count)) if !host.contains(':') || host.ends_with(']') => (host, Some(count)),
        _ => (word, None),
    };
    let names = names(host, most).map_err(|why| format!("host {word:?}: {why}"))?;
    let slots = count.map(|count| number(count, word)).transpose()?;
    Ok(names.into_iter().map(|name| Mention { name, slots, max_slots: None }).collect())
}

/// The names of a word without a count, each as the remote shell takes it: an IPv6 address without
/// brackets.
///
/// # Errors
/// The reason, without the word.
pub(crate) fn names(word: &str, most: usize) -> Result<Vec<String>, String> {
    let (user, host) = match word.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, word),
    };
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = address.filter(|address| address.contains(':'));
    let hosts = match address {
        Some(address) => vec![address.to_owned()],
        None => node_list::expand(host, most)?,
    };
    if !user.is_none_or(is_name) || !hosts.iter().all(|host| is_name(host) || is_ipv6(host)) {
        let expected = "no name or address of a host: expected letters, digits, '.', '_' and '-' \
            (not at the beginning), as in node1, alice@node1, 10.0.0.1 or [fd00::7]";
        return Err(expected.into());
    }
    let with_user = |host| match user {
        Some(user) => format!("{user}@{host}"),
        None => host,
    };
    Ok(hosts.into_iter().map(with_user).collect())
}

/// True for a word that is neither an option of a command nor has a meaning in a shell.
fn is_name(word: &str) -> bool {
    let is_of_names = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    (1..=MAX_NAME_LEN).contains(&word.len())
        && !word.starts_with('-')
        && word.chars().all(is_of_names)
}

/// True for an IPv6 address, perhaps with the zone of a link-local one, as `fe80::1%eth0`.
fn is_ipv6(word: &str) -> bool {
    let (address, zone) = match word.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (word, None),
    };
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(is_name)
}

pub(crate) fn number(count: &str, from: &str) -> Result<usize, String> {
    let refused = || format!("{from:?}: expected a number of slots, 1 to {MAX_SLOTS}");
    count.parse().ok().filter(|count| (1..=MAX_SLOTS).contains(count)).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "a:2 b" for the mentions of a list.
    fn shown(list: &str) -> Result<String, String> {
        let one = |it: &Mention| match it.slots {
            Some(slots) => format!("{}:{slots}", it.name),
            None => it.name.clone(),
        };
        mentions_of_list(list, 64).map(|all| all.iter().map(one).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn lists_name_hosts_and_slots() {
        for (list, hosts) in [
            ("localhost:4", "localhost:4"),
            ("h1:4, h2:2,h1", "h1:4 h2:2 h1"),
            ("node[01-03,7]:2,x", "node01:2 node02:2 node03:2 node7:2 x"),
            ("a[1-2]b[3-4],c", "a1b3 a1b4 a2b3 a2b4 c"),
            ("[::1]:4,::1,[fd00::7]", "::1:4 ::1 fd00::7"),
            ("fe80::1%eth0,[fe80::1%ib0]:2", "fe80::1%eth0 fe80::1%ib0:2"),
            ("alice@node1:2,bob.b@[::1]:3,c@n[1-2]", "alice@node1:2 bob.b@::1:3 c@n1 c@n2"),
            ("10.0.0.1:2,node_1.site.", "10.0.0.1:2 node_1.site."),
        ] {
            assert_eq!(shown(list).as_deref(), Ok(hosts), "{list}");
        }
    }

    #[test]
    fn too_many_hosts_are_refused() {
        let of = |list: &str| mentions_of_list(list, 3).map(|all| all.len());
        assert_eq!(of("a,b,c"), Ok(3));
        assert_eq!(of("a,n[1-2]"), Ok(3));
        for list in ["a,b,c,d", "a,b,c,d,e", "a,n[1-3]", "n[1-3],a", "n[1-2]m[1-2]", "a,b,c,n[1]"] {
            assert!(of(list).unwrap_err().contains("too many hosts"), "{list}");
            let lines = list.replace(',', "\n");
            assert!(mentions_of_file(&lines, 3).unwrap_err().contains("too many hosts"), "{list}");
        }
    }

    #[test]
    fn a_word_that_is_no_host_is_refused_by_name() {
        for wrong in [
            "",
            "localhost,",
            ",a",
            ":4",
            "h:0",
            "h:-1",
            "h:x",
            "h:",
            "h:18446744073709551615",
            "h:4:5",
            "-oProxyCommand=x",
            "-h:2",
            "a@-h",
            "-a@h",
            "@h",
            "a@",
            "a@b@c",
            "a@@c",
            "a b",
            "a'b",
            "a\"b",
            "a/b",
            "a\nb",
            "a;b",
            "a$b",
            "a`b`",
            "a|b",
            "a\\b",
            "a&b",
            "a(b)",
            "a*",
            "a?",
            "~a",
            "a#b",
            "a=b",
            "a%b",
            "b\u{e4}r",
            "a\0",
            "n]1",
            "n[1",
            "n[1-2",
            "[]",
            "[h]",
            "[::x]",
            "fe80::1%-x",
            "fe80::1%a b",
            "n[1-2][",
            "::1::",
        ] {
            let error = shown(wrong).unwrap_err();
            let named = wrong.split(',').find(|word| error.contains(&format!("{word:?}")));
            assert!(named.is_some(), "{wrong:?}: {error}");
        }
    }
}
