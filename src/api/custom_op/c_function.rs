//! Collectives that reduce bytes by a function pointer of C, as MPI's user-defined operations do.
//! Unsafe: the kernel calls the function by its pointer.
#![allow(unsafe_code)]

use super::{FoldOrder, check_element_size, reduction};
use crate::api::Communicator;
use crate::api::call::{Buffers, Call};
use crate::element::Reduction;
use crate::error::Result;
use crate::kernel::{CFunction, Kernel};
use crate::plan::digest;
use crate::schedule::Collective;

impl Communicator {
    /// Reduces `buf` over all ranks by a C function, element by element, in place;
    /// [`Self::all_reduce_by`] is the same for closures. `buf` may have any alignment. All ranks
    /// pass a function of the same name and element size, the same length and order.
    ///
    /// ```
    /// use core::ffi::c_void;
    /// use ringreduce::{CFunction, Communicator, FoldOrder};
    ///
    /// unsafe extern "C" fn or(left: *const c_void, to: *mut c_void, n: usize, _: *mut c_void) {
    ///     for i in 0..n {
    ///         // SAFETY: the caller lends `n` elements of each.
    ///         unsafe { *to.cast::<u64>().add(i) |= *left.cast::<u64>().add(i) };
    ///     }
    /// }
    ///
    /// let mut comm = Communicator::from_env()?;
    /// let by = CFunction { name: "or", function: or, context: std::ptr::null_mut(), size: 8 };
    /// let mut bits = [0b101_u64.to_ne_bytes(), 0b011_u64.to_ne_bytes()].concat();
    /// // SAFETY: `or` reads and writes `n` elements, and has no use for a context.
    /// unsafe { comm.all_reduce_by_function(&mut bits, FoldOrder::Any, by) }?;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Safety
    /// The function keeps to the contract of [`CFunction`], with this context and for any elements,
    /// on this thread and until this call returns.
    ///
    /// # Errors
    /// As [`Self::all_reduce_by`]; and if `buf` is not whole elements.
    pub unsafe fn all_reduce_by_function(
        &mut self,
        buf: &mut [u8],
        order: FoldOrder,
        by: CFunction<'_>,
    ) -> Result<()> {
        let call = reduction(Collective::AllReduce);
        let op = c_reduction(&call, &by)?;
        // SAFETY: the caller of this function promises it.
        let kernel = unsafe { Kernel::for_c_function(&by) };
        self.call(&call.by_function(op, &kernel, order), Buffers::InPlace(buf))
    }

    /// Reduces `send`, size x `recv.len()` long, over all ranks by a C function; part r of the
    /// result goes to rank r's `recv`. As [`Self::all_reduce_by_function`].
    ///
    /// # Safety
    /// As [`Self::all_reduce_by_function`].
    ///
    /// # Errors
    /// As [`Self::reduce_scatter_by`]; and if `recv` is not whole elements.
    pub unsafe fn reduce_scatter_by_function(
        &mut self,
        send: &[u8],
        recv: &mut [u8],
        order: FoldOrder,
        by: CFunction<'_>,
    ) -> Result<()> {
        let call = reduction(Collective::ReduceScatter);
        let op = c_reduction(&call, &by)?;
        // SAFETY: the caller of this function promises it.
        let kernel = unsafe { Kernel::for_c_function(&by) };
        self.call(&call.by_function(op, &kernel, order), Buffers::OutOfPlace { send, recv })
    }
}

/// The reduction by a C function, which other ranks know by its name.
fn c_reduction(call: &Call<'_>, by: &CFunction<'_>) -> Result<Reduction> {
    check_element_size(call.name(), "by.size", by.size)?;
    Ok(Reduction::user(!digest(by.name.as_bytes()), by.size))
}
