//! Hosts of ranks by the options of a command line.

use clap::Parser;

use super::super::RankPlacement;
use super::*;

#[derive(Parser)]
struct Job {
    #[command(flatten)]
    hosts: HostOptions,
}

#[derive(Parser)]
struct Later {
    #[command(flatten)]
    hosts: ProgramHosts,
}

/// The hosts of the ranks, as "a a b", by the options of the job and of later programs. Ranks of
/// several programs are shown with the number of theirs, as "a0 a1 b1".
fn placed(line: &str) -> Result<String, String> {
    let parts: Vec<_> = line.split(" : ").collect();
    let words = |part: &str| format!("test {part}").split(' ').map(str::to_owned).collect();
    let job = Job::try_parse_from::<Vec<_>, _>(words(parts[0])).unwrap().hosts;
    let later = parts[1..].iter().map(|part| Later::try_parse_from::<Vec<_>, _>(words(part)));
    let later: Vec<_> = later.map(|later| later.unwrap().hosts).collect();
    let placed = job.place(&later, true, None).map_err(|failure| failure.to_string())?;
    let placed = placed.ok_or("no number")?;
    let name = |number: usize| placed.hosts[number].name.clone();
    let shown = |rank: &RankPlacement| match later.is_empty() {
        true => name(rank.host_number),
        false => format!("{}{}", name(rank.host_number), rank.program),
    };
    Ok(placed.placements.iter().map(shown).collect::<Vec<_>>().join(" "))
}

#[test]
fn options_place_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    std::fs::write(&file, "u@a slots=2\nu@b slots=2\nlocalhost slots=1\n").unwrap();
    let file = file.display();
    for (line, hosts) in [
        ("-H u@a:2,u@b:2 --np 3", "u@a u@a u@b"),
        ("-H u@a:2 -H u@b,u@a:1", "u@a u@a u@a u@b"),
        ("-H u@n[1-2]:2 --map-by node", "u@n1 u@n2 u@n1 u@n2"),
        ("-H u@a,u@b --map-by ppr:2:node", "u@a u@a u@b u@b"),
        ("-H u@a,u@b --map-by ppr:2:node --per-host 2 -n 3", "u@a u@a u@b"),
        ("-H u@a:2,u@b:2 --map-by node --rank-by slot -n 2", "u@a u@b"),
        ("-H u@a,u@b -n 4 --map-by :OVERSUBSCRIBE", "u@a u@a u@b u@b"),
        ("-H u@a,u@b -n 3 --oversubscribe", "u@a u@a u@b"),
        ("-H localhost --launcher fork -n 1", "localhost"),
        ("-H u@a --launcher kubectl -n 1", "u@a"),
        ("-H localhost:2,127.0.0.1:1", "localhost localhost localhost"),
        (&format!("--hostfile {file}"), "u@a u@a u@b u@b localhost"),
        (&format!("--hostfile {file} -H 127.0.0.1,u@b:1"), "127.0.0.1 u@b"),
    ] {
        assert_eq!(placed(line).as_deref(), Ok(hosts), "{line}");
    }
    for (line, why) in [
        ("-H u@a --launcher fork -n 1", "fork starts ranks on this host alone, and u@a is"),
        ("-H u@a --launcher kubectl --rsh ssh -n 1", "--launcher kubectl and --rsh"),
        ("-H u@a --launcher manual --rsh ssh -n 1", "--launcher manual and --rsh"),
        ("--nnodes 2 --node-rank 0 --rdzv-endpoint h -N 1 --launcher manual", "join without"),
        ("-H u@a,u@b -n 3", "3 ranks are more than the 2 slots"),
        ("-H u@a -N auto", "-N auto counts the CPUs of this host"),
        ("-H u@a -N 2 --map-by ppr:3:node", "--per-host 2 and --map-by ppr:3:node contradict"),
        ("-H localhost", "no number"),
        ("-H -oX=1 -n 1", "host \"-oX=1\": no name"),
        (&format!("--hostfile {file} -H u@c"), "\"u@c\" of --host is not in the host file"),
    ] {
        let error = placed(&line.replace("-H -o", "-H=-o")).unwrap_err();
        assert!(error.contains(why), "{line}: {error}");
    }
    assert_eq!(placed("-n 2").unwrap(), [here(), here()].join(" "));
}

/// The ringrun of each host counts that host.
#[test]
fn hosts_that_join_may_be_counted_by_their_cpus() {
    let each = tools::cpus::allowed().unwrap().len();
    let words = "--nnodes 2 --node-rank 0 --rdzv-endpoint h -N auto";
    let expected = [vec![here(); each], vec!["node1".into(); each]].concat();
    assert_eq!(placed(words).unwrap(), expected.join(" "));
    let error = placed("--nnodes 1 -H u@a -N auto").unwrap_err();
    assert!(error.contains("give a number for other hosts"), "{error}");
}

#[test]
fn lists_of_programs_place_their_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    std::fs::write(&file, "u@a slots=2\nu@b slots=2\n").unwrap();
    let file = file.display();
    for (line, hosts) in [
        ("-H u@a -n 2 : -H u@b -n 3", "u@a0 u@a0 u@b1 u@b1 u@b1"),
        ("-H u@a:2 : -H u@b:1", "u@a0 u@a0 u@b1"),
        ("-H u@a:1,u@b:3 -n 1 : -n 3", "u@a0 u@b1 u@b1 u@b1"),
        (&format!("-H u@b:1 -n 1 : --hostfile {file} -n 3"), "u@b0 u@a1 u@a1 u@b1"),
        (&format!("-H u@c -n 1 : --hostfile {file} -H u@b"), "u@c0 u@b1 u@b1"),
        ("-H u@a -n 1 : -H u@a,u@b -N 2", "u@a0 u@a1 u@a1 u@b1 u@b1"),
        ("-N 1 -H u@a : -H u@b,u@c", "u@a0 u@b1 u@c1"),
        ("-N 1 -H u@a : -H u@b,u@c -N 2 -n 3", "u@a0 u@b1 u@b1 u@c1"),
        (
            "--map-by node -H u@a:2,u@b:2 : -H u@a:2,u@c:2",
            "u@a0 u@b0 u@a0 u@b0 u@a1 u@c1 u@a1 u@c1",
        ),
        ("--oversubscribe -H u@a -n 1 : -H u@a,u@b -n 4", "u@a0 u@a1 u@a1 u@b1 u@b1"),
        ("-n 1 : -H u@a:2,u@b:2 -n 3", "u@b0 u@a1 u@a1 u@b1"),
        ("-H localhost -n 1 : -H 127.0.0.1:2,u@a", "localhost0 localhost1 localhost1 u@a1"),
    ] {
        assert_eq!(placed(line).as_deref(), Ok(hosts), "{line}");
    }
    assert_eq!(placed("-n 1 : -n 1").unwrap(), format!("{0}0 {0}1", here()));
    for (line, why) in [
        ("-H u@a -n 1 : -H u@b,u@c -n 3", "program 2: 3 ranks are more than the 2 slots of"),
        ("-H u@a,u@b -n 1 : -H u@a -n 3 : -n 2", "programs 1, 3: 3 ranks are more than the 2"),
        ("-n 1 : -H u@a,u@b -n 2", "program 1: 1 ranks are more than the 0 slots of the hosts"),
        ("-n 1 : -H u@a,u@b -n 2", "(no list is for it: it has the slots that the lists of"),
        ("-N 1 : -H u@a:3", "program 1: how many ranks?"),
        ("-H u@a -n 1 : -H u@b", "program 2: how many ranks? Say so with -n N, or by slots"),
        ("-H u@a,u@b : -n 1", "program 1: how many ranks? Each program without hosts of its own"),
        ("-H u@a,u@b -n 1 : -N 1 -n 1", "program 2: -N behind ':' is for a program with hosts"),
        ("-n 1 : -H u@a -N auto", "program 2: -N auto counts the CPUs of this host"),
        ("-N auto -n 1 : -H u@a -n 1", "program 2: -N auto counts the CPUs of this host"),
        ("-n 1 : -H u@a,a;b -n 1", "program 2: host \"a;b\": no name or address"),
        ("--launcher fork -n 1 : -H u@a -n 1", "fork starts ranks on this host alone, and u@a is"),
        (
            "--nnodes 2 --node-rank 0 --rdzv-endpoint h -N 1 -n 1 : -H u@a -n 1",
            "program 2: --nnodes says how many hosts there are: leave out -H",
        ),
        ("-H u@a -n 1000000 : -H u@a -n 1000000", "2000000 ranks of all programs: at most 1048576"),
    ] {
        let error = placed(line).unwrap_err();
        assert!(error.contains(why), "{line}: {error}");
    }
}

#[test]
fn hosts_outside_an_allocation_are_refused() {
    let hosts = |names: &[&str]| -> Vec<_> {
        let host = |name: &&str| Host { name: (*name).into(), is_here: *name == "here" };
        let one = |name| AvailableHost { host: host(name), ..this_host_alone() };
        names.iter().map(one).collect()
    };
    let check = |names: &[&str]| {
        let programs = vec![ProgramRanks { program: 1, ranks: None }];
        let group = Group { programs, hosts: hosts(names), wanted: Wanted::default() };
        check_allocated(&[group], &hosts(&["here", "n1"]))
    };
    assert_eq!(check(&["n1", "here"]), Ok(()));
    let error = check(&["n1", "n2"]).unwrap_err();
    assert!(error.starts_with("program 2: host n2 is not in Slurm's allocation"), "{error}");
}
