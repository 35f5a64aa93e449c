//! Jobs in allocations of Slurm: ranks that ringrun starts by srun, and tasks of srun as ranks.

mod setup;

use std::time::{Duration, Instant};

use ::harness::cluster::HostProcess;

use super::GONE;
use super::resume::OVER;
use crate::harness::{AS_RANK, BODY, PATIENCE, RINGRUN, myself, until};
use crate::procfs::state;
use setup::Slurm;

/// Two tasks on n0, and one on each of n1 and n2.
const FOUR_TASKS: &str = "--nodes=3 --ntasks=4";

/// A command whose ranks do `body`, after these words.
fn ranks(words: &str, body: &str) -> String {
    format!("env {BODY}='{body}' {words} {} {}", myself(), AS_RANK.join(" "))
}

/// The lines of an output between two others, sorted.
fn lines_between<'a>(output: &'a str, from: &str, to: &str) -> Vec<&'a str> {
    let lines = output.lines().skip_while(|line| *line != from).skip(1);
    let mut lines: Vec<_> = lines.take_while(|line| *line != to).collect();
    lines.sort_unstable();
    lines
}

/// Options of the job's own steps, by variables, change nothing for the agents.
#[test]
fn ringrun_starts_ranks_on_the_nodes_of_an_allocation() {
    let test = "ringrun_starts_ranks_on_the_nodes_of_an_allocation";
    let Some(slurm) = Slurm::new(test, 3) else { return };
    let calls = ranks(RINGRUN, "calls 100000 10");
    let script = format!(
        "export SLURM_LABELIO=1 SLURM_STDINMODE=none SLURM_NTASKS_PER_NODE=2 SLURM_GPUS=8
        echo numbers
        {RINGRUN} sh -c 'echo $RINGREDUCE_RANK/$RINGREDUCE_SIZE $(hostname) $SLURMD_NODENAME \
            $SLURM_PROCID $SLURM_NTASKS $SLURM_STEP_ID.'
        echo binary
        head -c 100000 /dev/urandom > /run/cluster/bytes
        {RINGRUN} --map-by node --rank-by node -H n2:1,n1:1 --launcher slurm sh -c \
            'if [ $RINGREDUCE_RANK = 0 ]; then cmp - /run/cluster/bytes && echo same; fi' \
            < /run/cluster/bytes
        echo chain
        {RINGRUN} --fanout 1 sh -c 'echo $(hostname) from $SLURM_LAUNCH_NODE_IPADDR'
        echo calls
        {calls}
        echo killed
        {RINGRUN} sh -c 'if [ $RINGREDUCE_RANK = 3 ]; then kill -9 $$; fi; exec sleep 1000'
        echo code $?
        {RINGRUN} --launcher slurm -H n1,n9 true
        echo code $?
        echo lists
        {RINGRUN} -n 2 sh -c 'echo first $SLURMD_NODENAME' : \
            -H n2 -n 2 sh -c 'echo second $SLURMD_NODENAME $RINGREDUCE_LOCAL_RANK'
        echo other
        {RINGRUN} -n 1 true : -H n9 -n 1 true
        echo end"
    );
    let ended = slurm.run(FOUR_TASKS, &script);
    let between = |from, to| lines_between(&ended.out, from, to);
    assert_eq!(
        between("numbers", "binary"),
        ["0/4 h0 n0 0 4 .", "1/4 h0 n0 0 4 .", "2/4 h1 n1 0 4 .", "3/4 h2 n2 0 4 ."],
        "{ended:?}"
    );
    assert_eq!(between("binary", "chain"), ["same"], "{ended:?}");
    let chain = between("chain", "calls");
    assert_eq!(chain[2..], ["h1 from 10.77.0.1", "h2 from 10.77.0.2"], "{ended:?}");
    let calls = between("calls", "killed");
    assert_eq!(calls.iter().filter(|line| **line == "right").count(), 4, "{ended:?}");
    let lists = between("lists", "other");
    assert_eq!(lists, ["first n0", "first n0", "second n2 0", "second n2 1"], "{ended:?}");
    let other = between("other", "end").join("\n");
    assert!(other.contains("program 2: host n9 is not in Slurm's allocation"), "{other}");
    let failed = between("killed", "lists").join("\n");
    assert!(failed.contains("code 137") && failed.contains(", host n2) failed first"), "{failed}");
    let remedy = "`srun --overlap --nodes=1 --ntasks=1 --nodelist=n9 true` must work here";
    assert!(failed.contains("code 1\n") && failed.contains(remedy), "{failed}");
    assert!(
        failed.contains("cannot start ranks on host n9: srun exited with status 1"),
        "{failed}"
    );
    slurm.left_nothing();
}

/// Beside an allocation of salloc ringrun knows the nodes by their addresses.
#[test]
fn a_shell_of_salloc_starts_ranks_too() {
    let Some(slurm) = Slurm::new("a_shell_of_salloc_starts_ranks_too", 2) else { return };
    let script = format!("salloc --quiet --nodes=2 {RINGRUN} sh -c 'echo $(hostname) here'");
    let ended = slurm.start(&script).end(PATIENCE);
    assert_eq!((ended.code, &ended.err[..]), (0, ""), "{ended:?}");
    assert_eq!(ended.sorted(), ["h0 here", "h1 here"]);
    let outside = format!("{RINGRUN} --launcher slurm -H n0,n1 true");
    let ended = slurm.start(&outside).end(PATIENCE);
    assert!(ended.code == 2 && ended.err.contains("start ringrun in a job of sbatch"), "{ended:?}");
    slurm.left_nothing();
}

#[test]
fn tasks_of_srun_are_ranks_and_start_no_ringrun() {
    let test = "tasks_of_srun_are_ranks_and_start_no_ringrun";
    let Some(slurm) = Slurm::new(test, 2) else { return };
    let calls = ranks("srun --overlap", "calls 1000 10");
    // Both steps have their store on n0, at the same time.
    let script = format!(
        "{calls} > /run/cluster/first &
        {calls} > /run/cluster/second
        wait
        cat /run/cluster/first /run/cluster/second
        echo refused
        srun {RINGRUN} -n 2 true
        echo nested
        srun {RINGRUN} --nested -n 1 echo one"
    );
    let ended = slurm.run("--nodes=2 --ntasks=3", &script);
    assert_eq!(ended.out.matches("right\n").count(), 6, "{ended:?}");
    let refused = lines_between(&ended.out, "refused", "nested").join("\n");
    assert_eq!(refused.matches("this is one of several ranks already (Slurm: ").count(), 3);
    // srun tells that it waits for the step before.
    let mut nested = lines_between(&ended.out, "nested", "");
    nested.retain(|line| !line.starts_with("srun: "));
    assert_eq!(nested, ["one"; 3], "{ended:?}");
    slurm.left_nothing();
}

/// Here no agent watches the ranks, and Slurm leaves the others running.
#[test]
fn a_killed_task_of_srun_is_named_by_the_others() {
    let test = "a_killed_task_of_srun_is_named_by_the_others";
    let Some(slurm) = Slurm::new(test, 3) else { return };
    let killed = ranks("srun --kill-on-bad-exit=0", "is_killed 3 0");
    let ended = slurm.run(FOUR_TASKS, &format!("{killed}\necho code $?"));
    assert_eq!(ended.out.matches("\nlost rank 3 known at ").count(), 3, "{ended:?}");
    assert!(ended.out.ends_with("code 137\n"), "{ended:?}");
    slurm.left_nothing();
}

/// The least of some turns counts, which other programs have disturbed least.
#[test]
fn jobs_of_one_allocation_run_at_once_and_start_within_a_second_of_srun() {
    let test = "jobs_of_one_allocation_run_at_once_and_start_within_a_second_of_srun";
    let Some(slurm) = Slurm::new(test, 3) else { return };
    let calls = ranks(RINGRUN, "calls 1000 10");
    // Each waits for the other.
    let meet = "sh -c 'touch /run/cluster/$0; until [ -e /run/cluster/$1 ]; do sleep 0.1; done'";
    let script = format!(
        "{RINGRUN} {meet} one other &
        {RINGRUN} {meet} other one || exit
        wait $! || exit
        {calls} > /run/cluster/first &
        {calls} > /run/cluster/second
        wait
        cat /run/cluster/first /run/cluster/second
        for turn in 1 2 3 4 5; do
            began=$(date +%s%N)
            srun hostname > /run/cluster/names
            middle=$(date +%s%N)
            {RINGRUN} hostname > /run/cluster/others || exit
            ended=$(date +%s%N)
            echo srun $((middle - began)) ns
            echo ringrun $((ended - middle)) ns
        done
        sort /run/cluster/names > /run/cluster/sorted
        sort /run/cluster/others | diff - /run/cluster/sorted && echo same"
    );
    let ended = slurm.run(FOUR_TASKS, &script);
    assert_eq!(ended.out.matches("right\n").count(), 8, "{ended:?}");
    assert!(ended.out.ends_with("same\n"), "{ended:?}");
    let least = |name: &str| {
        let lines = ended.out.lines().filter_map(|line| line.strip_prefix(name));
        let times = lines.filter_map(|line| line.strip_suffix(" ns")?.trim().parse().ok());
        Duration::from_nanos(times.min().unwrap_or_else(|| panic!("{ended:?}")))
    };
    let [srun, ringrun] = ["srun", "ringrun"].map(least);
    println!("srun {srun:.2?}, ringrun {ringrun:.2?}");
    assert!(ringrun < srun + Duration::from_secs(1), "{ended:?}");
    slurm.left_nothing();
}

/// Slurm tells the batch script and all processes of its steps to end, and kills them after
/// KillWait. Without control groups Slurm finds no process whose parent has ended, so that the
/// ranks here end when they are told to.
#[test]
fn scancel_leaves_nothing() {
    let Some(slurm) = Slurm::new("scancel_leaves_nothing", 3) else { return };
    let family = "trap \"exit 1\" TERM; setsid sleep 1000 & echo up; sleep 1000 & wait";
    for start in ["exec", "true;"] {
        let script =
            format!("echo job $SLURM_JOB_ID\n{start} {RINGRUN} sh -c '{family}'\necho after");
        let mut running = slurm.submit(FOUR_TASKS, &script);
        let [job] = running.numbers("job ");
        running.await_lines("up", 4);
        slurm.prints(&format!("scancel {job}"));
        let ended = running.end(Duration::from_secs(30));
        assert!(!ended.out.contains("perhaps memory ran out"), "{ended:?}");
        until("the job has gone", || slurm.prints("squeue --noheader").is_empty());
        let deadline = Instant::now() + GONE;
        until("no process is left", || {
            assert!(Instant::now() < deadline, "{:#?}", slurm.cluster.processes());
            slurm.job.processes().is_empty()
        });
    }
    slurm.left_nothing();
}

/// Nodes, ranks and launcher stand still for longer than peers and launcher may be silent, which is
/// 4 s and 9 s.
#[test]
fn a_suspended_job_goes_on_when_it_is_resumed() {
    let test = "a_suspended_job_goes_on_when_it_is_resumed";
    let Some(slurm) = Slurm::new(test, 2) else { return };
    let options = "-x RINGREDUCE_PEER_TIMEOUT=4";
    let sums = ranks(&format!("{RINGRUN} {options}"), "sums_until_over");
    let script = format!("echo job $SLURM_JOB_ID\n{sums}\necho code $?");
    let mut running = slurm.submit("--nodes=2", &script);
    let [job] = running.numbers("job ");
    running.await_lines("round 5", 1);
    slurm.does(0, &format!("scontrol suspend {job}"));
    let me = myself();
    let is_rank = |it: &HostProcess| it.command.starts_with(&me);
    until("all ranks stop", || {
        let ranks: Vec<_> = slurm.cluster.processes().into_iter().filter(is_rank).collect();
        ranks.len() == 2 && ranks.iter().all(|it| state(it.pid) == Some('T'))
    });
    std::thread::sleep(Duration::from_secs(12));
    slurm.does(0, &format!("scontrol resume {job}"));
    std::fs::write(slurm.cluster.hosts[0].path(OVER), "").unwrap();
    let ended = running.end(PATIENCE);
    assert!(ended.out.ends_with("code 0\n"), "{ended:?}");
    assert!(!ended.out.contains("lost") && !ended.out.contains("the launcher was"), "{ended:?}");
    slurm.left_nothing();
}

/// The ranks of the other nodes get the time to end that they have under ssh.
#[test]
fn a_step_that_is_told_to_end_ends_the_job_in_order() {
    let test = "a_step_that_is_told_to_end_ends_the_job_in_order";
    let Some(slurm) = Slurm::new(test, 2) else { return };
    let told =
        "trap \"echo told $RINGREDUCE_RANK; exit 0\" TERM; echo up; while :; do sleep 0.1; done";
    let script = format!("echo job $SLURM_JOB_ID\n{RINGRUN} sh -c '{told}'\necho code $?");
    let mut running = slurm.submit("--nodes=2", &script);
    let [job] = running.numbers("job ");
    running.await_lines("up", 2);
    slurm.prints(&format!("scancel --signal=TERM {job}.0"));
    let ended = running.end(Duration::from_secs(15));
    // Slurm tells all processes of its step, so that the far rank may hear it twice.
    for rank in ["told 0\n", "told 1\n"] {
        assert!(ended.out.contains(rank), "{ended:?}");
    }
    assert!(ended.out.contains("code 143\n"), "{ended:?}");
    let why = "host n1: SIGTERM came to the agent";
    assert!(ended.out.contains(why), "{ended:?}");
    slurm.left_nothing();
}
