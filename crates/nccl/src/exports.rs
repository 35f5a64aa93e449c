//! The exported functions.
//! Unsafe: symbols of C's name space, which C calls with pointers.
#![allow(unsafe_code)]
#![allow(non_snake_case, reason = "the names of nccl.h")]
#![allow(clippy::missing_safety_doc, reason = "nccl.h says what each function is given")]

pub mod collectives;
pub mod communicators;
pub mod making;
pub mod memory;
pub mod parameters;
pub mod teams;
pub mod unsupported;

/// Exports functions under their names and, with a `p` before them, for profilers. A body returns
/// an `Outcome`.
macro_rules! export {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> core::ffi::c_int {
            $crate::failure::entry(stringify!($name), || $body)
        }

        const _: () = {
            #[unsafe(export_name = concat!("p", stringify!($name)))]
            unsafe extern "C" fn profiled($($arg: $type),*) -> core::ffi::c_int {
                // SAFETY: the caller promises what the function asks for.
                unsafe { $name($($arg),*) }
            }
        };
    )*};
}
use export;

/// Exports functions that return something else than a code, as [`export`] does.
macro_rules! export_plain {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)?
        $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? $body

        const _: () = {
            #[unsafe(export_name = concat!("p", stringify!($name)))]
            unsafe extern "C" fn profiled($($arg: $type),*) $(-> $result)? {
                // SAFETY: the caller promises what the function asks for.
                unsafe { $name($($arg),*) }
            }
        };
    )*};
}
use export_plain;
