//! Settings: the variables `STANDIN_CUDA_*`. May touch the environment, and the error output at
//! load. Law: an unknown name or value ends the process.
#![allow(unsafe_code)]

use std::fmt::Display;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::failing_calls::FailingCall;

const PREFIX: &str = "STANDIN_CUDA_";

/// How streams share hardware queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queues {
    /// Each stream has its own.
    Unlimited,
    /// Streams are dealt out to so many.
    Shared(usize),
}

/// Devices that reach each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peers {
    All,
    /// Neighbours, and the last and the first.
    Ring,
    None,
}

/// The range of an address, by pointers' attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    Allocation,
    /// A page of the allocation, as for memory that is mapped page by page.
    Pages,
    /// All reserved addresses around it, allocated or not.
    Reserved,
}

/// Features that the driver refuses, as sandboxes and WSL2 do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Without {
    /// Handles of memory for other processes.
    pub(crate) ipc: bool,
    /// Registering the program's own memory.
    pub(crate) register: bool,
    /// Waits for values and writes of them on streams.
    pub(crate) values: bool,
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) devices: i32,
    /// The devices that this process may use, in its order; all if none are named.
    visible: Option<Vec<i32>>,
    pub(crate) queues: Queues,
    /// Work that a hardware queue holds; a thread that adds more is blocked.
    pub(crate) depth: usize,
    pub(crate) peers: Peers,
    pub(crate) without: Without,
    pub(crate) ranges: Ranges,
    /// True if a stream's write of a value becomes visible late.
    pub(crate) weak: bool,
    /// True if copies from another process's or another device's memory bring other bytes.
    pub(crate) garbles: bool,
    /// The allocation, counted from 1, that fails.
    pub(crate) fail_alloc: Option<u64>,
    pub(crate) fail_call: Vec<FailingCall>,
    /// Bytes of each device.
    pub(crate) memory: usize,
    /// As cuDriverGetVersion answers: 1000 major + 10 minor.
    pub(crate) version: i32,
    pub(crate) log: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            devices: 1,
            visible: None,
            queues: Queues::Unlimited,
            depth: usize::MAX,
            peers: Peers::All,
            without: Without::default(),
            ranges: Ranges::Allocation,
            weak: false,
            garbles: false,
            fail_alloc: None,
            fail_call: Vec::new(),
            memory: 16 << 30,
            version: 12_080,
            log: None,
        }
    }
}

impl Settings {
    /// True if a device reaches another one's memory.
    pub(crate) fn reach(&self, one: i32, other: i32) -> bool {
        match self.peers {
            Peers::All => true,
            Peers::Ring => [1, self.devices - 1].contains(&(one - other).abs()),
            Peers::None => false,
        }
    }

    /// The devices that this process may use.
    pub(crate) fn visible(&self) -> Vec<i32> {
        self.visible.clone().unwrap_or_else(|| (0..self.devices).collect())
    }

    fn read(all: impl Iterator<Item = (String, String)>) -> Result<Self, String> {
        let mut settings = Self::default();
        for (name, value) in all {
            let Some(what) = name.strip_prefix(PREFIX) else { continue };
            let read = settings.set(what, &value);
            read.map_err(|why| format!("{name}={value}: {why}"))?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "DEVICES" => self.devices = number(value, 64)?,
            "VISIBLE" => {
                let each = value.split(',').map(|one| number(one, 63));
                self.visible = Some(each.collect::<Result<_, _>>()?);
            }
            "DEPTH" => self.depth = number::<usize>(value, 1 << 20)?.max(1),
            "WITHOUT" => {
                for feature in value.split(',') {
                    let without = &mut self.without;
                    *match feature {
                        "ipc" => &mut without.ipc,
                        "register" => &mut without.register,
                        "values" => &mut without.values,
                        _ => return Err("want ipc, register, values".into()),
                    } = true;
                }
            }
            "RANGES" => {
                let known = [("pages", Ranges::Pages), ("reserved", Ranges::Reserved)];
                self.ranges = one_of(value, &known)?;
            }
            "ORDER" => self.weak = one_of(value, &[("weak", true)])?,
            "QUEUES" if value == "unlimited" => self.queues = Queues::Unlimited,
            "QUEUES" => match number(value, 1024)? {
                0 => return Err("want 1, 2, ... or unlimited".into()),
                count => self.queues = Queues::Shared(count),
            },
            "PEERS" => {
                let known = [("all", Peers::All), ("ring", Peers::Ring), ("none", Peers::None)];
                self.peers = one_of(value, &known)?;
            }
            "GARBLE" => self.garbles = one_of(value, &[("peers", true)])?,
            "FAIL_ALLOC" => self.fail_alloc = Some(number(value, u64::MAX)?),
            "FAIL_CALL" => {
                self.fail_call =
                    value.split(',').map(FailingCall::read).collect::<Result<_, _>>()?;
            }
            "MEMORY" => self.memory = number(value, 1 << 42)?,
            "VERSION" => self.version = number(value, 99_990)?,
            "LOG" => self.log = Some(value.to_owned()),
            // A copy of the library lacks symbols; see `harness`.
            "MISSING" => return Err("ask `harness::copy_library_without`".into()),
            _ => return Err("not a setting of the stand-in driver".into()),
        }
        Ok(())
    }
}

/// The value of a word.
fn one_of<T: Copy>(word: &str, known: &[(&str, T)]) -> Result<T, String> {
    let found = known.iter().find(|(name, _)| *name == word);
    let names = || known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    found.map(|(_, value)| *value).ok_or_else(|| format!("want one of {}", names()))
}

fn number<T: FromStr + PartialOrd + Display>(value: &str, most: T) -> Result<T, String> {
    let number = value.parse::<T>().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("want a number up to {most}"))
}

/// The settings of the process's start.
pub(crate) fn get() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let all = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Settings::read(all).unwrap_or_else(|why| {
            eprintln!("stand-in CUDA driver: {why}");
            std::process::exit(97);
        })
    })
}

extern "C" fn at_load() {
    get();
}

// SAFETY: a function of the type that the loader expects there; it only reads the environment.
#[unsafe(link_section = ".init_array")]
#[used]
static AT_LOAD: extern "C" fn() = at_load;

#[cfg(test)]
mod tests {
    use super::{PREFIX, Settings};

    #[test]
    fn unknown_names_and_values_are_errors() {
        for (name, value) in [
            ("DEVICE", "1"),
            ("DEVICES", "many"),
            ("DEVICES", "65"),
            ("QUEUES", "0"),
            ("PEERS", "some"),
            ("VISIBLE", "0,GPU-1"),
            ("WITHOUT", "luck"),
            ("ORDER", "strong"),
            ("GARBLE", "all"),
            ("FAIL_CALL", "cuInit"),
            ("FAIL_CALL", "cuInit:0"),
            ("FAIL_CALL", "cuInit:1,"),
            ("FAIL_CALL", "cuNothing:1"),
            ("MISSING", "cuInit"),
        ] {
            let setting = (format!("{PREFIX}{name}"), value.to_owned());
            assert!(Settings::read([setting].into_iter()).is_err(), "{name}={value}");
        }
    }
}
