//! `ringrun plan`: its table, files and errors.

use ringreduce::schedule::Collective;

use crate::harness::{Ended, run};

fn plan(options: &str) -> Ended {
    run(&["plan"].into_iter().chain(options.split_whitespace()).collect::<Vec<_>>())
}

/// The table's lines, without its header.
fn rows(ran: &Ended) -> Vec<String> {
    assert_eq!(ran.code, 0, "{}", ran.err);
    let text = &ran.out;
    let table = text.lines().skip_while(|line| !line.contains("algorithm")).skip(1);
    table.map(str::to_owned).collect()
}

#[test]
fn the_table_has_a_row_for_each_size() {
    let ran = plan("-np 4096 --hosts 512 --op all_reduce -b 8 -e 1G");
    let rows = rows(&ran);
    assert_eq!(rows.len(), 28);
    assert!(rows[0].contains("8 B") && rows[27].contains("1 GiB"), "{rows:?}");
    assert!(!rows[0].contains(" ring "), "{}", rows[0]);
    assert!(rows.iter().all(|row| row.contains("cheapest; then")), "{rows:?}");
    assert!(ran.out.contains("4096 ranks on 512 hosts"), "{}", ran.out);
}

#[test]
fn the_plan_follows_the_stated_speeds() {
    let chosen = |speeds: &str| {
        let row = rows(&plan(&format!("-n 16 -b 1M -e 1M --host-latency {speeds}")))[0].clone();
        row.split_whitespace().nth(2).unwrap().to_owned()
    };
    assert_eq!(chosen("0us --host-step 0us --host-bandwidth 1MB/s"), "ring");
    assert_ne!(chosen("1s"), "ring");
    let forced = rows(&plan("-n 16 -b 8 -e 8 --algo ring"));
    assert!(forced[0].contains(" ring ") && forced[0].contains("asked for"), "{forced:?}");
}

#[test]
fn a_page_and_json_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let [page, json] = ["plan.html", "plan.json"].map(|name| folder.path().join(name));
    let files = format!("--html {} --json {}", page.display(), json.display());
    let ran = plan(&format!("-n 8 --hosts 2 -b 64 -e 64K -f 32 {files}"));
    assert_eq!(rows(&ran).len(), 3);
    let page = std::fs::read_to_string(page).unwrap();
    for part in ["class=\"ring small\"", "class=\"far\"", "rank 7", "class=\"reduce\"", "</html>"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<script") && !page.contains("http"), "it needs something else");
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!((&json["ranks"], &json["rows"][2]["bytes"]), (&8.into(), &65_536.into()));
    assert!(json["rows"][0]["seconds"].as_f64().unwrap() > 0.0);
    // The page has no timeline of thousands of ranks.
    let large = folder.path().join("large.html");
    plan(&format!("-n 4096 --hosts 512 -b 8 -e 8 --html {}", large.display()));
    let large = std::fs::read_to_string(large).unwrap();
    assert!(large.contains("h0-7") && large.contains("at most 32 ranks"), "{}", large.len());
}

#[test]
fn a_wrong_value_names_the_flag() {
    for (options, named) in [
        ("", "--np"),
        ("-n 0", "a job has at least one rank"),
        ("-n -1", "expected a number of ranks, such as 4"),
        ("-n 4294967296", "4294967295 ranks at most"),
        ("-n 8 --hosts 3", "--hosts 3"),
        ("-n 8 --hosts 4,,4", "--hosts"),
        ("-n 4 --op sum", "all_reduce, reduce_scatter"),
        ("-n 4 -b 1M -e 1K", "-b 1048576"),
        ("-n 4 -b 0", "-b 0"),
        ("-n 4 -f 0", "--stepfactor"),
        ("-n 4 --latency 20us", "--host-latency"),
        ("-n 4 --step 2us", "--hosts"),
        ("-n 4 --hosts 4 --host-bandwidth 1GB/s", "--bandwidth"),
        ("-n 4 -f 1", "--stepfactor"),
        ("-n 4 -b x", "--minbytes"),
        ("-n 4 --dtype floaty", "floaty"),
        ("-n 4 --algo rings", "rings"),
        ("-n 4 --hosts 2 --bandwidth 0GB/s", "--bandwidth"),
        ("-n 4 --op broadcast --root 4", "--root 4"),
        ("-n 9999 --op all_to_all", "relayed"),
        ("-n 65536 --op all_to_all", "it does with -n "),
        ("-n 4 --nonsense", "--nonsense"),
        ("-n 4 program", "program"),
    ] {
        let ran = plan(options);
        assert_eq!(ran.code, 2, "{options}: {}", ran.err);
        assert!(ran.out.is_empty() && ran.err.contains(named), "{options}: {}", ran.err);
    }
    let ran = plan("-n 4 -e 8 --html /nowhere/plan.html");
    assert!(ran.code == 1 && ran.err.contains("/nowhere/plan.html"), "{}", ran.err);
}

#[test]
fn the_table_names_transports_and_algorithms_that_cannot_make_the_call() {
    for (world, over) in [("-n 4", "shm"), ("-n 4 --hosts 4", "tcp"), ("-n 8 --hosts 2", "shm+tcp")]
    {
        let rows = rows(&plan(&format!("{world} -b 8 -e 64")));
        assert!(rows.iter().all(|row| row.split_whitespace().nth(3) == Some(over)), "{rows:?}");
    }
    let rows = rows(&plan("-n 8 --hosts 2 -b 64 -e 64 --op scan --algo bruck"));
    assert!(rows[0].contains("bruck can't make it; "), "{rows:?}");
}

/// Every collective has a predicted time, on one host and on several, in small and in large worlds;
/// and the table ends with the largest buffers that can be addressed.
#[test]
fn every_collective_has_a_predicted_time() {
    for op in Collective::all(1).into_iter().map(Collective::name) {
        for world in ["-n 5", "-n 8 --hosts 2", "-n 20 --hosts 8,8,4", "-n 96 --hosts 12"] {
            for row in rows(&plan(&format!("{world} --op {op} -b 8 -e 64M -f 64"))) {
                assert!(!row.contains('?'), "{op} {world}: {row}");
            }
        }
    }
    let rows = rows(&plan("-n 3 -b 1G -e 8589934591G -f 4294967295"));
    assert_eq!(rows.len(), 2, "{rows:?}");
}
