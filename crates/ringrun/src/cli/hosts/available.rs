//! All mentions of a host as one, and the choice of some hosts.

use std::collections::HashMap;

use super::text::Mention;
use super::{AvailableHost, Host, MAX_HOSTS};

/// Hosts in the order of their first mention. This host is one host under all of its names.
#[derive(Debug, Default)]
pub(super) struct HostTable {
    pub(super) hosts: Vec<AvailableHost>,
    numbers: HashMap<String, usize>,
    here: Option<usize>,
}

impl HostTable {
    /// The number of the host, whose slots and limit are added to those that it has. Open MPI's
    /// rule.
    pub(super) fn add(&mut self, added: AvailableHost) -> Result<usize, String> {
        let AvailableHost { host, slots, is_counted, max_slots } = added;
        let number = self.number(&host).unwrap_or(self.hosts.len());
        self.here = self.here.or(host.is_here.then_some(number));
        self.numbers.insert(host.name.clone(), number);
        if let Some(known) = self.hosts.get_mut(number) {
            known.slots += slots;
            known.is_counted |= is_counted;
            known.max_slots = known.max_slots.zip(max_slots).map(|(most, more)| most + more);
        } else if number < MAX_HOSTS {
            self.hosts.push(AvailableHost { host, slots, is_counted, max_slots });
        } else {
            return Err(format!("a job has at most {MAX_HOSTS} hosts"));
        }
        Ok(number)
    }

    /// The number of a host that is in the table.
    pub(super) fn number(&self, host: &Host) -> Option<usize> {
        self.numbers.get(&host.name).copied().or(self.here.filter(|_| host.is_here))
    }

    fn is_here(&self, name: &str) -> Option<bool> {
        self.numbers.get(name).map(|number| self.here == Some(*number))
    }
}

/// The hosts of all mentions. One without a count is a slot.
pub(super) fn merge(
    mentions: Vec<Mention>,
    mut is_here: impl FnMut(&str) -> bool,
) -> Result<Vec<AvailableHost>, String> {
    let mut table = HostTable::default();
    for Mention { name, slots, max_slots } in mentions {
        let is_here = table.is_here(&name).unwrap_or_else(|| is_here(&name));
        let (is_counted, slots) = (slots.is_some(), slots.unwrap_or(1));
        table.add(AvailableHost { host: Host { name, is_here }, slots, is_counted, max_slots })?;
    }
    Ok(table.hosts)
}

/// The hosts of `file` that `chosen` names, in the order of `chosen`; the count of `chosen` is the
/// one that holds. Open MPI's rule for `--host` beside `--hostfile`.
pub(super) fn choose(
    chosen: Vec<AvailableHost>,
    file: &[AvailableHost],
) -> Result<Vec<AvailableHost>, String> {
    let here = file.iter().find(|known| known.host.is_here);
    let named: HashMap<_, _> = file.iter().map(|known| (known.host.name.as_str(), known)).collect();
    let known = |chosen: AvailableHost| {
        let name = chosen.host.name.as_str();
        let known = if chosen.host.is_here { here } else { named.get(name).copied() };
        match known {
            None => Err(format!("host {name:?} of --host is not in the host file")),
            Some(&AvailableHost { max_slots: Some(most), .. }) if chosen.slots > most => {
                let slots = chosen.slots;
                Err(format!("host {name:?} has {slots} slots, and max-slots={most} in the file"))
            }
            Some(known) if chosen.is_counted => {
                Ok(AvailableHost { max_slots: known.max_slots, ..chosen })
            }
            Some(known) => Ok(AvailableHost { host: chosen.host, ..known.clone() }),
        }
    };
    chosen.into_iter().map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::super::text::mentions_of_list;
    use super::*;

    fn merged(list: &str) -> Vec<AvailableHost> {
        merge(mentions_of_list(list, MAX_HOSTS).unwrap(), |name| {
            ["localhost", "self"].contains(&name)
        })
        .unwrap()
    }

    #[test]
    fn mentions_of_one_host_add_up() {
        let of = |list| {
            let one = |it: AvailableHost| (it.host.name, it.host.is_here, it.slots, it.is_counted);
            merged(list).into_iter().map(one).collect::<Vec<_>>()
        };
        let host =
            |name: &str, is_here, slots, is_counted| (name.to_owned(), is_here, slots, is_counted);
        assert_eq!(of("a,b,a"), [host("a", false, 2, false), host("b", false, 1, false)]);
        assert_eq!(of("a:2,b:3,a"), [host("a", false, 3, true), host("b", false, 3, true)]);
        assert_eq!(
            of("b,self:2,localhost,self"),
            [host("b", false, 1, false), host("self", true, 4, true)]
        );
    }

    #[test]
    fn limits_add_up_if_every_mention_has_one() {
        let mention = |max_slots| Mention { name: "a".into(), slots: Some(1), max_slots };
        let limit = |all: [Option<usize>; 2]| {
            merge(all.map(mention).to_vec(), |_| false).unwrap()[0].max_slots
        };
        assert_eq!(limit([Some(2), Some(3)]), Some(5));
        assert_eq!(limit([Some(2), None]), None);
    }

    #[test]
    fn a_list_chooses_hosts_of_a_file() {
        let file = merged("a:4,self:3,c");
        let of = |list| choose(merged(list), &file);
        let slots = |list| of(list).unwrap().iter().map(|it| it.slots).collect::<Vec<_>>();
        assert_eq!(slots("localhost,a"), [3, 4]);
        assert_eq!(slots("a:2,c"), [2, 1]);
        let mut limited = file.clone();
        limited[0].max_slots = Some(6);
        assert_eq!(choose(merged("a:6"), &limited).unwrap()[0].max_slots, Some(6));
        assert!(choose(merged("a:7"), &limited).unwrap_err().contains("max-slots=6 in the file"));
        assert!(of("a,x").unwrap_err().contains("\"x\" of --host is not in the host file"));
    }
}
