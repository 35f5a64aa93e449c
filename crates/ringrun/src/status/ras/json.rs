//! The report as JSON: NCCL's fields, in its order, and fields of ours behind them. A number that
//! ringrun does not know is -1.

use std::time::SystemTime;

use serde::Serialize;

use super::super::communicators::Participant;
use super::super::json::{Call, call};
use super::super::{ProcessState, RankStatus, wording};
use super::report::{Communicator, MissingRank, Report, failed_call};

/// NCCL's number of the error of a rank whose call has failed (`ncclRemoteError`).
const REMOTE_ERROR: u32 = 6;
const UNKNOWN: i64 = -1;

#[derive(Serialize)]
struct Document<'a> {
    nccl_version: &'static str,
    cuda_runtime_version: i64,
    cuda_driver_version: i64,
    /// In UTC.
    timestamp: String,
    communicators_count: usize,
    communicators: Vec<CommunicatorDocument<'a>>,
    ras: Ras,
    ringreduce: Ours,
}

#[derive(Serialize)]
struct CommunicatorDocument<'a> {
    hash: String,
    secondary_hash: &'static str,
    size: u64,
    ranks_count: usize,
    missing_ranks_count: u64,
    ranks: Vec<RankDocument<'a>>,
    missing_ranks: Vec<MissingDocument<'a>>,
    name: Option<&'a str>,
}

#[derive(Serialize)]
struct RankDocument<'a> {
    rank: u64,
    host: &'a str,
    pid: u64,
    cuda_dev: i64,
    nvml_dev: i64,
    status: RankState,
    collective_counts: Counts,
    job_rank: usize,
    /// The latest collective on the communicator.
    call: Option<Call>,
}

#[derive(Serialize)]
struct RankState {
    init_state: u32,
    async_error: u32,
    finalize_called: bool,
    destroy_flag: bool,
    /// Not known.
    abort_flag: Option<bool>,
    state: &'static str,
}

/// Calls of all collectives are numbered and counted together.
#[derive(Serialize)]
struct Counts {
    #[serde(rename = "Collective")]
    collective: u64,
}

#[derive(Serialize)]
struct MissingDocument<'a> {
    rank: u64,
    host: &'a str,
    pid: i64,
    cuda_dev: i64,
    nvml_dev: i64,
    status: MissingState,
    job_rank: Option<usize>,
}

#[derive(Serialize)]
struct MissingState {
    unresponsive: bool,
    considered_dead: bool,
    state: &'static str,
}

#[derive(Serialize)]
struct Ras {
    collection_time_sec: f64,
    timeouts_count: usize,
}

#[derive(Serialize)]
struct Ours {
    /// The first line of `ringrun status`.
    summary: String,
    /// The ranks of the job that others wait for, and for how long they have.
    awaited_ranks: Vec<usize>,
    awaited_sec: f64,
    communicators_left_out: usize,
}

pub(super) fn document(report: &Report<'_>) -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let cause = report.cause.as_ref();
    let none_waits = || wording::no_wait_summary(report.all);
    let document = Document {
        nccl_version: concat!("ringreduce ", env!("CARGO_PKG_VERSION")),
        cuda_runtime_version: UNKNOWN,
        cuda_driver_version: UNKNOWN,
        timestamp: now.replace('T', " ").replace('Z', ""),
        communicators_count: report.communicators.len(),
        communicators: report.communicators.iter().map(|one| communicator(report, one)).collect(),
        ras: Ras {
            collection_time_sec: report.duration.as_millis() as f64 / 1e3,
            timeouts_count: report.timeouts,
        },
        ringreduce: Ours {
            summary: cause.map_or_else(none_waits, |cause| cause.sentence.clone()),
            awaited_ranks: cause.map(|cause| cause.ranks.clone()).unwrap_or_default(),
            awaited_sec: cause.map_or(0.0, |cause| cause.waited as f64 / 1e9),
            communicators_left_out: report.left_out,
        },
    };
    // Numbers and texts always have a form in JSON.
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

fn communicator<'a>(report: &Report<'_>, one: &'a Communicator<'_>) -> CommunicatorDocument<'a> {
    CommunicatorDocument {
        hash: format!("{:#x}", one.key),
        secondary_hash: "0x0:0x0",
        size: one.size,
        ranks_count: one.ranks.len(),
        missing_ranks_count: one.missing_count,
        ranks: one.ranks.values().map(|member| rank(member, report.now)).collect(),
        missing_ranks: one.missing.iter().map(missing_rank).collect(),
        name: one.name.as_deref(),
    }
}

fn rank<'a>(member: &Participant<'a>, now: u64) -> RankDocument<'a> {
    let RankStatus { rank: job_rank, ref host, pid, state, .. } = *member.status;
    RankDocument {
        rank: member.member.rank,
        host,
        pid,
        cuda_dev: UNKNOWN,
        nvml_dev: UNKNOWN,
        status: RankState {
            init_state: 0,
            async_error: failed_call(member).map_or(0, |_| REMOTE_ERROR),
            finalize_called: false,
            destroy_flag: false,
            abort_flag: None,
            state: state_name(state),
        },
        collective_counts: Counts { collective: member.number() },
        job_rank,
        call: member.op.map(|op| call(member.status, op, now)),
    }
}

fn missing_rank<'a>(one: &'a MissingRank<'_>) -> MissingDocument<'a> {
    let process = one.process;
    let pid = process.and_then(|status| i64::try_from(status.pid).ok());
    MissingDocument {
        rank: one.rank,
        host: process.map_or("unknown", |status| &status.host),
        pid: pid.unwrap_or(UNKNOWN),
        cuda_dev: UNKNOWN,
        nvml_dev: UNKNOWN,
        status: MissingState {
            unresponsive: !one.has_left,
            considered_dead: one.is_dead(),
            state: process.map_or("UNKNOWN", |status| state_name(status.state)),
        },
        job_rank: process.map(|status| status.rank),
    }
}

const fn state_name(state: ProcessState) -> &'static str {
    match state {
        ProcessState::Running => "RUNNING",
        ProcessState::Stopped => "STOPPED",
        ProcessState::Ended(_) => "ENDED",
    }
}
