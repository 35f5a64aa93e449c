//! Before the first collective of ranks that share a region, they find out whether all of them can
//! read each other's memory, and tell the planner.

use std::io;

use super::settings::Settings;
use super::{Engine, PROBE_SEQUENCE_BIT};
use crate::error::Result;
use crate::exec::Wait;
use crate::exec::single_copy::RefusedRead;
use crate::plan::PeerReads;

impl Engine {
    /// Tests the reads; all ranks come to the same result.
    #[cold]
    pub(super) fn test_peer_reads(&mut self, settings: &Settings) -> Result<()> {
        let wait = Wait::new(&self.backoff, settings.timeout, &self.abort);
        let wait = wait.with_recorder(&self.rank_info.record);
        let of = (self.rank_info.rank, PROBE_SEQUENCE_BIT);
        let Some(tested) = self.registry.test_reads(of, &mut self.peers, &wait) else {
            return Ok(());
        };
        match tested {
            Ok(None) => self.planner.set_peer_reads(PeerReads::Possible),
            Ok(Some(refused)) => self.planner.set_peer_reads(PeerReads::Refused(reason(refused))),
            Err(halt) => return Err(self.fail(settings, "the first measurement", halt)),
        }
        Ok(())
    }
}

/// Why a rank can't read the memory of another one, in words.
fn reason(RefusedRead { reader, owner, error }: RefusedRead) -> String {
    let why = match error {
        0 => "its process number is another one's here".into(),
        error => io::Error::from_raw_os_error(error).to_string(),
    };
    format!("rank {reader} can't read the memory of rank {owner}: {why}")
}
