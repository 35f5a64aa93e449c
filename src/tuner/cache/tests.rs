//! Files of measured speeds: their texts, their keys, and which starts they keep.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use nix::sched::{CloneFlags, unshare};

use super::{
    FORMAT_LINE, Key, MEASURED_AGAIN_AFTER, Measurements, Peer, STARTS, SpeedCache, SpeedsAreIn,
    agreed, alike, counting, key, network, parse, text,
};

fn measured(speeds: [[f64; 4]; 2]) -> Measurements {
    let mut one = Measurements { speeds, ..Measurements::default() };
    one.tuning.0[1][2][3] = 1.75;
    one
}

#[test]
fn stored_speeds_are_parsed_and_other_texts_are_rejected() {
    let first = measured([[1e-6, 2.5e-7, 1e-10, 0.0], [2e-5, 1e-6, 3e-10, 0.0]]);
    let stored = text(&[first], "4 ranks");
    for starts in 1..=3 {
        let all = vec![first; starts];
        assert_eq!(parse(&text(&all, "4 ranks"), "4 ranks"), Some(all));
    }
    assert_eq!(parse(&text(&[first; 4], "4 ranks"), "4 ranks"), None);
    assert_eq!(parse(&text(&[], "4 ranks"), "4 ranks"), None);
    assert_eq!(parse(&stored, "5 ranks"), None);
    let cut = &stored[..stored.len() - 6];
    let earlier = stored.replace(FORMAT_LINE, "ringreduce speeds 1");
    let longer = format!("{stored}1e0\n");
    for wrong in ["", "\n\n\n", cut, &earlier, &longer, &stored.replace('1', "x")] {
        assert_eq!(parse(wrong, "4 ranks"), None, "{wrong}");
    }
    for wrong in ["-1", "0", "0e0", "-0", "nan", "inf", "1", ""] {
        assert_eq!(parse(&stored.replace("2.5e-7", wrong), "4 ranks"), None, "{wrong}");
    }
}

fn of_latency(latency: f64) -> Measurements {
    measured([[latency, 2e-7, 1e-10, 0.0]; 2])
}

/// A cache whose file in the folder was written long ago, by these starts.
fn old_cache(folder: &Path, starts: &[Measurements; STARTS]) -> SpeedCache {
    let file = folder.join("speeds");
    std::fs::write(&file, text(starts, "4 ranks")).unwrap();
    let cache =
        SpeedCache { key: (Some(file.clone()), "4 ranks".into()), tells: true, is_pair: false };
    assert!(!cache.is_old());
    let long_ago = SystemTime::now() - 2 * MEASURED_AGAIN_AFTER;
    std::fs::File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
    cache
}

#[test]
fn old_measurements_are_renewed_one_start_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second, third, fourth] = [1e-6, 2e-6, 3e-6, 5e-6].map(of_latency);
    let cache = old_cache(folder.path(), &[first, second, third]);
    assert!(cache.is_old());
    assert_eq!(cache.load(), []);
    assert_eq!(cache.store(fourth), third);
    assert_eq!(cache.stored(true), [second, third, fourth]);
    assert!(!cache.is_old());
}

#[test]
fn the_first_starts_are_kept_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let key: Key = (Some(folder.path().join("a/speeds")), "4 ranks".to_owned());
    let cache = SpeedCache { key, tells: true, is_pair: false };
    let starts = [1e-6, 2e-6, 3e-6].map(of_latency);
    for (known, &start) in starts.iter().enumerate() {
        assert_eq!(cache.stored(true), starts[..known]);
        // The first speeds that this process stored count for it from then on.
        assert_eq!(cache.store(start), starts[0]);
    }
    assert_eq!(cache.stored(true), starts);
}

/// Lets nobody write in the folder: this thread alone if root, whom permissions do not bind. An
/// error where root may not mount.
fn make_read_only(folder: &str) -> Result<(), String> {
    let run = |program: &str, words: &[&str]| {
        let done = Command::new(program).args(words).output().map_err(|e| e.to_string())?;
        let errors = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() { Ok(()) } else { Err(errors) }
    };
    if !nix::unistd::geteuid().is_root() {
        return run("chmod", &["u-w", folder]);
    }
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| errno.to_string())?;
    run("mount", &["-n", "--make-rprivate", "/"])?;
    run("mount", &["-n", "--bind", folder, folder])?;
    run("mount", &["-n", "-o", "remount,bind,ro", folder])
}

#[test]
fn old_measurements_count_on_where_no_others_can_be_stored() {
    let folder = tempfile::tempdir().unwrap();
    let starts = [1e-6, 2e-6, 3e-6].map(of_latency);
    let cache = old_cache(folder.path(), &starts);
    assert_eq!(cache.load(), []);
    let test = || match make_read_only(folder.path().to_str().unwrap()) {
        Ok(()) => assert_eq!(counting(&cache.load(), None), Some(starts[1])),
        Err(why) => {
            let test =
                "tuner::cache::tests::old_measurements_count_on_where_no_others_can_be_stored";
            std::io::stderr().write_all(format!("SKIP {test}: {why}\n").as_bytes()).unwrap();
        }
    };
    std::thread::scope(|scope| scope.spawn(test).join().unwrap());
}

#[test]
fn other_ranks_links_and_networks_have_other_files() {
    let ranks = |hosts: &[&str]| {
        let peer = |(rank, host): (usize, &&str)| Peer { rank, host: (*host).into(), pid: 1 };
        hosts.iter().enumerate().map(peer).collect::<Vec<_>>()
    };
    let at = |folder: &str, address: &str| {
        SpeedsAreIn::Folder(Some(folder.into()), Some(address.parse().unwrap()))
    };
    let known = key(&ranks(&["a", "a", "a", "b"]), &["shm", "tcp"], &at("/f", "10.77.0.1"));
    assert!(known.1.starts_with("3+1 ranks, ") && known.1.contains(", shm+tcp, 10.77.0.0/24"));
    let (all, kinds) = (ranks(&["a", "a", "a", "b"]), &["shm", "tcp"][..]);
    // Another host of the same network, and another order of the ranks.
    assert_eq!(key(&all, kinds, &at("/f", "10.77.0.9")), known);
    assert_eq!(key(&ranks(&["a", "b", "a", "a"]), kinds, &at("/f", "10.77.0.1")), known);
    for other in [
        key(&all, kinds, &at("/f", "10.78.0.1")),
        key(&ranks(&["a", "a", "b", "b"]), kinds, &at("/f", "10.77.0.1")),
        key(&ranks(&["a", "a", "b", "c"]), kinds, &at("/f", "10.77.0.1")),
        key(&all, &["tcp"], &at("/f", "10.77.0.1")),
        key(&all, kinds, &SpeedsAreIn::Folder(Some("/f".into()), None)),
    ] {
        assert_ne!(other.1, known.1);
        let [file, known_file] = [&other.0, &known.0].map(|file| file.as_deref().unwrap());
        assert!(file != known_file && file.parent() == Some(Path::new("/f")), "{file:?}");
    }
    assert_eq!(key(&all, kinds, &SpeedsAreIn::Process).0, None);
}

#[test]
fn a_network_is_the_first_part_of_an_address() {
    let of = |address: &str| network(address.parse().unwrap());
    assert_eq!(of("10.77.3.9"), "10.77.3.0/24");
    assert_eq!(of("fd00:1:2:3:4::9"), "fd00:1:2:3::/64");
}

#[test]
fn the_start_in_the_middle_counts_whole() {
    let quiet = measured([[1e-6, 2e-7, 1e-10, 0.0]; 2]);
    let mut busy = measured([[1e-3, 1e-9, 1e-6, 1e-6]; 2]);
    busy.tuning.0.as_flattened_mut().as_flattened_mut().fill(9.0);
    let lucky = measured([[9e-7, 2e-7, 1e-10, 0.0]; 2]);
    for all in [[quiet, lucky, busy], [busy, quiet, lucky], [lucky, busy, quiet]] {
        assert_eq!(agreed(&all), quiet);
    }
    assert_eq!([agreed(&[busy]), agreed(&[busy, quiet])], [busy, quiet]);
}

#[test]
fn of_two_ranks_the_starts_count_whose_barriers_took_as_long_as_one_does_now() {
    // A barrier is a latency and two steps: 0.23, 0.36 and 4.8 us.
    let [near, far, busy] = [[3e-8, 1e-7], [1.4e-7, 1.1e-7], [4e-6, 4e-7]]
        .map(|[latency, step]| measured([[latency, step, 1e-10, 0.0]; 2]));
    let all = [busy, far, near];
    for (now, expected) in
        [(2.2e-7, &[near][..]), (3.9e-7, &[far]), (1.2e-7, &[near]), (4e-6, &[busy])]
    {
        assert_eq!(alike(&all, Some(now)), expected, "{now}");
    }
    // Nothing is like a stopped machine.
    for now in [Some(1e-3), Some(0.0), None] {
        assert_eq!(alike(&all, now), all);
    }
    assert_eq!(alike(&[near; 3], Some(3e-7)), [near; 3]);
    assert_eq!(counting(&all, Some(2.2e-7)), Some(near));
    assert_eq!(counting(&[], Some(2.2e-7)), None);
}

#[test]
fn a_start_of_two_ranks_that_measures_takes_what_is_like_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let [near, far] = [[3e-8, 1e-7], [1.4e-7, 1.1e-7]]
        .map(|[latency, step]| measured([[latency, step, 1e-10, 0.0]; 2]));
    for is_pair in [false, true] {
        let key: Key = (Some(folder.path().join(is_pair.to_string())), is_pair.to_string());
        std::fs::write(key.0.as_ref().unwrap(), text(&[near, near], &key.1)).unwrap();
        let cache = SpeedCache { key, tells: true, is_pair };
        assert_eq!(cache.store(far), if is_pair { far } else { near });
    }
}
