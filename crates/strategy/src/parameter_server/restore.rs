//! The parameters that a server begins with, the snapshots that it writes, and the one from which
//! it comes back.

use ringreduce::Error;

use super::protocol::PUSH;
use super::report::Restored;
use super::server::Server;
use super::snapshot::Snapshot;
use crate::JobError;

impl Server {
    /// Takes the first parameters, unless this server has some.
    pub(super) fn start(
        &mut self,
        worker: usize,
        elements: u64,
        (updates, moments): (u64, u64),
    ) -> Result<(), JobError> {
        let needed = self.settings.optimizer.moments();
        if moments != 0 && moments != needed as u64 {
            let given = format!("{moments} of each parameter at rank {worker}");
            let expected = format!("{needed}, as this server's optimizer keeps");
            return Err(Error::argument("Worker::resume", "moments", given, expected).into());
        }
        let mut parts = Vec::new();
        for _ in 0..=moments {
            let bytes = self.messages.probe(worker, PUSH)?.bytes;
            let mut values = vec![0.0; bytes / size_of::<f32>()];
            self.messages.recv(&mut values, worker, PUSH)?;
            parts.push(values);
        }
        if !self.clients.is_started {
            self.values = parts.remove(0);
            parts.resize(needed, vec![0.0; self.values.len()]);
            self.moments = parts;
            (self.report.updates, self.clients.updates) = (updates, updates);
            self.allocate();
            self.save()?;
        }
        self.check_elements(worker, elements)
    }

    fn allocate(&mut self) {
        let elements = self.values.len();
        self.gradient = vec![0.0; elements];
        self.sum.allocate(elements);
        self.clients.is_started = true;
    }

    pub(super) fn check_elements(&self, worker: usize, elements: u64) -> Result<(), JobError> {
        if !self.clients.is_started || elements == self.values.len() as u64 {
            return Ok(());
        }
        let given = format!("{elements} elements of part {} at rank {worker}", self.part);
        let expected = format!("{}, as this server has", self.values.len());
        Err(Error::argument("Worker::new", "model", given, expected).into())
    }

    /// The error where the first worker asks for parameters that it should have given.
    pub(super) fn lost_state(&self, worker: usize) -> JobError {
        let given = format!("in the middle of a training at rank {worker}, and at no server");
        let expected = "those of a saved state: the worker that had it is lost; start the training \
                        again from it";
        JobError::peer("Worker::resume", "parameters", given, expected)
    }

    /// Writes a snapshot.
    pub(super) fn save(&mut self) -> Result<(), JobError> {
        let Some(snapshots) = &mut self.settings.snapshots else { return Ok(()) };
        // A slow disk is no reason to end the training before its time.
        self.member.set_busy(Some(self.member.comm.timeout()));
        let snapshot = Snapshot {
            job: self.member.roles.job,
            part: self.part as u64,
            parts: self.member.layout.servers as u64,
            updates: self.clients.updates,
            values: std::mem::take(&mut self.values),
            moments: std::mem::take(&mut self.moments),
        };
        let saved = snapshots.store.save(self.part, &snapshot.encode());
        (self.values, self.moments) = (snapshot.values, snapshot.moments);
        self.member.set_busy(None);
        saved.map_err(|error| self.refused(error.to_string()))?;
        self.report.snapshots += 1;
        Ok(())
    }

    /// Loads the snapshot of this part, if this server has come back or resumes another job.
    pub(super) fn load(&mut self) -> Result<(), JobError> {
        let has_come_back = self.member.comm.epoch() > 0;
        let Some(snapshots) = &mut self.settings.snapshots else { return Ok(()) };
        let is_resumed = snapshots.is_resumed;
        if !has_come_back && !is_resumed {
            return Ok(());
        }
        let loaded = snapshots.store.load(self.part);
        let Some(bytes) = loaded.map_err(|error| self.refused(error.to_string()))? else {
            return Ok(());
        };
        let snapshot = Snapshot::decode(&bytes).map_err(|reason| self.refused(reason))?;
        let (parts, moments) = (self.member.layout.servers, self.settings.optimizer.moments());
        if (snapshot.part, snapshot.parts) != (self.part as u64, parts as u64) {
            let (part, of) = (snapshot.part, snapshot.parts);
            return Err(self.refused(format!("it is part {part} of {of}, and there are {parts}")));
        }
        if snapshot.moments.len() != moments {
            let given = snapshot.moments.len();
            let optimizer = self.settings.optimizer;
            return Err(self.refused(format!("it has {given} moments, {optimizer:?} {moments}")));
        }
        if snapshot.job != self.member.roles.job && !is_resumed {
            // This server was lost before its first snapshot, and another job's is there.
            return Ok(());
        }
        (self.values, self.moments) = (snapshot.values, snapshot.moments);
        self.report.updates = snapshot.updates;
        self.report.restored = Some(Restored { updates: snapshot.updates, lost_updates: 0 });
        self.allocate();
        Ok(())
    }

    const fn refused(&self, reason: String) -> JobError {
        JobError::Snapshot { part: self.part, reason }
    }
}
