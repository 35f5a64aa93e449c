//! Two hosts on one machine: network namespaces with a cable between them. They go when the
//! processes do that hold them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

struct Host(Child);

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Host {
    fn new(name: &str) -> Option<Self> {
        let script = "echo \"$0\" > /proc/sys/kernel/hostname && echo up && exec cat";
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "sh", "-c", script, name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut host = Self(command.spawn().ok()?);
        let mut line = String::new();
        BufReader::new(host.0.stdout.as_mut()?).read_line(&mut line).ok()?;
        (line == "up\n").then_some(host)
    }

    fn on(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut inside = Command::new("nsenter");
        inside.args(["--target", &self.0.id().to_string(), "--net", "--uts"]).arg(program);
        inside
    }

    fn does(&self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        let mut command = self.on(words.next()?);
        let done = command.args(words).stderr(Stdio::null()).status().ok()?;
        done.success().then_some(())
    }
}

pub struct Hosts([Host; 2]);

impl Hosts {
    /// None where namespaces are not permitted.
    pub fn new() -> Option<Self> {
        let hosts = [Host::new("left")?, Host::new("right")?];
        let other = hosts[1].0.id();
        hosts[0].does(&format!("ip link add eth0 type veth peer name eth0 netns {other}"))?;
        for (host, number) in hosts.iter().zip(1..) {
            host.does("ip link set lo up")?;
            host.does(&format!("ip address add 10.77.0.{number}/24 dev eth0"))?;
            host.does("ip link set eth0 up")?;
        }
        let hosts = Self(hosts);
        hosts.drop_longer(1)?;
        hosts.drop_none()?;
        Some(hosts)
    }

    /// From here on longer packets get lost on the way, in both directions.
    pub fn drop_longer(&self, bytes: u32) -> Option<()> {
        // They pass through a queue that has no room for them.
        let line = format!("tc qdisc replace dev eth0 root bfifo limit {bytes}");
        self.0.iter().try_for_each(|host| host.does(&line))
    }

    pub fn drop_none(&self) -> Option<()> {
        self.0.iter().try_for_each(|host| host.does("tc qdisc del dev eth0 root"))
    }

    /// A process that does what `body` names, on one of them.
    pub fn process(&self, host: usize, body: &str) -> Command {
        let mut command = self.0[host].on(crate::program());
        command.arg(body);
        // Only the test reaches these networks.
        command.env("RINGREDUCE_INSECURE", "1");
        command
    }
}
