//! `--launcher manual`: the commands by which the user starts the agents.

use std::net::SocketAddr;
use std::path::absolute;

use super::begin::JOIN_LIMIT;
use super::client::{FLAG, ringrun, utf8};
use super::listen::Listening;
use crate::cli::Request;
use crate::failure::Failure;
use crate::launch::address;
use crate::launch::message::say;
use crate::secret::quoted;
use ringreduce::config::variables::{IFNAME, INSECURE, SECRET_FILE};

/// Says for each other host which command is to be run there, whatever `--quiet` says.
pub(super) fn say_commands(request: &Request, listening: &Listening) -> Result<(), Failure> {
    let listens_at = listening.dial.addresses.first().ok_or_else(|| {
        Failure::Host("this host has no address for other hosts to reach (--iface)".into())
    })?;
    // A name of this host gives no route, so that no host's number has to be left out.
    let is_chosen = request.variable(IFNAME).is_some();
    let route = if is_chosen { None } else { address::to_others(request, usize::MAX) };
    let address = route.map_or(*listens_at, |route| SocketAddr::new(route, listens_at.port()));
    let secret = match request.variable(SECRET_FILE) {
        Some(file) => {
            let file = absolute(file).map_err(Failure::system("find the secret's file"))?;
            format!("{SECRET_FILE}={}", quoted(utf8(&file)?.as_ref()).display())
        }
        None => format!("-u {SECRET_FILE} {INSECURE}=1"),
    };
    let ringrun = ringrun()?;
    let command = format!("env {secret} {} {FLAG} {address}", quoted(ringrun.as_ref()).display());
    let others = request.hosts.iter().enumerate().filter(|(_, host)| !host.is_here);
    let one = |(number, name): (usize, &str)| format!("\n  on {name}:\n    {command} {number}");
    let commands: String = others.map(|(number, host)| one((number, &host.name))).collect();
    say(&format!("run each of these commands on its host, within {JOIN_LIMIT:?}:{commands}"));
    Ok(())
}
