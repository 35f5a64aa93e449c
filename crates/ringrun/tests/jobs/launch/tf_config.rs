//! `TF_CONFIG`, by which the workers of TensorFlow meet.

use std::collections::HashSet;

use serde_json::Value;

use crate::harness::{AS_IS, Ended, run_under};

/// Prints the variable, with the rank before it.
pub(crate) const PRINT: &str = "echo \"$RANK ${TF_CONFIG-none}\"";

/// The list of workers, which all ranks have alike, with the place of each rank in it.
pub(crate) fn workers_of(ended: &Ended) -> Vec<String> {
    let mut found = None;
    for line in ended.out.lines() {
        let (rank, text) = line.split_once(' ').unwrap();
        let value: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{ended:?}"));
        let index: u64 = rank.parse().unwrap();
        assert_eq!(value["task"]["type"], "worker", "{ended:?}");
        assert_eq!(value["task"]["index"], index, "{ended:?}");
        let workers: Vec<String> =
            serde_json::from_value(value["cluster"]["worker"].clone()).unwrap();
        assert_eq!(*found.get_or_insert_with(|| workers.clone()), workers, "{ended:?}");
    }
    let workers = found.unwrap();
    assert_eq!(workers.len(), ended.out.lines().count(), "{ended:?}");
    let ports: HashSet<u16> = workers.iter().map(|it| host_and_port(it).1).collect();
    assert!(ports.len() == workers.len() && !ports.contains(&0), "{ended:?}");
    workers
}

pub(crate) fn host_and_port(worker: &str) -> (&str, u16) {
    let (host, port) = worker.rsplit_once(':').unwrap();
    (host, port.parse().unwrap())
}

#[test]
fn ranks_of_one_host_are_workers_at_loopback() {
    for ranks in ["1", "3"] {
        let shell = format!("unset TF_CONFIG; {AS_IS}");
        let ran = run_under(&shell, &["-n", ranks, "sh", "-c", PRINT]);
        let workers = workers_of(&ran);
        assert_eq!((ran.code, workers.len().to_string().as_str()), (0, ranks), "{ran:?}");
        assert!(workers.iter().all(|it| host_and_port(it).0 == "127.0.0.1"), "{ran:?}");
    }
}

#[test]
fn a_value_of_the_user_stays_and_one_of_an_outer_job_does_not() {
    let given = format!("export TF_CONFIG=own; {AS_IS}");
    let print = ["sh", "-c", PRINT];
    let of = |shell: &str, options: &[&str]| run_under(shell, &[options, &print].concat());
    assert_eq!(of(&given, &["-n", "2"]).sorted(), ["0 own", "1 own"]);
    let without = format!("unset TF_CONFIG; {AS_IS}");
    assert_eq!(of(&without, &["-n", "1", "-x", "TF_CONFIG={}"]).out, "0 {}\n");
    let outer = format!("export RINGREDUCE_RANK=1 RINGREDUCE_SIZE=2; {given}");
    assert_eq!(workers_of(&of(&outer, &["--nested", "-n", "2"])).len(), 2);
    let again = ["--nested", "-n", "1", "-x", "TF_CONFIG=x"];
    assert_eq!(of(&outer, &again).out, "0 x\n");
}
