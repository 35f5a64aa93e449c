//! A rank's two buffers, and the check of one call on them: fresh input, poisoned results and set
//! guards before the call, and a count of all differences after it.

use anyhow::Result;
use ringreduce::Communicator;

use crate::cli::Memory;
use crate::device::{self, Gpu};
use crate::measure::buffer::Guarded;
use crate::measure::case::{Case, Placement};
use crate::measure::oracle::Oracle;

/// The bytes of a result before a checked call, which must not stay.
const POISON: u8 = 0x5c;

/// A rank's buffers; calls in place use `recv`. With a device, data is made and checked here, and
/// calls use the device's buffers.
pub(crate) struct Buffers {
    pub(crate) send: Guarded,
    pub(crate) recv: Guarded,
    device: Option<device::BufferPair>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Errors {
    pub(crate) wrong: u64,
    /// Bytes around the buffers and elements of the input that were written.
    pub(crate) out_of_bounds: u64,
}

impl Buffers {
    /// Buffers of up to `most` bytes each. Collective over all ranks.
    pub(crate) fn new(
        comm: &mut Communicator,
        memory: Memory,
        most: usize,
        unalign: usize,
        gpu: Option<&Gpu>,
    ) -> Result<Self> {
        let Some(gpu) = gpu else {
            let mut new = || Guarded::new(comm, memory, most, unalign);
            return Ok(Self { send: new()?, recv: new()?, device: None });
        };
        let device = device::BufferPair::new(comm, gpu, memory, most, unalign)?;
        let mut new = || Guarded::new(comm, Memory::Plain, most, unalign);
        Ok(Self { send: new()?, recv: new()?, device: Some(device) })
    }

    /// True if the case can be called on these buffers.
    pub(crate) fn support(&self, case: &Case) -> bool {
        case.exists() && (self.device.is_none() || device::has(case.verb, case.placement))
    }

    /// Copies the buffers to the device, if there is one, at all ranks: no rank may begin a call
    /// while another one copies.
    pub(crate) fn upload(&mut self, comm: &mut Communicator, case: &Case) -> Result<()> {
        if let Some(device) = &mut self.device {
            device.upload([&self.send, &self.recv], lengths(case))?;
            comm.barrier()?;
        }
        Ok(())
    }

    /// Copies the results from the device, if there is one.
    pub(crate) fn download(&mut self, case: &Case) -> Result<()> {
        match &self.device {
            Some(device) => device.download([&mut self.send, &mut self.recv], lengths(case)),
            None => Ok(()),
        }
    }

    /// Waits for the calls on the device.
    pub(crate) fn wait(&self) -> Result<()> {
        self.device.as_ref().map_or(Ok(()), device::BufferPair::wait)
    }

    /// Reports errors of the calls on the device.
    pub(crate) fn checked(&self, comm: &mut Communicator) -> Result<()> {
        self.device.as_ref().map_or(Ok(()), |device| device.check(comm))
    }

    pub(crate) fn fill(&mut self, case: &Case, oracle: &Oracle, shift: usize) {
        match case.placement {
            Placement::OutOfPlace => oracle.fill(self.send.get_mut(case.side_bytes()[0]), shift),
            Placement::InPlace => {
                oracle.fill(&mut self.recv.get_mut(case.bytes())[case.input()], shift);
            }
        }
    }

    pub(crate) fn call(&mut self, comm: &mut Communicator, case: &Case) -> Result<()> {
        let Self { send, recv, device } = self;
        if let Some(device) = device {
            return device.call(comm, case);
        }
        let buffers = match case.placement {
            Placement::OutOfPlace => {
                let [sent, received] = case.side_bytes();
                ringreduce::Buffers::OutOfPlace {
                    send: send.get(sent),
                    recv: recv.get_mut(received),
                }
            }
            Placement::InPlace => ringreduce::Buffers::InPlace(recv.get_mut(case.bytes())),
        };
        Ok(comm.call(&case.call(), buffers)?)
    }

    pub(crate) fn prepare(&mut self, case: &Case, oracle: &Oracle, shift: usize) {
        let (sent, received) = lengths(case);
        self.send.arm(sent);
        self.recv.arm(received);
        self.recv.get_mut(received).fill(POISON);
        self.fill(case, oracle, shift);
    }

    pub(crate) fn errors(&self, case: &Case, oracle: &Oracle, shift: usize) -> Errors {
        let (sent, received) = lengths(case);
        let out_of_bounds =
            self.send.overwritten_guard_bytes(sent) + self.recv.overwritten_guard_bytes(received);
        let result = self.recv.get(received);
        match case.placement {
            Placement::OutOfPlace => {
                let wrong = match case.keeps_output() {
                    true => result.iter().filter(|&&byte| byte != POISON).count() as u64,
                    false => oracle.wrong(case, result, shift),
                };
                Errors {
                    wrong,
                    out_of_bounds: out_of_bounds + oracle.damaged_input(self.send.get(sent), shift),
                }
            }
            Placement::InPlace => {
                Errors { wrong: oracle.wrong(case, &result[case.output()], shift), out_of_bounds }
            }
        }
    }
}

/// The bytes of `send` and `recv` that a call uses.
fn lengths(case: &Case) -> (usize, usize) {
    match case.placement {
        Placement::OutOfPlace => case.side_bytes().into(),
        Placement::InPlace => (0, case.bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::case::Verb;
    use ringreduce::schedule::Collective::{AllReduce, Exscan};
    use ringreduce::{DataType, ReduceOp};

    /// One rank, whose result is its input, so that a call is a copy.
    fn setup(verb: Verb, placement: Placement) -> (Case, Oracle, Buffers) {
        let (dtype, op) = (DataType::I32, ReduceOp::Sum);
        let case = Case { verb, dtype, op, count: 50, rank: 0, ranks: 1, placement };
        let mut comm = Communicator::local(1).unwrap().remove(0);
        let buffers = Buffers::new(&mut comm, Memory::Plain, 400, 0, None).unwrap();
        (case, Oracle::new(&case), buffers)
    }

    fn call(buffers: &mut Buffers, placement: Placement) {
        if placement == Placement::OutOfPlace {
            buffers.recv.get_mut(200).copy_from_slice(buffers.send.get(200));
        }
    }

    #[test]
    fn a_right_call_passes_and_each_damage_is_counted() {
        // The first rank's exscan writes nothing.
        let copies = |&verb: &Verb| !verb.is_barrier() && verb != Verb::Of(Exscan);
        for verb in Verb::all().into_iter().filter(copies) {
            for placement in [Placement::OutOfPlace, Placement::InPlace] {
                let (case, oracle, mut buffers) = setup(verb, placement);
                if !case.exists() {
                    continue;
                }
                let mut trial = |damage: &dyn Fn(&mut Buffers)| {
                    buffers.prepare(&case, &oracle, 9);
                    call(&mut buffers, placement);
                    damage(&mut buffers);
                    buffers.errors(&case, &oracle, 9)
                };
                assert_eq!(trial(&|_| {}), Errors::default());
                let wrong = trial(&|b| b.recv.get_mut(200)[77] ^= 1);
                assert_eq!(wrong, Errors { wrong: 1, out_of_bounds: 0 });
                let beyond = trial(&|b| b.recv.get_mut(203)[200..].fill(0));
                assert_eq!(beyond, Errors { wrong: 0, out_of_bounds: 3 });
                let beyond = trial(&|b| b.send.get_mut(201)[200] ^= 1);
                let sent = u64::from(placement == Placement::OutOfPlace);
                assert!(beyond.out_of_bounds >= sent && beyond.wrong == 0);
            }
        }
    }

    #[test]
    fn the_first_ranks_exscan_must_not_write() {
        let (case, oracle, mut buffers) = setup(Verb::Of(Exscan), Placement::OutOfPlace);
        buffers.prepare(&case, &oracle, 0);
        assert_eq!(buffers.errors(&case, &oracle, 0), Errors::default());
        call(&mut buffers, Placement::OutOfPlace);
        assert!(buffers.errors(&case, &oracle, 0).wrong > 0);
    }

    #[test]
    fn a_call_that_does_nothing_or_changes_its_input_is_wrong() {
        let (case, oracle, mut buffers) = setup(Verb::Of(AllReduce), Placement::OutOfPlace);
        buffers.prepare(&case, &oracle, 0);
        assert_eq!(buffers.errors(&case, &oracle, 0).wrong, 50);
        call(&mut buffers, Placement::OutOfPlace);
        buffers.send.get_mut(200)[4] ^= 1;
        let errors = buffers.errors(&case, &oracle, 0);
        assert_eq!(errors, Errors { wrong: 0, out_of_bounds: 1 });
    }
}
