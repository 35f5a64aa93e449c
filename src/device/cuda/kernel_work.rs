//! The kernels of a call: loaded before streams wait, and put on the stream by what it asks for.
//! May touch: board, form, launch, module, names, ring, together, plan's names of forms.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::CUstream;

use super::control_block::At;
use super::kernel_names::{Scalar, Wanted};
use super::launch::{self, Folded, Table, Words};
use super::module::{Fold, Mover, locked};
use super::peer_executor::{Call, Together};
use super::ring_executor::Around;
use crate::device::algorithm::Job;
use crate::element::DataType;
use crate::error::Error;
use crate::plan::DeviceForm;

impl Together {
    /// Puts one job on the stream.
    pub(super) fn work(
        &mut self,
        stream: CUstream,
        call: &Call,
        at: At,
        job: &Job,
    ) -> Result<(), Error> {
        let watch = Arc::clone(&self.guard.watch);
        let boards = &watch.boards;
        let Job::Fold { sources, outs, from, to, bytes } = job else {
            return self.put_moves(stream, at, [0, call.form.moves()], call.form.block);
        };
        let Some((_, wanted, _)) = call.reduction else { return Ok(()) };
        let table = |at, ranks: &Range<usize>, offset: &usize| Table {
            at,
            len: ranks.len() as u32,
            offset: *offset as u64,
        };
        let tables = [
            table(boards.sends(at, sources.start), sources, from),
            table(boards.recvs(at, outs.start), outs, to),
        ];
        self.put_fold(stream, call, at, (wanted, tables, *bytes))
    }

    /// Puts a fold on the stream, from one table to the other.
    pub(super) fn put_fold(
        &mut self,
        stream: CUstream,
        call: &Call,
        at: At,
        (wanted, [sources, outs], bytes): (Wanted, [Table; 2], usize),
    ) -> Result<(), Error> {
        let Some((dtype, _, factor)) = call.reduction else { return Ok(()) };
        let Fold { function, elements, scalar } = self.fold(dtype, wanted)?;
        let boards = &self.guard.watch.boards;
        let value = match scalar {
            Scalar::Nothing => None,
            Scalar::Factor => Some(factor),
            Scalar::One(one) => Some(u128::from(one).to_le_bytes()),
        };
        value.iter().for_each(|&value| boards.put_scalar(at.place, value));
        let folded = Folded {
            sources,
            outs,
            count: (bytes / dtype.size() * elements) as u64,
            bytes,
            last: boards.size() as u32,
            scalar: value.map_or(0, |_| boards.scalar(at)),
            words: Words { stop: boards.stop(), works: boards.works(at) },
        };
        launch::fold(stream, function, &folded, self.most_blocks)
    }

    /// Puts so many moves on the stream, of this rank's list from number `first` on.
    pub(super) fn put_moves(
        &mut self,
        stream: CUstream,
        at: At,
        [first, count]: [usize; 2],
        longest: usize,
    ) -> Result<(), Error> {
        let mover = self.mover()?;
        let boards = &self.guard.watch.boards;
        let list = (boards.moves(at, first), count as u32);
        let words = Words { stop: boards.stop(), works: boards.works(at) };
        launch::moves(stream, mover.0, list, longest, words, self.most_blocks)
    }

    /// Loads what a call's kernels are.
    pub(super) fn load(&mut self, call: &Call) -> Result<(), Error> {
        match call.reduction {
            Some((dtype, wanted, _)) if call.form.by == DeviceForm::Ring => {
                Around::wanted(wanted).try_for_each(|wanted| self.fold(dtype, wanted).map(drop))
            }
            Some((dtype, wanted, _)) => self.fold(dtype, wanted).map(drop),
            None => self.mover().map(drop),
        }
    }

    fn mover(&mut self) -> Result<Mover, Error> {
        let found = self.mover.map_or_else(|| locked(&self.kernels).mover(), Ok)?;
        self.mover = Some(found);
        Ok(found)
    }

    fn fold(&mut self, dtype: DataType, wanted: Wanted) -> Result<Fold, Error> {
        if let Some((_, fold)) = self.folds.iter().find(|(of, _)| *of == (dtype, wanted)) {
            return Ok(*fold);
        }
        let fold = locked(&self.kernels).fold(dtype, wanted)?;
        self.folds.push(((dtype, wanted), fold));
        Ok(fold)
    }
}
