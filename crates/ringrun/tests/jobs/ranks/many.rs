//! Many more ranks than CPUs: all of them meet and make calls, and none is starved by those that
//! wait for it.

use crate::harness::{ringbench, run};

#[test]
fn many_more_ranks_than_cpus_meet_and_make_calls() {
    let ranks = ::harness::share::count(128, 1024).to_string();
    let ended = run(&["-n", &ranks, &ringbench(), "barrier", "--iters", "3"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.out.contains("# Collective test concluded: barrier"), "{ended:?}");
}
