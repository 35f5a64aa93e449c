//! Messages longer than the packets can say are refused by every method that sends or receives,
//! before a byte is read: the memory here has no pages.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;

use harness::{on_ranks, skip};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use ringreduce::Communicator;

use super::message;

const LENGTH: NonZeroUsize = NonZeroUsize::new(1 << 40).unwrap();

#[test]
fn messages_of_a_tebibyte_are_refused_by_their_length() {
    let (rights, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_NORESERVE);
    // SAFETY: the mapping is new.
    let Ok(start) =
        (unsafe { mmap_anonymous(None, LENGTH, rights, flags | MapFlags::MAP_PRIVATE) })
    else {
        return skip(
            "messages_of_a_tebibyte",
            "the kernel does not map memory that it may not have",
        );
    };
    // SAFETY: the mapping is as long, filled with zeros, and this slice's alone.
    let memory = unsafe { std::slice::from_raw_parts_mut(start.cast().as_ptr(), LENGTH.get()) };
    let memory = std::sync::Mutex::new(memory);
    on_ranks(2, |comm: &mut Communicator| {
        let (peer, mut short) = (1 - comm.rank(), [0_u8; 8]);
        let long: &mut [u8] = &mut memory.lock().unwrap();
        let refused = [
            message(comm.send(&*long, peer)),
            message(comm.recv(&mut *long, peer)),
            message(comm.send_recv(&*long, peer, &mut short, peer)),
            message(comm.send_recv(&[0; 8], peer, &mut *long, peer)),
            message(comm.group(|group| group.send(&*long, peer))),
            message(comm.group(|group| group.recv(&mut *long, peer))),
        ];
        for text in refused {
            assert!(text.contains("1099511627776 bytes long, expected at most"), "{text}");
        }
    });
    // SAFETY: no view of the mapping is left.
    unsafe { munmap(start, LENGTH.get()) }.unwrap();
}
