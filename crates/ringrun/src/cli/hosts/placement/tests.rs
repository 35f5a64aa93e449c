//! Ranks on hosts: by table, and what holds for every placement.

use super::super::MAX_HOSTS;
use super::super::available::merge;
use super::super::mapping::HostOrder::{Node, Slot};
use super::super::text::mentions_of_list;
use super::*;
use crate::cli::hosts::here;

fn hosts(list: &str) -> Vec<AvailableHost> {
    merge(mentions_of_list(list, MAX_HOSTS).unwrap(), |name| name == "here").unwrap()
}

fn ranks(ranks: usize) -> Wanted {
    Wanted { ranks: Some(ranks), ..Wanted::default() }
}

fn per_host(each: usize) -> Wanted {
    Wanted { per_host: Some(each), ..Wanted::default() }
}

fn elastic(count: usize) -> Wanted {
    let elastic = Some(ElasticRanks { count, start_again: true });
    Wanted { elastic, ..Wanted::default() }
}

fn by_node(wanted: Wanted) -> Wanted {
    Wanted { map_by: Node, rank_by: Node, ..wanted }
}

fn crowded(wanted: Wanted) -> Wanted {
    Wanted { oversubscribe: true, ..wanted }
}

/// The name of each rank's host, as "a a b"; "?" if nothing says how many ranks there are.
fn placed(list: &str, wanted: &Wanted) -> Result<String, String> {
    let Some(Placed { hosts, placements, .. }) = place(&hosts(list), wanted)? else {
        return Ok("?".into());
    };
    let name = |it: &RankPlacement| hosts[it.host_number].name.clone();
    Ok(placements.iter().map(name).collect::<Vec<_>>().join(" "))
}

#[test]
fn ranks_fill_host_by_host_or_go_around() {
    for (list, wanted, expected) in [
        ("a:2,b:2", ranks(4), "a a b b"),
        ("a:2,b:2", ranks(3), "a a b"),
        ("a:4,b:4", ranks(4), "a a a a"),
        ("a:2,b:2", Wanted::default(), "a a b b"),
        ("a:3,b:3", by_node(ranks(4)), "a b a b"),
        ("a:1,b:3", by_node(ranks(4)), "a b b b"),
        ("a:3,b:3", Wanted { map_by: Node, ..ranks(4) }, "a a b b"),
        ("a:3,b:3", Wanted { rank_by: Node, ..ranks(4) }, "a b a a"),
        // Without a count, each mention is a slot.
        ("a,b", Wanted::default(), "a b"),
        ("a,b,a", Wanted::default(), "a a b"),
        ("a,b", ranks(1), "a"),
        ("a,b:2", Wanted::default(), "a b b"),
        ("a,b", elastic(1), "a"),
        // A number for each host.
        ("a,b", per_host(2), "a a b b"),
        ("a:4,b:4", per_host(2), "a a b b"),
        ("a,b", by_node(per_host(2)), "a b a b"),
        ("a,b", Wanted { ranks: Some(3), ..per_host(2) }, "a a b"),
        ("a:2,b:1", Wanted { ranks: Some(2), ..per_host(2) }, "a a"),
        // More ranks than slots.
        ("a:1,b:2", crowded(ranks(5)), "a a b b b"),
        ("a:1,b:2", crowded(ranks(6)), "a a a b b b"),
        ("a,b", by_node(crowded(ranks(5))), "a b a b a"),
        ("a:1,b:1", crowded(per_host(2)), "a a b b"),
        // A lone host.
        ("here", Wanted::default(), "?"),
        ("here", ranks(3), "here here here"),
        ("here:2", ranks(3), "here here here"),
        ("here:2", Wanted::default(), "here here"),
        ("here:2", per_host(3), "here here here"),
        ("here", elastic(2), "here here"),
        ("far", ranks(2), "far far"),
        ("far", Wanted { ranks: Some(1), ..per_host(2) }, "far"),
    ] {
        assert_eq!(placed(list, &wanted).as_deref(), Ok(expected), "{list} {wanted:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_remedy() {
    for (list, wanted, why) in [
        (
            "a,b",
            ranks(3),
            "3 ranks are more than the 2 slots of the hosts (a:1,b:1); give them \
            more, as in -H a:2,b:2, or say --oversubscribe",
        ),
        ("a:4,b:1", by_node(ranks(6)), "(a:4,b:1); give them more, as in -H a:4,b:3"),
        ("::1,u@[fd00::7]:2", ranks(4), "([::1]:1,u@[fd00::7]:2)"),
        ("n[1-9]", ranks(10), "(n1:1,n2:1,n3:1,n4:1,...)"),
        ("a,b", Wanted { ranks: Some(5), ..per_host(2) }, "5 ranks with 2 per host need 3 hosts"),
        ("here", Wanted { ranks: Some(4), ..per_host(2) }, "4 ranks with 2 per host need 2 hosts"),
        ("a:1,b:2", per_host(2), "2 ranks per host are more than host a is for (1)"),
        ("here", ranks(MAX_SIZE + 1), "at most 1048576 ranks are possible"),
        ("a,b", per_host(usize::MAX), "at most 1048576 ranks are possible"),
        ("a,b", elastic(4), "4 ranks are more than"),
    ] {
        let error = placed(list, &wanted).unwrap_err();
        assert!(error.contains(why), "{list} {wanted:?}: {error}");
    }
}

#[test]
fn limits_hold_with_oversubscribe() {
    let mut limited = hosts("a:1,b:1");
    limited[0].max_slots = Some(2);
    let counts = |wanted| counts(&limited, 6, &wanted);
    assert_eq!(counts(crowded(ranks(6))), Ok(vec![2, 4]));
    let error = counts(crowded(per_host(3))).unwrap_err();
    assert!(error.contains("more than host a is for (2)"), "{error}");
    limited[1].max_slots = Some(2);
    let error = place(&limited, &crowded(ranks(6))).unwrap_err();
    assert!(error.contains("max-slots allow 4"), "{error}");
}

#[test]
fn hosts_without_ranks_are_left_out() {
    let Placed { hosts, placements, .. } =
        place(&hosts("a:1,here:1,c:1,d:1"), &ranks(2)).unwrap().unwrap();
    assert_eq!(hosts.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["a", "here"]);
    let name = |rank: usize| placements[rank].host.clone();
    assert_eq!([name(0), name(1)], ["a".to_owned(), here()]);
}

#[test]
fn every_rank_is_placed_once() {
    let orders = [(Slot, Slot), (Slot, Node), (Node, Slot), (Node, Node)];
    let mut successes = 0;
    for list in ["a", "a:3", "a,b", "a:3,here,c:5", "n[1-7]:2,a:9", "b:1,a:64,c:2"] {
        let slots: usize = hosts(list).iter().map(|host| host.slots).sum();
        for (case, (map_by, rank_by)) in (1..=80).flat_map(|case| orders.map(|it| (case, it))) {
            let oversubscribe = case % 2 == 0;
            let each = (case % 3 == 0).then_some(case / 3);
            let wanted = Wanted {
                ranks: Some(case),
                per_host: each,
                elastic: None,
                keeps_hosts: false,
                map_by,
                rank_by,
                oversubscribe,
            };
            let Ok(found) = place(&hosts(list), &wanted) else {
                let fits = case <= slots && each.is_none();
                assert!(!fits, "{list} {wanted:?}");
                continue;
            };
            let found = found.unwrap();
            check(&found, case);
            let most = found.placements.iter().map(|it| it.local_size).max();
            assert!(each.is_none_or(|each| most <= Some(each)), "{list} {wanted:?}");
            successes += 1;
        }
    }
    assert!(successes > 1000, "{successes}");
}

#[test]
fn an_elastic_job_keeps_free_slots() {
    let elastic = elastic(4);
    let again = ElasticRanks { count: 4, start_again: false };
    let never_again = Wanted { elastic: Some(again), ..elastic };
    for (list, wanted, expected) in [
        ("a:3,b:3,c:2", elastic, "a3 b3 c2"),
        ("a:4,b:9", elastic, "a4 b4"),
        ("a:4,b", elastic, "a4 b1"),
        ("a:4,b:4", by_node(elastic), "a4 b4"),
        ("here", elastic, "here4"),
        ("a,b,c", Wanted { ranks: Some(4), per_host: Some(2), ..elastic }, "a2 b2 c2"),
        ("a:3,b:3,c:2", ranks(4), "a3 b1"),
        // Slots for all ranks once more are enough.
        ("a:4,b:3,c:3,d:3", elastic, "a4 b3 c3"),
        ("a:4,b:3,c:3,d:3", Wanted { keeps_hosts: true, ..elastic }, "a4 b3 c3 d3"),
        ("a:4,b:1", Wanted { per_host: Some(4), ..elastic }, "a4 b1"),
        ("a,b,c,d", Wanted { per_host: Some(2), ..elastic }, "a2 b2 c2 d2"),
        ("a:3,b:3,c:2", never_again, "a3 b1"),
    ] {
        let Placed { hosts, slots, placements } = place(&hosts(list), &wanted).unwrap().unwrap();
        let found: Vec<_> =
            hosts.iter().zip(slots).map(|(it, slots)| format!("{}{slots}", it.name)).collect();
        assert_eq!(found.join(" "), expected, "{list}");
        assert_eq!(placements.len(), 4, "{list}");
    }
}

fn check(found: &Placed, ranks: usize) {
    let numbers: Vec<_> = found.placements.iter().map(|it| it.rank).collect();
    assert_eq!(numbers, (0..ranks).collect::<Vec<_>>());
    let mut locals = vec![0; found.hosts.len()];
    for it in &found.placements {
        assert_eq!(it.local_rank, locals[it.host_number], "local ranks ascend with ranks");
        locals[it.host_number] += 1;
    }
    for it in &found.placements {
        assert_eq!(it.local_size, locals[it.host_number]);
    }
    assert!(locals.iter().all(|&count| count > 0), "{locals:?}");
}
