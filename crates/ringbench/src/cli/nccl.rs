//! Flags of nccl-tests that are accepted only with the value that ringbench always has, and other
//! names of types.

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use ringreduce::DataType;

/// Short name, long name, accepted values, the reason why there are no others.
type Flag = (char, &'static str, &'static str, &'static str);

const FLAGS: &[Flag] = &[
    ('g', "ngpus", "1", "a rank has one buffer; --ranks N launches more ranks"),
    ('t', "nthreads", "1", "a process is one rank; --ranks N --threads makes each a thread"),
    ('a', "average", "3", "the time is always that of the slowest rank, which is 3 (max)"),
    ('m', "agg_iters", "1", "calls are not grouped"),
    ('N', "run_cycles", "1", "every size is run once; say it again in the shell"),
    ('p', "parallel_init", "0|1", "ranks always start in parallel"),
    ('G', "cudagraph", "0", "calls are made one by one, not by a graph"),
    ('C', "report_cputime", "0", "the table's time is until results are there"),
    ('R', "local_register", "0", "--memory says whether buffers are registered"),
    ('D', "device_implementation", "0", "calls are made by the host"),
];

/// The flags, which are only checked: no accepted value changes anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accepted;

impl Args for Accepted {
    fn augment_args(command: Command) -> Command {
        FLAGS.iter().fold(command, |command, &(short, long, values, why)| {
            let arg = Arg::new(long).long(long).short(short).value_name(values);
            let heading = "Of nccl-tests, with the only values that work";
            let arg = arg.allow_negative_numbers(true).help_heading(heading).help(why);
            command.arg(arg.hide_short_help(true))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Accepted {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        for &(short, long, values, why) in FLAGS {
            let given = matches.get_one::<String>(long);
            if let Some(value) =
                given.filter(|value| values.split('|').all(|accepted| accepted != *value))
            {
                let only = values.replace('|', " or ");
                let text = format!("-{short}/--{long} {value}: only {only} works: {why}\n");
                return Err(clap::Error::raw(ErrorKind::ValueValidation, text));
            }
        }
        Ok(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A type by its name in nccl-tests, C, Rust, Python or NCCL.
pub(crate) fn datatype(name: &str) -> Result<DataType, String> {
    let standard = match name {
        "f16" | "float16" | "fp16" => "half",
        "bf16" => "bfloat16",
        "f32" | "float32" | "fp32" => "float",
        "f64" | "float64" | "fp64" => "double",
        "i8" | "char" => "int8",
        "u8" => "uint8",
        "i16" => "int16",
        "u16" => "uint16",
        "i32" | "int" => "int32",
        "u32" => "uint32",
        "i64" => "int64",
        "u64" => "uint64",
        other => other,
    };
    standard.parse().map_err(|error| format!("{error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    fn parse(line: &str) -> Result<Cli, String> {
        Cli::try_parse_from(format!("ringbench all_reduce {line}").split_whitespace())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn command_lines_of_nccl_tests_are_accepted() {
        assert_eq!(parse("-b 8 -e 128M -f 2 -g 1").unwrap().sizes().len(), 25);
        let all = "-t 1 --ngpus 1 -a 3 -z 0 -R 0 -C 0 -G 0 -N 1 -D 0 -m 1 -p 0 -J out.json";
        assert!(parse(all).unwrap().json.is_some());
        let long = "--nthreads 1 --average=3 --agg_iters 1 --parallel_init 1 --warmup_iters 2";
        assert_eq!(parse(long).unwrap().warmup_iters, 2);
        assert!(parse("--output_file out.json").unwrap().json.is_some());
    }

    #[test]
    fn a_refused_value_names_the_flag_and_the_reason() {
        for &(short, long, values, why) in FLAGS {
            for value in ["2", "-1", "x"] {
                let error = parse(&format!("-{short} {value}")).unwrap_err();
                let said =
                    format!("-{short}/--{long} {value}: only {}", values.replace('|', " or "));
                assert!(error.contains(&said) && error.contains(why), "{error}");
            }
        }
    }

    #[test]
    fn types_have_many_names() {
        for (names, dtype) in [
            ("float f32 float32 fp32", DataType::F32),
            ("half f16 float16 fp16", DataType::F16),
            ("bfloat16 bf16", DataType::BF16),
            ("int32 i32 int", DataType::I32),
            ("uint64 u64", DataType::U64),
        ] {
            names.split(' ').for_each(|name| assert_eq!(datatype(name), Ok(dtype), "{name}"));
        }
        assert!(datatype("f8").unwrap_err().contains("f8"));
    }
}
