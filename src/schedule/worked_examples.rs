//! The worked examples at the heads of the algorithms' files: four ranks walk a schedule, and the
//! table shows what each of them holds after each of its steps. Law: the tables in the files are
//! those that are made here; `schedule` says how to read them.

use std::collections::{HashMap, VecDeque};

use super::Collective::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Exscan, Gather, Reduce, Scatter,
};
use super::hierarchical::{TwoLevelStep, between_hosts, two_level_steps};
use super::{Algorithm, Collective, Order, Place, Ring, Schedule, Space, StagedCall};
use super::{relay, rooted, scan};

const RANKS: u32 = 4;
const LETTERS: [&str; 4] = ["a", "b", "c", "d"];

/// The cells of each rank, one for each of its steps.
type Columns = Vec<Vec<String>>;

/// Walks schedules whose inputs hold `input(rank, chunk)`, over links without limits.
fn walk(schedules: &[Schedule], input: impl Fn(u32, u32) -> String) -> Columns {
    let mut held = HashMap::<(u32, Place), String>::new();
    let mut links = HashMap::<(u32, u32), VecDeque<String>>::new();
    let mut columns: Columns = vec![Vec::new(); schedules.len()];
    let all = schedules.iter().map(|schedule| schedule.steps.len()).sum::<usize>();
    while columns.iter().map(Vec::len).sum::<usize>() < all {
        for (rank, schedule) in (0..).zip(schedules) {
            let Some(step) = schedule.steps.get(columns[rank as usize].len()) else { continue };
            let read = |place: Place| match held.get(&(rank, place)) {
                Some(value) => value.clone(),
                None => input(rank, place.chunk),
            };
            let mut value = if step.op.receives() {
                match links.get_mut(&(step.from, rank)).and_then(VecDeque::pop_front) {
                    Some(value) => value,
                    None => continue,
                }
            } else {
                read(step.src)
            };
            if step.op.reduces() {
                let mine = read(if step.op.receives() { step.src } else { step.dst });
                value = match step.order {
                    Order::IncomingFirst => sum(&value, &mine),
                    Order::LocalFirst => sum(&mine, &value),
                };
            }
            let space = if step.dst.space == Space::Scratch { "s" } else { "" };
            let relation = if step.op.stores() { " =" } else { ":" };
            let to = if step.op.sends() { format!(" > {}", step.to) } else { String::new() };
            let cell = format!("{space}{}{relation} {value}{to}", step.dst.chunk);
            columns[rank as usize].push(cell);
            if step.op.sends() {
                links.entry((rank, step.to)).or_default().push_back(value.clone());
            }
            if step.op.stores() {
                held.insert((rank, step.dst), value);
            }
        }
    }
    columns
}

/// Sums are read from the left where there are no brackets.
fn sum(left: &str, right: &str) -> String {
    let right = if right.contains('+') { format!("({right})") } else { right.into() };
    format!("{left}+{right}")
}

fn letter(rank: u32) -> String {
    LETTERS[rank as usize].into()
}

/// The contribution of a rank: a letter, and a number for its blocks if each goes to another rank.
fn contribution(collective: Collective) -> impl Fn(u32, u32) -> String {
    let has_blocks = matches!(collective, AllToAll | Scatter { .. });
    move |rank, chunk| letter(rank) + &if has_blocks { chunk.to_string() } else { String::new() }
}

/// A row for the numbers of the ranks, then one for each step, under its name.
fn table(columns: Columns, names: &[&str]) -> Vec<String> {
    let rows = columns.iter().map(Vec::len).max().unwrap_or(0);
    let indent = names.iter().map(|name| name.len() + 2).max().unwrap_or(4);
    let titled = columns.into_iter().enumerate().map(|(rank, cells)| {
        let mut column = vec![format!("rank {rank}")];
        column.extend(cells);
        column.resize(rows + 1, String::new());
        column
    });
    let titled: Columns = titled.collect();
    let width = |column: &Vec<String>| column.iter().map(String::len).max().unwrap_or(0) + 3;
    let row = |row: usize| {
        let cell = |column: &Vec<String>| format!("{:<1$}", column[row], width(column));
        let cells: String = titled.iter().map(cell).collect();
        let name = match row.checked_sub(1) {
            None => String::new(),
            Some(step) => names.get(step).map_or_else(|| row.to_string(), ToString::to_string),
        };
        format!("{name:<indent$}{cells}").trim_end().to_owned()
    };
    (0..=rows).map(row).collect()
}

fn on_links(collective: Collective, schedules: &[Schedule]) -> Vec<String> {
    table(walk(schedules, contribution(collective)), &[])
}

fn of_algorithm(algorithm: Algorithm, collective: Collective, order: &Ring) -> Vec<String> {
    on_links(collective, &algorithm.schedules(collective, order).unwrap())
}

fn natural(algorithm: Algorithm, collective: Collective) -> Vec<String> {
    of_algorithm(algorithm, collective, &Ring::natural(RANKS))
}

fn of_ranks(collective: Collective, schedule: impl Fn(u32) -> Schedule) -> Vec<String> {
    on_links(collective, &(0..RANKS).map(schedule).collect::<Vec<_>>())
}

/// Ranks 0 and 1 on one host, 2 and 3 on another.
fn two_hosts() -> Ring {
    Ring::through(&[vec![0, 1], vec![2, 3]]).unwrap()
}

/// The first piece of each of the two trees.
fn double_tree() -> Vec<String> {
    let mut schedules = Algorithm::DoubleTree.schedules(AllReduce, &Ring::natural(RANKS)).unwrap();
    for schedule in &mut schedules {
        schedule.steps.retain(|step| step.dst.chunk < 2);
    }
    on_links(AllReduce, &schedules)
}

/// The calls in the region of a host between the steps of the ring between hosts.
fn two_level() -> Vec<String> {
    let order = two_hosts();
    let schedule = |me| between_hosts(AllReduce, &order, me).unwrap();
    let schedules: Vec<_> = (0..RANKS).map(schedule).collect();
    let of_host = |rank: u32| [0, 1].map(|at| letter(rank / 2 * 2 + at)).join("+");
    let between = walk(&schedules, |rank, _| of_host(rank));
    let column = |(schedule, cells): (&Schedule, Vec<String>)| {
        let cell = |step| match step {
            TwoLevelStep::Scatter(chunks) => format!("reduce {}", chunks.start),
            TwoLevelStep::Between(number) => cells[number].clone(),
            TwoLevelStep::Gather(chunks) => format!("gather {}", chunks.start),
        };
        two_level_steps(schedule, true).map(cell).collect()
    };
    table(schedules.iter().zip(between).map(column).collect(), &[])
}

const PHASES: [&str; 3] = ["CopyIn", "Fold", "CopyOut"];

fn staged_call(collective: Collective, is_single_copy: bool) -> StagedCall {
    let size = RANKS as usize;
    StagedCall { collective, size, me: 0, first: 0, blocks: 4, depth: 2, is_single_copy }
}

/// The phases of rank 0 over four blocks, and then what each rank does in the phases of one.
fn staged() -> Vec<String> {
    let call = staged_call(AllReduce, false);
    let phases: Vec<_> = call.steps().map(|(phase, block)| format!("{phase:?} {block}")).collect();
    let column = |me: usize| {
        let all = 0..call.size;
        let others = all.filter(|&peer| call.reads_result(me, peer));
        let others = others.map(|peer| peer.to_string()).collect::<Vec<_>>().join(" ");
        vec![format!("stage {}", LETTERS[me]), folded(&StagedCall { me, ..call }), others]
    };
    let mut lines = vec![phases[..6].join(", ") + ",", phases[6..].join(", ")];
    lines.push(String::new());
    lines.extend(table((0..call.size).map(column).collect(), &PHASES));
    lines
}

/// What each rank does in the phases of an all-reduce, and the peers that it stays in the call for.
fn single_copy() -> Vec<String> {
    let column = |me: usize| {
        let call = StagedCall { me, ..staged_call(AllReduce, true) };
        let list = |is_in: &dyn Fn(usize) -> bool| {
            let ranks = (0..call.size).filter(|&peer| is_in(peer));
            ranks.map(|peer| peer.to_string()).collect::<Vec<_>>().join(" ")
        };
        vec![
            format!("shows {}", LETTERS[me]),
            folded(&call),
            list(&|peer| call.reads_result(me, peer)),
            list(&|peer| peer != me && call.leaves_after(peer).is_some()),
        ]
    };
    let phases = PHASES.into_iter().chain(["leaves"]).collect::<Vec<_>>();
    table((0..RANKS as usize).map(column).collect(), &phases)
}

/// The part that a rank folds, and of which contributions.
fn folded(call: &StagedCall) -> String {
    let me = call.me;
    let read = (0..call.size).filter(|&peer| peer == me || call.reads_stage(me, peer));
    format!("{me} = {}", read.map(|rank| LETTERS[rank]).collect::<Vec<_>>().join("+"))
}

/// The `text` blocks in the head of a file.
fn tables_in(source: &str) -> Vec<Vec<&str>> {
    let mut tables = Vec::new();
    let mut is_inside = false;
    for line in source.lines().map_while(|line| line.strip_prefix("//!")) {
        match (line.trim(), tables.last_mut()) {
            ("```text", _) => {
                tables.push(Vec::new());
                is_inside = true;
            }
            ("```", _) => is_inside = false,
            (_, Some(table)) if is_inside => table.push(line.strip_prefix(' ').unwrap_or(line)),
            _ => {}
        }
    }
    tables
}

/// Fails with the tables that the file should have.
fn compare(file: &str, source: &str, tables: &[Vec<String>]) {
    let lines = |table: &Vec<String>| {
        table.iter().map(|line| format!("//! {line}").trim_end().to_owned() + "\n").collect()
    };
    let wanted: Vec<String> = tables.iter().map(lines).collect();
    assert!(tables_in(source) == tables, "src/schedule/{file} should have\n{}", wanted.join("\n"));
}

macro_rules! examples {
    ($($test:ident: $file:literal => $($table:expr),*;)*) => {
        $(#[test]
        fn $test() {
            compare($file, include_str!($file), &[$($table),*]);
        })*
    };
}

const GATHER: Collective = Gather { root: 0 };
const REDUCE: Collective = Reduce { root: 0 };

examples! {
    ring_is_as_told: "ring.rs" => natural(Algorithm::Ring, AllReduce);
    all_pairs_is_as_told: "all_pairs.rs" => natural(Algorithm::AllPairs, AllReduce);
    halving_is_as_told: "halving.rs" => natural(Algorithm::HalvingDoubling, AllReduce);
    recursive_is_as_told: "recursive.rs" => natural(Algorithm::RecursiveDoubling, AllReduce);
    circulant_is_as_told: "circulant.rs" =>
        of_algorithm(Algorithm::Circulant, Broadcast { root: 0 }, &Ring::natural(5));
    bruck_is_as_told: "bruck.rs" => natural(Algorithm::Bruck, AllGather);
    dissemination_is_as_told: "dissemination.rs" => natural(Algorithm::Dissemination, Barrier);
    two_rings_is_as_told: "two_rings.rs" => natural(Algorithm::TwoRings, AllReduce);
    all_to_all_is_as_told: "all_to_all.rs" => natural(Algorithm::Ring, AllToAll);
    relay_is_as_told: "relay.rs" =>
        of_ranks(GATHER, |me| relay::gather(&Ring::natural(RANKS), me, 0));
    rooted_is_as_told: "rooted.rs" =>
        of_ranks(REDUCE, |me| rooted::reduce(&Ring::natural(RANKS), me, 0));
    scan_is_as_told: "scan.rs" => of_ranks(Exscan, |me| scan::exscan(RANKS, me));
    tree_is_as_told: "tree.rs" => natural(Algorithm::Binomial, AllReduce), double_tree();
    hierarchical_is_as_told: "hierarchical/mod.rs" =>
        of_algorithm(Algorithm::Hierarchical, AllReduce, &two_hosts());
    two_level_is_as_told: "hierarchical/two_level.rs" => two_level();
    staged_is_as_told: "staged.rs" => staged();
    single_copy_is_as_told: "single_copy.rs" => single_copy();
}
