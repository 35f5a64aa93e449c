//! Where a rank that a launcher started records its calls. May touch: config, flight, rendezvous.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::config::{Config, RECORD_FD};
use crate::error::{Error, Result, warn};
use crate::flight::Recorder;
use crate::link::region::Region;
use crate::rendezvous::inherited_file;

/// The record of this rank: in the launcher's memory, if it handed any over.
pub(super) fn of(config: &Config) -> Result<Arc<Recorder>> {
    let shared = config.record.map(record_memory).transpose()?.flatten();
    let place = (config.rank, config.size);
    Recorder::new(shared, place, config.record_dir.clone(), config.trace.clone(), config.joins)
}

/// The launcher's memory, if it is of this version.
fn record_memory(fd: i32) -> Result<Option<Region>> {
    let memory = inherited_file(fd).map_err(|error| Error::Config {
        name: RECORD_FD.into(),
        given: fd.to_string(),
        expected: format!("{error}: it is not the launcher's memory; unset it"),
    })?;
    let shared = Recorder::shared(memory.as_fd());
    Ok(shared.inspect_err(|error| warn(&format!("calls are not recorded: {error}"))).ok())
}
