//! Checks of versions, CPUs and clock.

use std::path::Path;
use std::thread::available_parallelism;

use nix::unistd::{SysconfVar, sysconf};
use ringreduce::kernel::Level;

use super::Check;
use crate::topo::sysfs::text;
use tools::count::several;
use tools::cpus;

/// Clocks that a process reads without a system call.
const FAST_CLOCKS: [&str; 7] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "xen",
    "arch_sys_counter",
    "riscv_clocksource",
    "timebase",
];

pub(super) fn checks(knows_groups: bool) -> Vec<Check> {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    let clocks = Path::new("/sys/devices/system/clocksource/clocksource0");
    let frequency = Path::new("/sys/devices/system/cpu/cpu0/cpufreq");
    vec![
        Check::ok("version", &format!("ringrun and ringreduce {}", env!("CARGO_PKG_VERSION"))),
        system(text(Path::new("/proc/sys/kernel/osrelease")).as_deref()),
        reductions(Level::available().pop()),
        cpu_count(&CpuCounts {
            online: online.and_then(|count| usize::try_from(count).ok()),
            affinity: cpus::allowed().ok().map(|cpus| cpus.len()),
            usable: available_parallelism().ok().map(usize::from).filter(|_| knows_groups),
        }),
        clock(
            text(&clocks.join("current_clocksource")).as_deref(),
            text(&clocks.join("available_clocksource")).as_deref(),
        ),
        frequency_governor(
            text(&frequency.join("scaling_governor")).as_deref(),
            text(&frequency.join("scaling_driver")).as_deref(),
        ),
    ]
}

fn system(release: Option<&str>) -> Check {
    const NAME: &str = "kernel";
    match release {
        Some(release) => Check::ok(NAME, &format!("Linux {release}")),
        None => Check::unknown(NAME, "Linux of a version that /proc/sys/kernel does not tell"),
    }
}

/// The instruction set by which the library reduces.
fn reductions(level: Option<Level>) -> Check {
    const NAME: &str = "reductions";
    let arch = std::env::consts::ARCH;
    let vectors = match level {
        Some(Level::Avx2) => "AVX2",
        Some(Level::Avx512) => "AVX-512",
        Some(Level::Avx512Bf16) => "AVX-512 with BF16",
        Some(Level::Neon) => "NEON",
        Some(Level::Scalar) | None => {
            let found = format!("{arch} without AVX2: one element at a time");
            let remedy = "If this is a virtual machine, let it see the CPU's own features (QEMU: \
                -cpu host).";
            return Check::note(NAME, &found, remedy);
        }
    };
    Check::ok(NAME, &format!("{arch}, by {vectors}"))
}

struct CpuCounts {
    /// CPUs of the machine that are in use.
    online: Option<usize>,
    /// CPUs of this process's affinity.
    affinity: Option<usize>,
    /// Those CPUs, or fewer by the quota of a control group; `None` if quotas cannot be found.
    usable: Option<usize>,
}

fn cpu_count(counts: &CpuCounts) -> Check {
    const NAME: &str = "CPUs";
    let CpuCounts { online: Some(online), affinity: Some(affinity), usable: Some(usable) } =
        *counts
    else {
        return Check::unknown(NAME, "the system does not tell how many CPUs this process may use");
    };
    let found = format!("{usable} of {online}");
    let ranks = several(usable, "rank", "ranks");
    if usable < affinity.min(online) {
        let found = format!("{found}, by the quota of a control group");
        let remedy = format!(
            "Start {ranks} at most, or raise the quota (cpu.max; docker run --cpus, \
             resources.limits.cpu of Kubernetes)."
        );
        return Check::note(NAME, &found, &remedy);
    }
    if usable < online {
        let found = format!("{found}, by affinity");
        let remedy = format!(
            "Start {ranks} at most, or ask the batch system for more CPUs, or leave out \
             taskset or numactl."
        );
        return Check::note(NAME, &found, &remedy);
    }
    Check::ok(NAME, &found)
}

fn clock(current: Option<&str>, available: Option<&str>) -> Check {
    const NAME: &str = "clock";
    let Some(current) = current else {
        return Check::unknown(NAME, "the clock source is not told (/sys/devices/system)");
    };
    if FAST_CLOCKS.contains(&current) {
        return Check::ok(NAME, current);
    }
    let found = format!("{current}, which takes about a microsecond to read");
    let others = available.unwrap_or_default().split(' ');
    let faster = others.into_iter().find(|clock| FAST_CLOCKS.contains(clock));
    let remedy = match faster {
        Some(faster) => format!(
            "As root, write {faster} to \
             /sys/devices/system/clocksource/clocksource0/current_clocksource."
        ),
        None => {
            "Find in the kernel's log (dmesg) why it does not trust the TSC; a virtual machine \
            may need another setting of its hypervisor."
                .into()
        }
    };
    Check::note(NAME, &found, &remedy)
}

/// Drivers whose governor `powersave` raises the frequency under load.
const SCALING_POWERSAVE: [&str; 3] = ["intel_pstate", "amd-pstate-epp", "amd_pstate_epp"];

fn frequency_governor(governor: Option<&str>, driver: Option<&str>) -> Check {
    const NAME: &str = "frequency";
    let Some(governor) = governor else {
        return Check::unknown(NAME, "not told by the kernel, as in most virtual machines");
    };
    let driver = driver.unwrap_or("driver unknown");
    let found = format!("governor {governor} ({driver})");
    if governor == "powersave" && !SCALING_POWERSAVE.contains(&driver) {
        let remedy = "For steady and high speeds run `cpupower frequency-set -g performance` as \
            root.";
        return Check::note(NAME, &format!("{found}, the lowest frequency"), remedy);
    }
    Check::ok(NAME, &found)
}

#[cfg(test)]
mod tests {
    use super::super::State::{Note, Ok, Unknown};
    use super::*;

    #[test]
    fn fewer_cpus_than_the_machine_has_are_told_with_their_cause() {
        let check = |online, affinity, usable| {
            cpu_count(&CpuCounts { online, affinity: Some(affinity), usable: Some(usable) })
        };
        assert_eq!(check(Some(4), 4, 4).state, Ok);
        assert_eq!(check(None, 4, 4).state, Unknown);
        let quota = check(Some(64), 64, 2);
        assert!(quota.state == Note && quota.found.contains("2 of 64, by the quota"), "{quota:?}");
        let bound = check(Some(64), 8, 8);
        assert!(bound.state == Note && bound.found.contains("8 of 64, by affinity"), "{bound:?}");
    }

    #[test]
    fn a_slow_clock_has_a_remedy() {
        assert_eq!(clock(Some("tsc"), None).state, Ok);
        assert_eq!(clock(None, Some("tsc")).state, Unknown);
        let hpet = clock(Some("hpet"), Some("tsc hpet acpi_pm"));
        assert!(hpet.state == Note && hpet.remedy.unwrap().contains("write tsc to"));
        let strange = clock(Some("\u{1b}x"), Some("\0"));
        assert!(strange.state == Note && strange.remedy.unwrap().contains("dmesg"));
    }

    #[test]
    fn the_lowest_frequency_is_told() {
        assert_eq!(frequency_governor(None, None).state, Unknown);
        assert_eq!(frequency_governor(Some("powersave"), Some("intel_pstate")).state, Ok);
        assert_eq!(frequency_governor(Some("powersave"), Some("acpi-cpufreq")).state, Note);
        assert_eq!(frequency_governor(Some("performance"), None).state, Ok);
    }

    #[test]
    fn a_cpu_without_vectors_and_a_kernel_without_version_are_told() {
        assert_eq!(reductions(Some(Level::Scalar)).state, Note);
        assert_eq!(reductions(Some(Level::Avx2)).state, Ok);
        assert_eq!((system(None).state, system(Some("6.1")).state), (Unknown, Ok));
    }
}
