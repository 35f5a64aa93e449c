//! Buffers on devices, on the stand-in for the CUDA driver: threads and processes, tables and
//! files, and errors without a device.

use std::path::{Path, PathBuf};
use std::process::Command;

use cuda::harness::library_folder;
use tempfile::TempDir;

use crate::{Ended, Files, RINGBENCH, clean, run};

/// The folder of the stand-in.
pub(crate) fn standin() -> PathBuf {
    library_folder().unwrap()
}

/// Runs ringbench with its driver in `libraries`, for five minutes at most.
fn run_with(libraries: &Path, settings: &[(&str, &str)], line: &str) -> Ended {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "300", RINGBENCH]);
    command.env_remove("CUDA_DEVICE_MAX_CONNECTIONS").env("LD_LIBRARY_PATH", libraries);
    command.envs(settings.iter().copied());
    run(clean(command, line))
}

fn on_standin(settings: &[(&str, &str)], line: &str) -> Ended {
    run_with(&standin(), settings, line)
}

/// The rows of a run without any error.
fn rows(settings: &[(&str, &str)], line: &str) -> Vec<Vec<String>> {
    let ended = on_standin(settings, line);
    let Ended { code, out, err } = &ended;
    assert_eq!(*code, Some(0), "{line}\n{out}{err}");
    assert!(out.contains("# Out of bounds values : 0 OK\n"), "{line}\n{out}");
    ended.rows()
}

/// A folder with files that are found before the system's driver, and are no libraries.
pub(crate) fn no_driver() -> TempDir {
    let dir = TempDir::new().unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(dir.path().join(name), "not a library").unwrap();
    }
    dir
}

#[test]
fn every_collective_is_right_on_devices() {
    if !harness::share::makes_test(3) {
        return;
    }
    for (ranks, line, in_place) in [
        (3, "all_reduce -d all -o all", "0"),
        (2, "all_reduce -z 1 --refill", "0"),
        (2, "reduce_scatter -d bfloat16 -o all", "N/A"),
        (2, "all_gather -d half", "N/A"),
        (3, "broadcast -d double -r 2", "0"),
        (3, "reduce -d f8e4m3 -o all -r 1", "0"),
        (3, "gather -r 2", "N/A"),
        (3, "scatter -r 1", "N/A"),
        (2, "all_to_all", "N/A"),
        (2, "scan -d uint16", "0"),
        (2, "exscan -u 8", "0"),
        (3, "all_reduce -d uint8 -o max --staged", "0"),
        (3, "all_gather --staged", "N/A"),
        (2, "all_reduce -d half --memory alloc -u 2", "0"),
    ] {
        let line = format!("{line} -b 4 -e 4K -f 32 -n 2 -w 1 --threads --ranks {ranks}");
        let rows = rows(&[], &format!("{line} --device cuda"));
        assert!(!rows.is_empty(), "{line}");
        for row in rows {
            assert_eq!([&row[8], &row[12]], ["0", in_place], "{line}");
        }
    }
}

#[test]
fn ranks_may_be_processes_and_share_devices_in_groups() {
    let files = Files::new();
    let [json, html] = ["out.json", "out.html"].map(|name| files.path(name));
    let flags = format!("--json {} --html {}", json.display(), html.display());
    let line = format!("all_reduce -b 4K -e 256K -f 64 -n 2 -w 1 --ranks 4 {flags}");
    let devices = [("STANDIN_CUDA_DEVICES", "3")];
    let rows = rows(&devices, &format!("{line} --device cuda:1 --ranks-per-gpu 2"));
    assert_eq!(rows.len(), 2);
    let report = files.report();
    assert_eq!(report["device"]["cuda"], "12.8");
    assert_eq!((&report["blocking"], &report["launched"]), (&false.into(), &"processes".into()));
    let infos = report["seats"].as_array().unwrap();
    let used: Vec<_> = infos.iter().map(|info| info["device"]["index"].as_u64().unwrap()).collect();
    assert_eq!(used, [1, 1, 2, 2]);
    assert_eq!(infos[0]["device"]["name"], "Stand-in H200");
    for row in report["rows"].as_array().unwrap() {
        for half in ["out_of_place", "in_place"] {
            assert!(row[half]["time_us"].as_f64().unwrap() > 0.0 && row[half]["wrong"] == 0);
        }
        let figure = |name: &str| row["in_place"][name].as_f64().unwrap();
        assert!(0.0 < figure("min_us") && figure("min_us") <= figure("mean_us"), "{row}");
    }
    let page = files.page();
    assert!(page.contains("Stand-in H200 (cuda:2), 2 of the ranks; driver "), "{page}");
}

#[test]
fn processes_measure_each_kind_of_memory_and_path() {
    let (straight, host) = ("straight to the buffers", "by way of the host");
    for (flags, path, memory) in [
        ("--memory alloc", straight, "alloc"),
        ("--memory plain", straight, "plain"),
        ("--staged --memory alloc", host, "alloc"),
    ] {
        let files = Files::new();
        let json = files.path("out.json");
        let line = format!("all_reduce -b 4K -e 64K -f 16 -n 2 -w 1 --ranks 2 {flags}");
        rows(&[], &format!("{line} --device cuda --json {}", json.display()));
        let report = files.report();
        assert_eq!(report["device"]["path"], path, "{flags}");
        assert_eq!(report["memory"], memory, "{flags}");
    }
}

#[test]
fn the_table_names_the_devices() {
    let devices = [("STANDIN_CUDA_DEVICES", "2")];
    let line = "all_reduce -e 8 -n 1 --threads --ranks 3 --device cuda";
    let Ended { code, out, err } = on_standin(&devices, line);
    assert_eq!(code, Some(0), "{out}{err}");
    let ranks: Vec<_> = out.lines().filter(|line| line.starts_with("#  Rank")).collect();
    assert_eq!(ranks.len(), 3);
    for (rank, device) in ranks.iter().zip([0, 1, 0]) {
        assert!(rank.ends_with(&format!(" device  {device} [Stand-in H200]")), "{rank}");
    }
    assert!(out.contains("\n# device: driver ") && out.contains(", CUDA 12.8, calls go "));
    // A starved machine may warn of a rank that waits for long.
    assert!(err.lines().all(|line| line.contains(" has waited for ")), "{err}");
}

#[test]
fn too_few_queues_for_thread_ranks_are_warned_of() {
    for (queues, warned) in [("1", true), ("2", false)] {
        let settings = [("CUDA_DEVICE_MAX_CONNECTIONS", queues), ("STANDIN_CUDA_DEVICES", "2")];
        let line = "all_reduce -e 8 -n 1 --threads --ranks 2 --device cuda";
        let seen = on_standin(&settings, line);
        assert_eq!(seen.code, Some(0), "{}", seen.err);
        assert_eq!(seen.err.contains("CUDA_DEVICE_MAX_CONNECTIONS is 1"), warned, "{}", seen.err);
    }
}

#[test]
fn a_missing_device_is_named() {
    for (settings, flags, said) in [
        (&[][..], "--device cuda:1", "--device cuda:1: there is 1 device here"),
        (&[], "--device cuda --ranks-per-gpu 1", "cuda:1 too, and there is 1 device here"),
        (&[("STANDIN_CUDA_DEVICES", "0")], "--device cuda", "a CUDA driver, but no device"),
        (&[("STANDIN_CUDA_MEMORY", "20000000")], "--device cuda -e 16M", "16 MiB: lower -e"),
    ] {
        for how in ["--threads", ""] {
            let line = format!("all_reduce -e 8K -n 1 --ranks 2 {how} {flags}");
            let seen = on_standin(settings, &line);
            assert_eq!(seen.code, Some(1), "{line}: {}{}", seen.out, seen.err);
            assert!(seen.err.contains(said), "{line}: {}", seen.err);
        }
    }
}

#[test]
fn a_missing_driver_is_named() {
    let dir = no_driver();
    for line in ["--ranks 2", "--ranks 2 --threads", ""] {
        let seen = run_with(dir.path(), &[], &format!("all_reduce -e 8 -n 1 --device cuda {line}"));
        assert_eq!(seen.code, Some(1), "{line}: {}{}", seen.out, seen.err);
        assert!(seen.err.contains("there is no CUDA driver, libcuda.so.1"), "{}", seen.err);
    }
}
