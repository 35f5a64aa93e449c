//! Random programs of messages, collectives and groups among several ranks, each with its result
//! known beforehand; and the same while a rank is killed.
//!
//! A program is made of slots, which each rank goes through in order: it posts receives and starts
//! nonblocking sends, makes blocking sends, a collective or a group of calls, and waits. A request
//! is waited for no earlier than in the slot by which both ends of its message have started, so
//! every program ends.

use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use ringreduce::sim::Random;
use ringreduce::{Communicator, Error, MessageRequest, Messenger, ReduceOp, Result, Source};

use super::{TRANSPORTS, start, this_rank};
use harness::process::Process;
use harness::share;

/// Tells a rank the first program's seed and their number, and the rank that is killed or none.
const PLAN: &str = "TEST_MESSAGES_PLAN";
const SLOTS: usize = 5;
/// Receives from any rank have tags of their own, one for each receiver and program: a rank may be
/// a program ahead of another one.
const ANY_TAGS: u32 = 100;
const WAIT: Duration = Duration::from_secs(60);

/// A message of a program.
#[derive(Clone, Copy, Debug)]
struct Message {
    from: usize,
    to: usize,
    tag: u32,
    len: usize,
    /// The number among the messages with the same ends and tag.
    number: usize,
    /// The slots in which it is sent, received and waited for.
    sent: usize,
    received: usize,
    waited: usize,
    is_blocking: bool,
}

impl Message {
    fn is_from_any(&self) -> bool {
        self.tag >= ANY_TAGS
    }

    fn contents(&self, from: usize, number: usize) -> Vec<u32> {
        let first = (from * 1_000_003 + self.to * 10_007 + number * 101) as u32 ^ self.tag;
        (0..self.len as u32).map(|at| first.wrapping_add(at)).collect()
    }
}

#[derive(Debug)]
struct Program {
    messages: Vec<Message>,
    collectives: [Collective; SLOTS],
}

/// The collective of a slot: an all_reduce, alone or in a group with messages.
#[derive(Debug)]
struct Collective {
    /// The elements of the all_reduce; none of 0.
    sum: usize,
    /// Messages of the group: how many ranks further each goes, and its elements. They have tag 0,
    /// as all messages in groups.
    shifts: Vec<(usize, usize)>,
}

impl Collective {
    fn random(random: &mut Random, n: usize) -> Self {
        let sum = [0, 0, 1, 700, 20_000][random.below(5)];
        let messages = random.below(3) * random.below(4);
        let mut shift = || (random.below(n), LENGTHS[random.below(LENGTHS.len())]);
        Self { sum, shifts: (0..messages).map(|_| shift()).collect() }
    }
}

const LENGTHS: [usize; 7] = [0, 1, 2, 900, 5000, 17_000, 100_000];

impl Program {
    /// The program of this number. The rank that may be killed sends nothing to receives from any
    /// rank, which would go on waiting.
    fn random(n: usize, number: u64, seed: u64, victim: Option<usize>) -> Self {
        let mut random = Random::new(seed);
        let mut messages = Vec::new();
        for _ in 0..1 + random.below(3 * n) {
            let (from, tag) = (random.below(n), 1 + random.below(3) as u32);
            let to = (from + 1 + random.below(n - 1)) % n;
            let count = 1 + random.below(3);
            Self::add_stream(&mut messages, &mut random, (from, to, tag), count);
        }
        for to in 0..n {
            let senders: Vec<_> = (0..random.below(4)).map(|_| random.below(n)).collect();
            let senders = senders.into_iter().filter(|&it| it != to && Some(it) != victim);
            let tag = ANY_TAGS + (number as u32) * n as u32 + to as u32;
            Self::add_any(&mut messages, &mut random, (to, tag), &senders.collect::<Vec<_>>());
        }
        let collectives = std::array::from_fn(|_| Collective::random(&mut random, n));
        Self { messages, collectives }
    }

    /// Adds messages from one rank to another with one tag, unless there are some.
    fn add_stream(
        messages: &mut Vec<Message>,
        random: &mut Random,
        (from, to, tag): (usize, usize, u32),
        count: usize,
    ) {
        if messages.iter().any(|it| (it.from, it.to, it.tag) == (from, to, tag)) {
            return;
        }
        let mut slots = || {
            let mut slots: Vec<_> = (0..count).map(|_| random.below(SLOTS)).collect();
            slots.sort_unstable();
            slots
        };
        let (sent, received) = (slots(), slots());
        for number in 0..count {
            let (sent, received) = (sent[number], received[number]);
            let latest = sent.max(received);
            messages.push(Message {
                from,
                to,
                tag,
                len: LENGTHS[random.below(LENGTHS.len())],
                number,
                sent,
                received,
                waited: latest + random.below(SLOTS - latest),
                is_blocking: sent >= received && random.below(2) == 0,
            });
        }
    }

    /// Adds messages that rank `to` receives from any rank.
    fn add_any(
        messages: &mut Vec<Message>,
        random: &mut Random,
        (to, tag): (usize, u32),
        senders: &[usize],
    ) {
        let len = LENGTHS[random.below(LENGTHS.len())];
        let first = messages.len();
        for (at, &from) in senders.iter().enumerate() {
            let number = senders[..at].iter().filter(|&&it| it == from).count();
            let (sent, received) = (random.below(SLOTS), random.below(SLOTS));
            let is_blocking = false;
            messages.push(Message {
                from,
                to,
                tag,
                len,
                number,
                sent,
                received,
                waited: 0,
                is_blocking,
            });
        }
        // Messages of one rank are sent in the order of their numbers. Any of these receives may
        // get the message that is sent last.
        let batch = &mut messages[first..];
        let latest = batch.iter().map(|it| it.sent.max(it.received)).max().unwrap_or(0);
        for at in 0..batch.len() {
            for earlier in 0..at {
                if batch[earlier].from == batch[at].from && batch[earlier].sent > batch[at].sent {
                    let (one, other) = batch.split_at_mut(at);
                    std::mem::swap(&mut one[earlier].sent, &mut other[0].sent);
                }
            }
            batch[at].waited = latest;
        }
    }
}

/// A rank on its way through a program.
struct Walk<'a> {
    comm: &'a mut Communicator,
    messages: Messenger,
    /// The rank that may be dead.
    victim: Option<usize>,
    /// Receives and sends under way, with their messages.
    receives: Vec<(Message, MessageRequest<Vec<u32>>)>,
    sends: Vec<(Message, MessageRequest<Vec<u32>>)>,
    /// The messages that came from any rank, by sender and number, in the order of their receives.
    from_any: Vec<(usize, usize)>,
}

impl Walk<'_> {
    fn follow(&mut self, program: &Program) {
        let me = self.comm.rank();
        for slot in 0..SLOTS {
            for message in program.messages.iter().filter(|it| it.to == me && it.received == slot) {
                let (buffer, messages) = (vec![0; message.len], &self.messages);
                let source =
                    if message.is_from_any() { Source::Any } else { Source::Rank(message.from) };
                let receive = messages.irecv(buffer, source, message.tag);
                self.receives.push((*message, receive.unwrap()));
            }
            for message in program.messages.iter().filter(|it| it.from == me && it.sent == slot) {
                let contents = message.contents(me, message.number);
                if message.is_blocking {
                    let sent = self.messages.send(&contents, message.to, message.tag);
                    self.check(sent, message, "send");
                } else {
                    let send = self.messages.isend(contents, message.to, message.tag);
                    self.sends.push((*message, send.unwrap()));
                }
            }
            self.collective(&program.collectives[slot]);
            self.wait(slot);
        }
        assert!(self.receives.is_empty() && self.sends.is_empty());
        for sender in 0..self.comm.size() {
            let numbers = self.from_any.iter().filter(|it| it.0 == sender).map(|it| it.1);
            assert!(numbers.is_sorted(), "messages of rank {sender} in another order");
        }
        self.from_any.clear();
    }

    /// An error is right only if the rank that may be dead is concerned.
    fn check<T>(&self, result: Result<T>, message: &Message, what: &str) -> Option<T> {
        let concerned = [message.from, message.to].map(Some).contains(&self.victim);
        match result {
            Ok(result) => Some(result),
            Err(Error::PeerLost { peer, .. }) if concerned && Some(peer.rank) == self.victim => {
                None
            }
            Err(error) => panic!("{what} of {message:?}: {error}"),
        }
    }

    fn collective(&mut self, Collective { sum: len, shifts }: &Collective) {
        let (me, n) = (self.comm.rank(), self.comm.size());
        let contents = |from: usize, at: usize| vec![(1000 * from + at) as u32; shifts[at].1];
        let mut sum = vec![me as u32 + 1; *len];
        let sent: Vec<_> = (0..shifts.len()).map(|at| contents(me, at)).collect();
        let mut received: Vec<_> = shifts.iter().map(|&(_, len)| vec![u32::MAX; len]).collect();
        let result = match shifts[..] {
            [] if *len == 0 => return,
            [] => self.comm.all_reduce(&mut sum, ReduceOp::Sum),
            _ => self.comm.group(|g| {
                let mut summed = Some(&mut sum[..]).filter(|sum| !sum.is_empty());
                // The ranks list the calls in different orders.
                if let Some(sum) = summed.take_if(|_| me.is_multiple_of(3)) {
                    g.all_reduce(sum, ReduceOp::Sum)?;
                }
                for (&(shift, _), sent) in shifts.iter().zip(&sent).filter(|_| me % 2 == 0) {
                    g.send(sent, (me + shift) % n)?;
                }
                for (&(shift, _), received) in shifts.iter().zip(&mut received) {
                    g.recv(received, (me + n - shift) % n)?;
                }
                for (&(shift, _), sent) in shifts.iter().zip(&sent).filter(|_| me % 2 != 0) {
                    g.send(sent, (me + shift) % n)?;
                }
                summed.map_or(Ok(()), |sum| g.all_reduce(sum, ReduceOp::Sum))
            }),
        };
        if let Err(error) = result {
            return assert!(self.victim.is_some(), "a collective: {error}");
        }
        assert!(sum.iter().all(|&it| it as usize == n * (n + 1) / 2));
        for (at, &(shift, _)) in shifts.iter().enumerate() {
            assert!(received[at] == contents((me + n - shift) % n, at), "{shift} ranks further");
        }
    }

    /// Waits for the requests whose time has come.
    fn wait(&mut self, slot: usize) {
        let (now, later) = self.receives.drain(..).partition(|it| it.0.waited == slot);
        self.receives = later;
        let now: Vec<_> = now;
        for (message, receive) in now {
            let ended = receive.wait_for(WAIT);
            let Some((got, status)) = self.check(ended, &message, "receive") else { continue };
            if message.is_from_any() {
                let number = (0..9).find(|&it| got == message.contents(status.rank, it));
                self.from_any.push((status.rank, number.unwrap()));
                continue;
            }
            assert!(got == message.contents(message.from, message.number), "{message:?}");
            assert_eq!((status.rank, status.tag), (message.from, message.tag));
        }
        let (now, later) = self.sends.drain(..).partition(|it| it.0.waited == slot);
        self.sends = later;
        let now: Vec<_> = now;
        for (message, send) in now {
            let ended = send.wait_for(WAIT);
            self.check(ended, &message, "send");
        }
    }
}

/// A process: one rank that goes through programs.
pub(crate) fn rank() {
    let Some(mut comm) = this_rank() else { return };
    let plan = std::env::var(PLAN).unwrap();
    let plan: Vec<u64> = plan.split(' ').map(|word| word.parse().unwrap()).collect();
    let [first, count, victim] = plan[..] else { panic!("{plan:?}") };
    let victim = (victim as usize) < comm.size();
    let victim = victim.then_some(plan[2] as usize);
    comm.barrier().unwrap();
    comm.set_timeout(WAIT);
    if victim == Some(comm.rank()) {
        let delay = Duration::from_micros(Random::new(first).below(20_000) as u64);
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            raise(Signal::SIGKILL)
        });
    }
    let messages = comm.messenger();
    let n = comm.size();
    let (receives, sends, from_any) = (Vec::new(), Vec::new(), Vec::new());
    let mut walk = Walk { comm: &mut comm, messages, victim, receives, sends, from_any };
    for number in 0..count {
        walk.follow(&Program::random(n, number, first + number, victim));
    }
    // No rank leaves while another one may still need it.
    if walk.comm.barrier().is_err() {
        Process::works();
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }
}

/// Goes through `count` programs with worlds of 2 to 6 ranks each.
fn walk_through(transport: &str, count: u64) {
    for n in 2..=6 {
        let plan = format!("{} {count} {}", 1_000_000 * n as u64 + 1000 * share::seed(), u32::MAX);
        let world = start("messages::programs::rank", n, transport, |_| vec![(PLAN, plan.clone())]);
        world.succeeds(&format!("{n} ranks by {transport}"));
    }
}

#[test]
fn random_programs_end_with_the_right_messages() {
    if !share::makes_test(3) {
        return;
    }
    for transport in TRANSPORTS {
        walk_through(transport, share::count(25, 1000));
    }
}

/// Kills one rank in the middle of its programs, `count` times.
fn storm(transport: &str, count: u64) {
    for trial in 0..count {
        let n = 3 + trial as usize % 3;
        let victim = trial as usize % n;
        let plan = format!("{} 60 {victim}", 77_000 * (trial + 1) + share::seed());
        let mut world =
            start("messages::programs::rank", n, transport, |_| vec![(PLAN, plan.clone())]);
        world.is_at_work();
        world.0.iter_mut().for_each(Process::close_stdin);
        let ends = world.ends();
        let is_well = ends.iter().enumerate().all(|(rank, end)| end.0 || rank == victim);
        assert!(is_well, "{n} ranks, {victim} killed, by {transport}, {plan}: {ends:#?}");
    }
}

#[test]
fn messages_of_the_living_arrive_whoever_is_killed() {
    if !share::makes_test(3) {
        return;
    }
    for transport in TRANSPORTS {
        storm(transport, share::count(4, 60));
    }
}
