//! The value of `--hosts`: a number of hosts, or of ranks on each.

use std::num::NonZeroU32;
use std::str::FromStr;

use ringreduce::schedule::Ring;

/// The hosts of the ranks, in the ranks' order.
#[derive(Clone, Debug)]
pub(super) enum Hosts {
    /// A number of hosts, with equally many ranks on each.
    Equal(NonZeroU32),
    /// Numbers of hosts and of ranks on each of them.
    Listed(Vec<[NonZeroU32; 2]>),
}

impl FromStr for Hosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |word: &str| {
            let expected = "a number of hosts, as 4; or of ranks on each, as 8,8,4 or 2x8,4";
            word.trim().parse().map_err(|why| format!("{word:?}: {why}; expected {expected}"))
        };
        let some = |word: &str| match word.split_once('x') {
            Some((hosts, ranks)) => Ok([number(hosts)?, number(ranks)?]),
            None => Ok([NonZeroU32::MIN, number(word)?]),
        };
        if !text.contains([',', 'x']) {
            return number(text).map(Self::Equal);
        }
        text.split(',').map(some).collect::<Result<_, String>>().map(Self::Listed)
    }
}

impl Hosts {
    pub(super) fn ring(&self, ranks: u32) -> Result<Ring, String> {
        let own = match self {
            Self::Equal(hosts) if ranks.is_multiple_of(hosts.get()) => {
                vec![ranks / hosts.get(); hosts.get() as usize]
            }
            Self::Equal(hosts) => {
                return Err(format!(
                    "--hosts {hosts}: {ranks} ranks are not as many on each; say how many are, \
                     as in --hosts 8,8,4"
                ));
            }
            Self::Listed(some) => {
                let counts = some.iter().map(|own| own.map(|it| u64::from(it.get())));
                let on_them =
                    counts.fold(0_u64, |sum, [hosts, own]| sum.saturating_add(hosts * own));
                if on_them != u64::from(ranks) {
                    return Err(format!("--hosts has {on_them} ranks in all, and -n {ranks}"));
                }
                let own = |[hosts, own]: &[NonZeroU32; 2]| vec![own.get(); hosts.get() as usize];
                some.iter().flat_map(own).collect()
            }
        };
        let mut next = 0..ranks;
        let own = own.iter().map(|&own| next.by_ref().take(own as usize).collect());
        Ring::through(&own.collect::<Vec<_>>()).ok_or_else(|| "the hosts' ranks overlap".into())
    }
}

#[cfg(test)]
mod tests {
    use ringreduce::Algorithm;

    use super::super::tests::report;

    #[test]
    fn hosts_and_their_ranks_are_as_stated() {
        let hosts = |line: &str| {
            report(line).map(|it| it.ring.hosts().map(<[u32]>::len).collect::<Vec<_>>())
        };
        assert_eq!(hosts("-n 8 -e 8"), Ok(vec![8]));
        assert_eq!(hosts("-n 8 -e 8 --hosts 4"), Ok(vec![2; 4]));
        assert_eq!(hosts("-n 20 -e 8 --hosts 8,8,4"), Ok(vec![8, 8, 4]));
        assert_eq!(hosts("-n 3 -e 8 --hosts 1,1,1"), Ok(vec![1; 3]));
        assert_eq!(hosts("-n 20 -e 8 --hosts 2x8,4"), Ok(vec![8, 8, 4]));
        assert_eq!(hosts("-n 8 -e 8 --hosts 4x2"), Ok(vec![2; 4]));
        for (wrong, why) in [
            ("-n 20 --hosts 3", "20 ranks are not as many on each; say how many are"),
            ("-n 20 --hosts 8,8,8", "--hosts has 24 ranks in all, and -n 20"),
            ("-n 20 --hosts 4294967295,21", "4294967316 ranks in all"),
            ("-n 20 --hosts 8,8,", "or of ranks on each, as 8,8,4"),
            ("-n 20 --hosts 2x", "or of ranks on each, as 8,8,4"),
            ("-n 20 --hosts 20,0", "\"0\": number would be zero"),
            ("-n 20 --hosts 0", "\"0\": number would be zero"),
            ("-n 8 --hosts 1,1,1,1,1,1,1,1 --host-step 1us", "each host has one rank"),
        ] {
            let error = hosts(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
        let rows = report("-n 20 --hosts 8,8,4 -b 1M -e 1M").unwrap().rows;
        let candidate =
            rows[0].candidates.iter().find(|it| it.algorithm == Algorithm::Hierarchical);
        assert!(candidate.is_some_and(|it| it.seconds.is_some()), "{rows:?}");
    }
}
