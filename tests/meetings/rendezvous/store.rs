//! The store itself, what only looks like one, and descriptors that change hands.

use super::*;

#[test]
fn a_store_keeps_waits_and_refuses() {
    let _others = with_others();
    let name = abstract_name();
    let server = Server::new().unwrap();
    server.listen_unix(&name).unwrap();
    let any = |ip: std::net::IpAddr| SocketAddr::new(ip, 0);
    let v4 = server.listen_tcp(any(Ipv4Addr::LOCALHOST.into())).unwrap();
    let mut addresses = vec![StoreAddr::Unix(name), v4.to_string().parse().unwrap()];
    match server.listen_tcp(any(Ipv6Addr::LOCALHOST.into())) {
        Ok(v6) => addresses.push(v6.to_string().parse().unwrap()),
        Err(error) => {
            harness::skip(
                "rendezvous::store::a_store_keeps_waits_and_refuses",
                &format!("no IPv6: {error}"),
            );
        }
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    server.adopt(theirs).unwrap();
    let mut clients = vec![server.connect().unwrap(), Store::over(ours, "pair", soon()).unwrap()];
    clients.extend(addresses.iter().map(|address| Store::connect(address, soon()).unwrap()));
    let big = vec![7; 64 << 10];
    for index in 0..clients.len() {
        let key = format!("key {index}");
        assert_eq!(clients[index].get(&key, Instant::now()).unwrap(), None);
        assert_eq!(clients[index].set_new(&key, &big, soon()).unwrap(), None);
        for client in &mut clients {
            assert_eq!(client.set_new(&key, b"other", soon()).unwrap().as_deref(), Some(&*big));
            assert_eq!(client.get(&key, soon()).unwrap().as_deref(), Some(&*big));
        }
    }
    assert!(clients[0].set_new("large", &vec![0; (64 << 10) + 1], soon()).is_err());
    // One waits, another brings it.
    let mut waiting = clients.pop().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(move || waiting.get("late", soon()).unwrap());
        clients[0].set_new("late", b"!", soon()).unwrap();
        assert_eq!(waiter.join().unwrap().as_deref(), Some(&b"!"[..]));
    });
    drop(server);
    let error = clients[0].get("key 0", soon()).unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error}");
}

#[test]
fn each_connection_counts_its_meetings() {
    let _others = with_others();
    let server = Server::new().unwrap();
    let mut ours = Vec::new();
    for _ in 0..2 {
        let (mine, theirs) = UnixStream::pair().unwrap();
        server.adopt(theirs).unwrap();
        ours.push(mine);
    }
    // Each connection has meetings of its own number; values of an older one are out of sight.
    let mut one = Store::over(ours[0].try_clone().unwrap(), "one", soon()).unwrap();
    let mut two = Store::over(ours[1].try_clone().unwrap(), "two", soon()).unwrap();
    one.set_new("key", b"1", soon()).unwrap();
    assert_eq!(two.get("key", soon()).unwrap().as_deref(), Some(&b"1"[..]));
    let mut one = Store::over(ours[0].try_clone().unwrap(), "one", soon()).unwrap();
    assert_eq!(one.set_new("key", b"2", soon()).unwrap(), None);
    assert_eq!(two.get("key", soon()).unwrap().as_deref(), Some(&b"1"[..]));
    let mut two = Store::over(ours[1].try_clone().unwrap(), "two", soon()).unwrap();
    assert_eq!(two.get("key", soon()).unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn stores_that_are_none() {
    let _others = with_others();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: StoreAddr = listener.local_addr().unwrap().to_string().parse().unwrap();
    let mut rank = config(1, 2, &address);
    // It has connected by then, also beside other tests.
    rank.timeout = Duration::from_secs(3);
    let error = meet(&rank).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("silent"), "{error}");
    // One that speaks something else.
    rank.timeout = LONG;
    thread::scope(|scope| {
        scope.spawn(|| {
            // The silent one's connection came first.
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }
        });
        let error = meet(&rank).unwrap_err().to_string();
        assert!(error.contains("does not speak ringreduce's protocol"), "{error}");
    });
    // The port is another program's.
    rank.rank = 0;
    rank.timeout = Duration::from_millis(500);
    let error = meet(&rank).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("another port"), "{error}");
    // The address is another host's (this one is for documentation only).
    let error = meet(&config(0, 2, &"192.0.2.1:7000".parse().unwrap())).unwrap_err().to_string();
    assert!(error.contains("192.0.2.1") && error.contains("no address of this host"), "{error}");
    // The descriptor is closed, or no socket.
    for fd in [i32::MAX, std::fs::File::open("/dev/null").unwrap().as_raw_fd()] {
        let error = meet(&config(0, 2, &StoreAddr::Fd(fd))).unwrap_err();
        assert!(matches!(&error, Error::Store { address, .. } if *address == format!("fd:{fd}")));
    }
}

#[test]
fn an_abstract_name_that_is_taken() {
    let _others = with_others();
    let name = abstract_name();
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _squatter = UnixListener::bind_addr(&address).unwrap();
    let mut rank = config(0, 2, &StoreAddr::Unix(name.clone()));
    rank.timeout = Duration::from_millis(100);
    let error = meet(&rank).unwrap_err().to_string();
    assert!(error.contains(&name), "{error}");
}

#[test]
fn a_descriptor_changes_hands_once() {
    let alone = alone();
    let before = alone.descriptors();
    {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut left, right) = UnixStream::pair().unwrap();
        send_fd(&here, OwnedFd::from(right)).unwrap();
        let right = recv_fd(&there, soon()).unwrap();
        let flags = nix::fcntl::fcntl(right.as_fd(), nix::fcntl::FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags & nix::libc::FD_CLOEXEC, nix::libc::FD_CLOEXEC);
        left.write_all(b"x").unwrap();
        UnixStream::from(right).read_exact(&mut [0]).unwrap();
        let late = recv_fd(&there, Instant::now()).unwrap_err();
        assert_eq!(late.kind(), std::io::ErrorKind::TimedOut);
        // None, and two, are both wrong.
        (&here).write_all(b"x").unwrap();
        assert_eq!(recv_fd(&there, soon()).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
        let fds = [left.as_raw_fd(), left.as_raw_fd()];
        let rights = [nix::sys::socket::ControlMessage::ScmRights(&fds)];
        let byte = [std::io::IoSlice::new(b"x")];
        let flags = MsgFlags::empty();
        nix::sys::socket::sendmsg::<()>(here.as_raw_fd(), &byte, &rights, flags, None).unwrap();
        assert_eq!(recv_fd(&there, soon()).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
        drop(here);
        assert_eq!(recv_fd(&there, soon()).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }
    assert_eq!(alone.descriptors(), before);
}
