//! The two buffers of a rank, and the trial of one call on them: fresh input, poisoned results and
//! armed guards before it, and afterwards whatever is not exactly as it must be.

use anyhow::Result;
use ringreduce::Communicator;

use crate::buffer::Guarded;
use crate::cli::Memory;
use crate::collective::{Case, Form};
use crate::device::{self, Gpu};
use crate::expect::Oracle;

/// Fills a result before a checked call; an element that stays so was not written.
const POISON: u8 = 0x5c;

/// What one rank sends from and receives into; in place is in the latter. With a device, these are
/// where data is made and judged, and calls are made on the device's.
pub(crate) struct Buffers {
    pub(crate) send: Guarded,
    pub(crate) recv: Guarded,
    device: Option<device::Pair>,
}

/// What a rank found wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Elements of the result.
    pub(crate) wrong: u64,
    /// Bytes beside the buffers and elements of the input that were written.
    pub(crate) stray: u64,
}

impl Buffers {
    /// For up to `most` bytes each; all ranks together.
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
        let device = device::Pair::new(comm, gpu, memory, most, unalign)?;
        let mut new = || Guarded::new(comm, Memory::Plain, most, unalign);
        Ok(Self { send: new()?, recv: new()?, device: Some(device) })
    }

    /// Is there such a call on these buffers?
    pub(crate) fn has(&self, case: &Case, form: Form) -> bool {
        case.has(form) && (self.device.is_none() || device::has(case.verb, form))
    }

    /// What was filled or prepared is where calls find it, at all ranks: while a device copies, no
    /// other rank's call may be under way on it.
    pub(crate) fn settle(
        &mut self,
        comm: &mut Communicator,
        case: &Case,
        form: Form,
    ) -> Result<()> {
        if let Some(device) = &mut self.device {
            device.upload([&self.send, &self.recv], lengths(case, form))?;
            comm.barrier()?;
        }
        Ok(())
    }

    /// The results are where they are judged.
    pub(crate) fn fetch(&mut self, case: &Case, form: Form) -> Result<()> {
        match &self.device {
            Some(device) => device.download([&mut self.send, &mut self.recv], lengths(case, form)),
            None => Ok(()),
        }
    }

    /// Until all calls so far are done; those on the host are.
    pub(crate) fn wait(&self) -> Result<()> {
        self.device.as_ref().map_or(Ok(()), device::Pair::wait)
    }

    /// What failed of the calls so far, if they did not say so at once?
    pub(crate) fn checked(&self, comm: &mut Communicator) -> Result<()> {
        self.device.as_ref().map_or(Ok(()), |device| device.check(comm))
    }

    /// Writes this rank's input, and nothing else.
    pub(crate) fn fill(&mut self, case: &Case, oracle: &Oracle, form: Form, shift: usize) {
        match form {
            Form::OutOfPlace => oracle.fill(self.send.get_mut(case.send_bytes()), shift),
            Form::InPlace => {
                oracle.fill(&mut self.recv.get_mut(case.bytes())[case.input()], shift);
            }
        }
    }

    /// Makes the call.
    pub(crate) fn call(&mut self, comm: &mut Communicator, case: &Case, form: Form) -> Result<()> {
        let Self { send, recv, device } = self;
        if let Some(device) = device {
            return device.call(comm, case, form);
        }
        match form {
            Form::OutOfPlace => {
                let recv = recv.get_mut(case.recv_bytes());
                Ok(case.call_apart(comm, send.get(case.send_bytes()), recv)?)
            }
            Form::InPlace => case.call_in_place(comm, recv.get_mut(case.bytes())),
        }
    }

    /// Makes ready for a call that will be judged.
    pub(crate) fn prepare(&mut self, case: &Case, oracle: &Oracle, form: Form, shift: usize) {
        let (sent, received) = lengths(case, form);
        self.send.arm(sent);
        self.recv.arm(received);
        self.recv.get_mut(received).fill(POISON);
        self.fill(case, oracle, form, shift);
    }

    /// Judges the call made since [`Self::prepare`].
    pub(crate) fn judge(&self, case: &Case, oracle: &Oracle, form: Form, shift: usize) -> Verdict {
        let (sent, received) = lengths(case, form);
        let stray = self.send.breached(sent) + self.recv.breached(received);
        let result = self.recv.get(received);
        match form {
            Form::OutOfPlace => {
                let wrong = match case.gets_nothing() {
                    true => result.iter().filter(|&&byte| byte != POISON).count() as u64,
                    false => oracle.wrong(case, result, shift),
                };
                Verdict { wrong, stray: stray + oracle.touched(self.send.get(sent), shift) }
            }
            Form::InPlace => {
                Verdict { wrong: oracle.wrong(case, &result[case.output()], shift), stray }
            }
        }
    }
}

/// Bytes of the buffers that a call uses.
fn lengths(case: &Case, form: Form) -> (usize, usize) {
    match form {
        Form::OutOfPlace => (case.send_bytes(), case.recv_bytes()),
        Form::InPlace => (0, case.bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Verb;
    use ringreduce::schedule::Collective::{AllReduce, Exscan};
    use ringreduce::{DataType, ReduceOp};

    /// One rank: its result is its input, so that a call is a copy.
    fn setup(verb: Verb) -> (Case, Oracle, Buffers) {
        let (dtype, op) = (DataType::I32, ReduceOp::Sum);
        let case = Case { verb, dtype, op, count: 50, rank: 0, ranks: 1 };
        let mut comm = Communicator::local(1).unwrap().remove(0);
        let buffers = Buffers::new(&mut comm, Memory::Plain, 400, 0, None).unwrap();
        (case, Oracle::new(&case), buffers)
    }

    fn call(buffers: &mut Buffers, form: Form) {
        if form == Form::OutOfPlace {
            buffers.recv.get_mut(200).copy_from_slice(buffers.send.get(200));
        }
    }

    #[test]
    fn a_right_call_passes_and_each_damage_shows() {
        // The first rank's exscan copies nothing.
        let copies = |&verb: &Verb| !verb.is_barrier() && verb != Verb::Of(Exscan);
        for verb in Verb::all().into_iter().filter(copies) {
            for form in [Form::OutOfPlace, Form::InPlace] {
                let (case, oracle, mut buffers) = setup(verb);
                if !case.has(form) {
                    continue;
                }
                let mut trial = |damage: &dyn Fn(&mut Buffers)| {
                    buffers.prepare(&case, &oracle, form, 9);
                    call(&mut buffers, form);
                    damage(&mut buffers);
                    buffers.judge(&case, &oracle, form, 9)
                };
                assert_eq!(trial(&|_| {}), Verdict::default());
                let wrong = trial(&|b| b.recv.get_mut(200)[77] ^= 1);
                assert_eq!(wrong, Verdict { wrong: 1, stray: 0 });
                let beyond = trial(&|b| b.recv.get_mut(203)[200..].fill(0));
                assert_eq!(beyond, Verdict { wrong: 0, stray: 3 });
                let beyond = trial(&|b| b.send.get_mut(201)[200] ^= 1);
                let sent = u64::from(form == Form::OutOfPlace);
                assert!(beyond.stray >= sent && beyond.wrong == 0);
            }
        }
    }

    #[test]
    fn what_nothing_is_put_into_stays_as_it_is() {
        let (case, oracle, mut buffers) = setup(Verb::Of(Exscan));
        buffers.prepare(&case, &oracle, Form::OutOfPlace, 0);
        assert_eq!(buffers.judge(&case, &oracle, Form::OutOfPlace, 0), Verdict::default());
        call(&mut buffers, Form::OutOfPlace);
        assert!(buffers.judge(&case, &oracle, Form::OutOfPlace, 0).wrong > 0);
    }

    #[test]
    fn a_call_that_does_nothing_or_spoils_its_input_shows() {
        let (case, oracle, mut buffers) = setup(Verb::Of(AllReduce));
        buffers.prepare(&case, &oracle, Form::OutOfPlace, 0);
        assert_eq!(buffers.judge(&case, &oracle, Form::OutOfPlace, 0).wrong, 50);
        call(&mut buffers, Form::OutOfPlace);
        buffers.send.get_mut(200)[4] ^= 1;
        let verdict = buffers.judge(&case, &oracle, Form::OutOfPlace, 0);
        assert_eq!(verdict, Verdict { wrong: 0, stray: 1 });
    }
}
