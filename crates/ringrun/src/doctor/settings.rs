//! Checks of the `RINGREDUCE_*` variables, of the secret, and of the folder of measured speeds.

use std::env::var_os;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::{AccessFlags, eaccess};
use ringreduce::bootstrap::{load_secret, secret_fingerprint};
use ringreduce::config::variables::SECRET_FILE;
use ringreduce::config::{Config, ProcessEnvironment, SecretSource};
use ringreduce::{Algorithm, Error};

use super::Check;
use crate::cli::environment::{OWN_VARIABLES, Variables};
use crate::launch::procfs::JOB_VARIABLE;
use crate::secret::IN_HOME;

const VARIABLES: &str = "variables";

/// The settings of a rank that this process would start, and what is wrong with them.
pub(super) struct Settings {
    /// Without the variables that are wrong.
    config: Option<Config>,
    /// Malformed variables, each with its value and the values that are expected.
    malformed: Vec<String>,
    /// Variables without an effect.
    warnings: Vec<String>,
}

impl Settings {
    /// Those of ranks with these variables besides those of this process.
    pub(super) fn of_ranks(variables: Variables) -> Self {
        let mut env = ProcessEnvironment::of_this_process();
        env.vars.extend(variables);
        if env.vars.contains_key(OsStr::new(JOB_VARIABLE)) {
            // These describe this process, a rank of a job that looks at hosts.
            OWN_VARIABLES.iter().for_each(|name| _ = env.vars.remove(OsStr::new(name)));
        }
        Self::of(env)
    }

    /// The fingerprint of the secret file that the variables name.
    pub(super) fn secret_fingerprint(&self) -> Option<String> {
        let source = self.config.as_ref()?.secret.clone()?;
        let SecretSource::File(_) = source else { return None };
        let config = Config { secret: Some(source), ..Config::default() };
        load_secret(&config).ok()?.map(|secret| secret_fingerprint(&secret))
    }

    /// Reads an environment again without each variable that is wrong, so that all of them are
    /// found.
    fn of(mut env: ProcessEnvironment) -> Self {
        let mut malformed = Vec::new();
        loop {
            match Config::detect(&env) {
                Ok((config, warnings)) => {
                    return Self { config: Some(config), malformed, warnings };
                }
                Err(error) => {
                    malformed.push(error.to_string());
                    let before = env.vars.len();
                    if let Error::Config { name, .. } = &error {
                        env.vars.remove(OsStr::new(&**name));
                    }
                    if env.vars.len() == before {
                        // Variables of launchers that are wrong together.
                        env.vars.retain(|name, _| is_setting(name));
                    }
                    if env.vars.len() == before {
                        break;
                    }
                }
            }
        }
        Self { config: None, malformed, warnings: vec![] }
    }

    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        self.config.as_ref()?.algorithm
    }

    pub(super) fn interface(&self) -> Option<&str> {
        self.config.as_ref()?.interface.as_deref()
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        let mut checks = self.variables();
        checks.push(self.secret(var_os("HOME").map(PathBuf::from)));
        checks.push(self.cache());
        checks
    }

    fn variables(&self) -> Vec<Check> {
        let malformed = self.malformed.iter().map(|found| {
            Check::problem(VARIABLES, found, "Correct the value, or unset the variable.")
        });
        // The other warning is of a batch system's allocation, in which this is no rank.
        let is_ours = |found: &&String| found.starts_with("RINGREDUCE_");
        let ignored = self.warnings.iter().filter(is_ours).map(|found| {
            let remedy = "Correct the name (docs/environment.md has all), or unset the variable.";
            Check::problem(VARIABLES, found, remedy)
        });
        let mut checks: Vec<_> = malformed.chain(ignored).collect();
        if checks.is_empty() {
            checks
                .push(Check::ok(VARIABLES, "every RINGREDUCE_ variable is known and well formed"));
        }
        checks
    }

    /// The secret that ranks would have; or else the file that the documents propose, if it is
    /// there.
    fn secret(&self, home: Option<PathBuf>) -> Check {
        const NAME: &str = "secret";
        let Some(config) = &self.config else {
            return Check::unknown(NAME, "the variables are wrong");
        };
        let usual = home.map(|home| home.join(IN_HOME));
        let usual = usual.filter(|file| file.symlink_metadata().is_ok());
        let (source, found) = match (&config.secret, usual) {
            (Some(SecretSource::File(file)), _) => {
                (config.secret.clone(), format!("{} is set: {}", SECRET_FILE, file.display()))
            }
            (Some(source), _) => (Some(source.clone()), "inherited from a launcher".into()),
            (None, Some(file)) => {
                let found = format!("{}, which {SECRET_FILE} does not name", file.display());
                (Some(SecretSource::File(file)), found)
            }
            (None, None) => {
                let found = "no file; ringrun draws one for each job, and `ringrun secret` makes \
                    the file of jobs on several hosts under other launchers";
                return Check::ok(NAME, found);
            }
        };
        match load_secret(&Config { secret: source, ..Config::default() }) {
            Ok(_) => Check::ok(NAME, &found),
            Err(error) => {
                let remedy = "Own the file and make its mode 600 (chmod 600), or remove it and run \
                    `ringrun secret`; all hosts need the same.";
                // Ranks read no file that the variable does not name.
                let state = if config.secret.is_some() { Check::problem } else { Check::note };
                state(NAME, &error.to_string(), remedy)
            }
        }
    }

    /// The folder of measured speeds.
    fn cache(&self) -> Check {
        const NAME: &str = "speeds";
        let Some(config) = &self.config else {
            return Check::unknown(NAME, "the variables are wrong");
        };
        let Some(folder) = &config.cache else {
            return Check::ok(NAME, "not kept: each job measures again");
        };
        let shown = folder.display();
        match may_write(folder) {
            Ok(()) => Check::ok(NAME, &format!("kept in {shown}")),
            Err(error) => {
                let found = format!("{shown} cannot be written ({error}): each job measures again");
                let remedy = "Make the folder writable, or set RINGREDUCE_CACHE to another one or \
                    to off.";
                Check::note(NAME, &found, remedy)
            }
        }
    }
}

/// True for variables of settings, false for those by which launchers describe a rank.
fn is_setting(name: &OsStr) -> bool {
    const OF_CACHE: [&str; 2] = ["HOME", "XDG_CACHE_HOME"];
    let Some(name) = name.to_str() else { return false };
    let is_ours = name.starts_with("RINGREDUCE_") && !OWN_VARIABLES.contains(&name);
    is_ours || OF_CACHE.contains(&name)
}

/// Whether this user may make files in a folder, or make the folder where it is not there yet.
fn may_write(folder: &Path) -> Result<(), Errno> {
    let mut ancestors = folder.ancestors();
    loop {
        let Some(folder) = ancestors.next() else { return Err(Errno::ENOENT) };
        match eaccess(folder, AccessFlags::F_OK) {
            Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
            Ok(()) if !folder.is_dir() => return Err(Errno::ENOTDIR),
            Ok(()) => return eaccess(folder, AccessFlags::W_OK | AccessFlags::X_OK),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::super::State::{Note, Ok as Fine, Problem, Unknown};
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Settings {
        let vars = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let ancestor_without = |_: &str| String::new();
        Settings::of(ProcessEnvironment { vars, uid: 7, ancestor_without })
    }

    #[test]
    fn every_wrong_variable_is_a_problem() {
        let checks = settings(&[
            ("RINGREDUCE_FOO", "1"),
            ("RINGREDUCE_TIMEOUT", "soon"),
            ("RINGREDUCE_WIDE", "yes"),
        ]);
        let checks = checks.variables();
        assert_eq!(checks.len(), 3, "{checks:?}");
        for name in ["RINGREDUCE_FOO", "RINGREDUCE_TIMEOUT", "RINGREDUCE_WIDE"] {
            let told = |check: &&Check| check.state == Problem && check.found.contains(name);
            assert!(checks.iter().any(|check| told(&check)), "{name}: {checks:?}");
        }
        assert_eq!(settings(&[("RINGREDUCE_WIDE", "1")]).variables()[0].state, Fine);
    }

    #[test]
    fn variables_that_contradict_each_other_are_a_problem() {
        let both = settings(&[("RINGREDUCE_RANK", "3"), ("RINGREDUCE_SIZE", "2")]);
        assert!(both.variables().iter().all(|check| check.state == Problem));
        assert!(both.variables()[0].remedy.is_some());
        let variables =
            [("RINGREDUCE_RANK", "3"), ("RINGREDUCE_SIZE", "2"), ("RINGREDUCE_FOO", "1")];
        let all = settings(&variables).variables();
        let told = |check: &Check| check.found.contains("RINGREDUCE_FOO is no variable");
        assert!(all.len() == 2 && all.iter().any(told), "{all:?}");
    }

    #[test]
    fn the_file_of_the_secret_is_looked_at() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(".ringreduce-secret");
        let named = file.to_str().unwrap();
        let check = |variables: &[_]| settings(variables).secret(Some(home.path().into()));
        assert_eq!((check(&[]).state, settings(&[]).secret(None).state), (Fine, Fine));
        assert_eq!(check(&[("RINGREDUCE_SECRET_FILE", named)]).state, Problem);
        for (text, mode) in [("x", 0o600), (&*"7".repeat(32), 0o644)] {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            // Ranks read no file that the variable does not name.
            let states = [check(&[]), check(&[("RINGREDUCE_SECRET_FILE", named)])];
            assert_eq!(states.map(|check| check.state), [Note, Problem]);
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(check(&[]).state, Fine);
        assert_eq!(check(&[("RINGREDUCE_SECRET_FILE", named)]).state, Fine);
    }

    #[test]
    fn the_folder_of_speeds_must_be_one_that_can_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let check = |path: &Path| settings(&[("RINGREDUCE_CACHE", path.to_str().unwrap())]).cache();
        assert_eq!(check(&folder.path().join("a/b")).state, Fine);
        assert_eq!(check(&file.join("a")).state, Note);
        assert_eq!(settings(&[("RINGREDUCE_CACHE", "off")]).cache().state, Fine);
        assert_eq!(settings(&[]).cache().state, Fine);
        let broken = Settings { config: None, malformed: vec![], warnings: vec![] };
        assert_eq!((broken.cache().state, broken.secret(None).state), (Unknown, Unknown));
    }
}
