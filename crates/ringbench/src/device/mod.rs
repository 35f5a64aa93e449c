//! Buffers on CUDA devices: the device of each rank, the calls that devices have, and checks of the
//! flags. Only the files of the feature `cuda` use the driver.

#[cfg(feature = "cuda")]
mod buffers;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(not(feature = "cuda"))]
mod none;

use std::str::FromStr;

use clap::Args;
use serde::Serialize;

use crate::cli::{Cli, Memory};
use crate::measure::case::{Placement, Verb};

#[cfg(feature = "cuda")]
pub(crate) use {buffers::BufferPair, driver::Gpu, driver::set_hardware_queues};
#[cfg(not(feature = "cuda"))]
pub(crate) use {none::BufferPair, none::Gpu, none::set_hardware_queues};

/// The most hardware queues of a process on a device.
#[cfg(feature = "cuda")]
const MAX_HARDWARE_QUEUES: usize = 32;

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Flags {
    /// Puts buffers on CUDA devices and calls on a stream: `cuda`, or `cuda:I` to begin with device
    /// I
    #[arg(long, value_name = "cuda[:I]")]
    pub(crate) device: Option<First>,
    /// The first K ranks of a host share the first device, the next K the next one [default: ranks
    /// take the devices in turns]
    #[arg(long, value_name = "K", requires = "device")]
    ranks_per_gpu: Option<usize>,
    /// Data goes by way of the host, as between devices that do not reach each other
    #[arg(long, requires = "device")]
    staged: bool,
    /// With --device: 1 waits for each call before the next is made; else for the last
    #[arg(short = 'z', long, value_name = "0|1", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=1))]
    blocking: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First(usize);

impl FromStr for First {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let number = match name.strip_prefix("cuda") {
            Some("") => Some(0),
            Some(rest) => rest.strip_prefix(':').and_then(|number| number.parse().ok()),
            None => None,
        };
        number.map(Self).ok_or_else(|| "`cuda` or `cuda:I` is expected, I from 0".into())
    }
}

impl Flags {
    /// True if each call is waited for before the next.
    pub(crate) fn blocking(&self) -> bool {
        self.blocking == 1
    }

    /// Refuses flags that do not go with these.
    pub(crate) fn validate(&self, cli: &Cli) -> Result<(), String> {
        if self.device.is_none() {
            return match self.blocking() {
                true => Err("-z/--blocking 1: only 0 works without --device: every call returns \
                             when it is done, there is no stream"
                    .into()),
                false => Ok(()),
            };
        }
        if cfg!(not(feature = "cuda")) {
            return Err("--device: this ringbench was built without its feature `cuda`".into());
        }
        if self.ranks_per_gpu == Some(0) {
            return Err("--ranks-per-gpu must be at least 1".into());
        }
        if !has(cli.collective, Placement::OutOfPlace) {
            return Err(format!("--device: {} has no form on devices", cli.collective));
        }
        if let Some(flag) = cli.algorithm_flag() {
            return Err(format!(
                "--device: calls on streams take no {flag}; leave one of them out"
            ));
        }
        if cli.memory == Memory::Register {
            return Err("--device: there is no --memory register on devices, but alloc".into());
        }
        let misaligned = cli.datatype.0.iter().find(|t| !cli.unalign.is_multiple_of(t.size()));
        if let Some(dtype) = misaligned {
            let (unalign, size) = (cli.unalign, dtype.size());
            return Err(format!(
                "-u/--unalign {unalign}: on devices {dtype} takes whole multiples of {size}"
            ));
        }
        Ok(())
    }

    /// The device of rank `local` of `ranks` on its host.
    #[cfg(feature = "cuda")]
    fn pick(&self, local: usize, ranks: usize, devices: usize) -> Result<usize, String> {
        let First(first) = self.device.unwrap_or(First(0));
        let count = match devices {
            1 => "there is 1 device here".to_owned(),
            n => format!("there are {n} devices here"),
        };
        if first >= devices {
            return Err(format!("--device cuda:{first}: {count}, counted from 0"));
        }
        let Some(each) = self.ranks_per_gpu else {
            return Ok(first + local % (devices - first));
        };
        // All ranks of the host check the last one's device, so that all of them fail together.
        let last = first + (ranks - 1) / each;
        if last >= devices {
            return Err(format!(
                "--ranks-per-gpu {each}: for {ranks} ranks from cuda:{first} on that takes \
                 cuda:{last} too, and {count}"
            ));
        }
        Ok(first + local / each)
    }
}

/// True if devices have this call.
pub(crate) fn has(verb: Verb, placement: Placement) -> bool {
    let Some(collective) = verb.collective() else { return false };
    !verb.is_barrier() && (placement == Placement::OutOfPlace || !collective.has_blocks())
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DeviceInfo {
    pub(crate) index: usize,
    pub(crate) name: String,
}

/// The driver, and the path of a rank's calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Software {
    /// The newest CUDA version that the driver supports.
    pub(crate) cuda: String,
    /// The version of the kernel's driver module, if known.
    pub(crate) driver: Option<String>,
    /// The path of calls, as in [`Self::text`].
    pub(crate) path: &'static str,
}

impl Software {
    /// "driver 580.95.05, CUDA 13.0, calls go straight to the buffers".
    pub(crate) fn text(&self) -> String {
        let driver = self.driver.as_deref().unwrap_or("unknown");
        format!("driver {driver}, CUDA {}, calls go {}", self.cuda, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_by_name() {
        assert_eq!("cuda".parse(), Ok(First(0)));
        assert_eq!("cuda:3".parse(), Ok(First(3)));
        for wrong in ["gpu", "cuda3", "cuda:", "cuda:-1", "", "3"] {
            assert!(wrong.parse::<First>().unwrap_err().contains("cuda:I"), "{wrong}");
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn ranks_take_devices_in_turns_or_in_groups() {
        let flags = |first, ranks_per_gpu| Flags {
            device: Some(First(first)),
            ranks_per_gpu,
            staged: false,
            blocking: 0,
        };
        let all = |flags: Flags, ranks, devices| -> Result<Vec<usize>, String> {
            (0..ranks).map(|local| flags.pick(local, ranks, devices)).collect()
        };
        assert_eq!(all(flags(0, None), 4, 1).unwrap(), [0, 0, 0, 0]);
        assert_eq!(all(flags(0, None), 4, 8).unwrap(), [0, 1, 2, 3]);
        assert_eq!(all(flags(0, None), 5, 2).unwrap(), [0, 1, 0, 1, 0]);
        assert_eq!(all(flags(2, None), 3, 4).unwrap(), [2, 3, 2]);
        assert_eq!(all(flags(1, Some(2)), 4, 3).unwrap(), [1, 1, 2, 2]);
        let few = all(flags(1, Some(2)), 5, 3).unwrap_err();
        assert!(few.contains("takes cuda:3 too, and there are 3 devices here"), "{few}");
        let none = all(flags(1, None), 1, 1).unwrap_err();
        assert!(none.contains("--device cuda:1: there is 1 device here"), "{none}");
    }
}
