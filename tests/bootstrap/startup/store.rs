//! The store, servers that are no store, and the passing of descriptors.

use super::*;

#[test]
fn a_store_keeps_the_first_value_of_a_key_and_serves_waiting_clients() {
    let _concurrent = concurrent();
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
                "startup::store::a_store_keeps_the_first_value_of_a_key_and_serves_waiting_clients",
                &format!("no IPv6: {error}"),
            );
        }
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    server.adopt(theirs).unwrap();
    let mut clients =
        vec![server.connect().unwrap(), Store::over_stream(ours, "pair", deadline()).unwrap()];
    clients.extend(addresses.iter().map(|address| Store::connect(address, deadline()).unwrap()));
    let big = vec![7; 128 << 10];
    for index in 0..clients.len() {
        let key = format!("key {index}");
        assert_eq!(clients[index].get(&key, Instant::now()).unwrap(), None);
        assert_eq!(clients[index].set_new(&key, &big, deadline()).unwrap(), None);
        for client in &mut clients {
            assert_eq!(client.set_new(&key, b"other", deadline()).unwrap().as_deref(), Some(&*big));
            assert_eq!(client.get(&key, deadline()).unwrap().as_deref(), Some(&*big));
        }
    }
    assert!(clients[0].set_new("large", &vec![0; (128 << 10) + 1], deadline()).is_err());
    // One client waits for a value that another one sets.
    let mut waiting = clients.pop().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(move || waiting.get("late", deadline()).unwrap());
        clients[0].set_new("late", b"!", deadline()).unwrap();
        assert_eq!(waiter.join().unwrap().as_deref(), Some(&b"!"[..]));
    });
    drop(server);
    let error = clients[0].get("key 0", deadline()).unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error}");
}

#[test]
fn a_connection_sees_only_values_of_its_own_generation() {
    let _concurrent = concurrent();
    let server = Server::new().unwrap();
    let mut ours = Vec::new();
    for _ in 0..2 {
        let (mine, theirs) = UnixStream::pair().unwrap();
        server.adopt(theirs).unwrap();
        ours.push(mine);
    }
    // A connection begins a new generation of keys each time it is opened as a store.
    let mut one = Store::over_stream(ours[0].try_clone().unwrap(), "one", deadline()).unwrap();
    let mut two = Store::over_stream(ours[1].try_clone().unwrap(), "two", deadline()).unwrap();
    one.set_new("key", b"1", deadline()).unwrap();
    assert_eq!(two.get("key", deadline()).unwrap().as_deref(), Some(&b"1"[..]));
    let mut one = Store::over_stream(ours[0].try_clone().unwrap(), "one", deadline()).unwrap();
    assert_eq!(one.set_new("key", b"2", deadline()).unwrap(), None);
    assert_eq!(two.get("key", deadline()).unwrap().as_deref(), Some(&b"1"[..]));
    let mut two = Store::over_stream(ours[1].try_clone().unwrap(), "two", deadline()).unwrap();
    assert_eq!(two.get("key", deadline()).unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn an_address_that_serves_no_store_is_named_with_the_reason() {
    let _concurrent = concurrent();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: StoreAddr = listener.local_addr().unwrap().to_string().parse().unwrap();
    let mut rank = config(1, 2, &address);
    // Long enough to connect, also beside other tests; the listener then stays silent.
    rank.timeout = Duration::from_secs(3);
    let error = rendezvous_and_release(&rank).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("silent"), "{error}");
    // The next server speaks another protocol.
    rank.timeout = LONG;
    thread::scope(|scope| {
        scope.spawn(|| {
            // The connection of the rank that has given up comes first.
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }
        });
        let error = rendezvous_and_release(&rank).unwrap_err().to_string();
        assert!(error.contains("does not speak ringreduce's protocol: another"), "{error}");
        assert!(error.contains("is RINGREDUCE_STORE the address of rank 0"), "{error}");
    });
    // Rank 0 cannot listen: another program has the port.
    rank.rank = 0;
    rank.timeout = Duration::from_millis(500);
    let error = rendezvous_and_release(&rank).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("another port"), "{error}");
    // The descriptor is closed, or is no socket.
    for fd in [i32::MAX, std::fs::File::open("/dev/null").unwrap().as_raw_fd()] {
        let error = rendezvous_and_release(&config(0, 2, &StoreAddr::Fd(fd))).unwrap_err();
        assert!(matches!(&error, Error::Store { address, .. } if *address == format!("fd:{fd}")));
    }
}

#[test]
fn an_abstract_name_in_use_is_named() {
    let _concurrent = concurrent();
    let name = abstract_name();
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _other = UnixListener::bind_addr(&address).unwrap();
    let mut rank = config(0, 2, &StoreAddr::Unix(name.clone()));
    rank.timeout = Duration::from_millis(100);
    let error = rendezvous_and_release(&rank).unwrap_err().to_string();
    assert!(error.contains(&name), "{error}");
}

pub(crate) fn passes_descriptors() {
    let before = descriptors();
    {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut left, right) = UnixStream::pair().unwrap();
        send_fd(&here, OwnedFd::from(right)).unwrap();
        let right = recv_fd(&there, deadline()).unwrap();
        let flags = nix::fcntl::fcntl(right.as_fd(), nix::fcntl::FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags & nix::libc::FD_CLOEXEC, nix::libc::FD_CLOEXEC);
        left.write_all(b"x").unwrap();
        UnixStream::from(right).read_exact(&mut [0]).unwrap();
        let late = recv_fd(&there, Instant::now()).unwrap_err();
        assert_eq!(late.kind(), std::io::ErrorKind::TimedOut);
        // A message with no descriptor, or with two, is an error.
        (&here).write_all(b"x").unwrap();
        assert_eq!(
            recv_fd(&there, deadline()).unwrap_err().kind(),
            std::io::ErrorKind::UnexpectedEof
        );
        let fds = [left.as_raw_fd(), left.as_raw_fd()];
        let rights = [nix::sys::socket::ControlMessage::ScmRights(&fds)];
        let byte = [std::io::IoSlice::new(b"x")];
        let flags = nix::sys::socket::MsgFlags::empty();
        nix::sys::socket::sendmsg::<()>(here.as_raw_fd(), &byte, &rights, flags, None).unwrap();
        assert_eq!(
            recv_fd(&there, deadline()).unwrap_err().kind(),
            std::io::ErrorKind::InvalidData
        );
        drop(here);
        assert_eq!(
            recv_fd(&there, deadline()).unwrap_err().kind(),
            std::io::ErrorKind::UnexpectedEof
        );
    }
    assert_eq!(descriptors(), before);
}

#[test]
fn a_message_passes_just_one_descriptor() {
    in_own_process("startup::store::passes_descriptors");
}
