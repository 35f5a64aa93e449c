//! The constructors of a communicator: `Builder` with its options, and `from_env` and `local`.
//! Law: an option that the program sets goes before the environment variable of the same meaning.

use std::time::Duration;

use super::Communicator;
use super::options::OptionalSettings;
use crate::bootstrap::{UniqueId, in_process};
use crate::config::{Config, MAX_TIMEOUT, SECRET_LEN, Secret, SecretSource, Transport};
use crate::error::{Error, Result};
use crate::schedule::Algorithm;

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident($value:ident: $given:ty): $type:ty;)*) => {
        /// Settings of a communicator. An option that is not set here comes from the environment. A
        /// program that sets both `rank` and `size` describes itself: launchers' variables are then
        /// ignored.
        #[derive(Clone, Debug, Default)]
        pub struct Builder {
            $($name: Option<$type>,)*
            pub(crate) overrides: OptionalSettings,
        }

        impl Builder {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(self, $value: $given) -> Self {
                    Self { $name: Some($value.into()), ..self }
                }
            )*
        }
    };
}

settings! {
    /// This process's rank, from 0. `size` must be set too.
    rank(rank: usize): usize;
    /// The world size. `rank` must be set too.
    size(size: usize): usize;
    /// Address of the rendezvous store: `host:port` (rank 0 listens there), `unix:@name` or `fd:N`.
    store(address: &str): String;
    /// Where the other ranks are met, and the job's secret, in place of `store` and `secret`.
    /// `rank` and `size` must be set too.
    unique_id(id: &UniqueId): UniqueId;
    /// The job's secret: 32 random bytes, the same at all ranks. Ranks prove to each other on every
    /// connection that they know it. Under `ringrun` there is no need for one.
    secret(secret: &[u8; SECRET_LEN]): Secret;
    /// Allows ranks on several hosts to run without a secret: then any process that reaches their
    /// ports can join the job. Without this option and without a secret, such a job is an error
    /// that says how to make one. All ranks must set the same value.
    insecure(insecure: bool): bool;
    /// Forces a transport for all links.
    transport(transport: Transport): Transport;
    /// Encrypts and authenticates everything that goes over TCP; costs CPU time. All ranks must set
    /// the same value, and the job needs a secret. Shared memory stays as it is.
    encrypt(encrypt: bool): bool;
    /// The algorithm to take wherever it can make a call. All ranks must set the same value.
    algorithm(algorithm: Algorithm): Algorithm;
    /// Network interfaces that may be used: prefixes, `^` excludes, `=` is exact, or a subnet. A
    /// rank listens at up to four addresses that fit, in the order of the list.
    interface(interface: &str): String;
    /// The largest world in which every rank has a link to every other one; 32 by default. All
    /// ranks must set the same value; [`Communicator::split`] and [`Communicator::duplicate`] use
    /// it too.
    ///
    /// In larger worlds ranks have links to their neighbours on the ring and to ranks at a distance
    /// of a power of two: messages reach no others; uneven collectives except `all_gather_v` and
    /// `reduce_scatter_v`, and deterministic reductions except prefixes, are refused. A link takes
    /// memory, time at the start and descriptors.
    all_pairs(ranks: usize): usize;
    /// The most multiprocessors of this rank's device that the kernels of a collective may take, so
    /// that other kernels run beside them; all by default. The value may differ from rank to rank.
    multiprocessors(most: u32): u32;
    /// Makes each collective call succeed at all surviving ranks or at none. Without it some ranks
    /// may have the result while others learn that a rank is lost. The price is a barrier after
    /// each call and, after a failure, the time until every survivor has made the call or timed
    /// out. All ranks must set the same value. Calls on streams and messages are not covered, nor
    /// is a rank whose call is aborted.
    ///
    /// A rank that had not heard of the failure learns of it by its next call, whose error is of
    /// the call that succeeded. The barriers are numbered too: calls are 1, 3, 5, ... here.
    uniform(uniform: bool): bool;
    /// How long another host may give no sign of life before it counts as unreachable: 4 s to an
    /// hour, in whole seconds; 5 s by default.
    peer_timeout(timeout: Duration): Duration;
}

impl Builder {
    /// Meets the other ranks at the store and opens the links to them.
    ///
    /// # Errors
    /// If a setting makes no sense, or the other ranks can't be met in time.
    pub fn build(self) -> Result<Communicator> {
        Communicator::open_processes(&self.config()?)
    }

    /// Makes `n` ranks that are threads of this process, with these settings: as
    /// [`Communicator::local`]. Options of processes (rank, size, store, secret, insecure,
    /// transport, encryption, interface, peer timeout) are refused.
    ///
    /// # Errors
    /// As [`Communicator::local`].
    pub fn local(self, n: usize) -> Result<Vec<Communicator>> {
        let (call, most) = ("local", u32::MAX as usize);
        let refuse =
            |argument, given, expected| Err(Error::Argument { call, argument, given, expected });
        if n == 0 || n > most {
            return refuse("n", n.to_string(), format!("1 to {most}"));
        }
        let set = [
            ("rank", self.rank.is_some()),
            ("size", self.size.is_some()),
            ("store", self.store.is_some()),
            ("unique_id", self.unique_id.is_some()),
            ("secret", self.secret.is_some()),
            ("insecure", self.insecure.is_some()),
            ("transport", self.transport.is_some()),
            ("encrypt", self.encrypt.is_some()),
            ("peer_timeout", self.peer_timeout.is_some()),
            ("interface", self.interface.is_some()),
        ];
        if let Some((argument, _)) = set.into_iter().find(|(_, set)| *set) {
            let expected = "not set: the ranks are threads of this process".into();
            return refuse(argument, "set".into(), expected);
        }
        let config = self.over(Config::settings()?);
        config.validate()?;
        if config.failures.uniform {
            let expected = "off: ranks that are threads end together".into();
            return refuse("uniform", "on".into(), expected);
        }
        in_process::communicators(n, config)
    }

    fn config(mut self) -> Result<Config> {
        let mut config = match (self.rank, self.size) {
            (None, None) => Config::from_env()?,
            (Some(rank), Some(size)) => Config { rank, size, ..Config::settings()? },
            (rank, size) => {
                return Err(Error::Argument {
                    call: "build",
                    argument: if rank.is_none() { "rank" } else { "size" },
                    given: "not set".into(),
                    expected: format!(
                        "set, as {} is",
                        if size.is_none() { "rank" } else { "size" }
                    ),
                });
            }
        };
        if let Some(id) = self.unique_id.take() {
            if let Some((argument, _)) =
                [("store", self.store.is_some()), ("secret", self.secret.is_some())]
                    .into_iter()
                    .find(|(_, set)| *set)
            {
                let (given, expected) = ("set".into(), "not set: unique_id has it".into());
                return Err(Error::Argument { call: "build", argument, given, expected });
            }
            id.configure(&mut config)?;
        }
        if let Some(store) = self.store.take() {
            let wrong =
                |expected| Error::Config { name: "store".into(), given: store.clone(), expected };
            config.store = Some(store.parse().map_err(wrong)?);
        }
        Ok(self.over(config))
    }

    /// Applies the options that are set to `config`.
    fn over(self, mut config: Config) -> Config {
        config.timeout = self.overrides.timeout.unwrap_or(config.timeout).min(MAX_TIMEOUT);
        config.peer_timeout = self.peer_timeout.unwrap_or(config.peer_timeout);
        config.secret = self.secret.map(SecretSource::Given).or(config.secret);
        config.insecure = self.insecure.unwrap_or(config.insecure);
        config.transport = self.transport.unwrap_or(config.transport);
        config.encrypt = self.encrypt.unwrap_or(config.encrypt);
        config.algorithm = self.algorithm.or(config.algorithm);
        config.interface = self.interface.or(config.interface);
        config.all_pairs = self.all_pairs.unwrap_or(config.all_pairs);
        config.multiprocessors = self.multiprocessors.or(config.multiprocessors);
        config.failures.uniform = self.uniform.unwrap_or(config.failures.uniform);
        self.overrides.over(&mut config.numbers, &mut config.failures);
        config
    }
}

impl Communicator {
    /// The rank that the environment describes: under ringrun, torchrun, Open MPI, MPICH, Intel MPI
    /// or Slurm. Without any of them the world has one rank.
    ///
    /// # Errors
    /// If a variable is malformed, launchers disagree, or the other ranks can't be met in time.
    pub fn from_env() -> Result<Self> {
        Self::open_processes(&Config::from_env()?)
    }

    /// A builder, to set options in the program.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// `n` ranks that are threads of this process; give each to a thread of its own.
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    ///
    /// let ranks = Communicator::local(4)?;
    /// std::thread::scope(|scope| {
    ///     for mut comm in ranks {
    ///         scope.spawn(move || {
    ///             let mut numbers = [comm.rank() as f32, 1.0];
    ///             let done = comm.all_reduce(&mut numbers, ReduceOp::Sum);
    ///             assert!(done.is_ok());
    ///             assert_eq!(numbers, [6.0, 4.0]);
    ///         });
    ///     }
    /// });
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// If `n` is 0, the links' memory can't be had or a `RINGREDUCE_*` setting is malformed.
    pub fn local(n: usize) -> Result<Vec<Self>> {
        Self::builder().local(n)
    }
}
