//! Reductions by the user's function: a Rust closure or a C function. Both work on aligned copies
//! of their operands, up to 4096 bytes at a time.
//! Law: the left operand of the fold is always the left argument.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::mem::{MaybeUninit, swap};

use bytemuck::Pod;

use super::pass::{Fold, Pair, Run};
use super::{Kernel, Line, Params, copy::pieces};
use crate::element::{LARGEST, Order};

/// A reduction by a C function that computes `inout = left op inout` for `count` elements, in the
/// style of MPI's `MPI_User_function`.
///
/// The function gets `count` elements of `size` bytes each at `left`, which it only reads, and as
/// many at `inout`; both are aligned to 64 bytes and do not overlap. It is called for 4096 bytes or
/// less at a time, by the thread that makes the call. It must be associative, and commutative too
/// unless the fold is in rank order, and must give the same result for the same elements on every
/// rank. It must return normally: not by an exception, `longjmp` or panic (a panic of a Rust
/// function ends the process).
#[derive(Clone, Copy, Debug)]
pub struct CFunction<'a> {
    /// A name that is equal on all ranks and identifies the function; addresses may differ.
    pub name: &'a str,
    /// The function; its last argument is the context.
    pub function: unsafe extern "C" fn(
        left: *const c_void,
        inout: *mut c_void,
        count: usize,
        context: *mut c_void,
    ),
    /// A pointer that is passed to the function.
    pub context: *mut c_void,
    /// Bytes of an element, from 1 to 4096.
    pub size: usize,
}

/// The form in which both are called: `inout = left op inout` for `count` elements, both aligned to
/// 64 bytes; the context comes last.
type Function = unsafe fn(*const u8, *mut u8, usize, *const c_void);

#[derive(Clone, Copy, Debug)]
pub(super) struct UserFunction {
    function: Function,
    context: *const c_void,
    /// Bytes of one element.
    size: usize,
}

// SAFETY: the contract of the constructors lets the function be called from any thread.
unsafe impl Send for UserFunction {}
// SAFETY: as above, from several at once.
unsafe impl Sync for UserFunction {}

impl<'f> Kernel<'f> {
    /// The kernel of a closure. Its left argument comes from the rank that is earlier in the fold.
    ///
    /// # Panics
    /// If an element has no bytes or more than [`LARGEST`].
    #[must_use]
    pub fn for_closure<T: Pod, F: Fn(&T, &T) -> T + Sync>(f: &'f F) -> Self {
        let context = core::ptr::from_ref(f).cast();
        Self::of_user(UserFunction { function: call::<T, F>, context, size: size_of::<T>() })
    }

    /// The kernel of a C function.
    ///
    /// # Safety
    /// During 'f the function may be called from any thread with its context and any elements; it
    /// keeps to what [`CFunction`] says.
    ///
    /// # Panics
    /// As [`Kernel::for_closure`].
    #[must_use]
    pub unsafe fn for_c_function(by: &'f CFunction<'_>) -> Self {
        let context = core::ptr::from_ref(by).cast();
        Self::of_user(UserFunction { function: call_c, context, size: by.size })
    }

    /// The kernel of a function whose context is borrowed for 'f.
    fn of_user(user: UserFunction) -> Self {
        let size = user.size;
        assert!((1..=LARGEST).contains(&size), "elements of {size} bytes");
        let user = Some(user);
        let params = Params { world: 1, scalar: [0; 16], user };
        let run = Run { pair, fold };
        Self {
            step: run,
            last: run,
            multiplied: None,
            logical: false,
            rounds_each_step: false,
            params,
            element_size: size,
            life: PhantomData,
        }
    }
}

/// # Safety
/// `context` is an `F`; the operands are `count` elements each, apart.
unsafe fn call<T: Pod, F: Fn(&T, &T) -> T>(
    left: *const u8,
    inout: *mut u8,
    count: usize,
    context: *const c_void,
) {
    // SAFETY: the caller's promise.
    let f = unsafe { &*context.cast::<F>() };
    let (left, inout) = (left.cast::<T>(), inout.cast::<T>());
    for i in 0..count {
        // SAFETY: element i of `count`. Its alignment may be beyond 64 bytes.
        let a = unsafe { left.wrapping_add(i).read_unaligned() };
        // SAFETY: as above.
        let b = unsafe { inout.wrapping_add(i).read_unaligned() };
        // SAFETY: as above.
        unsafe { inout.wrapping_add(i).write_unaligned(f(&a, &b)) };
    }
}

/// # Safety
/// `context` is a `CFunction`, which may be called; the operands are `count` elements each, apart.
unsafe fn call_c(left: *const u8, inout: *mut u8, count: usize, context: *const c_void) {
    // SAFETY: the caller's promise.
    let by = unsafe { &*context.cast::<CFunction<'_>>() };
    // SAFETY: the caller's promise, and that of the code that gave the function.
    unsafe { (by.function)(left.cast(), inout.cast(), count, by.context) };
}

impl UserFunction {
    /// # Safety
    /// Both are aligned to 64 bytes and valid for `len` bytes, whole elements, apart.
    unsafe fn call(&self, left: *const u8, inout: *mut u8, len: usize) {
        // SAFETY: the caller's promise, and that of the code that gave the function.
        unsafe { (self.function)(left, inout, len / self.size, self.context) };
    }

    /// Bytes of the elements processed at a time.
    fn piece(&self) -> usize {
        LARGEST / self.size * self.size
    }
}

type Scratch = MaybeUninit<Line<LARGEST>>;

/// # Safety
/// As [`Run`] says.
unsafe fn pair(pair: &Pair<'_>) {
    let Pair { out, second, local, incoming, len, order, params } = *pair;
    let Some(user) = params.user else { return };
    let (left, right) = match order {
        Order::IncomingFirst => (incoming, local),
        Order::LocalFirst => (local, incoming),
    };
    let (mut a, mut b) = (Scratch::uninit(), Scratch::uninit());
    let (a, b) = (a.as_mut_ptr().cast::<u8>(), b.as_mut_ptr().cast::<u8>());
    for (at, len) in pieces(len, user.piece()) {
        // SAFETY: a piece of the operand, and no longer than the scratch.
        unsafe { a.copy_from_nonoverlapping(left.wrapping_add(at), len) };
        // SAFETY: as above.
        unsafe { b.copy_from_nonoverlapping(right.wrapping_add(at), len) };
        // SAFETY: both were just written.
        unsafe { user.call(a, b, len) };
        // SAFETY: a piece of the output.
        unsafe { out.wrapping_add(at).copy_from_nonoverlapping(b, len) };
        if let Some(second) = second {
            // SAFETY: as above.
            unsafe { second.wrapping_add(at).copy_from_nonoverlapping(b, len) };
        }
    }
}

/// # Safety
/// As [`Run`] says.
unsafe fn fold(fold: &Fold<'_>) {
    let Fold { out, sources, at: start, len, params } = *fold;
    let (Some(user), Some((first, rest))) = (params.user, sources.split_first()) else { return };
    let (mut a, mut b) = (Scratch::uninit(), Scratch::uninit());
    let (mut a, mut b) = (a.as_mut_ptr().cast::<u8>(), b.as_mut_ptr().cast::<u8>());
    for (at, len) in pieces(len, user.piece()) {
        // SAFETY: a piece of the source, and no longer than the scratch.
        unsafe { a.copy_from_nonoverlapping(first.ptr().wrapping_add(start + at), len) };
        for source in rest {
            // SAFETY: as above.
            unsafe { b.copy_from_nonoverlapping(source.ptr().wrapping_add(start + at), len) };
            // SAFETY: both were just written.
            unsafe { user.call(a, b, len) };
            swap(&mut a, &mut b);
        }
        // SAFETY: a piece of the output.
        unsafe { out.wrapping_add(at).copy_from_nonoverlapping(a, len) };
    }
}
