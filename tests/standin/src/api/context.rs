//! Entry points: contexts.

use crate::c::{Out, driver};
use crate::code::Code;
use crate::context::{self, CONTEXTS, Context, current, current_at_all, device, initialized};
use crate::registry::{Handle, lock};
use crate::{settings, stream};

driver! {
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, ordinal: i32) {
        context.put(context::retain_primary(ordinal)?)
    }

    fn cuDevicePrimaryCtxRelease_v2(ordinal: i32) {
        context::release_primary(ordinal)
    }

    fn cuDevicePrimaryCtxReset_v2(ordinal: i32) {
        context::reset_primary(ordinal)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(ordinal: i32, flags: u32) {
        context::set_primary_flags(ordinal, flags)
    }

    fn cuDevicePrimaryCtxGetState(ordinal: i32, flags: Out<u32>, active: Out<i32>) {
        let (found, is_active) = context::primary_state(ordinal)?;
        flags.put(found)?;
        active.put(i32::from(is_active))
    }

    fn cuCtxCreate_v2(context: Out<Handle>, _flags: u32, ordinal: i32) {
        let made = Context::new(device(ordinal)?);
        context::push_current(made.handle);
        context.put(made.handle)
    }

    fn cuCtxDestroy_v2(context: Handle) {
        initialized()?;
        let found = CONTEXTS.get(context).map_err(|_| Code::INVALID_CONTEXT)?;
        if context::current_handle() == context {
            context::pop_current()?;
        }
        found.destroy();
        Ok(())
    }

    fn cuCtxSetCurrent(context: Handle) {
        initialized()?;
        if context != 0 {
            CONTEXTS.get(context).map_err(|_| Code::INVALID_CONTEXT)?;
        }
        context::set_current(context);
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<Handle>) {
        initialized()?;
        context.put(context::current_handle())
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        initialized()?;
        CONTEXTS.get(context).map_err(|_| Code::INVALID_CONTEXT)?;
        context::push_current(context);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<Handle>) {
        initialized()?;
        context.offer(context::pop_current()?);
        Ok(())
    }

    fn cuCtxGetDevice(ordinal: Out<i32>) {
        ordinal.put(current_at_all()?.device)
    }

    fn cuCtxGetApiVersion(context: Handle, version: Out<u32>) {
        initialized()?;
        CONTEXTS.get(context).map_err(|_| Code::INVALID_CONTEXT)?;
        version.put(3020)
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        current()?;
        flags.put(0)
    }

    fn cuCtxSetFlags(_flags: u32) {
        current().map(drop)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current()?;
        least.offer(0);
        greatest.offer(-5);
        Ok(())
    }

    fn cuCtxSynchronize() {
        let context = current()?;
        stream::unsafe_call()?;
        context.synchronize()
    }

    fn cuCtxEnablePeerAccess(peer: Handle, flags: u32) {
        let context = current()?;
        let peer = CONTEXTS.get(peer).map_err(|_| Code::INVALID_CONTEXT)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        } else if peer.device == context.device {
            return Err(Code::INVALID_CONTEXT);
        }
        if !settings::get().reach(context.device, peer.device) {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        let new = lock(&context.peers).insert(peer.device);
        if new { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cuCtxDisablePeerAccess(peer: Handle) {
        let context = current()?;
        let peer = CONTEXTS.get(peer).map_err(|_| Code::INVALID_CONTEXT)?;
        let known = lock(&context.peers).remove(&peer.device);
        if known { Ok(()) } else { Err(Code::PEER_ACCESS_NOT_ENABLED) }
    }
}
