//! `ringrun plan`: the plan of a collective in a world that need not exist, made by the planner of
//! one rank for stated speeds. Starts no process.

mod hosts;
mod page;
mod picture;
mod speeds;
mod table;
mod timeline;

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, Parser};
use ringreduce::plan::{
    Distance, Explanation, PeerReads, Planner, Request, Rules, Slots, least_chunk,
};
use ringreduce::schedule::{ALL_PAIRS, Collective, Ring};
use ringreduce::{Algorithm, DataType, ReduceOp};

use crate::cli;
use crate::document::{self, JsonOption};
use crate::failure::Failure;
use tools::names;
use tools::sizes::{Step, parse_size, walk};

/// The most steps of one rank: their list must fit into memory.
const MAX_STEPS: u64 = 1 << 22;

/// Say how a collective would be made among ranks that are not started: by which algorithm, how
/// long it should take, and how many bytes cross a link.
#[derive(Debug, Parser)]
#[command(max_term_width = 100)]
#[command(after_help = "Example: ringrun plan -n 4096 --hosts 512 --op all_reduce -b 8 -e 1G")]
pub(crate) struct Options {
    /// Number of ranks
    #[arg(short = 'n', long = "np", value_name = "N", value_parser = count)]
    #[arg(allow_hyphen_values = true)]
    ranks: NonZeroU32,
    /// Number of hosts, with equally many ranks on each; or ranks of each, as 8,8,4 or 2x8,4
    #[arg(long, value_name = "N|N,N,..", default_value = "1")]
    hosts: hosts::Hosts,
    /// Largest number of ranks with links between all pairs, as RINGREDUCE_ALL_PAIRS sets it
    #[arg(long, value_name = "N", default_value_t = ALL_PAIRS)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    all_pairs: u32,
    /// The collective: all_reduce, reduce_scatter, all_gather, broadcast, reduce, gather, scatter,
    /// all_to_all, scan, exscan or barrier
    #[arg(long, value_name = "NAME", default_value = "all_reduce", value_parser = collective)]
    op: Collective,
    /// The root, of a collective that has one
    #[arg(long, value_name = "RANK", default_value = "0")]
    root: u32,
    /// The smallest buffer; with one block per rank, all blocks together
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "8", value_parser = parse_size)]
    minbytes: usize,
    /// The largest buffer
    #[arg(short = 'e', long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    maxbytes: usize,
    /// Factor from one size to the next
    #[arg(short = 'f', long, value_name = "FACTOR", default_value = "2")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    stepfactor: u32,
    /// The type of the elements
    #[arg(short = 'd', long, value_name = "TYPE", default_value = "float")]
    dtype: DataType,
    /// Take this algorithm wherever it can make the call
    #[arg(long, value_name = "NAME")]
    algo: Option<Algorithm>,
    #[command(flatten)]
    speeds: speeds::SpeedOptions,
    #[command(flatten)]
    files: Files,
}

#[derive(Debug, Args)]
struct Files {
    /// Draw the ring and the steps of calls among up to 32 ranks, on one page without scripts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    json: JsonOption,
}

/// A world, and the plans of calls of several sizes in it.
struct Report {
    ring: Ring,
    slots: Slots,
    least_chunk: usize,
    rows: Vec<Explanation>,
}

impl Report {
    fn planner(ring: &Ring, slots: Slots, least_chunk: usize) -> Planner {
        let mut planner = Planner::new(ring.clone(), 0, slots, least_chunk);
        planner.share_host();
        planner.set_peer_reads(PeerReads::Possible);
        planner
    }
}

fn count(word: &str) -> Result<NonZeroU32, String> {
    let most = |_| format!("{} ranks at most are planned", u32::MAX);
    cli::count(word).and_then(|ranks| ranks.try_into().map_err(most))
}

/// A collective by any of its spellings.
fn collective(name: &str) -> Result<Collective, String> {
    let all = Collective::all(1);
    let all_names: Vec<_> = all.iter().map(|it| it.name()).collect();
    names::collective(name, &all_names)?.parse().map_err(|error| format!("{error}"))
}

pub(crate) fn run(options: &Options) -> Result<u8, Failure> {
    let report = options.report().map_err(|wrong| Failure::usage("plan", &wrong))?;
    let (json, text) = (table::document(&report), table::text(&report));
    let code = options.files.json.show(&json, &text, "print the plan")?;
    if let Some(file) = &options.files.html {
        document::write(file, &page::render(&report))?;
    }
    Ok(code)
}

impl Options {
    fn report(&self) -> Result<Report, String> {
        let ranks = self.ranks.get();
        let Self { minbytes, maxbytes, .. } = *self;
        let ring = self.hosts.ring(ranks)?.with_all_pairs(self.all_pairs);
        if minbytes == 0 {
            return Err(format!(
                "-b 0 stays 0 however often it is multiplied by {}: start at 1 or more",
                self.stepfactor
            ));
        }
        if minbytes > maxbytes {
            return Err(format!("-b {minbytes} is more than -e {maxbytes}"));
        }
        let collective = self.op.with_root(self.root);
        if self.root >= ranks {
            return Err(format!("--root {}: expected a rank below {ranks}", self.root));
        }
        let small = |ranks| Ring::natural(ranks).with_all_pairs(self.all_pairs);
        let steps = |ranks| collective.volume(&small(ranks)).most;
        if steps(ranks) > MAX_STEPS {
            let (name, steps_each) = (collective.name(), steps(ranks));
            let halves = std::iter::successors(Some(ranks), |ranks| Some(ranks / 2));
            let fits = halves.take_while(|&ranks| ranks > 0).find(|&it| steps(it) <= MAX_STEPS);
            return Err(format!(
                "{name} among {ranks} ranks is relayed, for there are not so many links: each rank \
                 takes {steps_each} steps, more than the {MAX_STEPS} of the longest plan; \
                 it does with -n {}",
                fits.unwrap_or(1)
            ));
        }
        let (near, far) = (ring.hosts().any(|host| host.len() > 1), ring.crossings() > 0);
        let slots = Slots::of(Distance::of(far, false), ranks as usize, ring.all_pairs());
        let least_chunk = least_chunk(far, 1);
        let mut planner = Report::planner(&ring, slots, least_chunk);
        planner.set_speeds(self.speeds.speeds(near, far)?);
        planner.set_rules(Rules { forced: self.algo, ..Rules::default() });
        let sizes = walk(minbytes, maxbytes, Step::Factor(self.stepfactor as usize));
        let sizes = sizes.take_while(|_| collective != Collective::Barrier).collect::<Vec<_>>();
        let sizes = if sizes.is_empty() { vec![1] } else { sizes };
        let op = collective.reduces().then(|| ReduceOp::Sum.into());
        let within = if near { Some("shm") } else { None };
        let between = if far { Some("tcp") } else { None };
        let mut rows = Vec::<Explanation>::new();
        for bytes in sizes {
            let blocks = collective.blocks(ranks) as usize;
            let count = (bytes / self.dtype.size() / blocks).max(1);
            let request = Request { collective, count, dtype: self.dtype, op };
            if rows.last().is_none_or(|row| row.request != request) {
                let transports = within.into_iter().chain(between).collect();
                let mut row = planner.explain(&request);
                row.transports = transports;
                rows.push(row);
            }
        }
        Ok(Report { ring, slots, least_chunk, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn report(line: &str) -> Result<Report, String> {
        let words = ["plan"].into_iter().chain(line.split_whitespace());
        Options::try_parse_from(words).map_err(|error| error.to_string())?.report()
    }

    #[test]
    fn the_options_are_well_formed() {
        <Options as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn sizes_of_less_than_an_element_each_are_one_element_once() {
        let rows = report("-n 8 --op all_gather -b 8 -e 64").map(|report| report.rows).unwrap();
        let counts: Vec<_> = rows.iter().map(|row| row.request.count).collect();
        assert_eq!(counts, [1, 2]);
        assert_eq!(report("-n 8 --op barrier").map(|report| report.rows.len()), Ok(1));
    }

    #[test]
    fn thousands_of_ranks_are_planned() {
        for op in Collective::all(1) {
            let done = report(&format!("-n 65536 --hosts 8192 --op {} -e 8", op.name()));
            assert_eq!(done.is_err(), op == Collective::AllToAll, "{op:?}");
        }
    }
}
