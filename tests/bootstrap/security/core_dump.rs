//! A core file of a connected rank contains neither the job's secret nor a key derived from that
//! secret alone.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use ringreduce::ReduceOp;
use sha2::{Digest, Sha256};

use super::LONG;
use harness::processes::{Process, World, this_builder};

const BODY: &str = "security::core_dump::rank";
/// Tells a rank the folder to run in, where its core file is left.
const FOLDER: &str = "TEST_CORE_FOLDER";
/// Bytes of a secret that do not occur by chance.
const PART: usize = 16;

type Part = [u8; PART];

/// Byte `at` of a sequence that `seed` alone determines.
fn byte(seed: u64, at: usize) -> u8 {
    let digest = Sha256::digest([seed, at as u64].map(u64::to_le_bytes).concat());
    digest[0]
}

/// The user's data, which a core file contains.
fn payload() -> Vec<u8> {
    (0..4096).map(|at| byte(77, at)).collect()
}

/// A process: one rank of two.
pub(crate) fn rank() {
    let Some((builder, size, _)) = this_builder() else { return };
    std::env::set_current_dir(std::env::var(FOLDER).unwrap()).unwrap();
    let (_, most) = getrlimit(Resource::RLIMIT_CORE).unwrap();
    setrlimit(Resource::RLIMIT_CORE, most, most).unwrap();
    let mut all = builder.encrypt(true).timeout(LONG).build().unwrap();
    let mut pair = all.split(Some(0), 0).unwrap().unwrap();
    let mine = payload();
    let mut sum = vec![1_u32; 100_000];
    all.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    pair.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    assert!(sum.iter().all(|&sum| sum as usize == size * size));
    Process::works();
    // The test ends both: rank 0 outside of a call, rank 1 inside one.
    if all.rank() == 0 {
        std::thread::sleep(LONG);
    }
    let _ended = pair.all_reduce(&mut sum, ReduceOp::Sum);
    assert_eq!(mine, payload());
}

/// The first bytes of all secrets that a core file must not contain, by name.
fn hidden(secret: &[u8], digits: &str) -> Vec<(&'static str, Part)> {
    let hmac = |key: &[u8], parts: &[&[u8]]| {
        let mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.chain_update(parts.concat()).finalize().into_bytes().to_vec()
    };
    let root = hmac(b"ringreduce handshake 1", &[secret]);
    let key = |purpose: &[u8]| hmac(&root, &[purpose, &0_u64.to_le_bytes(), &[1]]);
    let part = |bytes: &[u8]| *bytes.first_chunk().unwrap();
    vec![
        ("the secret", part(secret)),
        ("its second half", part(&secret[PART..])),
        ("its digits", part(digits.as_bytes())),
        ("its root", part(&root)),
        ("the dialler's key", part(&key(b"dialler"))),
        ("the acceptor's key", part(&key(b"acceptor"))),
        ("the streams' key", part(&key(b"streams"))),
    ]
}

/// The names of the parts that `memory` contains.
fn found(memory: &[u8], parts: &[(&'static str, Part)]) -> Vec<&'static str> {
    let mut first = [false; 256];
    parts.iter().for_each(|(_, part)| first[usize::from(part[0])] = true);
    let windows = memory.windows(PART).filter(|window| first[usize::from(window[0])]);
    let same = |window: &[u8]| parts.iter().find(|(_, part)| part == window).map(|part| part.0);
    windows.filter_map(same).collect()
}

/// The parts found in the memory of a stopped process: in mappings that a core file contains (and
/// in mapped files), and in mappings that the process excludes from it.
fn in_memory(pid: Pid, parts: &[(&'static str, Part)]) -> [Vec<&'static str>; 2] {
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let (mut dumped, mut excluded, mut range) = (Vec::new(), Vec::new(), (0, 0));
    for line in fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap().lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some((start, end)) = word.split_once('-') {
            let number = |digits| u64::from_str_radix(digits, 16).unwrap();
            range = (number(start), number(end));
        } else if word == "VmFlags:" {
            let has = |flag| rest.split(' ').any(|found| found == flag);
            let mut bytes = vec![0; (range.1 - range.0) as usize];
            // Mappings of devices and of the kernel can't be read.
            if has("rd") && !has("io") && memory.read_exact_at(&mut bytes, range.0).is_ok() {
                let list = if has("dd") { &mut excluded } else { &mut dumped };
                list.extend(found(&bytes, parts));
            }
        }
    }
    [dumped, excluded]
}

/// The core file that a process has left in `folder`.
fn core_in(folder: &Path) -> Option<Vec<u8>> {
    let is_core = |name: &str| name.starts_with("core");
    let entries = fs::read_dir(folder).unwrap().flatten();
    let core = entries.into_iter().find(|entry| is_core(&entry.file_name().to_string_lossy()))?;
    Some(fs::read(core.path()).unwrap())
}

#[test]
fn a_core_file_does_not_contain_the_secret() {
    let _concurrent = super::concurrent();
    let folder = tempfile::tempdir().unwrap();
    let secret: Vec<u8> = (0..32).map(|at| byte(u64::from(std::process::id()), at)).collect();
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let key = folder.path().join("key");
    fs::write(&key, &digits).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let settings = [
        ("RINGREDUCE_SECRET_FILE", key.display().to_string()),
        (FOLDER, folder.path().display().to_string()),
    ];
    let mut world = World::start(BODY, 2, "tcp", |_| settings.to_vec());
    world.is_at_work();
    let pids = [0, 1].map(|rank: usize| Pid::from_raw(world.0[rank].pid() as i32));
    let mut parts = hidden(&secret, &digits);
    parts.push(("payload", *payload().first_chunk().unwrap()));
    for pid in pids {
        kill(pid, Signal::SIGSTOP).unwrap();
        let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP));
        let [shown, excluded] = in_memory(pid, &parts);
        assert!(shown.contains(&"payload"), "the search does not find the payload: {shown:?}");
        assert!(shown.iter().all(|&name| name == "payload"), "{shown:?}");
        assert!(excluded.contains(&"the secret"), "no mapping has it: {excluded:?}");
    }
    // Rank 1 is in a call.
    kill(pids[1], Signal::SIGABRT).unwrap();
    kill(pids[1], Signal::SIGCONT).unwrap();
    let dumped =
        matches!(waitpid(pids[1], None), Ok(WaitStatus::Signaled(_, Signal::SIGABRT, true)));
    kill(pids[0], Signal::SIGKILL).unwrap();
    let _reaped = waitpid(pids[0], None);
    match core_in(folder.path()).filter(|_| dumped) {
        Some(core) => {
            let shown = found(&core, &parts);
            assert!(shown.contains(&"payload") && shown.iter().all(|&name| name == "payload"));
        }
        None => {
            let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
            let why = format!(
                "no core file was left where the rank ran (core pattern {:?}, dumped: {dumped}); \
                 its memory was searched instead",
                pattern.trim()
            );
            harness::skip("security::core_dump::a_core_file_does_not_contain_the_secret", &why);
        }
    }
}
