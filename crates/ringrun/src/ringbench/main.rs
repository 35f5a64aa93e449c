//! ringbench.
fn main() {}
