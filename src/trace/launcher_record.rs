//! The record of a rank that a launcher started: in memory that the launcher made and reads.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::recorder::Recorder;
use crate::config::{Config, INHERITED_FROM_A_RANK, RECORD_FD};
use crate::error::{Error, Result, warn};
use crate::memory::inherited::inherited_file;
use crate::memory::mapping::Region;
use crate::sync::PerProcess;

/// The recorders of one process in memory of its own, by rank and folder.
type OwnRecorders = BTreeMap<(usize, Option<PathBuf>), Weak<Recorder>>;

/// Communicators that are not split from another one have a recorder in common, since a framework
/// may make hundreds. Ranks that are threads of one process have one each, as they record at the
/// same time.
static OWN: PerProcess<Mutex<OwnRecorders>> = PerProcess::new();

/// The recorder of this rank: in the launcher's memory if it inherited any, or else in its own.
pub(crate) fn open_recorder(config: &Config) -> Result<Arc<Recorder>> {
    let shared = config.record_fd.map(record_memory).transpose()?.flatten();
    let is_own = shared.is_none() && config.trace.is_none();
    let new = || {
        let (position, folder) = ((config.rank, config.size), config.record_dir.clone());
        Recorder::new(shared, position, folder, config.trace.clone(), config.is_joiner)
    };
    // Each world has a trace of its own.
    if !is_own {
        return new();
    }
    let mut own = OWN.get().lock().unwrap_or_else(PoisonError::into_inner);
    let place = own.entry((config.rank, config.record_dir.clone())).or_default();
    if let Some(recorder) = place.upgrade() {
        return Ok(recorder);
    }
    let recorder = new()?;
    *place = Arc::downgrade(&recorder);
    Ok(recorder)
}

/// The launcher's memory; `None`, with a warning, if it was made by another version.
fn record_memory(fd: i32) -> Result<Option<Region>> {
    let memory = inherited_file(fd).map_err(|error| Error::Config {
        name: RECORD_FD.into(),
        given: fd.to_string(),
        expected: format!("{error}: {INHERITED_FROM_A_RANK}"),
    })?;
    let shared = Recorder::shared(memory.as_fd());
    Ok(shared.inspect_err(|error| warn(&format!("calls are not recorded: {error}"))).ok())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::num::NonZeroUsize;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::thread::scope;

    use super::*;
    use crate::{Communicator, ReduceOp};

    #[test]
    fn recorders_of_equal_ranks_are_one() {
        let config = |rank| Config { rank, size: 9, ..Config::default() };
        let open = |rank| open_recorder(&config(rank)).unwrap();
        let (first, other, again) = (open(7), open(8), open(7));
        assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &other));
    }

    /// Memory of a launcher of another version is as long as that version's record.
    #[test]
    fn a_rank_leaves_the_memory_of_a_launcher_of_another_version_alone() {
        for len in [69_632, 1 << 23] {
            let file = File::from(Region::create(NonZeroUsize::new(len).unwrap()).unwrap());
            let error = Recorder::shared(file.as_fd()).unwrap_err().to_string();
            assert!(error.contains(&format!("sent {len} bytes of shared memory")), "{error}");
            let record_fd = Some(file.as_raw_fd());
            let config = Config { rank: 5, size: 9, record_fd, ..Config::default() };
            let recorder = open_recorder(&config).unwrap();
            assert_eq!(recorder.record().unwrap().rank, 5);
            let mut bytes = vec![1; len];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn only_calls_on_blocks_that_differ_are_recorded_as_uneven() {
        let ranks = Communicator::local(2).unwrap();
        scope(|scope| {
            for mut comm in ranks {
                scope.spawn(move || {
                    comm.all_reduce_many(&mut [[1_u32; 3]; 2], ReduceOp::Sum).unwrap();
                    drop(comm.alloc::<u8>(10).unwrap());
                    let mine = vec![1_u8; comm.rank() + 1];
                    comm.all_gather_v(&mine, &mut [0; 3], &[1, 2]).unwrap();
                    let ops = comm.rank_info.record.recorder().record().unwrap().ops;
                    let last = ops.len() - 1;
                    for (at, op) in ops.iter().enumerate() {
                        assert_eq!(op.code.is_uneven(), at == last, "{op:?}");
                    }
                    assert_eq!(ops[0].count, 6);
                });
            }
        });
    }
}
