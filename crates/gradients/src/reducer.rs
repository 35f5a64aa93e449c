//! The reducer: fills buckets, starts their exchanges in one order, and gives the results back.

use std::fmt;
use std::mem::replace;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use ringreduce::{Communicator, DataType, Error, ReduceOp, Registered, Result};

use crate::Gradients;
use crate::bucket::{Bucket, BucketSizes, Parameter, State};
use crate::pool::{Keep, Pool};

/// The exchange of a full bucket's memory: it runs on the thread of the communicator, or, after
/// [`Reducer::set_serial`], on the one that has filled the bucket.
pub type Exchange = Arc<dyn Fn(&mut Communicator, &mut [u8], DataType) -> Result<()> + Send + Sync>;

/// Reduces the gradients of one model over all ranks: PyTorch's `Reducer` (Li et al., VLDB 2020).
///
/// In a step each parameter is filled once, in any order: by [`Self::fill`] during the backward
/// pass, or by [`Self::average`] after it. Buckets start in the same order at all ranks, whatever
/// the order in which they get full.
pub struct Reducer {
    comm: Communicator,
    exchange: Exchange,
    parameters: Vec<Parameter>,
    buckets: Vec<Bucket>,
    /// Where buckets have no memory of their own.
    pool: Option<Pool>,
    /// The bucket of each parameter.
    bucket_of: Vec<usize>,
    /// Whether each parameter was filled in this step.
    is_filled: Vec<bool>,
    /// Buckets that were started in this step.
    started: usize,
    /// The beginning and the end of each wait for an exchange in this step.
    waits: Vec<(Instant, Instant)>,
    /// Whether the step is over: the next one forgets its waits.
    is_over: bool,
    /// Whether the thread that fills a bucket makes its exchange.
    is_serial: bool,
}

impl fmt::Debug for Reducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reducer").field("comm", &self.comm).field("buckets", &self.buckets).finish()
    }
}

impl Reducer {
    /// A reducer that averages the gradients of these parameters, which are in the order of the
    /// forward pass. All ranks call this.
    ///
    /// # Errors
    /// If a parameter is no float, or other ranks have other parameters; if a peer is lost.
    pub fn new(comm: Communicator, parameters: &[Parameter], sizes: BucketSizes) -> Result<Self> {
        let average = |comm: &mut Communicator, bucket: &mut [u8], dtype| {
            comm.all_reduce_bytes(bucket, dtype, ReduceOp::Avg)
        };
        Self::with_exchange(comm, parameters, sizes, Arc::new(average))
    }

    /// As [`Self::new`], with another exchange of full buckets. The memory of a bucket has as many
    /// equal parts as there are ranks; elements behind the last parameter stay zero.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_exchange(
        comm: Communicator,
        parameters: &[Parameter],
        sizes: BucketSizes,
        exchange: Exchange,
    ) -> Result<Self> {
        let mut reducer = Self::unassigned(comm, parameters, exchange, None);
        reducer.assign(sizes)?;
        Ok(reducer)
    }

    /// A reducer without buckets yet: [`Self::assign`] makes them. No other rank is asked. With
    /// `keep`, buckets take turns in the memory of two of them: `keep` gets each result, in the
    /// order of the buckets, and [`Self::memory`] is empty.
    #[must_use]
    pub fn unassigned(
        comm: Communicator,
        parameters: &[Parameter],
        exchange: Exchange,
        keep: Option<Keep>,
    ) -> Self {
        Self {
            comm,
            exchange,
            parameters: parameters.to_vec(),
            buckets: Vec::new(),
            pool: keep.map(Pool::new),
            bucket_of: vec![0; parameters.len()],
            is_filled: vec![false; parameters.len()],
            started: 0,
            waits: Vec::new(),
            is_over: false,
            is_serial: false,
        }
    }

    /// Makes each exchange as soon as its bucket is full, on the thread that has filled it, instead
    /// of beside the backward pass. This is for ranks that have no CPU to spare for a second
    /// thread, and whose exchanges wait for no wire. Some ranks may do so and others not.
    pub fn set_serial(&mut self, is_serial: bool) {
        self.is_serial = is_serial;
    }

    /// Assigns the parameters to buckets with new memory. All ranks call this.
    ///
    /// # Errors
    /// As [`Self::new`]; also if other ranks pass other sizes.
    pub fn assign(&mut self, sizes: BucketSizes) -> Result<()> {
        self.check(sizes)?;
        let Self { comm, parameters, buckets, pool, bucket_of, .. } = self;
        *buckets = Bucket::assign(comm, parameters, sizes)?;
        for (at, bucket) in buckets.iter_mut().enumerate() {
            bucket.places.iter().for_each(|(parameter, _)| bucket_of[*parameter] = at);
            if pool.is_none() {
                bucket.lend(comm.alloc(bucket.len)?);
            }
        }
        Ok(())
    }

    /// Ends a step that has failed, and goes on with other ranks once [`Self::assign`] is called.
    pub fn replace_communicator(&mut self, comm: Communicator) {
        self.comm = comm;
        self.buckets.clear();
        if let Some(pool) = &mut self.pool {
            pool.clear();
        }
        self.is_filled.fill(false);
        self.started = 0;
        self.waits.clear();
    }

    /// Whether all ranks have the same parameters, which are floats, and pass the same sizes.
    fn check(&mut self, sizes: BucketSizes) -> Result<()> {
        let floats = [DataType::F16, DataType::BF16, DataType::F32, DataType::F64];
        let other = self.parameters.iter().find(|it| !floats.contains(&it.dtype));
        let wrong = |given: String, expected: &str| {
            Err(Error::argument("Reducer::new", "parameters", given, expected))
        };
        let mut mine = vec![sizes.first as u64, sizes.others as u64];
        for parameter in &self.parameters {
            mine.push(parameter.dtype.size() as u64);
            mine.push(parameter.count as u64);
        }
        // Ranks whose parameters are wrong come too, or the others would wait for them.
        let mark = if other.is_some() { u64::MAX } else { digest(&mine) };
        let mut all = vec![0; self.comm.size()];
        self.comm.all_gather(&[mark], &mut all)?;
        if let Some(other) = other {
            return wrong(other.dtype.name().into(), "floats of 16, 32 or 64 bits");
        }
        if let Some(rank) = all.iter().position(|it| *it != mark) {
            let given =
                format!("other types, lengths or sizes of buckets than those of rank {rank}");
            return wrong(given, "the same model at all ranks");
        }
        Ok(())
    }

    /// The ranks, between two steps.
    pub fn communicator(&mut self) -> &mut Communicator {
        &mut self.comm
    }

    /// How many buckets there are.
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    /// How many buckets were started in this step.
    #[must_use]
    pub fn started_buckets(&self) -> usize {
        self.started
    }

    /// Fills a parameter by `fill`, which returns false if there is nothing: then it counts as
    /// zero. Starts the exchanges of buckets that are full.
    ///
    /// # Errors
    /// If there is no such parameter, it was filled before in this step, or [`Self::assign`] has
    /// made no buckets; and those of `fill`.
    pub fn fill<E: From<Error>>(
        &mut self,
        parameter: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<bool, E>,
    ) -> Result<(), E> {
        let wrong = |given: String, expected: &str| {
            Err(Error::argument("Reducer::fill", "parameter", given, expected).into())
        };
        if self.is_filled.get(parameter) != Some(&false) {
            let given = format!("{parameter}, of {}", self.is_filled.len());
            return wrong(given, "a parameter that was not filled in this step");
        }
        if replace(&mut self.is_over, false) {
            self.waits.clear();
        }
        let at = self.bucket_of[parameter];
        if at >= self.buckets.len() {
            return wrong(format!("{parameter}, which is in no bucket"), "`assign` before it");
        }
        if let Some(pool) = &mut self.pool
            && matches!(self.buckets[at].state, State::Nowhere)
        {
            pool.lend(&self.comm, &mut self.buckets, at, &mut self.waits)?;
        }
        let bucket = &mut self.buckets[at];
        let Some(place) = bucket.place(parameter) else {
            return wrong(format!("{parameter} of a bucket that has failed"), "a new reducer");
        };
        if !fill(place)? {
            place.fill(0);
        }
        self.is_filled[parameter] = true;
        bucket.missing -= 1;
        Ok(self.start()?)
    }

    /// Starts the exchanges of full buckets whose predecessors were started, or makes them.
    fn start(&mut self) -> Result<()> {
        while let Some(bucket) = self.buckets.get_mut(self.started) {
            if bucket.missing > 0 {
                return Ok(());
            }
            let at = self.started;
            self.started += 1;
            let (dtype, len) = (bucket.dtype, bucket.len);
            match replace(&mut bucket.state, State::Nowhere) {
                State::Here(mut memory) if self.is_serial => {
                    let from = Instant::now();
                    (self.exchange)(&mut self.comm, &mut memory[..len], dtype)?;
                    self.waits.push((from, Instant::now()));
                    self.take_back(at, memory);
                }
                State::Here(memory) => {
                    let exchange = Arc::clone(&self.exchange);
                    let work = move |comm: &mut _, memory: &mut Registered<'_, u8>| {
                        exchange(comm, &mut memory[..len], dtype)
                    };
                    bucket.state = State::Going(self.comm.nonblocking().start(memory, work));
                }
                other => bucket.state = other,
            }
        }
        Ok(())
    }

    /// Takes the memory of a bucket that was exchanged.
    fn take_back(&mut self, at: usize, memory: Registered<'static, u8>) {
        let bucket = &mut self.buckets[at];
        match &mut self.pool {
            Some(pool) => pool.take_back(at, bucket.len, memory),
            None => bucket.state = State::Here(memory),
        }
    }

    /// Ends a step: reads the gradients that were not filled yet, waits for all averages and writes
    /// them. All ranks call this.
    ///
    /// # Errors
    /// Those of the framework; and if a peer is lost: then the reducer is of no use until
    /// [`Self::replace_communicator`].
    pub fn average<G: Gradients>(&mut self, gradients: &mut G) -> Result<(), G::Error> {
        for parameter in (0..self.is_filled.len()).rev() {
            if !self.is_filled[parameter] {
                self.fill(parameter, |to| gradients.read(parameter, to))?;
            }
        }
        self.wait()?;
        let mut written = Ok(());
        for bucket in &self.buckets {
            // Where buckets take turns, `keep` has the results.
            let Some(memory) = Some(bucket.memory()).filter(|it| !it.is_empty()) else { continue };
            for (parameter, place) in &bucket.places {
                // A failure of the framework leaves the ranks in step.
                let from = &memory[place.clone()];
                written = written.and_then(|()| gradients.write(*parameter, from));
            }
        }
        written
    }

    /// Ends a step whose parameters were all filled: waits for the exchanges, whose results are
    /// then in [`Self::memory`].
    ///
    /// # Errors
    /// If a parameter was not filled; and if a peer is lost: then the reducer is of no use until
    /// [`Self::replace_communicator`].
    pub fn wait(&mut self) -> Result<()> {
        if let Some(missing) = self.is_filled.iter().position(|it| !it) {
            let given = format!("{missing}, not filled in this step");
            return Err(Error::argument("Reducer::wait", "parameter", given, "a gradient or zero"));
        }
        self.is_filled.fill(false);
        self.started = 0;
        self.is_over = true;
        for at in 0..self.buckets.len() {
            let bucket = &mut self.buckets[at];
            bucket.missing = bucket.places.len();
            if let Some(memory) = bucket.wait(&mut self.waits)? {
                self.take_back(at, memory);
            }
        }
        Ok(())
    }

    /// The beginning and the end of each wait for an exchange in this step, or in the last one if
    /// none has begun. The waits are in the order of the exchanges.
    #[must_use]
    pub fn waits(&self) -> &[(Instant, Instant)] {
        &self.waits
    }

    /// The bytes of the buckets' memory.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        let lens = self.buckets.iter().map(|bucket| bucket.len);
        match &self.pool {
            Some(pool) => pool.made() * lens.max().unwrap_or(0),
            None => lens.sum(),
        }
    }

    /// The parameters of each bucket, and where in its memory they are, in bytes.
    #[must_use]
    pub fn places(&self) -> Vec<&[(usize, Range<usize>)]> {
        self.buckets.iter().map(|bucket| &bucket.places[..]).collect()
    }

    /// The bytes of a bucket, those behind the last parameter too.
    #[must_use]
    pub fn memory_len(&self, bucket: usize) -> usize {
        self.buckets.get(bucket).map_or(0, |bucket| bucket.len)
    }

    /// The memory of a bucket, between two steps. Empty if there is no such bucket, where buckets
    /// take turns, and after a failure.
    pub fn memory(&mut self, bucket: usize) -> &mut [u8] {
        match self.buckets.get_mut(bucket).map(|bucket| &mut bucket.state) {
            Some(State::Here(memory)) => memory,
            _ => &mut [],
        }
    }

    /// Gives all ranks the values of rank 0. All ranks call this, before the first step.
    ///
    /// # Errors
    /// Those of the framework; and if a peer is lost.
    pub fn broadcast<G: Gradients>(&mut self, values: &mut G) -> Result<(), G::Error> {
        for bucket in &mut self.buckets {
            let State::Here(memory) = &mut bucket.state else { continue };
            for (parameter, place) in &bucket.places {
                values.read(*parameter, &mut memory[place.clone()])?;
            }
            self.comm.broadcast_bytes(memory, bucket.dtype, 0)?;
            for (parameter, place) in &bucket.places {
                values.write(*parameter, &memory[place.clone()])?;
            }
        }
        Ok(())
    }
}

/// A digest of words (FNV-1a by words).
fn digest(words: &[u64]) -> u64 {
    let mix = |digest: u64, word: &u64| (digest ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    words.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}
