//! The hosts that a batch system or a default host file names, where the command line names none.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::text::{Mention, mentions_of_file, names, node_list, number};
use super::{MAX_HOSTS, file};
use crate::failure::Failure;

const NODES: &str = "SLURM_JOB_NODELIST";
const TASKS: &str = "SLURM_TASKS_PER_NODE";
const CPUS: &str = "SLURM_JOB_CPUS_PER_NODE";
const CPUS_PER_TASK: &str = "SLURM_CPUS_PER_TASK";
/// Variables of PBS and LSF that name a file with a line for each slot.
const SLOT_FILES: [&str; 2] = ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"];
/// The variable of Grid Engine that names a file with lines such as `node1 4 q@node1 UNDEFINED`.
const GRID_ENGINE_FILE: &str = "PE_HOSTFILE";
/// Variables of Open MPI, MPICH and Intel MPI that name a host file.
const FILES: [&str; 3] =
    ["OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"];
/// The file that the MPI operator of Kubernetes mounts.
pub(super) const MOUNTED_FILE: &str = "/etc/mpi/hostfile";

const REMEDY: &str = "-H localhost starts all ranks here";

/// The environment of a process. An empty variable counts as unset.
pub(super) struct Surroundings<'a> {
    pub(super) variable: &'a dyn Fn(&str) -> Option<OsString>,
    pub(super) mounted_file: &'a Path,
}

impl Surroundings<'_> {
    /// True if the first source is Slurm's allocation.
    pub(super) fn is_slurm(&self) -> bool {
        self.set(NODES).is_some()
    }

    /// The hosts that the first source names; `None` if there is no source.
    pub(super) fn mentions(&self) -> Result<Option<Vec<Mention>>, Failure> {
        if let Some(nodes) = self.text(NODES)? {
            return self.slurm(&nodes).map(Some);
        }
        let of_batch_systems = SLOT_FILES.iter().chain([&GRID_ENGINE_FILE]);
        let files = of_batch_systems.chain(&FILES);
        let files = files.filter_map(|name| Some((*name, self.set(name)?)));
        // A file that cannot be looked for is read all the same, for the system's reason.
        let is_mounted = self.mounted_file.try_exists().unwrap_or(true);
        let mounted = is_mounted.then(|| self.mounted_file.into());
        let mut files = files.chain(mounted.map(|file: OsString| ("", file)));
        files.next().map(|(variable, file)| of_file(variable, file.into())).transpose()
    }

    fn slurm(&self, nodes: &str) -> Result<Vec<Mention>, Failure> {
        let mut hosts = vec![];
        for word in node_list::words(nodes) {
            let more = names(word, MAX_HOSTS.saturating_sub(hosts.len()));
            let why = |why| wrong(NODES, nodes, &format!("host {word:?}: {why}"));
            hosts.extend(more.map_err(why)?);
        }
        let slots = match (self.text(TASKS)?, self.text(CPUS)?) {
            (Some(tasks), _) => Some(slots(TASKS, &tasks, hosts.len(), 1)?),
            (None, Some(cpus)) => {
                let each = self.text(CPUS_PER_TASK)?;
                let each = each.map(|each| {
                    number(&each, &each).map_err(|why| wrong(CPUS_PER_TASK, &each, &why))
                });
                Some(slots(CPUS, &cpus, hosts.len(), each.transpose()?.unwrap_or(1))?)
            }
            (None, None) => None,
        };
        let slots_of = |host: usize| slots.as_ref().and_then(|all| all.get(host).copied());
        let mention = |(host, name)| Mention { name, slots: slots_of(host), max_slots: None };
        Ok(hosts.into_iter().enumerate().map(mention).collect())
    }

    fn set(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &str) -> Result<Option<String>, Failure> {
        let text = self.set(name).map(OsString::into_string).transpose();
        text.map_err(|value| wrong(name, &value.to_string_lossy(), "it is not UTF-8"))
    }
}

/// The slots of each node, by a list of tasks or CPUs of which `each` make a slot.
fn slots(name: &str, list: &str, hosts: usize, each: usize) -> Result<Vec<usize>, Failure> {
    let numbers = node_list::run_lengths(list, MAX_HOSTS)
        .ok_or_else(|| wrong(name, list, "expected numbers, as in 4(x2),1"))?;
    if numbers.len() != hosts {
        let why = format!("it counts {} nodes, and {NODES} has {hosts}", numbers.len());
        return Err(wrong(name, list, &why));
    }
    // Fewer CPUs than one task asks for are still a slot.
    let slots = numbers.iter().map(|&count| (count / each).max(count.min(1)));
    let slots = slots.map(|slots| number(&slots.to_string(), list));
    slots.collect::<Result<_, _>>().map_err(|why| wrong(name, list, &why))
}

fn of_file(variable: &str, path: PathBuf) -> Result<Vec<Mention>, Failure> {
    let of = if variable.is_empty() { String::new() } else { format!(" of {variable}") };
    let read = match variable {
        GRID_ENGINE_FILE => file::read_as(&path, mentions_of_grid_engine),
        _ => file::read(&path),
    };
    let mut mentions = read.map_err(|failure| match failure {
        Failure::System { what, cause, limit } => {
            Failure::System { what: format!("{what}{of} ({REMEDY})"), cause, limit }
        }
        Failure::Usage(why) if variable.is_empty() => Failure::Usage(format!("{why}; {REMEDY}")),
        Failure::Usage(why) => {
            Failure::Usage(format!("{why}; {variable} names this file; {REMEDY}"))
        }
        other => other,
    })?;
    if SLOT_FILES.contains(&variable) {
        mentions.iter_mut().for_each(|mention| mention.slots = mention.slots.or(Some(1)));
    }
    Ok(mentions)
}

/// The hosts of Grid Engine's lines, of which the first two words matter: the host and its slots.
fn mentions_of_grid_engine(text: &str) -> Result<Vec<Mention>, String> {
    let line = |(number, line): (usize, &str)| {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (None, _) => Ok(String::new()),
            (Some(host), Some(slots)) => Ok(format!("{host} slots={slots}")),
            (Some(host), None) => Err(format!("line {number}: {host:?} has no number of slots")),
        }
    };
    let lines: Vec<_> = (1..).zip(text.lines()).map(line).collect::<Result<_, _>>()?;
    mentions_of_file(&lines.join("\n"), MAX_HOSTS)
}

fn wrong(name: &str, value: &str, why: &str) -> Failure {
    Failure::Usage(format!("{name}={value:?}: {why}; {REMEDY}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "a:2 b", or "-" without a source, under these variables.
    fn shown(variables: &[(&str, &str)], mounted: &Path) -> Result<String, String> {
        let find = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let surroundings = Surroundings { variable: &find, mounted_file: mounted };
        let one = |it: Mention| match it.slots {
            Some(slots) => format!("{}:{slots}", it.name),
            None => it.name,
        };
        let found = surroundings.mentions().map_err(|failure| failure.to_string())?;
        let list = |all: Vec<Mention>| all.into_iter().map(one).collect::<Vec<_>>().join(" ");
        Ok(found.map_or("-".into(), list))
    }

    #[test]
    fn slurms_variables_count_the_slots() {
        for (variables, hosts) in [
            (&[(NODES, "n[1-2],m"), (TASKS, "4(x2),1")][..], "n1:4 n2:4 m:1"),
            (&[(NODES, "n[01-02]"), (TASKS, "2,3"), (CPUS, "9(x2)")], "n01:2 n02:3"),
            (&[(NODES, "n[1-2]"), (CPUS, "8(x2)")], "n1:8 n2:8"),
            (&[(NODES, "n[1-2]"), (CPUS, "8,1"), (CPUS_PER_TASK, "2")], "n1:4 n2:1"),
            (&[(NODES, "n1,n2")], "n1 n2"),
            (&[(NODES, ""), (TASKS, "x")], "-"),
            (&[(TASKS, "4")], "-"),
        ] {
            assert_eq!(
                shown(variables, Path::new("/no/file")).as_deref(),
                Ok(hosts),
                "{variables:?}"
            );
        }
        for (variables, why) in [
            (&[(NODES, "n[1-")][..], "SLURM_JOB_NODELIST=\"n[1-\": host \"n[1-\": a bracket"),
            (&[(NODES, "n1:4")], "\"n1:4\": no name"),
            (&[(NODES, "-oX=1")], "SLURM_JOB_NODELIST=\"-oX=1\""),
            (
                &[(NODES, "n1"), (TASKS, "4(x2)")],
                "SLURM_TASKS_PER_NODE=\"4(x2)\": it counts 2 nodes",
            ),
            (&[(NODES, "n1"), (TASKS, "0")], "expected a number of slots"),
            (&[(NODES, "n1"), (TASKS, "many")], "expected numbers, as in 4(x2),1"),
            (&[(NODES, "n1"), (CPUS, "8,")], "SLURM_JOB_CPUS_PER_NODE=\"8,\""),
            (&[(NODES, "n1"), (CPUS, "8"), (CPUS_PER_TASK, "0")], "SLURM_CPUS_PER_TASK=\"0\""),
            (&[(NODES, "n1"), (TASKS, "99999999")], "expected a number of slots"),
        ] {
            let error = shown(variables, Path::new("/no/file")).unwrap_err();
            assert!(error.contains(why) && error.contains(REMEDY), "{variables:?}: {error}");
        }
    }

    #[test]
    fn host_files_come_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            file.to_str().unwrap().to_owned()
        };
        let [open_mpi, hydra] = [file("o", "o slots=2"), file("h", "h:3")];
        let mounted = file("m", "m slots=4");
        let [open_mpi, hydra] = [(FILES[0], open_mpi.as_str()), (FILES[1], hydra.as_str())];
        let intel = (FILES[2], hydra.1);
        for (variables, hosts) in [
            (&[hydra, open_mpi][..], "o:2"),
            (&[hydra], "h:3"),
            (&[intel, (FILES[0], "")], "h:3"),
            (&[], "m:4"),
            (&[hydra, (NODES, "n1")], "n1"),
        ] {
            assert_eq!(
                shown(variables, Path::new(&mounted)).as_deref(),
                Ok(hosts),
                "{variables:?}"
            );
        }
        let error = shown(&[(FILES[1], "/no/file")], Path::new(&mounted)).unwrap_err();
        assert!(error.contains("/no/file of HYDRA_HOST_FILE") && error.contains(REMEDY), "{error}");
        let wrong = file("w", "a:x");
        let error = shown(&[(FILES[0], &wrong)], Path::new(&mounted)).unwrap_err();
        assert!(error.contains("; OMPI_MCA_orte_default_hostfile names this file; -H"), "{error}");
        let error = shown(&[], Path::new(&wrong)).unwrap_err();
        assert!(error.contains(&wrong) && error.contains(REMEDY), "{error}");
    }

    #[test]
    fn files_of_batch_systems_count_slots() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes");
        let of = |variable: &str, text: &str| {
            std::fs::write(&path, text).unwrap();
            shown(&[(variable, path.to_str().unwrap()), (FILES[0], "/no/file")], Path::new("/no"))
        };
        for variable in SLOT_FILES {
            assert_eq!(of(variable, "a\na\nb.site\n").as_deref(), Ok("a:1 a:1 b.site:1"));
            let slots = MAX_HOSTS + 1;
            let all = of(variable, &"a\n".repeat(slots)).unwrap();
            assert_eq!(all.split(' ').filter(|&mention| mention == "a:1").count(), slots);
            let error = of(variable, "\n").unwrap_err();
            assert!(error.contains(&format!("no host; {variable} names this file")), "{error}");
        }
        let lines = "a 4 all.q@a UNDEFINED\n\nb.site 2 all.q@b.site <NULL>\n";
        assert_eq!(of(GRID_ENGINE_FILE, lines).as_deref(), Ok("a:4 b.site:2"));
        for (text, why) in [
            ("a 4 q@a UNDEFINED\nb", "line 2: \"b\" has no number of slots"),
            ("a many q@a", "line 1: \"slots=many\": expected a number of slots"),
            ("-oX=1 2 q@a", "host \"-oX=1\": no name"),
            ("", "it names no host"),
        ] {
            let error = of(GRID_ENGINE_FILE, text).unwrap_err();
            let is_whole =
                error.contains(why) && error.contains("; PE_HOSTFILE names this file; -H");
            assert!(is_whole, "{text:?}: {error}");
        }
        let slurm = [(SLOT_FILES[0], "/no/file"), (NODES, "n1")];
        assert_eq!(shown(&slurm, Path::new("/no")).as_deref(), Ok("n1"));
    }

    #[test]
    fn a_variable_that_is_not_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let find = |name: &str| (name == NODES).then(|| OsString::from_vec(vec![0xff]));
        let surroundings = Surroundings { variable: &find, mounted_file: Path::new("/no/file") };
        let error = surroundings.mentions().unwrap_err().to_string();
        assert!(error.contains("SLURM_JOB_NODELIST") && error.contains("not UTF-8"), "{error}");
    }
}
