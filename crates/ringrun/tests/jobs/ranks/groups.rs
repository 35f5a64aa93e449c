//! Groups of processes: made and used side by side.

use crate::harness::all_right;
use crate::job::Job;

#[test]
fn groups_work_side_by_side_and_leave_nothing() {
    for transport in ["shm", "tcp"] {
        for size in [1, 2, 5] {
            let job = Job::new();
            all_right(job.world(size, transport, "groups 5"));
            job.left_nothing();
        }
    }
}
