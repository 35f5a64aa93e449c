//! `STANDIN_CUDA_*` of the environment: how many devices, which queues, what fails. May touch the
//! environment, and the error output at load. Law: an unknown name or value is never passed over.
#![allow(unsafe_code)]

use std::fmt::Display;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::planted::Planted;

const PREFIX: &str = "STANDIN_CUDA_";

/// How streams share hardware queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queues {
    /// Each stream has its own.
    Unlimited,
    /// Streams take turns over so many.
    Shared(usize),
}

/// Which devices reach which other ones' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peers {
    All,
    /// The one before and the one after, and the last and the first each other.
    Ring,
    None,
}

/// What pointers' attributes say of the range that an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    /// The allocation.
    Whole,
    /// A page of it: memory that is mapped piece by piece.
    Pages,
    /// All that addresses are reserved for, allocated or not.
    Reserved,
}

/// What calls of the driver are refused for, as sandboxes and WSL2 refuse them.
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
    /// Those that this process may use, in its order, if not all.
    visible: Option<Vec<i32>>,
    pub(crate) queues: Queues,
    /// Work that a hardware queue holds before whoever adds some is blocked.
    pub(crate) depth: usize,
    pub(crate) peers: Peers,
    pub(crate) without: Without,
    pub(crate) ranges: Ranges,
    /// Does a stream's write of a value become visible late?
    pub(crate) weak: bool,
    /// The allocation, counted from 1, that fails.
    pub(crate) fail_alloc: Option<u64>,
    /// Calls that fail.
    pub(crate) fail_call: Vec<Planted>,
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
            ranges: Ranges::Whole,
            weak: false,
            fail_alloc: None,
            fail_call: Vec::new(),
            memory: 16 << 30,
            version: 12_080,
            log: None,
        }
    }
}

impl Settings {
    /// Does a device reach another one's memory?
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
            match what {
                "DEVICES" => settings.devices = number(&name, &value, 64)?,
                "VISIBLE" => {
                    let each = value.split(',').map(|one| number(&name, one, 63));
                    settings.visible = Some(each.collect::<Result<_, _>>()?);
                }
                "DEPTH" => settings.depth = number::<usize>(&name, &value, 1 << 20)?.max(1),
                "WITHOUT" => settings.without = without(&name, &value)?,
                "RANGES" if value == "pages" => settings.ranges = Ranges::Pages,
                "RANGES" if value == "reserved" => settings.ranges = Ranges::Reserved,
                "RANGES" => return Err(format!("{name}={value}: want pages or reserved")),
                "ORDER" if value == "weak" => settings.weak = true,
                "ORDER" => return Err(format!("{name}={value}: want weak")),
                "QUEUES" if value == "unlimited" => settings.queues = Queues::Unlimited,
                "QUEUES" => match number(&name, &value, 1024)? {
                    0 => return Err(format!("{name}={value}: want 1, 2, ... or unlimited")),
                    count => settings.queues = Queues::Shared(count),
                },
                "PEERS" if value == "none" => settings.peers = Peers::None,
                "PEERS" if value == "ring" => settings.peers = Peers::Ring,
                "PEERS" if value == "all" => settings.peers = Peers::All,
                "PEERS" => return Err(format!("{name}={value}: want all, ring or none")),
                "FAIL_ALLOC" => settings.fail_alloc = Some(number(&name, &value, u64::MAX)?),
                "FAIL_CALL" => {
                    let all = value.split(',').map(Planted::read).collect::<Result<_, _>>();
                    settings.fail_call = all.map_err(|why| format!("{name}={value}: {why}"))?;
                }
                "MEMORY" => settings.memory = number(&name, &value, 1 << 42)?,
                "VERSION" => settings.version = number(&name, &value, 99_990)?,
                "LOG" => settings.log = Some(value),
                // Symbols are missing in a copy of the library; see `harness`.
                "MISSING" => return Err(format!("{name}: ask `harness::Library` for such a copy")),
                _ => return Err(format!("{name} is not a setting of the stand-in driver")),
            }
        }
        Ok(settings)
    }
}

fn without(name: &str, value: &str) -> Result<Without, String> {
    let mut without = Without::default();
    for what in value.split(',') {
        match what {
            "ipc" => without.ipc = true,
            "register" => without.register = true,
            "values" => without.values = true,
            _ => return Err(format!("{name}={value}: want ipc, register, values")),
        }
    }
    Ok(without)
}

fn number<T: FromStr + PartialOrd + Display>(
    name: &str,
    value: &str,
    most: T,
) -> Result<T, String> {
    match value.parse::<T>() {
        Ok(n) if n <= most => Ok(n),
        _ => Err(format!("{name}={value}: want a number up to {most}")),
    }
}

/// The settings; those of the process's start.
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
    use super::{Queues, Ranges, Settings, Without};

    fn read(name: &str, value: &str) -> Result<Settings, String> {
        Settings::read([(name.to_owned(), value.to_owned())].into_iter())
    }

    #[test]
    fn every_setting_is_read() {
        assert_eq!(read("STANDIN_CUDA_DEVICES", "0").unwrap().devices, 0);
        assert_eq!(read("STANDIN_CUDA_QUEUES", "1").unwrap().queues, Queues::Shared(1));
        assert_eq!(read("STANDIN_CUDA_QUEUES", "unlimited").unwrap().queues, Queues::Unlimited);
        for (value, reached) in [("all", [true; 2]), ("ring", [true, false]), ("none", [false; 2])]
        {
            let settings = Settings { devices: 4, ..read("STANDIN_CUDA_PEERS", value).unwrap() };
            assert_eq!([settings.reach(3, 0), settings.reach(3, 1)], reached, "{value}");
        }
        assert_eq!(read("STANDIN_CUDA_VISIBLE", "2,0").unwrap().visible(), [2, 0]);
        assert_eq!(read("STANDIN_CUDA_DEVICES", "2").unwrap().visible(), [0, 1]);
        assert_eq!(read("STANDIN_CUDA_DEPTH", "9").unwrap().depth, 9);
        let without = read("STANDIN_CUDA_WITHOUT", "ipc,values").unwrap().without;
        assert_eq!(without, Without { ipc: true, register: false, values: true });
        assert_eq!(read("STANDIN_CUDA_RANGES", "pages").unwrap().ranges, Ranges::Pages);
        assert!(read("STANDIN_CUDA_ORDER", "weak").unwrap().weak);
        assert_eq!(read("STANDIN_CUDA_FAIL_ALLOC", "3").unwrap().fail_alloc, Some(3));
        assert_eq!(
            read("STANDIN_CUDA_FAIL_CALL", "cuInit:1,cuCtxGetCurrent:2").unwrap().fail_call.len(),
            2
        );
        assert_eq!(read("STANDIN_CUDA_MEMORY", "4096").unwrap().memory, 4096);
        assert_eq!(read("STANDIN_CUDA_VERSION", "11000").unwrap().version, 11_000);
        assert_eq!(read("HOME", "x").unwrap().devices, 1);
    }

    #[test]
    fn unknown_names_and_values_are_errors() {
        for (name, value) in [
            ("STANDIN_CUDA_DEVICE", "1"),
            ("STANDIN_CUDA_DEVICES", "many"),
            ("STANDIN_CUDA_DEVICES", "65"),
            ("STANDIN_CUDA_QUEUES", "0"),
            ("STANDIN_CUDA_PEERS", "some"),
            ("STANDIN_CUDA_VISIBLE", "0,GPU-1"),
            ("STANDIN_CUDA_WITHOUT", "luck"),
            ("STANDIN_CUDA_ORDER", "strong"),
            ("STANDIN_CUDA_FAIL_CALL", "cuInit"),
            ("STANDIN_CUDA_FAIL_CALL", "cuInit:0"),
            ("STANDIN_CUDA_FAIL_CALL", "cuInit:1,"),
            ("STANDIN_CUDA_FAIL_CALL", "cuNothing:1"),
            ("STANDIN_CUDA_MISSING", "cuInit"),
        ] {
            assert!(read(name, value).is_err(), "{name}={value}");
        }
    }
}
