//! Entry points: capture and graphs.

use std::sync::Arc;

use crate::c::{HostFunction, Out, driver};
use crate::code::Code;
use crate::context::{current, initialized};
use crate::registry::{Handle, new_handle};
use crate::stream::{self, EXECS, Exec, GRAPHS, Mode, OBJECTS, UserObject};

driver! {
    fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) =
        stream::begin(&stream::get(stream)?, Mode::by_number(mode)?);
    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) = {
        let ended = stream::end(&stream::get(stream)?);
        let handle = if ended.is_ok() { new_handle() } else { 0 };
        graph.put(handle)?;
        GRAPHS.insert(handle, Arc::new(ended?));
        Ok(())
    };
    fn cuStreamIsCapturing(stream: Handle, status: Out<u32>) =
        status.put(stream::get(stream)?.capture_status().0 as u32);
    // Only the graph of a capture is answered, not its number and nodes.
    fn cuStreamGetCaptureInfo_v2(
        stream: Handle,
        status: Out<u32>,
        _id: Out<u64>,
        graph: Out<Handle>,
        _nodes: Out<Handle>,
        _count: Out<usize>,
    ) = {
        let (found, handle) = stream::get(stream)?.capture_status();
        graph.offer(handle);
        status.put(found as u32)
    };
    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) = {
        initialized()?;
        let new = Mode::by_number(mode.read()?)?;
        mode.put(stream::exchange_mode(new) as u32)
    };
    fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, _flags: u64) = {
        let context = current()?;
        let graph = GRAPHS.get(graph)?;
        let handle = new_handle();
        EXECS.insert(handle, Arc::new(Exec::new((*graph).clone(), &context)?));
        exec.put(handle)
    };
    // Nodes are only counted.
    fn cuGraphGetNodes(graph: Handle, _nodes: Out<Handle>, count: Out<usize>) = {
        initialized()?;
        count.put(GRAPHS.get(graph)?.nodes.len())
    };
    fn cuUserObjectCreate(
        object: Out<Handle>,
        data: usize,
        destroy: Option<HostFunction>,
        count: u32,
        flags: u32,
    ) = {
        // Flag 1 says that no stream waits for `destroy`.
        let destroy = destroy.filter(|_| count == 1 && flags == 1).ok_or(Code::INVALID_VALUE)?;
        let handle = new_handle();
        OBJECTS.insert(handle, Arc::new(UserObject { destroy, data }));
        object.put(handle)
    };
    fn cuUserObjectRelease(object: Handle, count: u32) = match count {
        1 => OBJECTS.remove(object).map(drop),
        _ => Err(Code::INVALID_VALUE),
    };
    // For graphs that are being captured. Flag 1 moves the caller's reference to the graph.
    fn cuGraphRetainUserObject(graph: Handle, object: Handle, count: u32, flags: u32) =
        match (count, flags) {
            (1, 1) => stream::retain(graph, OBJECTS.remove(object)?),
            _ => Err(Code::INVALID_VALUE),
        };
    fn cuGraphLaunch(exec: Handle, stream: Handle) = {
        let exec = EXECS.get(exec)?;
        let stream = stream::get(stream)?;
        // A graph within a capture would be a node of its own, which is left out.
        stream::refuse_if_captured(&stream).map_err(|_| Code::NOT_SUPPORTED)?;
        exec.launch(&stream)
    };
    fn cuGraphExecDestroy(exec: Handle) = EXECS.remove(exec).map(drop);
    fn cuGraphDestroy(graph: Handle) = GRAPHS.remove(graph).map(drop);
}
