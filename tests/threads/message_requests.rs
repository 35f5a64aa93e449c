//! Started messages: their numbers in errors, and their progress while the program goes on. And
//! receives of messages of unknown length, on several threads at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{scope, yield_now};
use std::time::Duration;

use harness::ranks::on_ranks;
use ringreduce::{Communicator, DataType, Source, Tag};

#[test]
fn an_error_has_the_number_of_its_request() {
    let comm = Communicator::local(2).unwrap().remove(0);
    let messages = comm.messenger();
    let [first, _later] = [1, 2].map(|tag| messages.irecv(vec![0_u8], 1, tag).unwrap());
    let error = first.wait_for(Duration::from_millis(1)).unwrap_err();
    assert!(error.to_string().contains("irecv #1 \"tag 1\""), "{error}");
}

/// Bytes of a type that is known at run time, at an address that no type has.
#[test]
fn messages_by_bytes_have_their_type() {
    on_ranks(2, |comm| {
        let (messages, other) = (comm.messenger(), 1 - comm.rank());
        let theirs = messages.irecv_bytes(vec![0_u8; 8], DataType::F32, other.into(), 5.into());
        let mine = messages.isend_bytes([0, 1, 2, 3, 4, 5, 6, 7], DataType::F32, other, 5);
        let (bytes, status) = theirs.unwrap().wait().unwrap();
        assert_eq!((&bytes[..], status.dtype), (&[0, 1, 2, 3, 4, 5, 6, 7][..], DataType::F32));
        mine.unwrap().wait().unwrap();
        let odd = messages.isend_bytes([0; 3], DataType::F32, other, 5).unwrap_err();
        assert!(odd.to_string().contains("buf is 3 bytes long"), "{odd}");
    });
}

#[test]
fn messages_arrive_while_their_rank_starts_others_and_never_waits() {
    const LONG: usize = 3_000_000;
    let has_arrived = AtomicBool::new(false);
    on_ranks(2, |comm| {
        let messages = comm.messenger().with_timeout(Duration::from_secs(60));
        if comm.rank() == 1 {
            messages.send(&vec![1_u8; LONG], 0, 1).unwrap();
            return has_arrived.store(true, Ordering::Relaxed);
        }
        let _long = messages.irecv(vec![0_u8; LONG], 1, 1).unwrap();
        // A message of this rank to itself looks at no link.
        while !has_arrived.load(Ordering::Relaxed) {
            let here = messages.irecv(vec![0_u8], 0, 2).unwrap();
            messages.isend(vec![1_u8], 0, 2).unwrap().wait().unwrap();
            here.wait().unwrap();
            yield_now();
        }
    });
}

const MESSAGES: u32 = 600;
const TAG: u32 = 7;

/// The length of a message, in elements: none, few, and more than a link's slot.
fn len(message: u32) -> usize {
    match message % 50 {
        0 => 0,
        1 => 100_000,
        short => short as usize * 3,
    }
}

/// Each thread receives as many messages as it claims, so none waits for one too many.
#[test]
fn two_threads_share_the_messages_of_a_rank_and_tag() {
    on_ranks(2, |comm| {
        let messages = comm.messenger().with_timeout(Duration::from_secs(60));
        if comm.rank() == 0 {
            return (0..MESSAGES).for_each(|it| messages.send(&vec![it; len(it)], 1, TAG).unwrap());
        }
        let claimed = AtomicU32::new(0);
        let received = Mutex::new(vec![]);
        scope(|threads| {
            for from in [Source::Rank(0), Source::Any] {
                let (messages, claimed, received) = (messages.clone(), &claimed, &received);
                threads.spawn(move || {
                    while claimed.fetch_add(1, Ordering::Relaxed) < MESSAGES {
                        let (elements, status) = messages.recv_vec::<u32>(from, TAG).unwrap();
                        assert_eq!((status.rank, status.tag), (0, TAG));
                        assert_eq!(status.bytes, elements.len() * 4);
                        received.lock().unwrap().push(elements);
                    }
                });
            }
        });
        let mut received = received.into_inner().unwrap();
        received.sort_by_key(|elements| elements.first().copied());
        let is_empty = |it: &u32| len(*it) == 0;
        let empty = (0..MESSAGES).filter(is_empty).count();
        assert!(received[..empty].iter().all(Vec::is_empty));
        let sent = (0..MESSAGES).filter(|it| !is_empty(it));
        assert!(received[empty..].iter().eq(&sent.map(|it| vec![it; len(it)]).collect::<Vec<_>>()));
        // None is left; that is an error once the other rank has closed its communicator.
        assert!(!matches!(messages.try_probe(Source::Any, Tag::Any), Ok(Some(_))));
    });
}
