//! The sizes of buckets by the cost model: the smallest ones for which latency is a small share of
//! the time (Hockney's model: a call on b bytes takes latency + b / bandwidth).

use gradients::BucketSizes;
use ringreduce::schedule::Collective;
use ringreduce::{Communicator, DataType, Result};

/// The share of the latency in the time of a bucket, at most: an all-reduce of all gradients in
/// such buckets takes a twentieth longer than in one.
const LATENCY_SHARE: f64 = 0.05;
/// The same for the first bucket, which shall start early.
const FIRST_LATENCY_SHARE: f64 = 0.2;
/// Seconds to hand a bucket over to the communicator's thread and back, which no call knows of.
const HAND_OVER: f64 = 50e-6;
/// Bytes of the smallest bucket, below which copies of single parameters cost more than calls.
const LEAST: f64 = (64_u64 << 10) as f64;
/// The calls that the model's line goes through, in elements.
const COUNTS: [usize; 2] = [1, 4 << 20];

/// The sizes for a latency in seconds and a time in seconds for each byte. They are at most those
/// of PyTorch.
#[must_use]
pub fn bucket_sizes(latency: f64, seconds_per_byte: f64) -> BucketSizes {
    let most = BucketSizes::default();
    let bytes = |share: f64, most: usize| {
        let least = latency * (1.0 - share) / share / seconds_per_byte;
        // A size that was not measured, or measured wrongly, counts as the largest bucket.
        if least.is_nan() || seconds_per_byte < 0.0 {
            most
        } else {
            (least.max(LEAST) as usize).min(most)
        }
    };
    BucketSizes {
        first: bytes(FIRST_LATENCY_SHARE, most.first),
        others: bytes(LATENCY_SHARE, most.others),
    }
}

/// The sizes by the speeds that the ranks have measured, the same at all of them. All ranks call
/// this.
pub(crate) fn measured(comm: &mut Communicator) -> Result<BucketSizes> {
    let mut sizes = [0_u64; 2];
    if comm.rank() == 0 {
        let mut seconds = |count| -> Result<f64> {
            let explained = comm.explain(Collective::AllReduce, count, DataType::F32)?;
            Ok(explained.seconds.unwrap_or(f64::NAN))
        };
        let (short, long) = (seconds(COUNTS[0])?, seconds(COUNTS[1])?);
        let by_byte = (long - short) / (4 * (COUNTS[1] - COUNTS[0])) as f64;
        let BucketSizes { first, others } = bucket_sizes(short + HAND_OVER, by_byte);
        sizes = [first as u64, others as u64];
    }
    comm.broadcast(&mut sizes, 0)?;
    Ok(BucketSizes { first: sizes[0] as usize, others: sizes[1] as usize })
}

#[cfg(test)]
mod tests {
    use super::{FIRST_LATENCY_SHARE, LATENCY_SHARE, bucket_sizes};
    use gradients::BucketSizes;

    #[test]
    fn latency_has_the_wanted_share_of_a_bucket() {
        for (latency, bandwidth) in [(60e-6, 4e9), (150e-6, 0.1e9), (100e-6, 1e9)] {
            let BucketSizes { first, others } = bucket_sizes(latency, 1.0 / bandwidth);
            let share = |bytes: usize| latency / (latency + bytes as f64 / bandwidth);
            assert!(share(others) < LATENCY_SHARE + 1e-3, "{}", share(others));
            assert!(share(first) < FIRST_LATENCY_SHARE + 1e-3, "{}", share(first));
            assert!(first < others);
        }
    }

    #[test]
    fn sizes_are_bounded_whatever_was_measured() {
        let pytorch = BucketSizes::default();
        let least = BucketSizes { first: 64 << 10, others: 64 << 10 };
        assert_eq!(bucket_sizes(0.0, 1e-9), least);
        assert_eq!(bucket_sizes(f64::NAN, 1e-9), pytorch);
        assert_eq!(bucket_sizes(1e-4, 0.0), pytorch);
        assert_eq!(bucket_sizes(1e-4, -1e-9), pytorch);
        assert_eq!(bucket_sizes(0.0, 0.0), pytorch);
        assert_eq!(bucket_sizes(1.0, 1e-9), pytorch);
    }
}
