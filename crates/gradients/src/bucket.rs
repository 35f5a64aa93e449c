//! Buckets: which parameters are averaged as one, and in which memory.
//! Law: each parameter is in one bucket, the last one in the first bucket.

use std::mem::replace;
use std::ops::Range;
use std::time::Instant;

use ringreduce::{Communicator, DataType, Error, Pending, Registered, Result};

/// The type and the number of elements of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// A float.
    pub dtype: DataType,
    /// Elements.
    pub count: usize,
}

/// The bytes at which a bucket is closed. The defaults are those of PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSizes {
    /// Of the first bucket, which is small so that the first all-reduce starts early: 1 MiB.
    pub first: usize,
    /// Of the others: 25 MiB.
    pub others: usize,
}

impl Default for BucketSizes {
    fn default() -> Self {
        Self { first: 1 << 20, others: 25 << 20 }
    }
}

/// Parameters, and their places in the memory of a bucket.
type Places = Vec<(usize, Range<usize>)>;

/// Parameters of one type that are averaged as one.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) dtype: DataType,
    pub(crate) state: State,
    pub(crate) places: Places,
    /// Bytes, those behind the last parameter too.
    pub(crate) len: usize,
    /// Parameters that are still to be filled.
    pub(crate) missing: usize,
}

/// Where the memory of a bucket is.
#[derive(Debug)]
pub(crate) enum State {
    Here(Registered<'static, u8>),
    Going(Pending<Registered<'static, u8>>),
    /// No memory is lent to the bucket, or it went down with a call that failed.
    Nowhere,
}

/// Parameters of one type that are exchanged as one, with their places in its memory, in bytes.
pub type Assigned = (DataType, Vec<(usize, Range<usize>)>);

/// Assigns the parameters, which are in the order of the forward pass, to buckets in the order of
/// the exchanges: that of the backward pass.
///
/// # Errors
/// If a parameter would not fit into the address space.
pub fn assign(parameters: &[Parameter], sizes: BucketSizes) -> Result<Vec<Assigned>> {
    let mut plans: Vec<Assigned> = Vec::new();
    for (at, parameter) in parameters.iter().enumerate().rev() {
        let bytes = parameter.count.checked_mul(parameter.dtype.size());
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(|| {
            let expected = "elements that fit into the address space";
            Error::argument("Reducer::new", "parameters", format!("{parameter:?}"), expected)
        })?;
        let limit = if plans.len() == 1 { sizes.first } else { sizes.others };
        let end = |places: &Places| places.last().map_or(0, |(_, p)| p.end);
        match plans.last_mut() {
            Some((dtype, places)) if *dtype == parameter.dtype && end(places) < limit => {
                let start = end(places);
                places.push((at, start..start + bytes));
            }
            _ => plans.push((parameter.dtype, vec![(at, 0..bytes)])),
        }
    }
    Ok(plans)
}

impl Bucket {
    /// Assigns the parameters to buckets without memory.
    pub(crate) fn assign(
        comm: &Communicator,
        parameters: &[Parameter],
        sizes: BucketSizes,
    ) -> Result<Vec<Self>> {
        let make = |(dtype, places): Assigned| {
            let len = places.last().map_or(0, |(_, place)| place.end);
            let len = len.next_multiple_of(dtype.size() * comm.size());
            let missing = places.len();
            Self { dtype, state: State::Nowhere, places, len, missing }
        };
        Ok(assign(parameters, sizes)?.into_iter().map(make).collect())
    }

    /// Lends memory to the bucket, at least as long as it.
    pub(crate) fn lend(&mut self, mut memory: Registered<'static, u8>) {
        let end = self.places.last().map_or(0, |(_, place)| place.end);
        memory[end..self.len].fill(0);
        self.state = State::Here(memory);
    }

    /// Waits for the exchange, if there is one, and gives its memory.
    pub(crate) fn wait(
        &mut self,
        waits: &mut Vec<(Instant, Instant)>,
    ) -> Result<Option<Registered<'static, u8>>> {
        match replace(&mut self.state, State::Nowhere) {
            State::Going(pending) => {
                let from = Instant::now();
                let memory = pending.wait()?;
                waits.push((from, Instant::now()));
                Ok(Some(memory))
            }
            other => {
                self.state = other;
                Ok(None)
            }
        }
    }

    /// The memory; empty while an exchange has it.
    pub(crate) fn memory(&self) -> &[u8] {
        match &self.state {
            State::Here(memory) => &memory[..self.len],
            _ => &[],
        }
    }

    /// The place of a parameter in the memory; `None` while an exchange has it.
    pub(crate) fn place(&mut self, parameter: usize) -> Option<&mut [u8]> {
        let place = self.places.iter().find(|(at, _)| *at == parameter)?.1.clone();
        match &mut self.state {
            State::Here(memory) => memory.get_mut(place),
            _ => None,
        }
    }
}
