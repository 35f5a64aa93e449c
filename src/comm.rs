//! The communicator: the public verbs. (Interface first: only a world of one rank works yet.)

use std::time::Duration;

use crate::element::{DataType, Element, ReduceOp};
use crate::error::Result;

/// How ranks of one pair reach each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory where both sit on one host, TCP otherwise.
    #[default]
    Auto,
    /// Shared memory only.
    Shm,
    /// TCP only.
    Tcp,
}

/// Settings of a communicator; what is not set comes from the environment.
#[derive(Clone, Debug, Default)]
pub struct Builder {}

impl Builder {
    /// This process's rank.
    #[must_use]
    pub fn rank(self, _rank: usize) -> Self {
        self
    }
    /// The world size.
    #[must_use]
    pub fn size(self, _size: usize) -> Self {
        self
    }
    /// Where ranks meet: `host:port` (rank 0 listens there), or `fd:N`.
    #[must_use]
    pub fn store(self, _address: &str) -> Self {
        self
    }
    /// The longest that any wait lasts.
    #[must_use]
    pub fn timeout(self, _timeout: Duration) -> Self {
        self
    }
    /// Forces a transport.
    #[must_use]
    pub fn transport(self, _transport: Transport) -> Self {
        self
    }
    /// Which network interfaces may be used: prefixes, `^` excludes, `=` is exact, or a subnet.
    #[must_use]
    pub fn interface(self, _interface: &str) -> Self {
        self
    }
    /// Meets the other ranks.
    pub fn build(self) -> Result<Communicator> {
        Ok(Communicator { rank: 0, size: 1 })
    }
}

/// A group of ranks that call collectives together.
#[derive(Debug)]
pub struct Communicator {
    rank: usize,
    size: usize,
}

impl Communicator {
    /// The rank that the environment describes.
    pub fn from_env() -> Result<Self> {
        Ok(Self { rank: 0, size: 1 })
    }
    /// `n` ranks that are threads of this process; give each to its own thread.
    pub fn local(n: usize) -> Result<Vec<Self>> {
        Ok((0..n).map(|rank| Self { rank, size: n }).collect())
    }
    /// Settings by hand.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }
    /// This rank, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }
    /// How many ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }
    /// This rank among those on its host.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.rank
    }
    /// How many ranks on this host.
    #[must_use]
    pub fn local_size(&self) -> usize {
        self.size
    }
    /// The name of this rank's host.
    #[must_use]
    pub fn host(&self) -> &str {
        "localhost"
    }
    /// Reduces `buf` over all ranks, in place.
    pub fn all_reduce<T: Element>(&mut self, _buf: &mut [T], _op: ReduceOp) -> Result<()> {
        Ok(())
    }
    /// Reduces `send` over all ranks into `recv`, of the same length.
    pub fn all_reduce_into<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        _op: ReduceOp,
    ) -> Result<()> {
        recv.copy_from_slice(send);
        Ok(())
    }
    /// Reduces `send` (size x `recv.len()`) over all ranks; chunk `rank` of it goes to `recv`.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        _op: ReduceOp,
    ) -> Result<()> {
        recv.copy_from_slice(send);
        Ok(())
    }
    /// Every rank's `send`, one after the other, to `recv` (size x `send.len()`).
    pub fn all_gather<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        recv.copy_from_slice(send);
        Ok(())
    }
    /// The root's `buf` to everybody's.
    pub fn broadcast<T: Element>(&mut self, _buf: &mut [T], _root: usize) -> Result<()> {
        Ok(())
    }
    /// Returns when every rank has called it.
    pub fn barrier(&mut self) -> Result<()> {
        Ok(())
    }
    /// As [`Self::all_reduce`], with the type known at run time; `buf` may be unaligned.
    pub fn all_reduce_bytes(&mut self, _buf: &mut [u8], _t: DataType, _op: ReduceOp) -> Result<()> {
        Ok(())
    }
    /// As [`Self::all_reduce_into`], with the type known at run time.
    pub fn all_reduce_into_bytes(
        &mut self,
        send: &[u8],
        recv: &mut [u8],
        _t: DataType,
        _op: ReduceOp,
    ) -> Result<()> {
        recv.copy_from_slice(send);
        Ok(())
    }
    /// As [`Self::reduce_scatter`], with the type known at run time.
    pub fn reduce_scatter_bytes(
        &mut self,
        send: &[u8],
        recv: &mut [u8],
        _t: DataType,
        _op: ReduceOp,
    ) -> Result<()> {
        recv.copy_from_slice(send);
        Ok(())
    }
    /// As [`Self::reduce_scatter`], in place: chunk `rank` of `buf` becomes the result.
    pub fn reduce_scatter_in_place<T: Element>(
        &mut self,
        _buf: &mut [T],
        _op: ReduceOp,
    ) -> Result<()> {
        Ok(())
    }
    /// As [`Self::all_gather`], in place: chunk `rank` of `buf` is this rank's.
    pub fn all_gather_in_place<T: Element>(&mut self, _buf: &mut [T]) -> Result<()> {
        Ok(())
    }
}
