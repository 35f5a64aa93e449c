//! Rank 0 keeps the parameters; workers fetch them and push their gradients, each at its own pace.
//! The server takes whichever message comes first, and outlives workers that end.

use std::time::Duration;

use ringreduce::{Communicator, Error, Result, Source, Tag};

const STEPS: usize = 5;
const PARAMETERS: usize = 1000;
/// Tags: a worker's gradient, the server's parameters, and the end of a worker.
const GRADIENT: u32 = 1;
const UPDATE: u32 = 2;
const END: u32 = 3;

fn main() -> Result<()> {
    let comm = Communicator::from_env()?;
    let messages = comm.messenger();
    let mut parameters = vec![0.0_f32; PARAMETERS];
    if comm.rank() > 0 {
        for step in 0..STEPS {
            let gradient: Vec<_> = parameters.iter().map(|it| it + step as f32).collect();
            messages.send(&gradient, 0, GRADIENT)?;
            messages.recv(&mut parameters, 0, UPDATE)?;
        }
        return messages.send(&[0_f32; 0], 0, END);
    }
    let mut gradient = vec![0.0; PARAMETERS];
    let mut working: Vec<_> = (1..comm.size()).collect();
    let patient = messages.with_timeout(Duration::from_secs(1));
    while !working.is_empty() {
        let next = match patient.probe(Source::Any, Tag::Any) {
            // Time to see who is still there.
            Err(Error::NoMessage { .. } | Error::PeerLost { .. }) => {
                let lost = messages.lost();
                working.retain(|worker| !lost.contains(worker));
                continue;
            }
            next => next?,
        };
        if next.tag == END {
            messages.recv(&mut [0_f32; 0], next.rank, END)?;
            working.retain(|&worker| worker != next.rank);
            continue;
        }
        messages.recv(&mut gradient, next.rank, GRADIENT)?;
        parameters.iter_mut().zip(&gradient).for_each(|(it, by)| *it -= 0.1 * by);
        match messages.send(&parameters, next.rank, UPDATE) {
            Err(Error::PeerLost { peer, .. }) => println!("goes on without {peer}"),
            sent => sent?,
        }
    }
    println!("served {} workers, {STEPS} steps each", comm.size() - 1);
    Ok(())
}
