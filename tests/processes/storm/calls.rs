//! Random calls, the same at all ranks, on integers; every result is compared with plain
//! arithmetic.

use harness::Value;
use rand::RngExt;
use rand::rngs::SmallRng;
use ringreduce::{CallOptions, Communicator, ReduceOp, Result};

/// The period of a rank's values: a prime number, so that every shift changes them.
const PERIOD: usize = 251;

const OPS: [ReduceOp; 6] = [
    ReduceOp::Sum,
    ReduceOp::Min,
    ReduceOp::Max,
    ReduceOp::BitAnd,
    ReduceOp::BitOr,
    ReduceOp::BitXor,
];

fn value(rank: usize, at: usize) -> i64 {
    ((rank * 5 + at % PERIOD * 7) % 13) as i64
}

fn folded(op: ReduceOp, ranks: usize, at: usize) -> i64 {
    let all = (0..ranks).map(|rank| value(rank, at));
    let fold = |f: fn(i64, i64) -> i64| all.clone().reduce(f).unwrap();
    match op {
        ReduceOp::Sum => all.sum(),
        ReduceOp::Min => fold(i64::min),
        ReduceOp::Max => fold(i64::max),
        ReduceOp::BitAnd => fold(|a, b| a & b),
        ReduceOp::BitOr => fold(|a, b| a | b),
        _ => fold(|a, b| a ^ b),
    }
}

/// The parameters of a call, the same at all ranks.
struct Call<'a> {
    comm: &'a mut Communicator,
    what: u32,
    op: ReduceOp,
    len: usize,
    /// The position in the values at which a buffer begins.
    shift: usize,
    root: usize,
    name: String,
}

/// The numbers of calls that are messages.
const MESSAGES: std::ops::Range<u32> = 88..92;
/// Calls from this number on are made in subgroups.
const GROUPS: u32 = 95;

/// The tag of calls in a subgroup: errors of such calls have the subgroup's ranks.
pub(crate) const IN_GROUP: &str = "in a subgroup";

/// The rank that rank `in_group` of the subgroup of rank `me` has in the whole world.
pub(crate) fn world_rank(in_group: usize, me: usize) -> usize {
    2 * in_group + me % 2
}

/// True if the next call is a message.
pub(crate) fn is_message_next(random: &SmallRng) -> bool {
    MESSAGES.contains(&random.clone().random_range(0..100))
}

/// Makes the next call.
pub(crate) fn one(comm: &mut Communicator, random: &mut SmallRng, most: u32) -> Result<()> {
    let what = random.random_range(0..100);
    let op = OPS[random.random_range(0..OPS.len())];
    let bits = random.random_range(0..=most);
    let len = if bits == 0 { 0 } else { random.random_range(0..=1_usize << bits) };
    let shift = random.random_range(0..PERIOD);
    let root = random.random_range(0..comm.size());
    let kind = random.random_range(0..7);
    let name = format!("call {what} of {len} of kind {kind}, {op:?}, root {root}");
    let mut call = Call { comm, what, op, len, shift, root, name };
    match kind {
        0 => call.make::<i8>(),
        1 => call.make::<u8>(),
        2 => call.make::<i16>(),
        3 => call.make::<i32>(),
        4 => call.make::<u32>(),
        5 => call.make::<i64>(),
        _ => call.make::<u64>(),
    }
}

impl Call<'_> {
    /// The contribution of a rank from position `at` on.
    fn given<T: Value>(&self, rank: usize, at: usize, len: usize) -> Vec<T> {
        (0..len).map(|i| T::from_integer(value(rank, self.shift + at + i))).collect()
    }

    /// The reduction over the first `ranks` ranks.
    fn reduced<T: Value>(&self, ranks: usize, at: usize, len: usize) -> Vec<T> {
        let all: Vec<T> = (0..PERIOD)
            .map(|i| T::from_integer(folded(self.op, ranks, self.shift + at + i)))
            .collect();
        (0..len).map(|i| all[i % PERIOD]).collect()
    }

    /// All ranks' blocks, one after the other.
    fn gathered<T: Value>(&self, at: usize, len: usize) -> Vec<T> {
        (0..self.comm.size()).flat_map(|rank| self.given::<T>(rank, at, len)).collect()
    }

    fn is<T: Value>(&self, got: &[T], wanted: &[T]) {
        let wrong = got.iter().zip(wanted).position(|(a, b)| a != b);
        assert!(got.len() == wanted.len() && wrong.is_none(), "wrong: {} at {wrong:?}", self.name);
    }

    fn make<T: Value>(&mut self) -> Result<()> {
        match self.what {
            0..60 => self.reductions::<T>(),
            60..GROUPS => self.moves::<T>(),
            _ => self.group::<T>(),
        }
    }

    fn reductions<T: Value>(&mut self) -> Result<()> {
        let (n, me, op, len, root) =
            (self.comm.size(), self.comm.rank(), self.op, self.len, self.root);
        let (mine, part) = (self.given::<T>(me, 0, len), len / n);
        let (mut buf, mut other) = (mine.clone(), vec![T::from_integer(99); len]);
        match self.what {
            0..10 => {
                self.comm.all_reduce(&mut buf, op)?;
                self.is(&buf, &self.reduced(n, 0, len));
            }
            10..20 => {
                self.comm.all_reduce_into(&mine, &mut other, op)?;
                self.is(&other, &self.reduced(n, 0, len));
            }
            20..25 => {
                let sent = self.comm.nonblocking().all_reduce(buf, op);
                self.is(&sent.wait()?, &self.reduced(n, 0, len));
            }
            25..30 => {
                let mut shared = self.comm.alloc::<T>(len.max(1))?;
                shared.copy_from_slice(&self.given::<T>(me, 0, len.max(1)));
                self.comm.all_reduce(&mut shared, op)?;
                self.is(&shared, &self.reduced(n, 0, len.max(1)));
            }
            30..38 => {
                self.comm.reduce_scatter(&buf[..part * n], &mut other[..part], op)?;
                self.is(&other[..part], &self.reduced(n, me * part, part));
            }
            38..46 => {
                self.comm.reduce(&mut buf, op, root)?;
                if me == root {
                    self.is(&buf, &self.reduced(n, 0, len));
                }
            }
            46..53 => {
                self.comm.scan(&mut buf, op)?;
                self.is(&buf, &self.reduced(me + 1, 0, len));
            }
            _ => {
                self.comm.exscan_into(&mine, &mut other, op)?;
                if me > 0 {
                    self.is(&other, &self.reduced(me, 0, len));
                }
            }
        }
        self.is(&mine, &self.given(me, 0, len));
        Ok(())
    }

    fn moves<T: Value>(&mut self) -> Result<()> {
        let (n, me, root) = (self.comm.size(), self.comm.rank(), self.root);
        let len = self.len / n;
        let mine = self.given::<T>(me, 0, len);
        let mut all = vec![T::from_integer(99); len * n];
        match self.what {
            60..65 => {
                self.comm.all_gather(&mine, &mut all)?;
                self.is(&all, &self.gathered(0, len));
            }
            65..70 => {
                all[me * len..][..len].copy_from_slice(&mine);
                self.comm.all_gather_in_place(&mut all)?;
                self.is(&all, &self.gathered(0, len));
            }
            70..75 => {
                let mut buf = self.given::<T>(me, 0, self.len);
                self.comm.broadcast(&mut buf, root)?;
                self.is(&buf, &self.given(root, 0, self.len));
            }
            75..79 => {
                self.comm.gather(&mine, &mut all, root)?;
                if me == root {
                    self.is(&all, &self.gathered(0, len));
                }
            }
            79..83 => {
                let sent = self.given::<T>(root, 0, len * n);
                let mut got = vec![T::from_integer(99); len];
                self.comm.scatter(&sent, &mut got, root)?;
                self.is(&got, &self.given(root, me * len, len));
            }
            83..88 => {
                self.comm.all_to_all(&self.given::<T>(me, 0, len * n), &mut all)?;
                let wanted = (0..n).flat_map(|rank| self.given::<T>(rank, me * len, len));
                self.is(&all, &wanted.collect::<Vec<_>>());
            }
            what if MESSAGES.contains(&what) => {
                let (to, from) = ((me + 1) % n, (me + n - 1) % n);
                let mut got = vec![T::from_integer(99); len];
                self.comm.send_recv(&mine, to, &mut got, from)?;
                self.is(&got, &self.given(from, 0, len));
            }
            _ => self.comm.barrier()?,
        }
        Ok(())
    }

    /// A call in a subgroup of every other rank.
    fn group<T: Value>(&mut self) -> Result<()> {
        let (n, me, len) = (self.comm.size(), self.comm.rank(), self.len);
        let mut group = self.comm.split(Some((me % 2) as u32), 0)?.unwrap();
        let ranks = (me % 2..n).step_by(2);
        let mut all = vec![T::from_integer(99); len / n * ranks.len()];
        let mut tagged = group.with(CallOptions::new().tag(IN_GROUP));
        tagged.all_gather(&self.given::<T>(me, 0, len / n), &mut all)?;
        let wanted = ranks.flat_map(|rank| self.given::<T>(rank, 0, len / n));
        self.is(&all, &wanted.collect::<Vec<_>>());
        Ok(())
    }
}
