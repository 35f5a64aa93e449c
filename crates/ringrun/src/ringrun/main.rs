//! ringrun.
fn main() {}
