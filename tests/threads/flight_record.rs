//! Flight records as other processes read them: any content of the memory, also during writes.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use ringreduce::trace::{Reader, create};
use ringreduce::{Communicator, Monitor, ReduceOp};

const CALLS: &str = "ringreduce_calls_total{collective=\"all_reduce\",rank=\"0\"} ";

/// The memory of a record with the bytes that `fill` writes.
fn memory(fill: impl FnOnce(&mut [u8])) -> OwnedFd {
    let file = File::from(create().unwrap());
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    fill(&mut bytes);
    file.write_all_at(&bytes, 0).unwrap();
    file.into()
}

#[test]
fn zeros_and_short_files_are_no_record() {
    let reader = Reader::open(memory(|_| ()).as_fd()).unwrap();
    assert_eq!(reader.read(), None);
    let short = File::open("/proc/self/exe").unwrap();
    assert!(Reader::open(short.as_fd()).is_err());
}

#[test]
fn a_record_of_another_version_is_foreign_and_not_read() {
    for (magic, foreign) in
        [(*b"RINGREC\x02", false), (*b"RINGREC\x01", true), (*b"nonsense", true)]
    {
        let word = u64::from_be_bytes(magic).to_ne_bytes();
        let reader =
            Reader::open(memory(|bytes| bytes[..8].copy_from_slice(&word)).as_fd()).unwrap();
        assert_eq!((reader.is_foreign(), reader.read().is_none()), (foreign, foreign));
    }
    assert!(!Reader::open(memory(|_| ()).as_fd()).unwrap().is_foreign());
}

#[test]
fn random_bytes_are_read_as_a_valid_record() {
    let mut random = SmallRng::seed_from_u64(5);
    for round in 0..60 {
        let fd = memory(|bytes| {
            random.fill_bytes(bytes);
            bytes[..8].copy_from_slice(&u64::from_be_bytes(*b"RINGREC\x02").to_ne_bytes());
            // Half of the operations have a valid number and state.
            for (at, op) in bytes[64..].chunks_exact_mut(64).take(1024).enumerate() {
                if random.random_bool(0.5) {
                    op[..8].copy_from_slice(&(at as u64 + 1024 * round).to_ne_bytes());
                    op[63] = random.random_range(0..6_u8) << 4 | op[63] & 15;
                }
            }
        });
        let record = Reader::open(fd.as_fd()).unwrap().read().unwrap();
        assert!(record.ops.len() <= 1024);
        for op in &record.ops {
            assert!(!op.code.name().is_empty() && op.end >= op.start);
            let _ = (op.code.dtype(), op.code.op(), op.code.algorithm(), op.code.root());
            assert!(op.communicator.is_none_or(|at| record.communicators[at].is_some()));
        }
        assert!(record.ops.is_sorted_by(|one, other| one.number <= other.number));
        assert!(record.communicators.iter().flatten().all(|member| member.rank < member.size));
    }
}

#[test]
fn metrics_count_calls_and_bytes_and_outlive_the_communicator() {
    let ranks = Communicator::local(2).unwrap();
    let handles: Vec<Monitor> = ranks.iter().map(Communicator::monitor).collect();
    std::thread::scope(|scope| {
        let calls = ranks.into_iter().map(|mut comm| {
            scope.spawn(move || {
                for _ in 0..1000 {
                    comm.all_reduce(&mut [1.0_f64; 3], ReduceOp::Sum).unwrap();
                }
                comm.monitor().metrics()
            })
        });
        let calls: Vec<_> = calls.collect();
        // A reader during the calls sees no more than have been made.
        let line = |text: &str| text.lines().find_map(|it| it.strip_prefix(CALLS)?.parse().ok());
        assert!(line(&handles[0].clone().metrics()).unwrap_or(0) <= 1000);
        for (rank, call) in calls.into_iter().enumerate() {
            let text = call.join().unwrap();
            assert_eq!(handles[rank].metrics(), text, "the communicator is dropped");
            for (metric, value) in [("calls", 1000), ("bytes", 24_000)] {
                let line = format!(
                    "ringreduce_{metric}_total{{collective=\"all_reduce\",rank=\"{rank}\"}} {value}"
                );
                assert!(text.lines().any(|it| it == line), "{line}\n{text}");
            }
        }
    });
}
