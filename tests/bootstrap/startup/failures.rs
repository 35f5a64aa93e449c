//! Ranks that are missing, duplicate, in disagreement or dead.

use super::*;

/// Long enough for all ranks that are started to connect, also beside other tests.
const ALL_CONNECTED: Duration = Duration::from_secs(4);

#[test]
fn a_missing_rank_is_named_by_every_peer() {
    let _concurrent = concurrent();
    let store = unix_store();
    let mut configs = configs(5, &store, |_| ());
    configs.iter_mut().for_each(|c| c.timeout = ALL_CONNECTED);
    let present = configs.into_iter().filter(|c| [0, 2, 4].contains(&c.rank));
    for (error, reporter) in
        in_threads(present, |c| (rendezvous_and_release(&c).unwrap_err(), c.rank))
    {
        let Error::MissingRanks { rank, missing, size, .. } = &error else { panic!("{error}") };
        assert_eq!((*rank, *size, missing.as_slice()), (reporter, 5, &[1, 3][..]), "{error}");
    }
    // Rank 0 serves the store: without rank 0 there is none.
    let store = tcp_store();
    let mut alone = config(1, 2, &store);
    alone.timeout = ALL_CONNECTED;
    let error = rendezvous_and_release(&alone).unwrap_err().to_string();
    assert!(error.contains(&store.to_string()) && error.contains("ank 0 listens there"), "{error}");
}

#[test]
fn a_missing_rank_0_is_named_where_the_launcher_serves_the_store() {
    let _concurrent = concurrent();
    let server = Server::new().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    server.adopt(theirs).unwrap();
    let mut config = config(1, 2, &StoreAddr::Fd(ours.as_raw_fd()));
    config.timeout = ALL_CONNECTED;
    match rendezvous_and_release(&config).unwrap_err() {
        Error::MissingRanks { rank: 1, missing, size: 2, .. } => assert_eq!(missing, [0]),
        error => panic!("{error}"),
    }
}

#[test]
fn a_duplicate_rank_is_named_by_every_peer() {
    let _exclusive = exclusive();
    let store = unix_store();
    // Without rank 2 no rank gets through before the conflict is seen.
    let configs = [0, 1, 1].map(|rank| config(rank, 3, &store)).to_vec();
    for error in in_threads(configs, |c| rendezvous_and_release(&c).unwrap_err()) {
        let Error::DuplicateRank { rank: 1, first, second, .. } = &error else { panic!("{error}") };
        let pid = format!("pid {}", std::process::id());
        assert!(first.contains(&pid) && second.contains(&pid), "{error}");
    }
    // Two processes are rank 0: the second one can't listen, and names the first one.
    for store in [unix_store(), tcp_store()] {
        let (sender, results) = channel();
        thread::scope(|scope| {
            for _ in 0..2 {
                let (sender, store) = (sender.clone(), &store);
                scope.spawn(move || {
                    sender.send(rendezvous_and_release(&config(0, 2, store)).map(drop)).unwrap()
                });
            }
            let conflict = results.recv().unwrap();
            assert!(matches!(conflict, Err(Error::DuplicateRank { rank: 0, .. })), "{conflict:?}");
            rendezvous_and_release(&config(1, 2, &store)).unwrap();
            results.recv().unwrap().unwrap();
        });
    }
}

#[test]
fn ranks_whose_settings_differ_name_both() {
    let _concurrent = concurrent();
    let change: [fn(&mut Config); 5] = [
        |c| c.size = 4,
        |c| c.size = 2,
        |c| c.transport = Transport::Tcp,
        |c| c.tcp_sockets = 2,
        |c| c.all_pairs = 2,
    ];
    for change in change {
        let mut configs = configs(3, &unix_store(), |_| ());
        change(&mut configs[1]);
        for error in in_threads(configs, |c| rendezvous_and_release(&c).unwrap_err()) {
            let Error::Config { name, .. } = &error else { panic!("{error}") };
            let text = error.to_string();
            assert!(text.contains("rank 1 ") && text.contains("rank 0 "), "{name}: {text}");
        }
    }
}

#[test]
fn a_setting_that_is_wrong_at_one_rank_is_named_as_that_ranks() {
    let _concurrent = concurrent();
    for wrong in [0, 2] {
        let mut configs = configs(3, &unix_store(), |config| config.transport = Transport::Tcp);
        configs[wrong].interface = Some("nosuch0".into());
        let errors = in_threads(configs, |config| rendezvous_and_release(&config).unwrap_err());
        for (rank, error) in errors.iter().enumerate() {
            let text = error.to_string();
            assert!(text.contains("RINGREDUCE_IFNAME=\"nosuch0\""), "rank {rank}: {text}");
            assert_eq!(matches!(error, Error::Config { .. }), rank == wrong, "{text}");
            let owner = format!("rank {wrong} (host ");
            assert_eq!(text.contains(&owner), rank != wrong, "rank {rank}: {text}");
            assert_eq!(text.contains("it gave up: "), rank != wrong, "rank {rank}: {text}");
        }
    }
}

#[test]
fn a_peer_that_has_left_is_named_by_connect() {
    let _concurrent = concurrent();
    let quick = |c: &mut Config| c.timeout = ALL_CONNECTED;
    // The lower rank of a pair dials.
    let mut meetings =
        in_threads(configs(2, &unix_store(), quick), |c| rendezvous_and_release(&c).unwrap());
    drop(meetings.remove(0));
    let error = meetings[0].connect(&[0]).unwrap_err().to_string();
    assert!(error.contains("rank 0 ") && error.contains("did not connect"), "{error}");
    let mut meetings =
        in_threads(configs(2, &unix_store(), quick), |c| rendezvous_and_release(&c).unwrap());
    drop(meetings.pop());
    let error = meetings[0].connect(&[1]).unwrap_err().to_string();
    assert!(error.contains("rank 1 ") && error.contains("refuses"), "{error}");
    let error = meetings[0].connect(&[0]).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }), "{error}");
}
