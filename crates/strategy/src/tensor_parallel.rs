//! Linear layers whose weight is split over ranks (Shoeybi et al., Megatron-LM, 2019): which part
//! a rank has, and what activations and their gradients need at the borders of the split region.
//! A layer by columns gives each rank some of the outputs; a layer by rows takes each rank's inputs
//! from there. Two such layers, and whatever works element by element between them, need one
//! all-reduce in the forward pass and one in the backward pass.

use std::ops::Range;
use std::time::{Duration, Instant};

use ringreduce::{Communicator, Error, ReduceOp, Result};

/// Which part of a linear layer a rank has: pure numbers. A weight is outputs x inputs, row by row,
/// as PyTorch's, candle's and TensorFlow's dense kernels are after a transposition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearPart {
    /// The inputs and the outputs of the whole layer.
    whole: (usize, usize),
    /// The inputs that this rank's part takes.
    pub inputs: Range<usize>,
    /// The outputs that this rank's part gives: of the layer if it is split by columns, else
    /// contributions to them.
    pub outputs: Range<usize>,
}

impl LinearPart {
    /// The part of `rank` among `size` of a layer split by the columns of A in y = xA: some of the
    /// outputs, from all inputs. Parts differ by one output at most.
    #[must_use]
    pub fn by_columns(inputs: usize, outputs: usize, rank: usize, size: usize) -> Self {
        let whole = (inputs, outputs);
        Self { whole, inputs: 0..inputs, outputs: part(outputs, rank, size) }
    }

    /// The part of `rank` among `size` of a layer split by the rows of A in y = xA: a contribution
    /// to all outputs, from some of the inputs. The bias is whole at all ranks, and is added once,
    /// after [`Mapping::Reduce`]; so its gradient is the same at all ranks.
    #[must_use]
    pub fn by_rows(inputs: usize, outputs: usize, rank: usize, size: usize) -> Self {
        let whole = (inputs, outputs);
        Self { whole, inputs: part(inputs, rank, size), outputs: 0..outputs }
    }

    /// Where each row of this rank's weight is in the whole weight.
    fn rows(&self) -> impl Iterator<Item = Range<usize>> {
        let start = |output: usize| output * self.whole.0;
        self.outputs
            .clone()
            .map(move |output| start(output) + self.inputs.start..start(output) + self.inputs.end)
    }

    /// Cuts this rank's weight out of the whole one. The part of the bias of a layer by columns is
    /// `bias[part.outputs]`.
    ///
    /// # Errors
    /// If the whole weight has another length.
    pub fn cut(&self, whole: &[f32]) -> Result<Vec<f32>> {
        self.check_whole("cut", whole.len())?;
        Ok(self.rows().flat_map(|row| &whole[row]).copied().collect())
    }

    /// Puts this rank's weight into its place in the whole one: the whole weight comes of the parts
    /// of all ranks.
    ///
    /// # Errors
    /// If a weight has another length.
    pub fn put(&self, part: &[f32], whole: &mut [f32]) -> Result<()> {
        if part.len() != self.inputs.len() * self.outputs.len() {
            return Err(self.wrong("put", "part", part.len()));
        }
        self.check_whole("put", whole.len())?;
        for (row, values) in self.rows().zip(part.chunks(self.inputs.len().max(1))) {
            whole[row].copy_from_slice(values);
        }
        Ok(())
    }

    /// Every rank refuses another length, also one in which its own part would have a place.
    fn check_whole(&self, call: &'static str, len: usize) -> Result<()> {
        if len == self.whole.0 * self.whole.1 {
            return Ok(());
        }
        Err(self.wrong(call, "whole", len))
    }

    fn wrong(&self, call: &'static str, argument: &'static str, len: usize) -> Error {
        let expected = format!("a weight with {self:?}");
        Error::argument(call, argument, format!("{len} elements"), expected)
    }
}

/// A rank's part of `count` things.
fn part(count: usize, rank: usize, size: usize) -> Range<usize> {
    let place = |rank: usize| count * rank / size.max(1);
    place(rank)..place(rank + 1)
}

/// The operations on activations at the border of a region whose layers are split. Each is the
/// conjugate of another: the gradient of one's result goes back by the other (Megatron-LM's f and
/// g, and its mappings of the same names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mapping {
    /// Each rank takes the whole activations, before a layer by columns: the identity.
    Copy,
    /// The sum of all ranks' contributions, after a layer by rows: an all-reduce.
    Reduce,
    /// Each rank takes its columns of activations with `columns` in all: no communication.
    Scatter {
        /// The columns of all ranks.
        columns: usize,
    },
    /// The columns of all ranks, after a layer by columns whose outputs all ranks need: an
    /// all-gather.
    Gather {
        /// The columns of all ranks.
        columns: usize,
    },
}

impl Mapping {
    /// The mapping by which gradients go back.
    #[must_use]
    pub const fn conjugate(self) -> Self {
        match self {
            Self::Copy => Self::Reduce,
            Self::Reduce => Self::Copy,
            Self::Scatter { columns } => Self::Gather { columns },
            Self::Gather { columns } => Self::Scatter { columns },
        }
    }

    /// The bytes that each rank sends for activations of `bytes` in all, if collectives go by rings
    /// and `size` divides the elements: 2(n-1)/n S for a sum, (n-1)/n S for a gathering (Patarasuk
    /// and Yuan, 2009), else none.
    #[must_use]
    pub fn sent_bytes(self, bytes: u64, size: usize) -> u64 {
        let ring = bytes * (size as u64).saturating_sub(1) / (size as u64).max(1);
        match self {
            Self::Copy | Self::Scatter { .. } => 0,
            Self::Reduce => 2 * ring,
            Self::Gather { .. } => ring,
        }
    }
}

/// The ranks over which layers are split. They make the same calls in the same order, so they have
/// a communicator of their own, apart from the one of gradients.
#[derive(Debug)]
pub struct TensorParallel {
    comm: Communicator,
    communication: Duration,
}

impl TensorParallel {
    /// Takes the communicator of these ranks.
    #[must_use]
    pub fn new(comm: Communicator) -> Self {
        Self { comm, communication: Duration::ZERO }
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.comm.size()
    }

    /// This rank's columns among so many.
    #[must_use]
    pub fn part(&self, columns: usize) -> Range<usize> {
        part(columns, self.rank(), self.size())
    }

    /// The time that all calls so far have taken: no pass computes meanwhile.
    #[must_use]
    pub fn communication(&self) -> Duration {
        self.communication
    }

    /// Replaces numbers by their sums over the ranks, such as the square of a norm of which each
    /// rank has a part. All ranks call this.
    ///
    /// # Errors
    /// If a peer is lost or makes another call.
    pub fn add_up(&mut self, numbers: &mut [f64]) -> Result<()> {
        let start = Instant::now();
        let added = self.comm.all_reduce(numbers, ReduceOp::Sum);
        self.communication += start.elapsed();
        added.map(drop)
    }

    /// Passes activations, row by row, over a border in the forward pass. All ranks call this.
    ///
    /// # Errors
    /// If the activations are not whole rows; and if a peer is lost or makes another call.
    pub fn forward(&mut self, mapping: Mapping, values: Vec<f32>) -> Result<Vec<f32>> {
        let start = Instant::now();
        let passed = self.pass(mapping, values);
        self.communication += start.elapsed();
        passed
    }

    fn pass(&mut self, mapping: Mapping, mut values: Vec<f32>) -> Result<Vec<f32>> {
        match mapping {
            Mapping::Copy => Ok(values),
            Mapping::Reduce => {
                self.comm.all_reduce(&mut values, ReduceOp::Sum)?;
                Ok(values)
            }
            Mapping::Scatter { columns } => {
                let mine = self.part(columns);
                whole_rows("columns", columns, &values)?;
                let rows = values.chunks_exact(columns.max(1));
                Ok(rows.flat_map(|row| &row[mine.clone()]).copied().collect())
            }
            Mapping::Gather { columns } => self.gather(columns, &values),
        }
    }

    /// Passes gradients, row by row, back over the border that activations passed by `mapping`.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn backward(&mut self, mapping: Mapping, gradients: Vec<f32>) -> Result<Vec<f32>> {
        self.forward(mapping.conjugate(), gradients)
    }

    fn gather(&mut self, columns: usize, values: &[f32]) -> Result<Vec<f32>> {
        let (rank, size) = (self.rank(), self.size());
        let parts: Vec<_> = (0..size).map(|rank| part(columns, rank, size)).collect();
        whole_rows("columns of this rank", parts[rank].len(), values)?;
        let mut most_rows = [(values.len() / parts[rank].len().max(1)) as u64];
        if columns < size {
            // A rank without columns does not know the rows.
            self.comm.all_reduce(&mut most_rows, ReduceOp::Max)?;
        }
        let rows = most_rows[0] as usize;
        let counts: Vec<usize> = parts.iter().map(|part| rows * part.len()).collect();
        let mut by_rank = vec![0.0; rows * columns];
        self.comm.all_gather_v(values, &mut by_rank, &counts)?;
        let mut whole = vec![0.0; rows * columns];
        let mut from = &by_rank[..];
        for part in parts {
            for row in whole.chunks_exact_mut(columns.max(1)) {
                let (values, others) = from.split_at(part.len());
                row[part.clone()].copy_from_slice(values);
                from = others;
            }
        }
        Ok(whole)
    }
}

fn whole_rows(argument: &'static str, columns: usize, values: &[f32]) -> Result<()> {
    if values.len().is_multiple_of(columns) {
        return Ok(());
    }
    let expected = format!("a number that divides the {} activations", values.len());
    Err(Error::argument("TensorParallel::forward", argument, columns.to_string(), expected))
}
