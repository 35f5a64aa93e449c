//! The missing, the doubled, the disagreeing, the dead, and strangers.

use super::*;

/// By then all have come who come at all, also beside other tests.
const ALL_COME: Duration = Duration::from_secs(4);

#[test]
fn who_is_missing_is_named_by_all() {
    let _others = with_others();
    let store = unix_store();
    let mut configs = same_world(5, &store, |_| ());
    configs.iter_mut().for_each(|c| c.timeout = ALL_COME);
    let present = configs.into_iter().filter(|c| [0, 2, 4].contains(&c.rank)).collect();
    for (error, reporter) in world(present, |c| (meet(&c).unwrap_err(), c.rank)) {
        let Error::MissingRanks { rank, missing, size, .. } = &error else { panic!("{error}") };
        assert_eq!((*rank, *size, missing.as_slice()), (reporter, 5, &[1, 3][..]), "{error}");
    }
    // Rank 0 is where the others meet: without it there is no store.
    let store = tcp_store();
    let mut alone = config(1, 2, &store);
    alone.timeout = ALL_COME;
    let error = meet(&alone).unwrap_err().to_string();
    assert!(error.contains(&store.to_string()) && error.contains("ank 0 listens there"), "{error}");
}

#[test]
fn a_missing_rank_0_is_named_where_the_launcher_keeps_the_store() {
    let _others = with_others();
    let server = Server::new().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    server.adopt(theirs).unwrap();
    let mut config = config(1, 2, &StoreAddr::Fd(ours.as_raw_fd()));
    config.timeout = ALL_COME;
    match meet(&config).unwrap_err() {
        Error::MissingRanks { rank: 1, missing, size: 2, .. } => assert_eq!(missing, [0]),
        error => panic!("{error}"),
    }
}

#[test]
fn one_rank_twice() {
    let _alone = alone();
    let store = unix_store();
    // Without rank 2 nobody passes before the clash.
    let configs = [0, 1, 1].map(|rank| config(rank, 3, &store)).to_vec();
    for error in world(configs, |c| meet(&c).unwrap_err()) {
        let Error::DuplicateRank { rank: 1, first, second, .. } = &error else { panic!("{error}") };
        let pid = format!("pid {}", std::process::id());
        assert!(first.contains(&pid) && second.contains(&pid), "{error}");
    }
    // Two of rank 0: the second can't listen, and says who does.
    for store in [unix_store(), tcp_store()] {
        let (told, results) = channel();
        thread::scope(|scope| {
            for _ in 0..2 {
                let (told, store) = (told.clone(), &store);
                scope.spawn(move || told.send(meet(&config(0, 2, store)).map(drop)).unwrap());
            }
            let clash = results.recv().unwrap();
            assert!(matches!(clash, Err(Error::DuplicateRank { rank: 0, .. })), "{clash:?}");
            meet(&config(1, 2, &store)).unwrap();
            results.recv().unwrap().unwrap();
        });
    }
}

#[test]
fn ranks_that_disagree() {
    let _others = with_others();
    let change: [fn(&mut Config); 5] = [
        |c| c.size = 4,
        |c| c.size = 2,
        |c| c.transport = Transport::Tcp,
        |c| c.tcp_sockets = 2,
        |c| c.all_pairs = 2,
    ];
    for change in change {
        let mut configs = same_world(3, &unix_store(), |_| ());
        change(&mut configs[1]);
        for error in world(configs, |c| meet(&c).unwrap_err()) {
            let Error::Config { name, .. } = &error else { panic!("{error}") };
            let text = error.to_string();
            assert!(text.contains("rank 1 ") && text.contains("rank 0 "), "{name}: {text}");
        }
    }
}

#[test]
fn a_peer_that_is_gone_is_named() {
    let _others = with_others();
    let quick = |c: &mut Config| c.timeout = ALL_COME;
    let mut meetings = world(same_world(2, &unix_store(), quick), |c| meet(&c).unwrap());
    drop(meetings.pop());
    let pair = PairKey { from: 0, to: 1 };
    let error = meetings[0].connect(&[pair], &[]).unwrap_err().to_string();
    assert!(error.contains("rank 1 ") && error.contains("refuses"), "{error}");
    let error = meetings[0].connect(&[], &[PairKey { from: 1, to: 0 }]).unwrap_err().to_string();
    assert!(error.contains("rank 1 ") && error.contains("did not connect"), "{error}");
    let error = meetings[0].connect(&[PairKey { from: 1, to: 1 }], &[]).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }), "{error}");
}

/// Keeps knocking at `address` with things that no rank says, until `stop`.
fn strangers(address: SocketAddr, stop: &AtomicBool) -> usize {
    let valid_start = b"RRST\x01\x00\x01\x00\x00\x00\x00\x00";
    let hostile_length = [&b"RRST\x01\x00\x02\x00"[..], &[0xff; 16]].concat();
    let words: [&[u8]; 6] =
        [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", &[0xa5; 300], valid_start, &hostile_length];
    let mut silent = Vec::new();
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let _ = stream.write_all(words[count % words.len()]);
        count += 1;
        if count % 2 == 0 && silent.len() < 100 {
            silent.push(stream);
        }
    }
    count
}

#[test]
fn strangers_stop_nobody() {
    let _alone = alone();
    let store = tcp_store();
    let address: SocketAddr = store.to_string().parse().unwrap();
    let forced = |config: &mut Config| config.transport = Transport::Tcp;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || strangers(address, stop));
        let meetings = world(same_world(4, &store, forced), |c| meet(&c).unwrap());
        let doors: Vec<_> = meetings[0].peers.iter().map(|p| p.tcp.unwrap()).collect();
        let knocking: Vec<_> =
            doors.into_iter().map(|door| scope.spawn(move || strangers(door, stop))).collect();
        world_of(meetings, ring_both_ways);
        stop.store(true, Ordering::Relaxed);
        drop(knocking);
    });
}
