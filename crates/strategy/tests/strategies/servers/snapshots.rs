//! Servers that write snapshots, and go on from them.

use std::io;
use std::path::Path;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    JobConfig, Layout, Member, Optimizer, Policy, Server, ServerReport, ServerSettings,
    SnapshotFolder, SnapshotStore, Snapshots, Worker, share,
};

use crate::network::{Network, part};

const LAYOUT: Layout = Layout::new(1);

/// A job of one server and one worker, which makes `steps` steps.
fn with_snapshots(
    folder: &Path,
    steps: usize,
    is_resumed: bool,
    optimizer: Optimizer,
) -> Result<(ServerReport, Vec<f32>), String> {
    let store = || Box::new(SnapshotFolder::new(folder).unwrap()) as Box<dyn SnapshotStore>;
    with_store(&store, steps, is_resumed, optimizer)
}

/// The same, with snapshots in any store.
fn with_store(
    store: &(dyn Fn() -> Box<dyn SnapshotStore> + Sync),
    steps: usize,
    is_resumed: bool,
    optimizer: Optimizer,
) -> Result<(ServerReport, Vec<f32>), String> {
    let ends = on_ranks(2, |comm: &mut Communicator| {
        let member = Member::new(comm.duplicate().unwrap(), LAYOUT, JobConfig::default()).unwrap();
        if comm.rank() == 0 {
            let snapshots = Some(Snapshots { store: store(), every: 4, is_resumed });
            let policy = Policy::Synchronous { backups: 0 };
            let settings = ServerSettings { policy, optimizer, rate: 0.1, snapshots };
            let mut server = match Server::new(member, settings) {
                Ok(server) => server,
                Err(error) => return Some(Err(error.to_string())),
            };
            let report = match server.serve(|_, _| {}) {
                Ok(report) => report.clone(),
                Err(error) => return Some(Err(error.to_string())),
            };
            return Some(Ok((report, server.values().to_vec())));
        }
        let mut network = Network::new(0.0);
        let mut worker = Worker::new(member, &mut network).ok()?;
        for at in 0..steps {
            let (places, _) = share(40, 13, at % 4, 0, 1);
            let samples = places.len();
            worker.step(&mut network, &part(places, samples)).ok()?;
        }
        worker.end().ok()?;
        Some(Ok((ServerReport::default(), network.values())))
    });
    let mut ends = ends.into_iter().flatten();
    let (report, values) = ends.next().unwrap()?;
    assert_eq!(ends.next().unwrap()?.1, values);
    Ok((report, values))
}

/// A store that takes so many snapshots.
struct Full(usize);

impl SnapshotStore for Full {
    fn save(&mut self, _: usize, _: &[u8]) -> io::Result<()> {
        self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
        Ok(())
    }

    fn load(&mut self, _: usize) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }
}

#[test]
fn a_server_that_can_not_write_a_snapshot_ends_with_an_error() {
    for taken in 0..3 {
        let ended = with_store(&|| Box::new(Full(taken)), 20, false, Optimizer::SGD);
        let error = ended.unwrap_err();
        assert!(error.contains("snapshot of part 0"), "after {taken}: {error}");
    }
}

#[test]
fn a_job_goes_on_from_the_last_snapshot_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let (_, whole) =
        with_snapshots(&folder.path().join("whole"), 14, false, Optimizer::ADAM).unwrap();
    let folder = folder.path().join("parts");
    let (report, _) = with_snapshots(&folder, 10, false, Optimizer::ADAM).unwrap();
    // At the start, and after 4 and 8 updates.
    assert_eq!((report.snapshots, report.restored), (3, None));
    // The steps after the snapshot are made again, with the same samples.
    let (report, values) = with_snapshots(&folder, 6, true, Optimizer::ADAM).unwrap();
    assert_eq!(report.restored.unwrap().updates, 8);
    assert_eq!(report.updates, 14);
    assert_eq!(values, whole);
    // A job that shall begin anew does so.
    let (report, _) = with_snapshots(&folder, 6, false, Optimizer::ADAM).unwrap();
    assert_eq!((report.restored, report.updates), (None, 6));
}

#[test]
fn snapshots_of_another_training_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    with_snapshots(folder, 5, false, Optimizer::ADAM).unwrap();
    let words = with_snapshots(folder, 5, true, Optimizer::SGD).unwrap_err();
    assert!(words.contains("part 0") && words.contains("2 moments"), "{words}");
    let file = folder.join("server.0.snapshot");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let words = with_snapshots(folder, 5, true, Optimizer::ADAM).unwrap_err();
    assert!(words.contains("damaged"), "{words}");
    // A store that can't be written ends the server with its reason.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let words = with_snapshots(folder, 5, false, Optimizer::ADAM).unwrap_err();
    assert!(words.contains("part 0") && words.contains("server.0.snapshot"), "{words}");
}
