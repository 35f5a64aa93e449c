//! Message matching on a simulated network: programs of sends and receives in random orders of
//! steps, and all orders of small programs.

pub(crate) mod cases;
pub(crate) mod checks;
pub(crate) mod every_order;
pub(crate) mod faults;
pub(crate) mod history;

pub(crate) mod network;
pub(crate) mod oracle;
pub(crate) mod program;
pub(crate) mod random_orders;
