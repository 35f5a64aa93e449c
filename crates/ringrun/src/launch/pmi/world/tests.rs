//! Requests as MPICH 5.0.2 sends them, and others that no program should send.

use super::*;

fn world(ranks: usize) -> PmiWorld {
    PmiWorld::new("12ab-34cd", &vec![RankOrigin { program: 0, host: 0 }; ranks])
}

/// The answers to a line, all of them to this rank.
fn answers(world: &mut PmiWorld, rank: usize, line: &str) -> Vec<String> {
    let effects = world.receive(rank, line.as_bytes()).unwrap();
    let lines = effects.into_iter().map(|effect| match effect {
        Effect::Send { rank: to, line } if to == rank => line,
        effect => panic!("{line}: {effect:?}"),
    });
    lines.collect()
}

fn answer(world: &mut PmiWorld, rank: usize, line: &str) -> String {
    let [answer] = answers(world, rank, line).try_into().unwrap();
    answer
}

/// The ranks that get this line.
fn told(effects: &[Effect], wanted: &str) -> Vec<usize> {
    let is_told = |effect: &Effect| match effect {
        Effect::Send { rank, line } => (line == wanted).then_some(*rank),
        _ => None,
    };
    effects.iter().filter_map(is_told).collect()
}

/// Each rank's bytes are those of its values.
fn check_bytes(world: &PmiWorld) {
    let bytes: usize = world.ranks.iter().map(|rank| rank.bytes).sum();
    let cost = |(key, value): (&String, &StoredText)| key.len() + value.text.len() + KEY_OVERHEAD;
    assert_eq!(bytes, world.values.iter().map(cost).sum::<usize>());
}

const PASSED: &str = "cmd=barrier_out rc=0\n";
const REFUSED: &str = "cmd=barrier_out rc=-1 msg=another_rank_has_ended\n";

#[test]
fn each_rank_hears_of_its_program_and_of_hosts() {
    let origins = [(0, 0), (1, 0), (1, 1)].map(|(program, host)| RankOrigin { program, host });
    let mut world = PmiWorld::new("12ab-34cd", &origins);
    for (rank, RankOrigin { program, .. }) in origins.into_iter().enumerate() {
        let expected = format!("cmd=appnum rc=0 appnum={program}\n");
        assert_eq!(answer(&mut world, rank, "cmd=get_appnum"), expected);
    }
    let mapping = answer(&mut world, 2, "cmd=get key=PMI_process_mapping");
    assert!(mapping.ends_with("value=(vector,(0,1,2),(1,1,1))\n"), "{mapping}");
}

#[test]
fn a_rank_of_mpich_starts_and_ends() {
    let mut world = world(1);
    for (request, expected) in [
        (
            "init pmi_version=1 pmi_subversion=1",
            "response_to_init rc=0 pmi_version=1 pmi_subversion=1",
        ),
        ("get_maxes", "maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024"),
        ("get_appnum", "appnum rc=0 appnum=0"),
        ("get_my_kvsname", "my_kvsname rc=0 kvsname=kvs_12ab-34cd"),
        (
            "get kvsname=kvs_12ab-34cd key=PMI_process_mapping",
            "get_result rc=0 msg=success value=(vector,(0,1,1))",
        ),
        ("get kvsname=kvs_12ab-34cd key=PMI_hwloc_xmlfile", "get_result rc=-1 msg=key_not_found"),
        ("put kvsname=kvs_12ab-34cd key=P0-card value=tag#0$conn=x", "put_result rc=0 msg=success"),
        ("barrier_in", "barrier_out rc=0"),
        ("get kvsname=kvs_12ab-34cd key=P0-card", "get_result rc=0 msg=success value=tag#0$conn=x"),
        ("get_universe_size", "universe_size rc=0 size=1"),
        ("finalize", "finalize_ack rc=0"),
        (
            "init pmi_version=1 pmi_subversion=2",
            "response_to_init rc=0 pmi_version=1 pmi_subversion=1",
        ),
    ] {
        let said = answer(&mut world, 0, &format!("cmd={request}"));
        assert_eq!(said, format!("cmd={expected}\n"), "{request}");
    }
}

#[test]
fn ranks_leave_a_barrier_once_all_have_come() {
    let mut world = world(3);
    for round in 0..2 {
        for rank in [2, 0] {
            assert_eq!(answers(&mut world, rank, "cmd=barrier_in"), [""; 0], "{round}");
        }
        let again = answer(&mut world, 2, "cmd=barrier_in");
        assert!(again.starts_with("cmd=barrier_out rc=-1 msg=this_rank_is_in"), "{again}");
        let out = world.receive(1, b"cmd=barrier_in").unwrap();
        assert_eq!(told(&out, PASSED), [0, 1, 2], "{out:?}");
    }
}

#[test]
fn a_barrier_is_refused_to_all_once_a_rank_has_left() {
    let mut world = world(4);
    assert_eq!(world.leave(3), []);
    let out = world.receive(0, b"cmd=barrier_in").unwrap();
    assert_eq!(told(&out, REFUSED), [0]);
    let Effect::Warn(warning) = &out[0] else { panic!("{out:?}") };
    assert!(warning.starts_with("rank 3 left the MPI world"), "{warning}");
    assert!(warning.contains("while rank 0 went on"), "{warning}");
    assert_eq!(answer(&mut world, 1, "cmd=barrier_in"), REFUSED);
    // Old clients of MPICH do not look at the code of a barrier.
    let refused = "cmd=get_result rc=-1 msg=another_rank_has_ended\n";
    assert_eq!(answer(&mut world, 1, "cmd=get key=PMI_process_mapping"), refused);
}

#[test]
fn no_barrier_is_passed_or_refused_once_the_job_has_failed() {
    let mut world = world(4);
    assert_eq!(answers(&mut world, 0, "cmd=barrier_in"), [""; 0]);
    world.end();
    assert_eq!(world.leave(3), []);
    // The rank had started late, and comes to the barrier only now.
    assert_eq!(answers(&mut world, 1, "cmd=barrier_in"), [""; 0]);
    assert_eq!(world.leave(0), []);
    assert_eq!(answers(&mut world, 2, "cmd=barrier_in"), [""; 0]);
    let maxes = answer(&mut world, 1, "cmd=get_maxes");
    assert!(maxes.starts_with("cmd=maxes rc=0 "), "{maxes}");
}

/// MPICH waits in shared memory, where the launcher can't refuse anything.
#[test]
fn the_user_hears_once_of_a_rank_that_others_may_wait_for() {
    let init = "cmd=init pmi_version=1 pmi_subversion=1";
    let is_warning = |effect: &Effect| matches!(effect, Effect::Warn(_));
    // The rank leaves before or after the others have begun, or when they are done.
    let mut before = world(3);
    assert_eq!(before.leave(2), []);
    assert!(before.receive(0, init.as_bytes()).unwrap().iter().any(is_warning));
    answer(&mut before, 1, init);
    let mut after = world(3);
    (0..3).for_each(|rank| drop(answer(&mut after, rank, init)));
    assert!(after.leave(2).iter().all(is_warning));
    assert_eq!(after.leave(1), []);
    let mut done = world(3);
    (0..3).for_each(|rank| drop(answer(&mut done, rank, init)));
    answer(&mut done, 2, "cmd=finalize");
    assert_eq!(done.leave(2), []);
    answer(&mut done, 0, "cmd=finalize");
    assert_eq!(done.leave(1), []);
}

#[test]
fn a_rank_that_leaves_frees_those_that_wait() {
    let mut world = world(4);
    for rank in [0, 1, 3] {
        assert_eq!(answers(&mut world, rank, "cmd=barrier_in"), [""; 0]);
    }
    assert_eq!(told(&world.leave(1), REFUSED), [0, 3]);
    assert_eq!(world.leave(2), []);
}

#[test]
fn a_rank_aborts_the_job_with_a_code_that_is_never_0() {
    for (fields, code) in [
        (" exitcode=7 message=abort", 7),
        (" exitcode=-1 message=PMI_Init failed", 255),
        (" exitcode=300", 44),
        (" exitcode=256", 1),
        (" exitcode=0", 1),
        (" exitcode=x", 1),
        (" exitcode=99999999999999999999", 1),
        ("", 1),
    ] {
        let effects = world(2).receive(1, format!("cmd=abort{fields}").as_bytes()).unwrap();
        assert_eq!(effects, [Effect::Abort(code)], "{fields}");
    }
}

#[test]
fn what_ringrun_does_not_do_is_refused_with_the_name_of_the_answer() {
    let mut world = world(2);
    for (request, name) in [
        ("publish_name service=a port=b", "publish_result"),
        ("unpublish_name service=a", "unpublish_result"),
        ("lookup_name service=a", "lookup_result"),
        ("initack pmiid=1", "error"),
        ("get_node_attr key=a", "error"),
        ("init pmi_version=2 pmi_subversion=0", "response_to_init"),
        ("init", "response_to_init"),
        ("put kvsname=kvs_12ab-34cd value=a", "put_result"),
        ("put kvsname=kvs_other key=a value=a", "put_result"),
        ("put key=PMI_process_mapping value=(vector,(0,2,1))", "put_result"),
        ("get kvsname=kvs_other key=a", "get_result"),
        ("get kvsname=kvs_12ab-34cd", "get_result"),
        ("get key=a", "get_result"),
    ] {
        let said = answer(&mut world, 0, &format!("cmd={request}"));
        assert!(said.starts_with(&format!("cmd={name} rc=-1 msg=")), "{request}: {said}");
        assert!(!said.trim_end().contains("  ") && said.ends_with('\n'), "{said:?}");
    }
}

#[test]
fn a_request_to_spawn_ranks_is_refused_after_its_last_line() {
    let part = |number: &str, of: &str| {
        format!(
            "mcmd=spawn\nnprocs=2\nexecname=/bin/true\ntotspawns={of}\nspawnssofar={number}\n\
             argcnt=1\narg1=cmd=abort\npreput_num=0\nendcmd"
        )
    };
    for text in [part("1", "1"), part("1", "2") + "\n" + &part("2", "2"), part("x", "y")] {
        let mut world = world(2);
        let said: Vec<_> = text.lines().map(|line| answers(&mut world, 1, line)).collect();
        let (last, before) = said.split_last().unwrap();
        assert_eq!(*last, ["cmd=spawn_result rc=-1 msg=ringrun_adds_no_ranks_to_a_job\n"]);
        assert!(before.iter().all(Vec::is_empty), "{before:?}");
        assert_eq!(answer(&mut world, 1, "cmd=finalize"), "cmd=finalize_ack rc=0\n");
    }
}

#[test]
fn a_process_that_was_started_again_has_no_world() {
    let mut world = world(2);
    world.leave(1);
    world.restart(1);
    let init = b"cmd=init pmi_version=1 pmi_subversion=1";
    let first = world.receive(1, init).unwrap();
    assert!(matches!(&first[0], Effect::Warn(why) if why.contains("rank 1 was started again")));
    let refused = "cmd=response_to_init rc=-1 msg=a_rank_that_was_started_again_has_no_MPI_world\n";
    assert_eq!(told(&first, refused), [1]);
    assert_eq!(told(&world.receive(1, init).unwrap(), refused), [1]);
    assert!(answer(&mut world, 1, "cmd=get key=a").contains("rc=-1"));
}

#[test]
fn a_rank_stores_so_much_and_no_more_and_takes_no_other_ranks_room() {
    let mut world = world(2);
    let value = "v".repeat(MAX_VALUE);
    let put = |rank: usize, key: usize| format!("cmd=put key={rank}-{key} value={value}");
    let fits = |said: String| said.starts_with("cmd=put_result rc=0");
    let stored = (0..).take_while(|&key| fits(answer(&mut world, 0, &put(0, key)))).count();
    assert!(stored > 800 && stored < 1024, "{stored}");
    // The last key can be put again, and a key of less.
    assert!(fits(answer(&mut world, 0, &put(0, stored - 1))));
    assert!(fits(answer(&mut world, 0, &format!("cmd=put key=0-{} value=v", stored - 1))));
    assert!(fits(answer(&mut world, 0, "cmd=put key=0-0 value=v")));
    // The values that another rank puts in their place count for that rank.
    for key in 1..stored {
        assert!(fits(answer(&mut world, 1, &put(0, key))), "{key}");
    }
    assert_eq!(world.values.len(), stored);
    assert!(world.ranks[0].bytes < 1000, "{}", world.ranks[0].bytes);
    check_bytes(&world);
    for long in [
        format!("cmd=put key={} value=v", "k".repeat(MAX_KEY + 1)),
        format!("cmd=put key=k value=v{value}"),
    ] {
        assert!(!fits(answer(&mut world, 1, &long)), "{long}");
    }
}

#[test]
fn other_bytes_than_those_of_pmi_are_malformed() {
    for line in [
        &b""[..],
        b"hello",
        b"cmd",
        b"cmd=",
        b"mcmd=",
        b"    26cmd=fullinit;pmirank=0;",
        b"\xff\xfe",
        b"cmd=\x1b[31m",
        b"GET / HTTP/1.1\r",
    ] {
        assert_eq!(world(1).receive(0, line), Err(NotPmi), "{line:?}");
    }
}

#[test]
fn lines_of_any_words_in_any_order_are_answered_or_malformed() {
    let words = [
        "cmd=",
        "mcmd=spawn",
        "cmd=put",
        "cmd=get",
        "cmd=barrier_in",
        "cmd=init",
        "cmd=abort",
        "endcmd",
        "totspawns=3",
        "spawnssofar=",
        "spawnssofar=1",
        " ",
        "=",
        "key=a",
        "key=",
        "\\",
        "value=b",
        "value=",
        "pmi_version=1",
        "exitcode=7",
        "kvsname=kvs_12ab-34cd",
        "\u{e9}",
    ];
    let mut seed = 1_u64;
    let mut draw = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    let (mut answered, mut malformed) = (0, 0);
    for _ in 0..200 {
        let mut world = world(3);
        for _ in 0..100 {
            let rank = draw(3);
            let line: Vec<_> = (0..draw(6)).map(|_| words[draw(words.len())]).collect();
            match world.receive(rank, line.join(["", " "][draw(2)]).as_bytes()) {
                Ok(_) => answered += 1,
                Err(NotPmi) => malformed += 1,
            }
            match draw(100) {
                0 => drop(world.leave(rank)),
                1 => world.restart(rank),
                _ => {}
            }
            assert!(world.waiting.len() < 3);
            check_bytes(&world);
        }
    }
    assert!(answered > 1000 && malformed > 1000, "{answered} {malformed}");
}
