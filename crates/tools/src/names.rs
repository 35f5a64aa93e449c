//! Names of collectives as MPI, NCCL and nccl-tests spell them.

/// The least Jaro-Winkler similarity at which a name is taken for a misspelt one.
const MIN_SIMILARITY: f64 = 0.8;

/// The collective of `known` that `name` means: with or without underscores and hyphens, in any
/// case, as `MPI_Allreduce`, `ncclAllReduce` or `all_reduce_perf`.
pub fn collective(name: &str, known: &[&'static str]) -> Result<&'static str, String> {
    let plain = plain(name);
    let meant = match plain.as_str() {
        "bcast" => "broadcast",
        "reducescatterblock" => "reducescatter",
        other => other,
    };
    let found = known.iter().find(|known| without_separators(known) == meant);
    found.copied().ok_or_else(|| {
        let likeness = |known: &str| strsim::jaro_winkler(&without_separators(known), meant);
        let nearest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        let nearest = nearest.filter(|known| likeness(known) >= MIN_SIMILARITY);
        let guess = nearest.map_or(String::new(), |known| format!("; did you mean {known}?"));
        format!("unknown collective `{name}`{guess} (one of {})", known.join(", "))
    })
}

/// The name without prefixes and suffixes of other libraries.
fn plain(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let bare = lower.strip_suffix("_perf").unwrap_or(&lower);
    let bare = ["mpi_", "nccl"].iter().find_map(|prefix| bare.strip_prefix(prefix)).unwrap_or(bare);
    without_separators(bare)
}

fn without_separators(name: &str) -> String {
    name.replace(['_', '-'], "")
}

#[cfg(test)]
mod tests {
    use super::collective;

    const KNOWN: [&str; 4] = ["all_reduce", "reduce_scatter", "broadcast", "reduce"];

    #[test]
    fn every_spelling_is_understood() {
        for (name, meant) in [
            ("all_reduce", "all_reduce"),
            ("allreduce", "all_reduce"),
            ("all-reduce", "all_reduce"),
            ("AllReduce", "all_reduce"),
            ("MPI_Allreduce", "all_reduce"),
            ("ncclAllReduce", "all_reduce"),
            ("all_reduce_perf", "all_reduce"),
            ("reducescatter", "reduce_scatter"),
            ("MPI_Reduce_scatter_block", "reduce_scatter"),
            ("MPI_Bcast", "broadcast"),
            ("reduce", "reduce"),
        ] {
            assert_eq!(collective(name, &KNOWN), Ok(meant), "{name}");
        }
    }

    #[test]
    fn an_unknown_name_gets_a_suggestion_if_there_is_a_near_one() {
        let said = collective("allredcue", &KNOWN).unwrap_err();
        assert!(said.starts_with("unknown collective `allredcue`; did you mean all_reduce? ("));
        let said = collective("sum", &KNOWN).unwrap_err();
        assert_eq!(said, format!("unknown collective `sum` (one of {})", KNOWN.join(", ")));
    }
}
