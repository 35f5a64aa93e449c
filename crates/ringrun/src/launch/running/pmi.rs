//! PMI in the launcher's loop: moves the bytes of the ranks that ask, one piece of one rank at a
//! time, and does what the world answers.

use std::io;

use super::Running;
use crate::launch::job::Event;
use crate::launch::pmi::connection::Received;
use crate::launch::pmi::world::Effect;

/// The most pieces that are read of a rank which has ended, and whose orphans may go on writing.
const LAST_PIECES: usize = 64;

impl Running<'_> {
    /// Takes the requests that a rank has sent. True if there were any.
    pub(super) fn serve_pmi(&mut self, rank: usize) -> io::Result<bool> {
        let Some(connection) = &mut self.ranks[rank].pmi else { return Ok(false) };
        connection.flush();
        // Lines that were read before the rank had to read its answers.
        self.answer_pmi(rank)?;
        let Some(connection) = &mut self.ranks[rank].pmi else { return Ok(false) };
        let received = connection.receive();
        match received {
            Received::Bytes => self.answer_pmi(rank)?,
            Received::Nothing => {}
            // The sockets of a killed rank close before its end is known, so no other rank is told.
            Received::End => self.close_pmi(rank)?,
            Received::TooLong => self.reject_pmi(rank)?,
        }
        self.update_pmi(rank)?;
        Ok(received == Received::Bytes)
    }

    /// Takes the last requests of a rank that has ended.
    pub(super) fn drain_pmi(&mut self, rank: usize) -> io::Result<()> {
        for _ in 0..LAST_PIECES {
            if !self.serve_pmi(rank)? {
                break;
            }
        }
        Ok(())
    }

    /// Closes the socket of a rank that has ended, and lets no other rank wait for it.
    pub(super) fn leave_pmi(&mut self, rank: usize) -> io::Result<()> {
        self.close_pmi(rank)?;
        let effects = self.pmi.leave(rank);
        self.carry_out(rank, effects)
    }

    fn answer_pmi(&mut self, rank: usize) -> io::Result<()> {
        while let Some(line) = self.ranks[rank].pmi.as_mut().and_then(|pmi| pmi.next_line()) {
            match self.pmi.receive(rank, &line) {
                Ok(effects) => self.carry_out(rank, effects)?,
                Err(_not_pmi) => self.reject_pmi(rank)?,
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, from: usize, effects: Vec<Effect>) -> io::Result<()> {
        for effect in effects {
            match effect {
                Effect::Send { rank, line } => {
                    if let Some(connection) = &mut self.ranks[rank].pmi {
                        connection.send(&line);
                    }
                    self.update_pmi(rank)?;
                }
                Effect::Abort(code) => self.handle(Event::Aborted { rank: from, code }),
                Effect::Warn(what) => self.request.warn(&what),
            }
        }
        Ok(())
    }

    /// Waits for what the rank does next: it writes, or it reads.
    fn update_pmi(&mut self, rank: usize) -> io::Result<()> {
        let Some(connection) = &mut self.ranks[rank].pmi else { return Ok(()) };
        if connection.awaits_reader != connection.has_answers() {
            connection.awaits_reader = connection.has_answers();
            self.events.change_pmi(connection, rank)?;
        }
        Ok(())
    }

    fn reject_pmi(&mut self, rank: usize) -> io::Result<()> {
        self.request.warn(&format!(
            "{} sent bytes to PMI_FD that are no PMI-1, so that socket is closed: only MPI may \
             write there",
            self.ranks[rank].label()
        ));
        self.leave_pmi(rank)
    }

    pub(super) fn close_pmi(&mut self, rank: usize) -> io::Result<()> {
        let Some(connection) = self.ranks[rank].pmi.take() else { return Ok(()) };
        self.events.remove_pmi(&connection)
    }
}
