//! The kernels of a direct call: loading them before streams wait, and launching them with the
//! addresses that lie in control blocks.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::CUstream;

use super::control_block::SlotRef;
use super::kernel_names::{KernelReduction, KernelScalar};
use super::launch::{ControlWords, FoldArguments, PointerTable, launch_fold, launch_moves};
use super::locked;
use super::module::{FoldKernel, MoveKernel};
use super::peer_executor::{PeerCall, PeerExecutor};
use super::ring_executor::RingCalls;
use crate::device::algorithm::Job;
use crate::element::DataType;
use crate::error::Error;
use crate::plan::DeviceForm;

impl PeerExecutor {
    pub(super) fn enqueue_job(
        &mut self,
        stream: CUstream,
        call: &PeerCall,
        at: SlotRef,
        job: &Job,
    ) -> Result<(), Error> {
        let watchdog = Arc::clone(&self.watchdog.shared);
        let blocks = &watchdog.blocks;
        let Job::Fold { sources, outs, from, to, bytes } = job else {
            let moves = [0, call.algorithm.move_count()];
            return self.enqueue_moves(stream, at, moves, call.algorithm.block);
        };
        let Some((_, wanted, _)) = call.reduction else { return Ok(()) };
        let table = |at, ranks: &Range<usize>, offset: &usize| PointerTable {
            at,
            len: ranks.len() as u32,
            offset: *offset as u64,
        };
        let tables = [
            table(blocks.send_table(at, sources.start), sources, from),
            table(blocks.recv_table(at, outs.start), outs, to),
        ];
        self.enqueue_fold(stream, call, at, (wanted, tables, *bytes))
    }

    /// Puts a reduction on the stream, from one table of buffers to the other.
    pub(super) fn enqueue_fold(
        &mut self,
        stream: CUstream,
        call: &PeerCall,
        at: SlotRef,
        (wanted, [sources, outs], bytes): (KernelReduction, [PointerTable; 2], usize),
    ) -> Result<(), Error> {
        let Some((dtype, _, factor)) = call.reduction else { return Ok(()) };
        let FoldKernel { function, elements, scalar } = self.fold_kernel(dtype, wanted)?;
        let blocks = &self.watchdog.shared.blocks;
        let value = match scalar {
            KernelScalar::Nothing => None,
            KernelScalar::Factor => Some(factor),
            KernelScalar::One(one) => Some(u128::from(one).to_le_bytes()),
        };
        value.iter().for_each(|&value| blocks.write_scalar(at.slot, value));
        let folded = FoldArguments {
            sources,
            outs,
            count: (bytes / dtype.size() * elements) as u64,
            bytes,
            last: blocks.size() as u32,
            scalar: value.map_or(0, |_| blocks.scalar_address(at)),
            words: ControlWords { stop: blocks.stop_word(), running: blocks.running_word(at) },
        };
        launch_fold(stream, function, &folded, self.most_blocks)
    }

    /// Puts `count` moves on the stream, of this rank's list from number `first` on.
    pub(super) fn enqueue_moves(
        &mut self,
        stream: CUstream,
        at: SlotRef,
        [first, count]: [usize; 2],
        longest: usize,
    ) -> Result<(), Error> {
        let mover = self.move_kernel()?;
        let blocks = &self.watchdog.shared.blocks;
        let list = (blocks.move_list(at, first), count as u32);
        let words = ControlWords { stop: blocks.stop_word(), running: blocks.running_word(at) };
        launch_moves(stream, mover.0, list, longest, words, self.most_blocks)
    }

    pub(super) fn load_kernels(&mut self, call: &PeerCall) -> Result<(), Error> {
        match call.reduction {
            Some((dtype, wanted, _)) if call.algorithm.by == DeviceForm::Ring => {
                RingCalls::step_reductions(wanted)
                    .try_for_each(|wanted| self.fold_kernel(dtype, wanted).map(drop))
            }
            Some((dtype, wanted, _)) => self.fold_kernel(dtype, wanted).map(drop),
            None => self.move_kernel().map(drop),
        }
    }

    fn move_kernel(&mut self) -> Result<MoveKernel, Error> {
        let found = self.move_kernel.map_or_else(|| locked(&self.kernels).move_kernel(), Ok)?;
        self.move_kernel = Some(found);
        Ok(found)
    }

    fn fold_kernel(
        &mut self,
        dtype: DataType,
        wanted: KernelReduction,
    ) -> Result<FoldKernel, Error> {
        if let Some((_, fold)) = self.fold_kernels.iter().find(|(of, _)| *of == (dtype, wanted)) {
            return Ok(*fold);
        }
        let fold = locked(&self.kernels).fold_kernel(dtype, wanted)?;
        self.fold_kernels.push(((dtype, wanted), fold));
        Ok(fold)
    }
}
