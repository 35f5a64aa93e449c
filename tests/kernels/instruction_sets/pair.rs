//! Reductions of two operands, in every layout.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::element::Order;
use ringreduce::kernel::{FoldStep, Kernel, Level};
use ringreduce::memory::{Buffer, Src};
use ringreduce::schedule::Space;
use ringreduce::{DataType, Element, ReduceOp};

use harness::guarded::{Guarded, LINE, random_bytes, reductions};

/// The places of the outputs.
#[derive(Clone, Copy, Debug)]
struct Layout {
    in_place: bool,
    /// True if the first output goes past the cache.
    streaming: bool,
    also: Also,
}

/// The place of the second output.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Also {
    None,
    Apart,
    Local,
}

const fn layout(in_place: bool, streaming: bool, also: Also) -> Layout {
    Layout { in_place, streaming, also }
}

const LAYOUTS: [Layout; 8] = [
    layout(false, false, Also::None),
    layout(false, false, Also::Apart),
    layout(false, false, Also::Local),
    layout(true, false, Also::None),
    layout(true, false, Also::Apart),
    layout(false, true, Also::None),
    layout(false, true, Also::Apart),
    layout(false, true, Also::Local),
];

struct Case<'a> {
    kernel: Kernel<'static>,
    dtype: DataType,
    turn: FoldStep,
    local: &'a [u8],
    incoming: &'a [u8],
    expected: &'a [u8],
    context: String,
}

impl Case<'_> {
    fn check(&self, layout: Layout, random: &mut SmallRng) {
        let mut offset = || random.random_range(0..=LINE);
        let len = self.local.len();
        let mut local = Guarded::new(self.local, offset());
        let incoming = Guarded::read_only(self.incoming, offset());
        let mut out = Guarded::new(&vec![0; len], offset());
        let mut also = Guarded::new(&vec![0; len], offset());
        {
            let (local, out, also) = (local.buffer(), out.buffer(), also.buffer());
            let all = 0..len;
            let to = if layout.in_place { &local } else { &out };
            let to = to.dst(Space::Output, all.clone()).streaming(layout.streaming);
            let second = match layout.also {
                Also::None => None,
                Also::Apart => Some(also.dst(Space::Output, all.clone())),
                Also::Local => Some(local.dst(Space::Output, all.clone())),
            };
            self.kernel.reduce(
                self.turn,
                to,
                second,
                local.src(Space::Output, all),
                Src::from(incoming.get()),
            );
        }
        let context = format!("{} {layout:?} {:?}, {len} bytes", self.context, self.turn);
        let zeros = vec![0; len];
        let expect = |memory: &Guarded, is_output: bool, before: &[u8]| {
            let expected = if is_output { self.expected } else { before };
            memory.assert_is(expected, self.dtype, &context);
        };
        expect(&out, !layout.in_place, &zeros);
        expect(&also, layout.also == Also::Apart, &zeros);
        expect(&local, layout.in_place || layout.also == Also::Local, self.local);
        assert_eq!(incoming.get(), self.incoming, "{context}: incoming was written");
    }
}

fn check_type<T: Element>() {
    let dtype = T::DTYPE;
    let mut random = SmallRng::seed_from_u64(dtype as u64);
    let counts: Vec<usize> = (0..=67).chain([95, 127, 128, 129, 255, 257, 1000, 4097]).collect();
    for op in reductions::<T>(&mut random) {
        for &count in &counts {
            let world = [1, 3, 8, 1000, 1 << 31][random.random_range(0..5)];
            let local = random_bytes(count, dtype, &mut random);
            let incoming = random_bytes(count, dtype, &mut random);
            for (last, own) in [(false, true), (true, true), (true, false)] {
                let turn = FoldStep { is_last: last, order: Order::IncomingFirst, is_own: own };
                let mut expected = vec![0; local.len()];
                Kernel::select_for(Level::Scalar, dtype, op, world).unwrap().reduce(
                    turn,
                    Buffer::in_place(&mut expected).dst(Space::Output, 0..local.len()),
                    None,
                    Src::from(&local[..]),
                    Src::from(&incoming[..]),
                );
                for level in Level::available() {
                    let case = Case {
                        kernel: Kernel::select_for(level, dtype, op, world).unwrap(),
                        dtype,
                        turn,
                        local: &local,
                        incoming: &incoming,
                        expected: &expected,
                        context: format!("{level:?} {dtype} {op}, world {world}"),
                    };
                    for layout in LAYOUTS {
                        case.check(layout, &mut random);
                    }
                }
            }
        }
    }
}

harness::each_type!(every_level_equals_scalar: check_type);

#[test]
fn lengths_that_disagree_are_refused() {
    let refused = |out: usize, also: usize, local: usize, incoming: usize| {
        let (mut to, mut second) = (vec![0; out], vec![0; also]);
        let (local, incoming) = (vec![0; local], vec![0; incoming]);
        std::panic::catch_unwind(move || {
            Kernel::select(DataType::F32, ReduceOp::Sum, 2).unwrap().reduce(
                FoldStep { is_last: false, order: Order::LocalFirst, is_own: true },
                Buffer::in_place(&mut to).dst(Space::Output, 0..out),
                Some(Buffer::in_place(&mut second).dst(Space::Output, 0..also)),
                Src::from(&local[..]),
                Src::from(&incoming[..]),
            );
        })
        .is_err()
    };
    assert!(!refused(8, 8, 8, 8));
    assert!(refused(4, 8, 8, 8));
    assert!(refused(8, 4, 8, 8));
    assert!(refused(8, 8, 4, 8));
    assert!(refused(8, 8, 8, 4));
    assert!(refused(6, 6, 6, 6), "a part of an element");
}
