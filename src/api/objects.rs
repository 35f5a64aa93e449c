//! Calls on values of any type that serde can encode. They travel as MessagePack, after their
//! lengths.
//! Law: a value that its rank cannot encode is an error at all ranks, and one that a rank cannot
//! decode is an error there; the ranks stay in step.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Communicator;
use super::call::as_root;
use crate::codec::printable;
use crate::error::{Error, Result};
use crate::schedule::Collective;

/// The length that says that a rank could not encode its object.
const NOT_ENCODED: u64 = u64::MAX;

impl Communicator {
    /// Copies the object of rank `root` to all ranks. `object` is sent at the root and replaced
    /// elsewhere.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut names = vec![];
    /// if comm.rank() == 0 {
    ///     names = vec!["weights".to_owned(), "bias".to_owned()];
    /// }
    /// comm.broadcast_object(&mut names, 0)?;
    /// assert_eq!(names.len(), 2);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::broadcast`]; [`Error::Object`] at all ranks if the root cannot encode its object,
    /// and at a rank that cannot decode it, which keeps its own.
    pub fn broadcast_object<T>(&mut self, object: &mut T, root: usize) -> Result<()>
    where
        T: Serialize + DeserializeOwned,
    {
        const CALL: &str = "broadcast_object";
        let is_root = self.rank() == root;
        let own = if is_root { Encoded::of(object) } else { Encoded::default() };
        let mut comm = self.tagged_calls(CALL);
        let mut length = [own.length()];
        comm.broadcast(&mut length, root)?;
        comm.check_encoded(CALL, root, length[0], &own)?;
        let mut bytes = own.bytes;
        if !is_root {
            bytes = comm.memory(CALL, length[0])?;
        }
        comm.broadcast(&mut bytes, root)?;
        if !is_root {
            *object = comm.decode(CALL, root, &bytes)?;
        }
        Ok(())
    }

    /// The objects of all ranks, in rank order, at every rank.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let hosts = comm.all_gather_object(&std::process::id().to_string())?;
    /// assert_eq!(hosts.len(), comm.size());
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_gather_v`]; [`Error::Object`] at all ranks if one cannot encode its object,
    /// and at a rank that cannot decode them.
    pub fn all_gather_object<T>(&mut self, object: &T) -> Result<Vec<T>>
    where
        T: Serialize + DeserializeOwned,
    {
        const CALL: &str = "all_gather_object";
        let mut comm = self.tagged_calls(CALL);
        let (own, counts) = comm.encode_all(CALL, object)?;
        let mut all = comm.memory(CALL, total(&counts))?;
        comm.all_gather_v(&own, &mut all, &counts)?;
        comm.decode_all(CALL, &all, &counts)
    }

    /// The objects of all ranks, in rank order, at rank `root`; `None` at the others.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// if let Some(losses) = comm.gather_object(&0.25, 0)? {
    ///     println!("{losses:?}");
    /// }
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_gather_object`]; and if there is no such root.
    pub fn gather_object<T>(&mut self, object: &T, root: usize) -> Result<Option<Vec<T>>>
    where
        T: Serialize + DeserializeOwned,
    {
        const CALL: &str = "gather_object";
        self.check_root(CALL, Collective::Gather { root: as_root(root) })?;
        let is_root = self.rank() == root;
        let mut comm = self.tagged_calls(CALL);
        let (own, counts) = comm.encode_all(CALL, object)?;
        let has_all_pairs = comm.engine_on_this_thread(CALL)?.0.planner.ring().all_pairs();
        let is_receiver = is_root || !has_all_pairs;
        let total = if is_receiver { total(&counts) } else { 0 };
        let mut all = comm.memory(CALL, total)?;
        if has_all_pairs {
            comm.gather_v(&own, &mut all, &counts, root)?;
        } else {
            // Only neighbours on the ring have links for blocks of different lengths.
            comm.all_gather_v(&own, &mut all, &counts)?;
        }
        is_root.then(|| comm.decode_all(CALL, &all, &counts)).transpose()
    }

    /// This rank's object, encoded, and the lengths of all ranks' objects.
    fn encode_all<T: Serialize>(
        &mut self,
        call: &'static str,
        object: &T,
    ) -> Result<(Vec<u8>, Vec<usize>)> {
        let own = Encoded::of(object);
        let mut lengths = vec![0_u64; self.size()];
        self.all_gather(&[own.length()], &mut lengths)?;
        for (rank, &length) in lengths.iter().enumerate() {
            self.check_encoded(call, rank, length, &own)?;
        }
        Ok((own.bytes, lengths.into_iter().map(|length| length as usize).collect()))
    }

    /// Fails if rank `of` could not encode its object.
    fn check_encoded(
        &self,
        call: &'static str,
        of: usize,
        length: u64,
        own: &Encoded,
    ) -> Result<()> {
        if length != NOT_ENCODED {
            return Ok(());
        }
        let reason = match &own.failure {
            Some(reason) if of == self.rank() => format!("can't be encoded: {reason}"),
            _ => "can't be encoded there, as its error says".into(),
        };
        Err(Error::Object { call, peer: Box::new(self.peers()[of].clone()), reason })
    }

    /// Memory for so many bytes from other ranks.
    fn memory(&mut self, call: &'static str, bytes: u64) -> Result<Vec<u8>> {
        match usize::try_from(bytes).map(bytemuck::try_zeroed_vec) {
            Ok(Ok(memory)) => Ok(memory),
            // The other ranks wait for this one, so they must hear of it.
            _ => {
                let doing = format!("{call}: memory for {bytes} bytes of objects");
                let error = Error::io(doing, std::io::Error::from(std::io::ErrorKind::OutOfMemory));
                Err(self.break_with(call, error))
            }
        }
    }

    fn decode<T: DeserializeOwned>(
        &self,
        call: &'static str,
        of: usize,
        bytes: &[u8],
    ) -> Result<T> {
        rmp_serde::from_slice(bytes).map_err(|error| {
            // serde's message has names that the peer wrote.
            let error = printable(&error.to_string());
            let reason = format!("can't be decoded here: {error}; is it of the same type there?");
            Error::Object { call, peer: Box::new(self.peers()[of].clone()), reason }
        })
    }

    fn decode_all<T: DeserializeOwned>(
        &self,
        call: &'static str,
        bytes: &[u8],
        counts: &[usize],
    ) -> Result<Vec<T>> {
        let mut rest = bytes;
        let objects = counts.iter().enumerate().map(|(rank, &count)| {
            let (object, after) = rest.split_at(count);
            rest = after;
            self.decode(call, rank, object)
        });
        objects.collect()
    }
}

/// The bytes of all objects; more than any memory has if other ranks say so.
fn total(counts: &[usize]) -> u64 {
    counts.iter().fold(0, |sum, &count| sum.saturating_add(count as u64))
}

/// An encoded object, or why there is none.
#[derive(Default)]
struct Encoded {
    bytes: Vec<u8>,
    failure: Option<String>,
}

impl Encoded {
    fn of<T: Serialize>(object: &T) -> Self {
        match rmp_serde::to_vec_named(object) {
            Ok(bytes) => Self { bytes, failure: None },
            Err(error) => Self { bytes: Vec::new(), failure: Some(error.to_string()) },
        }
    }

    fn length(&self) -> u64 {
        if self.failure.is_some() { NOT_ENCODED } else { self.bytes.len() as u64 }
    }
}
