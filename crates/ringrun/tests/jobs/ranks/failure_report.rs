//! A rank's error message, taken apart.

use crate::harness::Ended;

/// The parts of `rank 1 (host a) in all_reduce #5, step 2: WHAT`, where WHAT names a peer.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) rank: usize,
    pub(crate) host: String,
    pub(crate) call: String,
    pub(crate) sequence: u64,
    pub(crate) step: usize,
    pub(crate) what: String,
    pub(crate) peer: usize,
    pub(crate) peer_host: String,
    pub(crate) peer_pid: u32,
}

impl Report {
    /// Reads the error in the last line of a rank that failed.
    pub(crate) fn of(ended: &Ended) -> Self {
        assert_eq!(ended.code, 1, "{ended:?}");
        let line = ended.err.lines().last().unwrap_or_default();
        Self::read(line).unwrap_or_else(|| panic!("no such report: {ended:?}"))
    }

    fn read(line: &str) -> Option<Self> {
        let (rank, rest) = line.strip_prefix("rank ")?.split_once(" (host ")?;
        let (host, rest) = rest.split_once(") in ")?;
        let (call, rest) = rest.split_once(" #")?;
        let (sequence, rest) = rest.split_once(", step ")?;
        let (step, what) = rest.split_once(": ")?;
        let (_, peer) = what.split_once("rank ")?;
        let (peer, rest) = peer.split_once(" (host ")?;
        let (peer_host, rest) = rest.split_once(", pid ")?;
        Some(Self {
            rank: rank.parse().ok()?,
            host: host.into(),
            call: call.into(),
            sequence: sequence.parse().ok()?,
            step: step.parse().ok()?,
            what: what.into(),
            peer: peer.parse().ok()?,
            peer_host: peer_host.into(),
            peer_pid: rest.split_once(')')?.0.parse().ok()?,
        })
    }
}

/// Checks that each rank names a peer, that peer the next one, and so on up to one of `causes`.
pub(crate) fn all_lead_to(reports: &[Report], causes: &[usize]) {
    for report in reports {
        let mut at = report;
        let mut hops = 0;
        while !causes.contains(&at.peer) && !causes.contains(&at.rank) {
            hops += 1;
            let next = reports.iter().find(|next| next.rank == at.peer);
            at = next.filter(|_| hops < reports.len()).unwrap_or_else(|| {
                panic!("from rank {} no way leads to {causes:?}: {reports:#?}", report.rank)
            });
        }
    }
}

/// The reader of reports is tested too, so that no test passes on words that it did not understand.
#[test]
fn reports_are_read_as_they_are_written() {
    let line = "rank 1 (host a.b) in all_reduce #57, step 2: lost rank 0 (host c, pid 7): why\n";
    let report = Report::of(&Ended::failed(line));
    assert_eq!((report.rank, report.host.as_str(), report.call.as_str()), (1, "a.b", "all_reduce"));
    assert_eq!((report.sequence, report.step, report.peer), (57, 2, 0));
    assert_eq!((report.peer_host.as_str(), report.peer_pid), ("c", 7));
    assert_eq!(report.what, "lost rank 0 (host c, pid 7): why");
}
