//! The command line: defaults, aliases, help, errors, and an output without a reader.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::{RINGBENCH, clean, ringbench, ringrun, rows, run};

#[test]
fn by_default_there_is_a_rank_for_each_cpu_up_to_four() {
    let cpus = std::thread::available_parallelism().unwrap().get().min(4);
    for (line, how) in
        [("all_reduce -e 8 -n 1", "processes"), ("barrier -n 1 --threads", "threads")]
    {
        let seen = run(ringbench(line));
        let said = format!("# ranks {cpus} ({how}) ");
        assert!(seen.code == Some(0) && seen.out.contains(&said), "{}{}", seen.out, seen.err);
        assert_eq!(cpus == 1 && how == "processes", seen.err.contains("--ranks N"), "{}", seen.err);
    }
    let mut launched = ringbench("barrier -n 1");
    launched.envs([("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]);
    let seen = run(launched);
    assert!(seen.out.contains("# ranks 1 (processes) "), "{}{}", seen.out, seen.err);
}

#[test]
fn the_compact_table_is_for_terminals_and_on_demand() {
    let seen = run(ringbench("all_reduce -b 8 -e 64K -f 4 -n 3 --threads -np=2 --format compact"));
    assert_eq!(seen.code, Some(0), "{}", seen.err);
    assert!(seen.out.starts_with("all_reduce, 2 ranks (threads)"), "{}", seen.out);
    assert!(seen.out.ends_with("all results are right\n"), "{}", seen.out);
    assert!(seen.out.lines().all(|line| line.len() <= 110), "{}", seen.out);
    // script(1) gives ringbench a terminal.
    for line in ["--ranks 2", "--ranks 2 --threads", "--ranks 1"] {
        let words = format!("{RINGBENCH} all_reduce -e 8 -n 1 {line}");
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &words, "/dev/null"]);
        let Ok(output) = clean(command, "").output() else {
            use std::io::Write;
            let test = "command::the_compact_table_is_for_terminals_and_on_demand";
            let _ = writeln!(std::io::stderr(), "SKIP {test}: there is no program script");
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("time per call, us") && !said.contains("# ranks"), "{line}: {said}");
    }
}

#[test]
fn completions_and_manual_pages_are_printed() {
    for (line, part) in [
        ("completions bash", "--regret"),
        ("man", ".TH ringbench 1"),
        ("man", ".fi\n.SH \"EXIT STATUS\"\n.nf\n0 all"),
    ] {
        let seen = run(ringbench(line));
        let right = seen.code == Some(0) && seen.out.contains(part);
        assert!(right, "{line}: {}{}", seen.out, seen.err);
    }
}

#[test]
fn a_reader_that_leaves_is_no_panic() {
    for line in
        ["all_reduce -e 64 --ranks 1 -n 1", "all_reduce -e 64 -n 1 --ranks 2", "--help", "all_sum"]
    {
        for (out, err) in [(true, true), (true, false), (false, true)] {
            let closed = || Stdio::from(std::io::pipe().unwrap().1);
            let mut command = ringbench(line);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            if out {
                command.stdout(closed());
            }
            if err {
                command.stderr(closed());
            }
            let Output { status, stderr, .. } = command.output().unwrap();
            let said = String::from_utf8_lossy(&stderr);
            assert!(![None, Some(101)].contains(&status.code()), "{line}: {status} {said}");
            assert!(!said.contains("panicked"), "{line}: {said}");
            if out && line.ends_with("-n 1") {
                assert_eq!(status.code(), Some(141), "{line}");
                assert!(!said.contains("standard output"), "{line}: {said}");
            }
        }
    }
}

/// When the reader leaves, hundreds of rows are not yet measured.
#[test]
fn a_reader_that_leaves_ends_the_measuring() {
    for how in ["--ranks 1", "--threads --ranks 2", "--ranks 2"] {
        let mut command = ringbench(&format!("all_reduce -b 8 -e 2400 -i 8 {how}"));
        let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        let mut first = String::new();
        BufReader::new(running.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let Output { status, stderr, .. } = running.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(141), "{how}: {said}");
        // A starved machine may warn of a rank that waits for long.
        let names_a_failure = |line: &str| line.contains("rank 1") && !line.contains("warning: ");
        assert!(!said.lines().any(names_a_failure), "{how}: {said}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{how}: {:?}", begun.elapsed());
    }
}

#[test]
fn a_wrong_value_is_status_2_and_names_the_flag() {
    for (line, named) in [
        ("allredcue", "did you mean all_reduce?"),
        ("all_reduce -b 2M -e 1M", "-e/--maxbytes (1048576)"),
        ("all_reduce -G 1", "-G/--cudagraph 1: only 0 works"),
        ("broadcast -r 9", "--root 9"),
        ("all_reduce --json /nowhere/x.json", "--json /nowhere/x.json"),
        ("all_reduce --ranks 2 --html /nowhere/x.html", "--html /nowhere/x.html"),
        ("all_reduce --json /", "--json /"),
    ] {
        let seen = run(ringbench(line));
        assert_eq!(seen.code, Some(2), "{line}: {}{}", seen.out, seen.err);
        assert!(seen.err.contains(named), "{line}: {}", seen.err);
        assert!(seen.err.ends_with('\n'), "{line}: {}", seen.err);
        assert_eq!(seen.out, "", "{line}");
    }
}

#[test]
fn buffers_larger_than_memory_are_refused() {
    let seen = run(ringbench("all_reduce --ranks 1 -b 8000000000G -e 8000000000G"));
    assert_eq!(seen.code, Some(1));
    assert!(seen.err.contains("lower -e"), "{}", seen.err);
}

#[test]
fn algorithms_have_names() {
    for (line, runs) in [
        ("all_reduce --algorithm all_pairs", true),
        ("all_reduce --algorithm two_shot", true),
        ("barrier --algorithm ring", true),
        ("all_gather --algorithm bruck", true),
        ("scan --algorithm two_shot", false),
    ] {
        let seen = run(ringbench(&format!("{line} -e 64 -n 2 --threads --ranks 4")));
        assert_eq!(seen.code, Some(i32::from(!runs)), "{line}: {}{}", seen.out, seen.err);
        let name = line.split(' ').next_back().unwrap();
        assert!(seen.out.contains(&format!(" algorithm: {name}\n")), "{line}: {}", seen.out);
        assert!(runs || seen.err.contains("algorithm"), "{line}: {}", seen.err);
    }
}

#[test]
fn under_ringrun_ringbench_is_one_rank() {
    let launch = |line: &str| clean(Command::new(ringrun()), line);
    let rows = rows(launch(&format!("-n 3 {RINGBENCH} reduce_scatter -b 96 -e 96 -n 2 -d int8")));
    assert_eq!(rows[0][..5], ["96", "32", "int8", "sum", "-1"]);
    let seen = run(launch(&format!("-n 2 {RINGBENCH} all_reduce --ranks 3")));
    assert!(seen.err.contains("the launcher started 2 ranks"), "{}", seen.err);
    assert_ne!(seen.code, Some(0));
}
