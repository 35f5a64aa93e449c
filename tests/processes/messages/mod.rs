//! Messages by rank and tag between processes: crossing ones, a server whose workers die, and
//! random programs.

pub(crate) mod programs;

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use ringreduce::{Communicator, Error, Source, Tag};

use harness::process::Process;
use harness::processes::{World, this_builder};

/// Tells a rank by 1 that it encrypts.
const ENCRYPTS: &str = "TEST_MESSAGES_ENCRYPT";
/// Shared memory, TCP, and TCP with encryption.
const TRANSPORTS: [&str; 3] = ["shm", "tcp", "encrypted"];
/// docs/failures.md promises a second where CPUs are free.
const PROMPTLY: Duration = Duration::from_secs(4);

/// Starts `n` ranks that execute `body`.
fn start(
    body: &str,
    n: usize,
    transport: &str,
    settings: impl Fn(usize) -> Vec<(&'static str, String)>,
) -> World {
    let encrypts = transport == "encrypted";
    World::start(body, n, if encrypts { "tcp" } else { transport }, |rank| {
        let mut settings = settings(rank);
        settings.push((ENCRYPTS, u8::from(encrypts).to_string()));
        settings
    })
}

/// The rank that this process was started as, if [`start`] did.
fn this_rank() -> Option<Communicator> {
    let (builder, ..) = this_builder()?;
    let encrypts = std::env::var(ENCRYPTS).is_ok_and(|it| it == "1");
    Some(builder.secret(&[7; 32]).encrypt(encrypts).build().unwrap())
}

/// A process: one of two ranks that both receive first and then send, and use collectives between.
pub(crate) fn crossing_rank() {
    let Some(mut comm) = this_rank() else { return };
    let (messages, me, other) = (comm.messenger(), comm.rank(), 1 - comm.rank());
    for len in [1, 5000, 64 << 20] {
        let theirs = messages.irecv(vec![0_u8; len], other, 3).unwrap();
        let mine = messages.isend(vec![me as u8 + 1; len], other, 3).unwrap();
        let mut sum = vec![1_u32; 1000];
        comm.all_reduce(&mut sum, ringreduce::ReduceOp::Sum).unwrap();
        assert_eq!(sum, [2; 1000]);
        assert_eq!(theirs.wait().unwrap().0, vec![other as u8 + 1; len]);
        mine.wait().unwrap();
    }
    comm.barrier().unwrap();
}

#[test]
fn ranks_that_receive_before_they_send_end_by_every_transport() {
    if !harness::share::makes_test(3) {
        return;
    }
    for transport in TRANSPORTS {
        start("messages::crossing_rank", 2, transport, |_| Vec::new()).succeeds(transport);
    }
}

/// The rank that is killed, and how many requests it makes before.
const VICTIM: usize = 2;
const LAST_WORDS: u32 = 20;
/// Requests of each other worker.
const REQUESTS: u32 = 300;
const REQUEST: u32 = 1;
const ANSWER: u32 = 2;
const WORDS: usize = 6000;

/// A process: a parameter server, rank 0, or one of its workers, of which one kills itself.
pub(crate) fn server_rank() {
    let Some(mut comm) = this_rank() else { return };
    comm.barrier().unwrap();
    let messages = comm.messenger().with_timeout(Duration::from_secs(60));
    if comm.rank() > 0 {
        for request in 0..REQUESTS {
            let mut answer = vec![0_u32; WORDS];
            messages.send(&vec![request; WORDS], 0, REQUEST).unwrap();
            messages.recv(&mut answer, 0, ANSWER).unwrap();
            assert_eq!(answer, vec![request + 1; WORDS]);
            if comm.rank() == VICTIM && request == LAST_WORDS {
                // A long message is under way when the rank dies.
                drop(messages.isend(vec![0_u32; 10 * WORDS], 0, REQUEST).unwrap());
                raise(Signal::SIGKILL).unwrap();
            }
        }
        return;
    }
    let mut served = vec![0_u32; comm.size()];
    let is_served =
        |served: &[u32]| (1..served.len()).all(|it| it == VICTIM || served[it] == REQUESTS);
    while !is_served(&served) {
        let Ok(found) = messages.probe(Source::Any, REQUEST) else { panic!("the others live") };
        let mut request = vec![0_u32; found.bytes / 4];
        match messages.recv(&mut request, found.rank, REQUEST) {
            Ok(_) if found.rank == VICTIM && request.len() > WORDS => continue,
            Ok(_) => assert_eq!(request, vec![served[found.rank]; WORDS]),
            Err(error) => {
                assert!(found.rank == VICTIM, "{error}");
                continue;
            }
        }
        served[found.rank] += 1;
        let answer: Vec<_> = request.iter().map(|it| it + 1).collect();
        let answered = messages.send(&answer, found.rank, ANSWER);
        assert!(answered.is_ok() || found.rank == VICTIM, "{answered:?}");
    }
    assert!(served[VICTIM] > LAST_WORDS);
    let began = Instant::now();
    let error = messages.recv(&mut [0_u8], VICTIM, Tag::Any).unwrap_err();
    assert!(began.elapsed() < PROMPTLY, "{:?}", began.elapsed());
    let Error::PeerLost { peer, .. } = &error else { panic!("{error}") };
    assert!(peer.rank == VICTIM && error.to_string().contains("lost rank 2 (host "), "{error}");
}

#[test]
fn a_server_outlives_a_killed_worker_and_serves_the_others() {
    if !harness::share::makes_test(3) {
        return;
    }
    for transport in TRANSPORTS {
        let world = start("messages::server_rank", 4, transport, |_| Vec::new());
        for (rank, (is_well, lines)) in world.ends().into_iter().enumerate() {
            assert_eq!(is_well, rank != VICTIM, "rank {rank} by {transport}: {lines}");
        }
    }
}

/// A process: one of three ranks. Rank 2 is killed, rank 0 hears of it in a collective, and rank 1
/// waits for a message of rank 0, which makes no call any more.
pub(crate) fn survivor_rank() {
    let Some(mut comm) = this_rank() else { return };
    comm.barrier().unwrap();
    comm.set_timeout(Duration::from_secs(60));
    let began = Instant::now();
    let error = match comm.rank() {
        0 => comm.all_reduce(&mut [1_u32], ringreduce::ReduceOp::Sum),
        1 => comm.recv(&mut [0_u32; 3], 0),
        _ => return raise(Signal::SIGKILL).unwrap(),
    };
    let error = error.unwrap_err();
    assert!(began.elapsed() < PROMPTLY, "{:?}: {error}", began.elapsed());
    assert!(matches!(&error, Error::PeerLost { peer, .. } if peer.rank == VICTIM), "{error}");
    Process::works();
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_message_of_a_rank_whose_communicator_has_failed_is_not_waited_for() {
    for transport in TRANSPORTS {
        let mut world = start("messages::survivor_rank", 3, transport, |_| Vec::new());
        world.is_at_work();
        world.0.iter_mut().for_each(Process::close_stdin);
        let ends = world.ends();
        assert_eq!([ends[0].0, ends[1].0], [true; 2], "{transport}: {ends:#?}");
    }
}

/// A process: of three ranks, the last one does not come, rank 0 gives a message of it up and
/// leaves, and rank 1 waits for rank 0 in a collective.
pub(crate) fn absent_rank() {
    let Some(mut comm) = this_rank() else { return };
    let name = format!("ringreduce-test-{}", comm.peers()[2].pid);
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let listener = (comm.rank() == 2).then(|| UnixListener::bind_addr(&address).unwrap());
    comm.barrier().unwrap();
    if let Some(listener) = listener {
        drop(listener.accept().unwrap());
        return;
    }
    if comm.rank() == 0 {
        comm.set_timeout(Duration::from_millis(500));
        // Rank 2 is no stalled rank as long as heartbeats of its barrier have just arrived.
        loop {
            match comm.recv(&mut [0_u8], 2).unwrap_err() {
                Error::Stalled { peer, .. } if peer.rank == 2 => return,
                Error::Timeout { peer, .. } if peer.rank == 2 => {}
                error => panic!("{error}"),
            }
        }
    }
    let error = comm.barrier().unwrap_err();
    drop(UnixStream::connect_addr(&address));
    assert!(matches!(&error, Error::Stalled { peer, .. } if peer.rank == 2), "{error}");
}

#[test]
fn a_rank_that_leaves_after_a_message_in_vain_says_for_whom_it_has_waited() {
    for transport in TRANSPORTS {
        let world = start("messages::absent_rank", 3, transport, |_| Vec::new());
        for (rank, (ended, lines)) in world.ends().into_iter().enumerate() {
            assert!(ended, "{transport}, rank {rank}: {lines}");
        }
    }
}
