//! Calls that need as much memory of the library's own as their buffers have.

use harness::processes::number;
use harness::ranks::{in_threads, on};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use ringreduce::{CallOptions, Communicator, Error, ReduceOp};

/// Tells the process that it is one of these tests.
const SETTING: &str = "TEST_CALL_MEMORY";
/// Elements of a buffer that the C library maps by itself.
const LONG: usize = 9 << 20;
/// Elements of a buffer whose copy is more than the library keeps.
const LARGE: usize = 33 << 20;
/// All that the process may have at once, where many tests run.
const MOST_BYTES: u64 = 320 << 20;

/// Pages of memory of this process: its address space, and what is resident.
fn pages() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let mut words = text.split(' ').map(|word| word.parse().unwrap());
    [words.next().unwrap(), words.next().unwrap()]
}

/// Lets this process map so many bytes more.
fn leave(bytes: u64) -> impl Drop {
    struct Limit;
    impl Drop for Limit {
        fn drop(&mut self) {
            let (_, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
            setrlimit(Resource::RLIMIT_AS, hard, hard).unwrap();
        }
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    setrlimit(Resource::RLIMIT_AS, pages()[0] * 4096 + bytes, hard).unwrap();
    Limit
}

fn all_fail(
    ranks: Vec<Communicator>,
    call: fn(&mut Communicator, &mut [f32]) -> Result<(), Error>,
) {
    let buffers: Vec<_> = (0..ranks.len()).map(|rank| vec![rank as f32; LONG]).collect();
    let mut work: Vec<_> = ranks.into_iter().zip(buffers).collect();
    work.iter_mut().for_each(|(comm, _)| comm.set_timeout(std::time::Duration::from_secs(60)));
    let limit = leave(8 << 20);
    let errors = in_threads(&mut work, |(comm, buf)| call(comm, buf).unwrap_err());
    drop(limit);
    let lacks = |error: &Error| matches!(error, Error::Exhausted { .. });
    assert!(errors.iter().all(lacks), "{errors:?}");
    for (rank, (_, buf)) in work.iter().enumerate() {
        assert!(buf.iter().all(|&it| it == rank as f32));
    }
}

/// A process whose ranks are threads.
pub(crate) fn process() {
    if std::env::var(SETTING).is_err() {
        return;
    }
    let ready = |n| {
        let ranks = Communicator::local(n).unwrap();
        in_threads(ranks, |mut comm| {
            comm.all_reduce(&mut [1.0_f32; 100], ReduceOp::Sum).unwrap();
            comm
        })
    };
    let retry_safe = || CallOptions::new().retry_safe(true);
    all_fail(ready(2), |comm, buf| {
        comm.with(CallOptions::new().retry_safe(true)).all_reduce(buf, ReduceOp::Sum)
    });
    // A single rank has no peer that could fail, so it copies nothing.
    let mut alone = ready(1).remove(0);
    let mut buf = vec![1.0_f32; LONG];
    let limit = leave(8 << 20);
    alone.with(retry_safe()).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    drop(limit);
    drop(buf);
    // The copy of one large call goes back to the system. The root only reads its zeros, which the
    // system has no memory for.
    let before = pages()[1];
    on(ready(2), |comm| {
        let mut buf = vec![0.0_f32; LARGE];
        let options = if comm.rank() == 0 { CallOptions::new() } else { retry_safe() };
        comm.with(options).broadcast(&mut buf, 0).unwrap();
        drop(buf);
        comm.barrier().unwrap();
        let more = pages()[1].saturating_sub(before) * 4096;
        assert!(more < (2 * LARGE) as u64, "{more} bytes more");
        comm.barrier().unwrap();
    });
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak: u64 = peak.unwrap().trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert!(peak << 10 < MOST_BYTES, "{peak} KiB at once");
    println!("well");
}

#[test]
fn a_call_without_memory_for_its_own_copies_is_an_error_and_large_copies_are_given_back() {
    let mut command = harness::process("limits::call_memory::process");
    let output = command.env(SETTING, number().to_string()).output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.contains("well"), "{out}{err}");
}
