//! The command line: flags of other launchers, and errors.

use crate::harness::{run, script};

/// The number of ranks that these options start, and the messages.
fn ranks(options: &str) -> (usize, String) {
    let ran = script(options, "echo $RINGREDUCE_SIZE");
    assert_eq!(ran.code, 0, "{options}: {}", ran.err);
    let sizes = ran.sorted();
    assert!(sizes.iter().all(|size| *size == sizes.len().to_string()), "{options}: {sizes:?}");
    (sizes.len(), ran.err)
}

#[test]
fn the_number_of_ranks_has_many_flags() {
    for options in [
        "-n 2",
        "-n2",
        "-np 2",
        "--np 2",
        "--np=2",
        "--n 2",
        "-c 2",
        "-N 2",
        "-ppn 2",
        "--nproc-per-node=2",
        "--nproc_per_node 2 --standalone --nnodes 1",
        "--nproc_per_node=2 --nnodes=1:1 --node_rank=0 --max-restarts 0",
        "-H localhost:2",
        "--host localhost,localhost:1",
        "-host 127.0.0.1:2",
        "-n 2 -H localhost",
        "-n 2 --oversubscribe --allow-run-as-root --map-by slot --bind-to none",
        "-perhost 2",
        "-n 2 -perhost 2",
        "-n 2 --map-by :OVERSUBSCRIBE --bind-to core:overload-allowed",
        "-n 2 --map-by=node:PE=1 --rank-by slot",
        "-n 2 --tee 0",
        "-np 2 -ppn 2 -genvall -launcher fork -bind-to core",
    ] {
        assert_eq!(ranks(options), (2, String::new()), "{options}");
    }
    assert!(ranks("-N auto").0 >= 1);
}

#[test]
fn a_host_file_counts_slots() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    std::fs::write(&file, "# here\nlocalhost slots=3\n").unwrap();
    for option in ["--hostfile", "-hostfile", "-f", "--machinefile"] {
        assert_eq!(ranks(&format!("{option} {}", file.display())).0, 3);
    }
}

#[test]
fn flags_that_change_nothing_are_warned_of() {
    for (options, named) in [
        ("-n 1 --mca btl self", "--mca changes nothing"),
        ("-n 1 --master_port=29500", "--master_port=29500 changes nothing"),
        ("-n 1 --rdzv-backend c10d", "--rdzv-backend changes nothing"),
        ("-n 1 -iface eth0", "-iface changes nothing"),
    ] {
        let (_, said) = ranks(options);
        assert!(said.contains(named), "{options}: {said}");
    }
    let ran = run(&["-n", "1", "echo", "a", ":", "-n", "2"]);
    assert_eq!(ran.out, "a : -n 2\n");
    assert!(ran.err.contains("':' is passed to the program"), "{}", ran.err);
}

#[test]
fn pythons_own_options_are_refused_with_the_way_to_give_them() {
    for words in ["--python=python3 -n 1 -X utf8 x.py", "--python python3 -n 1 -u x.py"] {
        let ran = run(&words.split(' ').collect::<Vec<_>>());
        let way = "ringrun -n N python3 -X utf8 SCRIPT";
        assert!(ran.code == 2 && ran.err.contains(way), "{words}: {}", ran.err);
        assert!(!ran.err.contains("'-- "), "{words}: {}", ran.err);
    }
    let ran = run(&["-n", "1", "-X", "x"]);
    assert!(ran.code == 2 && !ran.err.contains("Python"), "{}", ran.err);
}

#[test]
fn a_wrong_value_names_the_flag() {
    for (options, named) in [
        ("-n 0", "a job has at least one rank"),
        ("-n x", "invalid value 'x' for '--np <N>': expected a number of ranks"),
        ("-n -3", "expected a number of ranks"),
        ("-n 2 -n 3", "cannot be used multiple times"),
        ("", "how many ranks? Say so with -n N"),
        ("plna", "how many ranks? Say so with -n N; or did you mean `ringrun plan`?"),
        ("-n 2 --no-such-flag", "unexpected argument '--no-such-flag'"),
        ("-n 2 --tagoutput", "--tag-output"),
        ("-n 2 --bind-to socket", "invalid value 'socket' for '--bind-to <WHAT>'"),
        ("-n 2 --timeout 0", "expected seconds, more than 0"),
        ("-n 2 --timeout soon", "invalid value 'soon' for '--timeout <SECONDS>'"),
        ("-n 2 -H elsewhere", "host \"elsewhere\": other hosts are not supported yet"),
        ("-n 2 --hostfile /no/file", "cannot read the host file /no/file"),
        ("-n 2 --nnodes 2", "--nnodes 2: only 1, 1:1 works"),
        ("-n 4 -ppn 2", "4 ranks with 2 per host need more hosts"),
        ("-n 2 --map-by numa", "--map-by numa: only slot"),
        ("-n 2 --map-by slot:PE=2", "--map-by slot:PE=2: only slot"),
        ("-n 4 -perhost 2", "4 ranks with 2 per host need more hosts"),
        ("-n 2 --tee 3", "--tee 3: say where with --log-dir DIR"),
        ("-n 2 -t 1 --log-dir /tmp", "--tee 1: only 3"),
        ("-n 2 -r 3 --log-dir /tmp", "say --tee 3 --log-dir DIR"),
        ("--nproc-per-node gpu", "counting devices is not supported"),
        ("-n 2 --max-restarts=3", "--max-restarts is for jobs with --elastic MIN:MAX"),
        ("-n 2 --elastic 0:2", "expected MIN:MAX, such as 2:4"),
        ("-n 3 --elastic 2:4", "--elastic 2:4 with 3 ranks"),
        ("-n 2 -x RINGREDUCE_JOIN=1", "RINGREDUCE_JOIN can't be set"),
        ("--min-np 2 --max-np 4", "say --elastic MIN:MAX"),
        ("-n 2 -m train", "python3 -m MODULE"),
        ("-n 2 --output xml", "--output xml: expected tag, rank, timestamp or dir=DIR"),
        ("-n 2 -l --tag-output", "cannot be used with"),
        ("--watch 1-2", "unexpected argument '--watch'"),
    ] {
        let ran = script(options, "echo ran");
        let code = if named.contains("cannot read") { 1 } else { 2 };
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{options}: {}", ran.err);
        let says = ran.err.starts_with("ringrun: ") && ran.err.contains(named);
        assert!(says, "{options}: {}", ran.err);
    }
    let ran = run(&["-n", "2"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("no PROGRAM was given"), "{}", ran.err);
}

#[test]
fn arguments_after_the_program_are_its_own() {
    let ran = run(&["-np", "1", "echo", "-np", "4", "--mca", "--help", "-x"]);
    assert_eq!(ran.out, "-np 4 --mca --help -x\n");
    assert_eq!(run(&["-n", "1", "--", "echo", "--", "a"]).out, "-- a\n");
}

#[test]
fn help_and_version_go_to_the_standard_output() {
    let help = run(&["--help"]);
    assert_eq!((help.code, help.err.as_str()), (0, ""));
    for part in ["Usage: ringrun -n N", "Examples:", "Exit code:", "--output-filename <DIR>"] {
        assert!(help.out.contains(part), "{part}");
    }
    assert!(help.out.lines().all(|line| line.len() <= 100));
    assert!(run(&["-h"]).out.lines().count() < help.out.lines().count());
    assert_eq!(run(&["--version"]).out, format!("ringrun {}\n", env!("CARGO_PKG_VERSION")));
}
