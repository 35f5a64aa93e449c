//! Command lines that are right, and wrong ones that name the flag.

use super::*;

fn parse(line: &str) -> Result<Cli, String> {
    let words = ["ringbench"].into_iter().chain(line.split_whitespace());
    let cli = Cli::try_parse_from(words).map_err(|e| e.to_string())?;
    cli.validate().map(|()| cli)
}

#[test]
fn all_types_and_ops_are_those_of_the_collective() {
    assert_eq!(parse("all_reduce -d all -o all").unwrap().kinds().len(), 150);
    assert_eq!(parse("reduce -d all -o all").unwrap().kinds().len(), 150);
    let prefixes = parse("exscan -d all -o all").unwrap().kinds();
    assert!(prefixes.len() < 150 && prefixes.iter().all(|&(_, op)| op != ReduceOp::Avg));
    assert_eq!(parse("all_gather -d all -o all").unwrap().kinds().len(), 20);
    assert_eq!(parse("barrier -d all -o all").unwrap().kinds().len(), 1);
}

#[test]
fn ranks_are_as_many_as_there_are_cpus_but_four_at_most() {
    let cpus = cpus::allowed().unwrap().len();
    assert_eq!(parse("allreduce").unwrap().launch_ranks(), cpus.clamp(1, 4));
    assert_eq!(parse("all-gather --np 7 --threads").unwrap().launch_ranks(), 7);
}

#[test]
fn the_short_help_is_shorter() {
    let mut command = crate::command();
    command.build();
    let [short, long] =
        [command.render_help(), command.render_long_help()].map(|it| it.to_string());
    assert!(short.lines().count() * 2 < long.lines().count(), "{short}");
    assert!(short.contains("--ranks") && !short.contains("--cudagraph"), "{short}");
    assert!(long.contains("--cudagraph") && long.contains("avg_busbw"), "{long}");
    command.debug_assert();
}

#[test]
fn wrong_values_name_the_flag() {
    for (line, named) in [
        ("", "COLLECTIVE"),
        ("all_two_all", "all_two_all"),
        ("all_reduce --algorithm rings", "unknown algorithm `rings`: one of ring, all_pairs"),
        ("send_recv --algorithm ring", "--algorithm"),
        ("all_reduce --algorithm ring --memory alloc", "--memory"),
        ("all_reduce --algorithm ring --regret --ranks 2", "leave out --algorithm"),
        ("send_recv --regret --ranks 2", "--regret"),
        ("all_reduce --regret --ranks 1", "--regret"),
        ("all_reduce --regret --ranks 2 --memory register", "--memory"),
        ("scan -o avg", "scan has none"),
        ("gather -r 4 --ranks 4", "--root"),
        ("all_reduce -b 1X", "--minbytes"),
        ("all_reduce -b 1M -e 1K", "--maxbytes"),
        ("all_reduce -f 1", "--stepfactor"),
        ("all_reduce -i 0", "--stepbytes"),
        ("all_reduce -i 8 -f 2", "--stepfactor"),
        ("all_reduce -b 0", "-b 0"),
        ("all_reduce -d quad", "quad"),
        ("all_reduce -o xor", "xor"),
        ("all_reduce -d float -o bxor", "sum, prod, min"),
        ("all_reduce -d int8_loc", "int8_loc"),
        ("all_reduce -d int32_loc", "minloc, maxloc"),
        ("all_reduce -n 0", "--iters"),
        ("all_reduce -n -3", "-3"),
        ("all_reduce -T 0", "--timeout"),
        ("all_reduce -T nan", "--timeout"),
        ("all_reduce -g 2", "-g"),
        ("all_reduce -Y 1", "-Y"),
        ("all_reduce --cudagraph 1", "--cudagraph"),
        ("all_reduce --ranks 0", "--ranks"),
        ("all_reduce --format csv", "compact"),
        ("all_reduce --regret --compare x", "--compare"),
        ("allredcue", "did you mean all_reduce?"),
        ("all_reduce --threads --ranks 2 --transport tcp", "--transport"),
        ("all_reduce --threads --ranks 2 -T 5", "--timeout"),
        ("all_reduce --threads -H a,b", "--host"),
        ("all_reduce --rsh ssh", "--host"),
        ("all_reduce --transport rdma", "rdma"),
        ("all_reduce --memory mmap", "mmap"),
        ("broadcast -r 4 --ranks 4", "--root"),
        ("all_reduce --device gpu", "cuda:I"),
        ("all_reduce --device cuda:x", "cuda:I"),
        ("all_reduce --ranks-per-gpu 2", "--device"),
        ("all_reduce --device cuda --ranks-per-gpu 0", "--ranks-per-gpu"),
        ("barrier --device cuda", "barrier has no form on devices"),
        ("send_recv --device cuda", "send_recv has no form on devices"),
        ("all_reduce --device cuda --algorithm ring", "--algorithm"),
        ("all_reduce --device cuda --regret --ranks 2", "--regret"),
        ("all_reduce --device cuda --memory register", "--memory register"),
        ("all_reduce --staged", "--device"),
        ("all_reduce --device cuda -u 2", "--unalign 2"),
        ("all_reduce -z 1", "-z/--blocking 1: only 0 works without --device"),
        ("all_reduce --device cuda -z 2", "--blocking"),
    ] {
        let error = parse(line).unwrap_err();
        assert!(error.contains(named), "`{line}` says: {error}");
    }
}
