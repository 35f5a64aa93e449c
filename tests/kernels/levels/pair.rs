//! The reduction of two, in every layout.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::element::Order;
use ringreduce::kernel::{Kernel, Level, Turn};
use ringreduce::memory::{Buffer, Src};
use ringreduce::schedule::Space;
use ringreduce::{
    Complex, DataType, Element, F8E4M3, F8E5M2, LocF32, LocF64, LocI32, LocI64, ReduceOp, bf16, f16,
};

use harness::guarded::{Guarded, LINE, random_bytes, reductions};

/// Where the outputs lie.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Apart,
    ApartAlso,
    InPlace,
    InPlaceAlso,
    AlsoIsLocal,
    Past,
    PastAlso,
    PastAlsoIsLocal,
}

const LAYOUTS: [Layout; 8] = [
    Layout::Apart,
    Layout::ApartAlso,
    Layout::InPlace,
    Layout::InPlaceAlso,
    Layout::AlsoIsLocal,
    Layout::Past,
    Layout::PastAlso,
    Layout::PastAlsoIsLocal,
];

struct Case<'a> {
    kernel: Kernel<'static>,
    dtype: DataType,
    turn: Turn,
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
        let incoming = Guarded::only_read(self.incoming, offset());
        let mut out = Guarded::new(&vec![0; len], offset());
        let mut also = Guarded::new(&vec![0; len], offset());
        {
            let (local, out, also) = (local.buffer(), out.buffer(), also.buffer());
            let all = 0..len;
            let (to, second) = match layout {
                Layout::Apart => (out.dst(Space::Output, all.clone()), None),
                Layout::ApartAlso => (
                    out.dst(Space::Output, all.clone()),
                    Some(also.dst(Space::Output, all.clone())),
                ),
                Layout::InPlace => (local.dst(Space::Output, all.clone()), None),
                Layout::InPlaceAlso => (
                    local.dst(Space::Output, all.clone()),
                    Some(also.dst(Space::Output, all.clone())),
                ),
                Layout::AlsoIsLocal => (
                    out.dst(Space::Output, all.clone()),
                    Some(local.dst(Space::Output, all.clone())),
                ),
                Layout::Past => (out.dst(Space::Output, all.clone()).streaming(true), None),
                Layout::PastAlso => (
                    out.dst(Space::Output, all.clone()).streaming(true),
                    Some(also.dst(Space::Output, all.clone())),
                ),
                Layout::PastAlsoIsLocal => (
                    out.dst(Space::Output, all.clone()).streaming(true),
                    Some(local.dst(Space::Output, all.clone())),
                ),
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
        let (in_out, in_also, in_local) = match layout {
            Layout::Apart | Layout::Past => (self.expected, &zeros[..], self.local),
            Layout::ApartAlso | Layout::PastAlso => (self.expected, self.expected, self.local),
            Layout::InPlace => (&zeros[..], &zeros[..], self.expected),
            Layout::InPlaceAlso => (&zeros[..], self.expected, self.expected),
            Layout::AlsoIsLocal | Layout::PastAlsoIsLocal => {
                (self.expected, &zeros[..], self.expected)
            }
        };
        out.assert_is(in_out, self.dtype, &context);
        also.assert_is(in_also, self.dtype, &context);
        local.assert_is(in_local, self.dtype, &context);
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
                let turn = Turn { last, order: Order::IncomingFirst, own };
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

macro_rules! types {
    ($($name:ident: $type:ty;)*) => {$(
        #[test]
        fn $name() {
            check_type::<$type>();
        }
    )*};
}

types! {
    every_level_equals_scalar_i8: i8;
    every_level_equals_scalar_u8: u8;
    every_level_equals_scalar_i16: i16;
    every_level_equals_scalar_u16: u16;
    every_level_equals_scalar_i32: i32;
    every_level_equals_scalar_u32: u32;
    every_level_equals_scalar_i64: i64;
    every_level_equals_scalar_u64: u64;
    every_level_equals_scalar_f16: f16;
    every_level_equals_scalar_bf16: bf16;
    every_level_equals_scalar_f32: f32;
    every_level_equals_scalar_f64: f64;
    every_level_equals_scalar_f8e4m3: F8E4M3;
    every_level_equals_scalar_f8e5m2: F8E5M2;
    every_level_equals_scalar_c64: Complex<f32>;
    every_level_equals_scalar_c128: Complex<f64>;
    every_level_equals_scalar_loc_f32: LocF32;
    every_level_equals_scalar_loc_f64: LocF64;
    every_level_equals_scalar_loc_i32: LocI32;
    every_level_equals_scalar_loc_i64: LocI64;
}

#[test]
fn lengths_that_disagree_are_refused() {
    let refused = |out: usize, also: usize, local: usize, incoming: usize| {
        let (mut to, mut second) = (vec![0; out], vec![0; also]);
        let (local, incoming) = (vec![0; local], vec![0; incoming]);
        std::panic::catch_unwind(move || {
            Kernel::select(DataType::F32, ReduceOp::Sum, 2).unwrap().reduce(
                Turn { last: false, order: Order::LocalFirst, own: true },
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
