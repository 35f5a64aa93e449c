//! Buffers that are not the host's own. May touch: element, error, link, plan, schedule.
//! Law: nothing here is needed to start: what a machine lacks is an error of the call that wants
//! it.
pub(crate) mod cuda;
pub(crate) mod form;
pub(crate) mod hop;
pub(crate) mod island;
