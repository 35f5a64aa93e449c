//! Entry points: contexts.

use crate::c::{Out, driver};
use crate::code::{Code, Done};
use crate::context::{self, CONTEXTS, current, initialized};
use crate::registry::{Handle, lock};
use crate::{settings, stream};

fn checked(context: Handle) -> Done<Handle> {
    initialized()?;
    CONTEXTS.get(context).map(|_| context).map_err(|_| Code::INVALID_CONTEXT)
}

driver! {
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, ordinal: i32) =
        context.put(context::retain_primary(ordinal)?);
    fn cuDevicePrimaryCtxRelease_v2(ordinal: i32) = context::release_primary(ordinal);
    fn cuCtxSetCurrent(context: Handle) = {
        context::set_current(if context == 0 { 0 } else { checked(context)? });
        Ok(())
    };
    fn cuCtxGetCurrent(context: Out<Handle>) = {
        initialized()?;
        context.put(context::current_handle())
    };
    fn cuCtxGetDevice(device: Out<i32>) = device.put(current()?.device);
    fn cuCtxPushCurrent_v2(context: Handle) = {
        context::push_current(checked(context)?);
        Ok(())
    };
    fn cuCtxPopCurrent_v2(context: Out<Handle>) = {
        initialized()?;
        context.offer(context::pop_current()?);
        Ok(())
    };
    fn cuCtxGetFlags(flags: Out<u32>) = current().and_then(|_| flags.put(0));
    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) = {
        current()?;
        least.offer(0);
        greatest.offer(-5);
        Ok(())
    };
    fn cuCtxSynchronize() = {
        let context = current()?;
        stream::refuse_while_capturing()?;
        context.synchronize()
    };
    fn cuCtxEnablePeerAccess(peer: Handle, flags: u32) = {
        let context = current()?;
        let peer = CONTEXTS.get(peer).map_err(|_| Code::INVALID_CONTEXT)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        } else if peer.device == context.device {
            return Err(Code::INVALID_CONTEXT);
        } else if !settings::get().reach(context.device, peer.device) {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        let is_new = lock(&context.peers).insert(peer.device);
        if is_new { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
    };
}
