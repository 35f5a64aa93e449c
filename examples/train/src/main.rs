//! train.
fn main() {}
