//! Hosts on one machine: network namespaces with virtual cables between them. A namespace has no
//! name outside, so the kernel removes it with the process that holds it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::processes;

/// A host: a process that holds a network namespace and a host name.
pub struct Host(Child);

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Host {
    fn new(name: &str) -> Result<Self, String> {
        let script = "echo \"$0\" > /proc/sys/kernel/hostname && echo up && exec cat";
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "sh", "-c", script, name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut host = Self(command.spawn().map_err(|error| format!("unshare: {error}"))?);
        let mut line = String::new();
        let read = BufReader::new(host.0.stdout.as_mut().unwrap()).read_line(&mut line);
        if read.is_ok() && line == "up\n" {
            Ok(host)
        } else {
            Err("network namespaces are not permitted here".into())
        }
    }

    /// Wraps a command so that it runs on this host.
    pub fn on(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.args(["--target", &self.0.id().to_string(), "--net", "--uts"]);
        inside.arg(command.get_program()).args(command.get_args());
        // Only the test reaches these networks. Tests of secrets override this.
        inside.env("RINGREDUCE_INSECURE", "1");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// As [`Self::on`], with this hosts file in place of the machine's.
    pub fn with_names(&self, command: &Command, names: &Path) -> Command {
        let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "sh", "-c", script]).arg(names);
        inside.arg(command.get_program()).args(command.get_args());
        command.get_envs().for_each(|(name, value)| {
            if let Some(value) = value {
                inside.env(name, value);
            }
        });
        self.on(&inside)
    }

    /// Runs a line of program and arguments, separated by single spaces.
    pub fn does(&self, line: &str) -> Result<(), String> {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().unwrap());
        let output =
            self.on(command.args(words)).output().map_err(|error| format!("nsenter: {error}"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("{line}: {errors}")) }
    }

    /// Gives the host's end of its cable the address of this number.
    fn set_number(&self, number: usize) -> Result<(), String> {
        self.does("ip link set lo up")?;
        self.does(&format!("ip address add 10.77.0.{number}/24 dev eth0"))?;
        self.does("ip link set eth0 up")
    }
}

/// Two hosts and the cable between them.
pub struct Hosts(pub [Host; 2]);

impl Hosts {
    /// The error names what this machine does not permit.
    pub fn new() -> Result<Self, String> {
        let hosts = [Host::new("left")?, Host::new("right")?];
        let other = hosts[1].0.id();
        hosts[0].does(&format!("ip link add eth0 type veth peer name eth0 netns {other}"))?;
        hosts.iter().zip(1..).try_for_each(|(host, number)| host.set_number(number))?;
        Ok(Self(hosts))
    }

    /// Two hosts whose cable may lose packets.
    pub fn with_loss() -> Result<Self, String> {
        let hosts = Self::new()?;
        hosts.drop_longer(1)?;
        hosts.drop_none()?;
        Ok(hosts)
    }

    /// An address on the first host for the store of one world.
    pub fn store(&self) -> String {
        // The namespace has all ports to itself; these are below those that the system assigns.
        format!("10.77.0.1:{}", 2000 + processes::number() % 30_000)
    }

    /// From now on packets of more than `bytes` bytes are lost, in both directions.
    pub fn drop_longer(&self, bytes: u32) -> Result<(), String> {
        // The queue that packets pass through has no space for longer ones.
        let line = format!("tc qdisc replace dev eth0 root bfifo limit {bytes}");
        self.0.iter().try_for_each(|host| host.does(&line))
    }

    pub fn drop_none(&self) -> Result<(), String> {
        self.0.iter().try_for_each(|host| host.does("tc qdisc del dev eth0 root"))
    }

    /// A process on one of the hosts that executes `body`.
    pub fn process(&self, host: usize, body: &str) -> Command {
        self.0[host].on(&crate::process(body))
    }
}

/// `count` hosts whose cables end at a bridge on the first one.
pub fn star(count: usize) -> Result<Vec<Host>, String> {
    let hosts: Vec<_> =
        (0..count).map(|number| Host::new(&format!("h{number}"))).collect::<Result<_, _>>()?;
    hosts[0].does("ip link add eth0 type bridge")?;
    for (number, host) in hosts.iter().enumerate() {
        if number > 0 {
            let other = host.0.id();
            let cable = format!("ip link add p{number} type veth peer name eth0 netns {other}");
            hosts[0].does(&cable)?;
            hosts[0].does(&format!("ip link set p{number} master eth0 up"))?;
        }
        host.set_number(number + 1)?;
    }
    Ok(hosts)
}
