//! How ranks lie on hosts, as MPICH's `PMI_process_mapping` has it: a list of blocks of hosts that
//! follow each other, each with the same number of consecutive ranks.

use std::fmt::Write;

/// Hosts with consecutive numbers, each of which has so many ranks.
struct Block {
    first: usize,
    hosts: usize,
    ranks: usize,
}

/// The mapping of ranks on the hosts of these numbers.
pub(super) fn of(hosts: &[usize]) -> String {
    let mut blocks: Vec<Block> = Vec::new();
    for on_host in hosts.chunk_by(|one, other| one == other) {
        let (host, ranks) = (on_host[0], on_host.len());
        match blocks.last_mut() {
            Some(last) if last.first + last.hosts == host && last.ranks == ranks => last.hosts += 1,
            _ => blocks.push(Block { first: host, hosts: 1, ranks }),
        }
    }
    let mut text = String::from("(vector");
    for Block { first, hosts, ranks } in blocks {
        let _ = write!(text, ",({first},{hosts},{ranks})");
    }
    text + ")"
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn ranks_of_a_host_are_together_and_equal_hosts_are_one_block() {
        for (hosts, expected) in [
            (&[0, 0, 0][..], "(vector,(0,1,3))"),
            (&[0, 0, 1, 1, 2, 2], "(vector,(0,3,2))"),
            (&[0, 0, 0, 1, 2, 2], "(vector,(0,1,3),(1,1,1),(2,1,2))"),
            (&[0, 1, 0, 1], "(vector,(0,2,1),(0,2,1))"),
            (&[1, 0, 0], "(vector,(1,1,1),(0,1,2))"),
        ] {
            assert_eq!(of(hosts), expected);
        }
    }
}
