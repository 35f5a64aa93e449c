//! Products of matrices, by candle's.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Error, Layout, Result};

/// A matrix of `rows` x `columns` in a storage.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    storage: &'a CpuStorage,
    start: usize,
    rows: usize,
    columns: usize,
    is_transposed: bool,
}

impl<'a> Matrix<'a> {
    /// The matrix whose rows begin at `start`.
    pub(super) fn new(storage: &'a CpuStorage, start: usize, rows: usize, columns: usize) -> Self {
        Self { storage, start, rows, columns, is_transposed: false }
    }

    /// The transposed matrix, in the same memory.
    pub(super) fn transposed(self) -> Self {
        let (rows, columns) = (self.columns, self.rows);
        Self { rows, columns, is_transposed: !self.is_transposed, ..self }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    fn layout(&self) -> Result<Layout> {
        let (rows, columns) = (self.rows, self.columns);
        let from = |shape| Layout::contiguous_with_offset(shape, self.start);
        match self.is_transposed {
            true => from((columns, rows)).transpose(0, 1),
            false => Ok(from((rows, columns))),
        }
    }

    /// The product with a matrix of as many rows as this one has columns.
    pub(super) fn times(self, other: Matrix<'_>) -> Result<Vec<f32>> {
        let sizes = (1, self.rows, other.columns, self.columns);
        let (left, right) = (self.layout()?, other.layout()?);
        match self.storage.matmul(other.storage, sizes, &left, &right)? {
            CpuStorage::F32(product) => Ok(product),
            other => Err(Error::Msg(format!("a product is of {:?}", other.dtype())).bt()),
        }
    }
}
