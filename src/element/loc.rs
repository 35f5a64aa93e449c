//! Values with an index: the elements of the reductions minloc and maxloc (as MPI's `MPI_MINLOC`).

use bytemuck::{Pod, Zeroable};

macro_rules! locs {
    ($($(#[$doc:meta])* $loc:ident: $value:ty, $index:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Zeroable, Pod)]
        #[repr(C)]
        pub struct $loc {
            /// The value, which is compared.
            pub value: $value,
            /// A rank, or a position over all ranks. Of equal values the lower index is taken.
            pub index: $index,
        }

        impl $loc {
            /// `value`, found at `index`.
            #[must_use]
            pub const fn new(value: $value, index: $index) -> Self {
                Self { value, index }
            }
        }
    )*};
}

locs! {
    /// An `f32` and its index.
    LocF32: f32, u32;
    /// An `f64` and its index.
    LocF64: f64, u64;
    /// An `i32` and its index.
    LocI32: i32, u32;
    /// An `i64` and its index.
    LocI64: i64, u64;
}
