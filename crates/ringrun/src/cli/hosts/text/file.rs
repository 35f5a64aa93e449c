//! Host files: Open MPI's `host slots=N max-slots=N`, MPICH's `host:N`, and plain names. Pure.

use std::collections::HashSet;

use super::node_list::TOO_MANY;
use super::{Mention, mentions, number};

/// More lines, and names that their brackets stand for, than any job has ranks.
const MAX_MENTIONS: usize = 1 << 20;

/// The hosts of a file's text, of which at most `most` are different ones: batch systems write a
/// line for each slot.
pub(crate) fn mentions_of_file(text: &str, most: usize) -> Result<Vec<Mention>, String> {
    let (mut all, mut names) = (vec![], HashSet::new());
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(host) = words.next() else { continue };
        let wrong = |why: &str| format!("line {number}: {why}");
        let hosts = of_line(host, words, most).map_err(|why| wrong(&why))?;
        for host in &hosts {
            if !names.contains(&host.name) {
                names.insert(host.name.clone());
            }
        }
        if names.len() > most {
            return Err(wrong(&format!("host {host:?}: {TOO_MANY}")));
        }
        all.extend(hosts);
        if all.len() > MAX_MENTIONS {
            return Err(wrong(&format!(
                "this is more than {MAX_MENTIONS} lines, or hosts of them"
            )));
        }
    }
    if all.is_empty() { Err("it names no host".into()) } else { Ok(all) }
}

fn of_line<'a>(
    host: &str,
    settings: impl Iterator<Item = &'a str>,
    most: usize,
) -> Result<Vec<Mention>, String> {
    let mut hosts = mentions(host, most)?;
    for setting in settings {
        let (name, count) = setting.split_once('=').unwrap_or((setting, ""));
        for host in &mut hosts {
            match name {
                "slots" => host.slots = Some(number(count, setting)?),
                "max-slots" | "max_slots" => host.max_slots = Some(number(count, setting)?),
                _ => {
                    let expected = "expected slots=N or max-slots=N";
                    return Err(format!("host {}: {setting:?}: {expected}", host.name));
                }
            }
        }
    }
    let few = |host: &&Mention| host.max_slots.is_some_and(|most| most < host.slots.unwrap_or(1));
    match hosts.iter().find(few) {
        Some(host) => Err(format!("host {}: max-slots is less than slots", host.name)),
        None => Ok(hosts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_name_hosts_in_three_ways() {
        let mention =
            |name: &str, slots, max_slots| Mention { name: name.into(), slots, max_slots };
        let text =
            "# two\r\n a slots=2 max-slots=8 # here\n\nb:3\n\tc\n[::1]:4\nn[1-2] max_slots=1\n";
        let expected = [
            mention("a", Some(2), Some(8)),
            mention("b", Some(3), None),
            mention("c", None, None),
            mention("::1", Some(4), None),
            mention("n1", None, Some(1)),
            mention("n2", None, Some(1)),
        ];
        assert_eq!(mentions_of_file(text, 64).unwrap(), expected);
        for (wrong, why) in [
            ("", "it names no host"),
            ("# nothing\n", "it names no host"),
            ("a\nb cores=3", "line 2: host b: \"cores=3\": expected slots=N or max-slots=N"),
            ("a slots", "\"slots\": expected a number of slots"),
            ("a slots=0", "\"slots=0\": expected a number of slots"),
            ("a slots=4 max-slots=2", "host a: max-slots is less than slots"),
            ("a,b slots=2", "host \"a,b\": no name"),
            ("-oX=y slots=2", "host \"-oX=y\": no name"),
            ("a b", "host a: \"b\": expected slots=N"),
        ] {
            let error = mentions_of_file(wrong, 64).unwrap_err();
            assert!(error.contains(why), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn lines_of_the_same_hosts_do_not_make_too_many_hosts() {
        assert_eq!(mentions_of_file(&"a\nb\n".repeat(200), 2).unwrap().len(), 400);
        let error = mentions_of_file("a\nb\na\nc\n", 2).unwrap_err();
        assert_eq!(error, "line 4: host \"c\": these are too many hosts");
        // Brackets make many names of a short file.
        let error = mentions_of_file(&"n[1-1024]\n".repeat(1025), 1024).unwrap_err();
        assert_eq!(error, "line 1025: this is more than 1048576 lines, or hosts of them");
    }
}
