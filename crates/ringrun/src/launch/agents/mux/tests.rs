//! Two sides of a connection over one socket: streams and messages pass as they should.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::net::UnixStream;

use std::os::fd::AsFd;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use ringreduce::bootstrap::SealedListener;
use ringreduce::config::Config;

use super::super::stream::Direction;
use super::*;

/// Both sides of one connection.
fn two() -> [Mux; 2] {
    let (one, other) = UnixStream::pair().unwrap();
    [one, other].map(|end| {
        let copy = end.try_clone().unwrap();
        Mux::new(Carrier::of_shell(end.into(), copy.into()).unwrap(), vec![])
    })
}

/// Moves what can be moved, in both directions.
fn settle(sides: &mut [Mux; 2]) {
    for _ in 0..200 {
        for side in sides.iter_mut() {
            side.wait(&[], Duration::ZERO).unwrap();
        }
    }
}

/// A stream from a pipe of the first side to a pipe of the second one.
fn pipe(sides: &mut [Mux; 2], number: u32) -> (PipeWriter, PipeReader) {
    let (from, writer) = io::pipe().unwrap();
    let (reader, to) = io::pipe().unwrap();
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    sides[0].add(number, StreamEnd::new(from, Direction::Reads).unwrap());
    sides[1].add(number, StreamEnd::new(to, Direction::Writes).unwrap());
    (writer, reader)
}

fn read_all(reader: &mut PipeReader) -> (Vec<u8>, bool) {
    let mut all = vec![];
    let mut bytes = [0; 4096];
    loop {
        match reader.read(&mut bytes) {
            Ok(0) => return (all, true),
            Ok(length) => all.extend(&bytes[..length]),
            Err(_) => return (all, false),
        }
    }
}

#[test]
fn a_stream_that_nobody_takes_delays_no_other_one() {
    let mut sides = two();
    let (stuck, mut unread) = pipe(&mut sides, 1);
    let (mut writer, mut reader) = pipe(&mut sides, 2);
    fcntl(&stuck, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let mut sent = 0;
    for round in 0..64 {
        while let Ok(length) = (&stuck).write(&[7; 4096]) {
            sent += length;
        }
        writer.write_all(&[round; 100]).unwrap();
        settle(&mut sides);
        assert_eq!(read_all(&mut reader), (vec![round; 100], false));
    }
    // The pipes' own room and one window, but not all that could be written.
    assert!(sent < 1 << 20, "{sent} bytes are held");
    drop(stuck);
    let (mut got, mut is_end) = (vec![], false);
    while !is_end {
        settle(&mut sides);
        let (more, ended) = read_all(&mut unread);
        got.extend(more);
        is_end = ended;
    }
    assert_eq!(got.len(), sent);
    drop(writer);
    settle(&mut sides);
    assert_eq!(read_all(&mut reader), (vec![], true));
    assert!(sides.iter().all(|side| !side.has_streams()));
}

#[test]
fn a_reader_that_has_gone_closes_the_stream_of_its_writer() {
    let mut sides = two();
    let (mut writer, reader) = pipe(&mut sides, 1);
    drop(reader);
    writer.write_all(b"to nobody").unwrap();
    settle(&mut sides);
    assert_eq!(writer.write(b"more").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn sockets_carry_both_directions_and_end_each_alone() {
    let mut sides = two();
    let (mut here, one) = UnixStream::pair().unwrap();
    let (mut there, other) = UnixStream::pair().unwrap();
    sides[0].add(5, StreamEnd::new(one, Direction::Both).unwrap());
    here.write_all(b"ask").unwrap();
    here.shutdown(std::net::Shutdown::Write).unwrap();
    settle(&mut sides);
    // The other side hears of the stream before it has it.
    sides[1].add(5, StreamEnd::new(other, Direction::Both).unwrap());
    sides[1].set_known(5);
    settle(&mut sides);
    let mut asked = String::new();
    there.read_to_string(&mut asked).unwrap();
    assert_eq!(asked, "ask");
    there.write_all(b"answer").unwrap();
    drop(there);
    settle(&mut sides);
    let mut answer = String::new();
    here.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
}

#[test]
fn messages_arrive_in_order_and_the_end_after_them() {
    let [mut one, mut other] = two();
    for number in 0..100 {
        one.send(&number);
    }
    one.wait(&[], Duration::ZERO).unwrap();
    drop(one);
    other.wait(&[], Duration::ZERO).unwrap();
    other.wait(&[], Duration::ZERO).unwrap();
    for number in 0..100 {
        assert_eq!(other.end(), None);
        assert_eq!(other.next_control(), Some(number));
    }
    assert!(other.end().is_some());
}

#[test]
fn what_is_no_frame_ends_the_connection() {
    let (mut theirs, ours) = UnixStream::pair().unwrap();
    let copy = ours.try_clone().unwrap();
    let mut mux = Mux::new(Carrier::of_shell(ours.into(), copy.into()).unwrap(), vec![]);
    theirs.write_all(b"Last login: Monday").unwrap();
    mux.wait(&[], Duration::from_secs(1)).unwrap();
    assert_eq!(mux.end(), Some("it sent bytes that are no frame"));
}

/// Both ends of a new connection of its own.
fn sealed() -> [SealedStream; 2] {
    let mut listener = SealedListener::new(&[3; 32], &Config::default()).unwrap();
    let address = (std::net::Ipv4Addr::LOCALHOST, listener.port()).into();
    let deadline = Instant::now() + Duration::from_secs(60);
    let dial = std::thread::spawn(move || SealedStream::dial(address, &[3; 32], 1, deadline));
    let (open, _cancel) = UnixStream::pair().unwrap();
    let (_, accepted) = listener.accept(open.as_fd()).unwrap().unwrap();
    [accepted, dial.join().unwrap().unwrap()]
}

#[test]
fn a_connection_made_anew_goes_on_with_the_same_bytes() {
    let mut sides = two();
    let (mut writer, mut reader) = pipe(&mut sides, 1);
    let (mut sent, mut got) = (vec![], vec![]);
    for round in 0..20_u8 {
        for (side, stream) in sides.iter_mut().zip(sealed()) {
            side.resume(stream);
        }
        // The connection breaks wherever it happens to be: some bytes are under way.
        for step in 0..40 {
            let mut bytes = vec![round.wrapping_mul(31).wrapping_add(step); 1000];
            if step % 4 == 0 {
                // Bytes like these were sent before, and are named.
                bytes = vec![step; 2000];
            }
            writer.write_all(&bytes).unwrap();
            sent.extend(bytes);
            sides[0].wait(&[], Duration::ZERO).unwrap();
            if step % 3 == 0 {
                sides[1].wait(&[], Duration::ZERO).unwrap();
            }
            got.extend(read_all(&mut reader).0);
        }
        let either = usize::from(round % 2 == 0);
        sides[either].connection.cut();
    }
    for (side, stream) in sides.iter_mut().zip(sealed()) {
        side.resume(stream);
    }
    drop(writer);
    let mut is_end = false;
    while !is_end {
        settle(&mut sides);
        let (more, ended) = read_all(&mut reader);
        got.extend(more);
        is_end = ended;
    }
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    assert!(sides.iter().all(|side| side.end().is_none()));
}

#[test]
fn bytes_that_were_sent_before_are_named_on_every_stream() {
    let mut sides = two();
    let table: Vec<u8> = (0..20_000_u32).map(|it| it as u8).collect();
    for number in 1..=8 {
        let (mut writer, mut reader) = pipe(&mut sides, number);
        let mut sent = table.clone();
        sent[0] = number as u8;
        writer.write_all(&sent).unwrap();
        settle(&mut sides);
        assert_eq!(read_all(&mut reader), (sent, false));
    }
    let received = sides[1].connection.received_bytes;
    assert!((20_000..25_000).contains(&received), "{received}");
    // A name of what was never sent ends the connection.
    sides[0].connection.queue(Kind::Repeat, 1, &[9; 65]);
    settle(&mut sides);
    assert_eq!(sides[1].end(), Some("it named bytes that it never sent"));
}
