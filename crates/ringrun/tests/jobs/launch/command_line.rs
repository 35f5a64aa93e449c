//! The command line: flags of other launchers, and errors.

use crate::harness::{AS_IS, run, run_under, script};

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
        "-np 2 -ppn 2 -genvall -launcher fork -bind-to core -iface lo",
        "--map-by ppr:2:node",
        "-n 2 -bynode -bootstrap ssh",
        "-n 2 --mca plm_rsh_agent kubexec.sh",
        "-n 2 --port-range 20000-20100 -launcher-exec ssh",
        "-H localhost:1,127.0.0.1",
        "-n 2 -H localhost:1",
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

/// The errors of ringrun with `options`, which must fail where a shell has set the variables.
fn refused_under(variables: &str, options: &str) -> String {
    let words: Vec<_> = options.split(' ').chain(["echo", "ran"]).collect();
    let ran = run_under(&format!("export {variables}; {AS_IS}"), &words);
    assert!(ran.code != 0 && ran.out.is_empty(), "{variables}: {ran:?}");
    ran.err
}

#[test]
fn a_batch_system_or_a_default_file_names_the_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    std::fs::write(&file, "far.invalid slots=1\naway.invalid slots=1\n").unwrap();
    let [slots, grid_engine] = ["slots", "grid_engine"].map(|name| folder.path().join(name));
    std::fs::write(&slots, "far.invalid\nfar.invalid\naway.invalid\n").unwrap();
    std::fs::write(&grid_engine, "far.invalid 2 q@far <NULL>\naway.invalid 1 q@away <NULL>\n")
        .unwrap();
    let (file, slots, grid_engine) = (file.display(), slots.display(), grid_engine.display());
    for variables in [
        "SLURM_JOB_NODELIST=far.invalid,n[1-2].invalid SLURM_TASKS_PER_NODE='1(x3)'",
        &format!("OMPI_MCA_orte_default_hostfile={file}"),
        &format!("HYDRA_HOST_FILE={file}"),
        &format!("I_MPI_HYDRA_HOST_FILE={file}"),
        &format!("PBS_NODEFILE={slots}"),
        &format!("LSB_DJOB_HOSTFILE={slots}"),
        &format!("PE_HOSTFILE={grid_engine}"),
    ] {
        let said = refused_under(variables, "-n 4");
        assert!(said.contains("4 ranks are more than the"), "{variables}: {said}");
        // The options of the user come first.
        let words = ["-H", "localhost", "-n", "2", "echo", "ran"];
        let ran = run_under(&format!("export {variables}; {AS_IS}"), &words);
        assert_eq!(ran.out, "ran\nran\n", "{variables}: {}", ran.err);
    }
    for (variables, named) in [
        ("SLURM_JOB_NODELIST=n[1-", "SLURM_JOB_NODELIST=\"n[1-\""),
        ("HYDRA_HOST_FILE=/no/file", "/no/file of HYDRA_HOST_FILE"),
    ] {
        let said = refused_under(variables, "-n 2");
        assert!(said.contains(named) && said.contains("-H localhost"), "{variables}: {said}");
    }
    // This host alone limits nothing, but has as many ranks as tasks if nobody says how many.
    for (tasks, words) in [(1, &["-n", "2", "echo", "ran"][..]), (2, &["echo", "ran"])] {
        let alone = format!("export SLURM_JOB_NODELIST=localhost SLURM_TASKS_PER_NODE={tasks}");
        let ran = run_under(&format!("{alone}; {AS_IS}"), words);
        assert_eq!(ran.out, "ran\nran\n", "{tasks}: {}", ran.err);
    }
    // Each rank of an outer job has its own host, whatever hosts that job has.
    let outer = "export SLURM_JOB_NODELIST=far.invalid RANK=0 WORLD_SIZE=2";
    let words = ["--nested", "-n", "2", "echo", "ran"];
    assert_eq!(run_under(&format!("{outer}; {AS_IS}"), &words).out, "ran\nran\n");
}

#[test]
fn interfaces_and_ports_are_variables_of_the_ranks() {
    let body = "echo $RINGREDUCE_IFNAME $RINGREDUCE_PORT_RANGE";
    let ran = script("-n 1 -x RINGREDUCE_IFNAME=a -iface =eth0 --port_range 20000-20100", body);
    assert_eq!(ran.out, "=eth0 20000-20100\n");
}

#[test]
fn flags_that_change_nothing_are_warned_of() {
    for (options, named) in [
        ("-n 1 --mca btl self", "--mca changes nothing"),
        ("-n 1 --master_port=29500", "--master-port changes nothing"),
        ("-n 1 --rdzv-backend c10d", "--rdzv-backend changes nothing"),
        ("-n 1 --prefix /opt", "--prefix changes nothing"),
        ("-n 1 --launcher manual", "--launcher manual changes nothing: all ranks are on this host"),
    ] {
        let (_, said) = ranks(options);
        assert!(said.contains(named), "{options}: {said}");
    }
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
        ("-n 2 --prometheus 65536", "'--prometheus <PORT>': expected PORT or ADDRESS:PORT, such"),
        ("-n 2 --prometheus -1", "invalid value '-1' for '--prometheus <PORT>'"),
        ("-n 2 --prometheus node1:9400", "an IP address of this host"),
        ("-n 2 --ras localhost:28028", "'--ras <PORT>': expected PORT or ADDRESS:PORT, such as"),
        ("-n 2 -H=-oProxyCommand=x", "host \"-oProxyCommand=x\": no name or address of a host"),
        ("-H far.invalid,away.invalid -n 3", "3 ranks are more than the 2 slots of the hosts"),
        ("-H far.invalid:2 -N auto", "-N auto counts the CPUs of this host"),
        ("-n 2 -H localhost,", "host \"\": no name or address"),
        ("-n 2 -H n[1-", "host \"n[1-\": a bracket is not closed"),
        ("-n 2 --host-discovery-script x", "say -H HOSTS or --hostfile FILE"),
        ("-n 2 --hostfile /no/file", "cannot read the host file /no/file"),
        ("-n 2 --nnodes 2", "--nnodes: give each host its --node-rank, from 0"),
        ("--nnodes 2 --node-rank 0 --rdzv-endpoint a:1", "each host has: --nproc-per-node N"),
        ("-n 4 --nnodes 2 --node-rank 0 --rdzv-endpoint a:1", "each host has: --nproc-per-node N"),
        ("-N 1 --nnodes 2 --node-rank 0 --rdzv-endpoint a:1", "RINGREDUCE_SECRET_FILE on all"),
        ("-n 1 -H a.invalid --launcher manual", "--launcher manual: hosts know each other by a"),
        ("-N 1 --nnodes 2 --node-rank 1 --rdzv-endpoint a:1 -H a", "leave out -H"),
        ("-n 4 -ppn 2", "4 ranks with 2 per host need 2 hosts, and there are 1"),
        ("-n 2 --map-by numa", "invalid value 'numa' for '--map-by <HOW>': only slot"),
        ("-n 2 --map-by slot:PE=2", "only slot, core, hwthread, node and ppr:N:node work"),
        ("-N 2 --map-by ppr:3:node", "--per-host 2 and --map-by ppr:3:node contradict each other"),
        ("-n 2 --tee 3", "--tee 3: say where with --log-dir DIR"),
        ("-n 2 -t 1 --log-dir /tmp", "--tee 1: only 3"),
        ("-n 2 -r 3 --log-dir /tmp", "say --tee 3 --log-dir DIR"),
        ("--nproc-per-node xpu", "only NVIDIA's GPUs are counted; give a number"),
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
