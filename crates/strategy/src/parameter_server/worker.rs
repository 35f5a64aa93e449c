//! A worker: it pushes the gradients of its samples to all servers, and gets their parameters.

use std::sync::{Arc, Mutex, PoisonError};

use ringreduce::{Communicator, Messenger};

use super::protocol::{HEADER, Header, PUSH, VALUES, kept};
use crate::{Error, Model, Part, Sink};

/// A rank that computes gradients.
pub struct Worker {
    messages: Messenger,
    servers: usize,
    /// The elements of each parameter.
    counts: Vec<usize>,
    /// All parameters, one after the other.
    values: Vec<f32>,
    gradients: Arc<Mutex<Vec<f32>>>,
    sink: Sink,
}

impl Worker {
    /// A worker beside `servers` servers, the first ranks. The first worker's model gives the
    /// servers their first parameters, which all workers' models get.
    ///
    /// # Errors
    /// If this rank is a server; those of the model; and if a server is lost.
    pub fn new<M: Model>(
        comm: &Communicator,
        servers: usize,
        model: &mut M,
    ) -> Result<Self, Error<M::Error>> {
        if comm.rank() < servers || servers == 0 {
            let given = format!("{servers} at rank {}", comm.rank());
            let expected = "the first ranks";
            let error = ringreduce::Error::argument("Worker::new", "servers", given, expected);
            return Err(error.into());
        }
        let counts: Vec<usize> = model.parameters().into_iter().map(|(_, count)| count).collect();
        let mut values = vec![0.0; counts.iter().sum()];
        let mut start = 0;
        for (parameter, count) in counts.iter().enumerate() {
            model.read(parameter, &mut values[start..start + count]).map_err(Error::Model)?;
            start += count;
        }
        let gradients = Arc::new(Mutex::new(vec![0.0; values.len()]));
        let sink = sink(counts.clone(), Arc::clone(&gradients));
        let messages = comm.messenger();
        let mut worker = Self { messages, servers, counts, values, gradients, sink };
        for server in 0..servers {
            if comm.rank() == servers {
                worker.messages.send(&Header::Start.words(), server, HEADER)?;
                let kept = kept(worker.values.len(), server, servers);
                worker.messages.send(&worker.values[kept], server, PUSH)?;
            } else {
                worker.messages.send(&Header::Fetch.words(), server, HEADER)?;
            }
        }
        worker.fetch(model)?;
        Ok(worker)
    }

    /// Pushes the gradients of this worker's samples, whose number is [`Part::total`], and waits
    /// for the servers' parameters. Returns the mean loss over these samples.
    ///
    /// # Errors
    /// Those of the model; and if a server is lost.
    pub fn step<M: Model>(
        &mut self,
        model: &mut M,
        part: &Part<M::Batch>,
    ) -> Result<f32, Error<M::Error>> {
        self.gradients.lock().unwrap_or_else(PoisonError::into_inner).fill(0.0);
        let loss = model.gradients(part, &self.sink).map_err(Error::Model)?;
        let gradients = self.gradients.lock().unwrap_or_else(PoisonError::into_inner);
        let header = Header::Gradient(part.total as u64).words();
        for server in 0..self.servers {
            self.messages.send(&header, server, HEADER)?;
            self.messages.send(
                &gradients[kept(gradients.len(), server, self.servers)],
                server,
                PUSH,
            )?;
        }
        drop(gradients);
        self.fetch(model)?;
        Ok(loss)
    }

    /// Tells the servers that this worker has ended.
    ///
    /// # Errors
    /// If a server is lost.
    pub fn end(self) -> ringreduce::Result<()> {
        let end = Header::End.words();
        (0..self.servers).try_for_each(|server| self.messages.send(&end, server, HEADER))
    }

    /// Waits for the parameters of all servers, and gives them to the model.
    fn fetch<M: Model>(&mut self, model: &mut M) -> Result<(), Error<M::Error>> {
        let elements = self.values.len();
        for server in 0..self.servers {
            let kept = kept(elements, server, self.servers);
            self.messages.recv(&mut self.values[kept], server, VALUES)?;
        }
        let mut rest = &self.values[..];
        for (parameter, count) in self.counts.iter().enumerate() {
            let (values, others) = rest.split_at(*count);
            model.write(parameter, values).map_err(Error::Model)?;
            rest = others;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("messages", &self.messages).finish_non_exhaustive()
    }
}

/// A sink that writes each gradient to its place; one of another length is left out.
fn sink(counts: Vec<usize>, gradients: Arc<Mutex<Vec<f32>>>) -> Sink {
    Arc::new(move |parameter, gradient| {
        let mut gradients = gradients.lock().unwrap_or_else(PoisonError::into_inner);
        let start = counts.iter().take(parameter).sum::<usize>();
        if counts.get(parameter) == Some(&gradient.len()) {
            gradients[start..start + gradient.len()].copy_from_slice(gradient);
        }
    })
}
