//! Parameter servers (Li et al., OSDI 2014): some ranks keep a part of the parameters each and
//! update it; the others are workers, which push gradients and get parameters back.
//! `server`, `worker` the two roles · `protocol`, `exchange` their messages · `policy` when a
//! server updates and answers, `sum` by what · `group` workers that push together · `gradients`
//! those of a step · `member` changes of the membership · `roles` who does what in one · `settings`
//! of a server · `snapshot` its state on disk · `restore` when it is written and loaded · `report`
//! what servers record · `heartbeat`, `liveness`, `silence` ranks that are stopped, cut off or
//! stuck · `state` checkpoints · `end` how all end.
//! Servers and workers speak by messages alone, so a lost worker stops no other.

mod end;
mod exchange;
mod gradients;
mod group;
mod heartbeat;
mod liveness;
mod member;
mod policy;
mod protocol;
mod report;
mod restore;
mod roles;
mod server;
mod settings;
mod silence;
mod snapshot;
mod state;
mod sum;
mod worker;

pub use member::{Groups, Layout, Member};
pub use policy::Policy;
pub use report::{Restored, ServerReport, server_bytes};
pub use roles::Role;
pub use server::Server;
pub use settings::{ServerSettings, Snapshots};
pub use snapshot::{SnapshotFolder, SnapshotStore, replace_file};
pub use worker::Worker;
