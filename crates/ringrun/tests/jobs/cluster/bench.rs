//! ringbench over hosts: the bytes between them, and what their network allows.

use std::fs;
use std::process::Stdio;

use ::harness::cluster::{Cluster, SSH};
use serde_json::Value;

use super::{FOUR, Running, cluster, start};
use crate::harness::{Ended, PATIENCE, Process, all_end, ringbench};
use crate::job::Job;

/// Runs `ringrun -H HOSTS ringbench WORDS --json FILE`, and reads the file.
fn bench(cluster: &Cluster, hosts: &str, words: &str) -> (Ended, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.json");
    let (program, path) = (ringbench(), file.to_str().unwrap());
    let words = [&program[..]].into_iter().chain(words.split(' ')).chain(["--json", path]);
    let ended = start(cluster, hosts, &words.collect::<Vec<_>>(), Stdio::null()).finish();
    assert_eq!(ended.code, 0, "{ended:?}");
    let json = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    (ended, json)
}

/// A ring of n ranks sends 2(n-1)/n of the buffer over each of its links, and so from each host; a
/// hierarchical one 2(H-1)/H, however many ranks the H hosts have.
#[test]
fn bytes_between_hosts_are_those_of_the_schedule() {
    let test = "bench::bytes_between_hosts_are_those_of_the_schedule";
    let Some(cluster) = cluster(test, 3) else { return };
    for (hosts, algorithm, factor) in [
        ("h0:2,h1:2", "ring", 1.5),
        ("h0:2,h1:2", "hierarchical", 1.0),
        ("h0:2,h1:2,h2:2", "hierarchical", 4.0 / 3.0),
        ("h1:1,h2:1", "ring", 1.0),
    ] {
        let words = format!("all_reduce -b 3M -e 3M -n 4 --algorithm {algorithm}");
        let (ended, json) = bench(&cluster, hosts, &words);
        let row = &json["rows"][0];
        let size = row["size"].as_f64().unwrap();
        let network = &row["network"];
        for host in network["hosts"].as_array().unwrap() {
            let expected = host["expected"].as_f64().unwrap();
            assert!((expected / size - factor).abs() < 0.001, "{hosts}: {row}");
            assert_eq!(host["interface"], "eth0", "{hosts}: {row}");
            // With headers and acknowledgements; segments that are sent again count twice.
            let sent = host["sent"].as_f64().unwrap();
            assert!((0.95..1.5).contains(&(sent / expected)), "{hosts}: {row}");
        }
        let count = hosts.split(',').count();
        assert_eq!(network["links"].as_array().unwrap().len(), count, "{hosts}: {row}");
        for part in ["  network  ", "# network, bytes of a call of 3 MiB:", "eth0 sent"] {
            assert!(ended.out.contains(part), "{part}: {ended:?}");
        }
    }
}

#[test]
fn all_collectives_have_their_bytes_between_hosts() {
    let test = "bench::all_collectives_have_their_bytes_between_hosts";
    let Some(cluster) = cluster(test, 2) else { return };
    // Bytes of the busier host by bytes of the buffer; only a tree's root or its peer sends.
    for (collective, factor) in [
        ("reduce_scatter", 0.5),
        ("all_gather", 0.5),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("all_to_all", 0.5),
        ("send_recv", 1.0),
    ] {
        let (_, json) = bench(&cluster, "h0,h1", &format!("{collective} -b 1M -e 1M -n 2"));
        let hosts = json["rows"][0]["network"]["hosts"].as_array().unwrap();
        let expected = hosts.iter().filter_map(|host| host["expected"].as_f64());
        let most = expected.fold(0.0, f64::max);
        assert_eq!(most, factor * f64::from(1 << 20), "{collective}: {json}");
    }
    let (_, json) = bench(&cluster, "h0,h1", "barrier -n 2");
    assert_eq!(json["rows"][0]["network"]["hosts"][0]["expected"], 1, "{json}");
    let (ended, json) = bench(&cluster, "h0:2", "all_reduce -e 8 -n 2");
    assert!(json["rows"][0].get("network").is_none(), "{json}");
    assert!(!ended.out.contains("network"), "{ended:?}");
}

/// The figures depend on the machine's load, but a cable carries no more than its rate, and the
/// load takes less than three quarters of that.
#[test]
fn limits_are_those_of_the_cables() {
    let Some(cluster) = cluster("bench::limits_are_those_of_the_cables", 3) else { return };
    cluster.set_rate("200mbit");
    let page = tempfile::NamedTempFile::new().unwrap();
    let words = format!("limits --html {}", page.path().display());
    let (ended, json) = bench(&cluster, "h0:2,h1:1,h2:1", &words);
    let links = json["links"].as_array().unwrap();
    let names = links.iter().map(|link| format!("{} to {}", link["from"], link["to"]));
    let names: Vec<_> = names.map(|name| name.replace('"', "")).collect();
    assert_eq!(names, ["h0 to h1", "h1 to h2", "h2 to h0"]);
    for link in links {
        let figure = |value: &Value| value.as_f64().unwrap();
        assert!(figure(&link["round_trip_us"]) > 0.0, "{link}");
        assert!(link["round_trip_p99_us"].as_f64() >= link["round_trip_us"].as_f64(), "{link}");
        let rates = link["rates"].as_array().unwrap();
        let streams: Vec<_> = rates.iter().map(|rate| figure(&rate["streams"])).collect();
        assert_eq!(streams, [1.0, 2.0, 4.0], "{link}");
        assert!(link["address"].as_str().unwrap().starts_with("10.77.0."), "{link}");
        for rate in rates {
            let gbit_per_s = figure(&rate["gbit_per_s"]);
            assert!(gbit_per_s > 0.05 && gbit_per_s < 1.2 * 0.2, "{link}");
            assert!(figure(&rate["sender_cpu_percent"]) > 0.0, "{link}");
            assert!(figure(&rate["receiver_cpu_percent"]) > 0.0, "{link}");
        }
    }
    for name in names {
        assert_eq!(ended.out.matches(&name).count(), 4, "{ended:?}");
    }
    let page = fs::read_to_string(page.path()).unwrap();
    assert_eq!(page.matches("class=\"link\"").count(), 3, "{page}");
}

/// Of a host's networks the one counts whose address reached the store, though another comes first.
#[test]
fn limits_are_those_of_the_network_that_the_ranks_use() {
    let test = "bench::limits_are_those_of_the_network_that_the_ranks_use";
    let Some(cluster) = cluster(test, 2) else { return };
    cluster.add_cable();
    let job = Job::new();
    let file = tempfile::NamedTempFile::new().unwrap();
    let program = ringbench();
    let rank = |rank: usize| {
        let mut command = job.rank(&program, rank, 2, "10.78.0.1:7000");
        command.arg("limits").env("RINGREDUCE_CACHE", "off");
        if rank == 0 {
            command.arg("--json").arg(file.path());
        }
        Process::start_on(&cluster.hosts[rank], &command, Stdio::null())
    };
    let ended = all_end(vec![rank(0), rank(1)], PATIENCE);
    assert!(ended.iter().all(|rank| rank.code == 0), "{ended:?}");
    job.left_nothing();
    let json: Value = serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap();
    let addresses = [&json["links"][0]["address"], &json["links"][1]["address"]];
    assert_eq!(addresses, ["10.78.0.2", "10.78.0.1"], "{json}");
    for address in ["10.78.0.2\n", "10.78.0.1\n"] {
        assert!(ended[0].out.contains(address), "{ended:?}");
    }
}

#[test]
fn limits_of_a_host_are_measured_once_and_say_what_they_lack() {
    let test = "bench::limits_of_a_host_are_measured_once_and_say_what_they_lack";
    let Some(cluster) = cluster(test, 2) else { return };
    let run = |hosts: &str, words: &[&str]| {
        let program = ringbench();
        let words: Vec<_> = [&program[..], "limits"].iter().chain(words).copied().collect();
        start(&cluster, hosts, &words, Stdio::null()).finish()
    };
    let ended = run("h0:2", &["hand_over"]);
    assert_eq!((ended.code, ended.out.matches(" CPUs\n").count()), (0, 1), "{ended:?}");
    let ended = run("h0,h1", &["memory"]);
    assert_eq!((ended.code, &ended.out[..]), (1, ""), "{ended:?}");
    assert!(ended.err.contains("between hosts there is the network alone"), "{ended:?}");
    let ended = run("h0:2", &["hand_over", "--html", "/run/page.html"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.err.contains("name several, as in -H node1,node2"), "{ended:?}");
}

/// No ringrun is named: ringbench is the launcher, the agent and each rank.
#[test]
fn ringbench_starts_itself_on_hosts() {
    let Some(cluster) = cluster("bench::ringbench_starts_itself_on_hosts", 2) else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    let run = |words: &str| {
        let job = Job::new();
        let mut command = job.command(&ringbench());
        command.args(words.split(' ')).args(["-H", FOUR, "--rsh", SSH, "--json"]).arg(file.path());
        command.env_remove("RINGREDUCE_INSECURE");
        let process = Process::start_on(&cluster.hosts[0], &command, Stdio::null());
        let ended = Running { process, job, cluster: &cluster }.finish();
        assert_eq!(ended.code, 0, "{words}: {ended:?}");
        serde_json::from_slice::<Value>(&fs::read(file.path()).unwrap()).unwrap()
    };
    let json = run("all_reduce -b 1M -e 1M -n 2");
    assert_eq!(json["ranks"], 4, "{json}");
    assert_eq!(json["rows"][0]["network"]["hosts"].as_array().unwrap().len(), 2, "{json}");
    let json = run("limits");
    assert_eq!((&json["links"][0]["from"], &json["links"][0]["to"]), (&"h0".into(), &"h1".into()));
    let words = [&ringbench()[..], "limits", "-H", "h1"];
    let ended = start(&cluster, "h0:1,h1:1", &words, Stdio::null()).finish();
    assert!(ended.code > 0 && ended.err.contains("leave -H out"), "{ended:?}");
}
