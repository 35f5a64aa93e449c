//! Entry points: capture and graphs.

use std::sync::Arc;

use crate::c::{HostFunction, In, Out, driver};
use crate::code::{Code, Done};
use crate::context::{current, initialized};
use crate::registry::{Handle, new_handle};
use crate::stream::{self, EXECS, Exec, GRAPHS, Mode, OBJECTS, Status, UserObject};

fn instantiate(exec: Out<Handle>, graph: Handle) -> Done {
    let context = current()?;
    let graph = GRAPHS.get(graph)?;
    let handle = new_handle();
    EXECS.insert(handle, Arc::new(Exec::new((*graph).clone(), &context)?));
    exec.put(handle)
}

/// Status and number of a stream's capture. Graph and nodes of a running one are not shown.
fn info(stream: Handle, status: Out<u32>, id: Out<u64>) -> Done {
    let (found, number) = stream::get(stream)?.capture_status();
    status.put(found as u32)?;
    if found != Status::None {
        id.offer(number);
    }
    Ok(())
}

driver! {
    fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) {
        stream::begin(&stream::get(stream)?, Mode::by_number(mode)?)
    }

    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        let ended = stream::end(&stream::get(stream)?);
        let handle = match ended {
            Ok(_) => new_handle(),
            Err(_) => 0,
        };
        graph.put(handle)?;
        GRAPHS.insert(handle, Arc::new(ended?));
        Ok(())
    }

    fn cuStreamIsCapturing(stream: Handle, status: Out<u32>) {
        status.put(stream::get(stream)?.capture_status().0 as u32)
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: Handle,
        status: Out<u32>,
        id: Out<u64>,
        graph: Out<Handle>,
        nodes: Out<Handle>,
        count: Out<usize>,
    ) {
        graph.offer(stream::get(stream)?.captured_graph());
        nodes.offer(0);
        count.offer(0);
        info(stream, status, id)
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: Handle,
        status: Out<u32>,
        id: Out<u64>,
        graph: Out<Handle>,
        nodes: Out<Handle>,
        edges: Out<Handle>,
        count: Out<usize>,
    ) {
        graph.offer(0);
        nodes.offer(0);
        edges.offer(0);
        count.offer(0);
        info(stream, status, id)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        initialized()?;
        let new = Mode::by_number(mode.read()?)?;
        mode.put(stream::exchange_mode(new) as u32)
    }

    fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, _flags: u64) {
        instantiate(exec, graph)
    }

    fn cuGraphInstantiateWithParams(exec: Out<Handle>, graph: Handle, params: In<u64>) {
        params.get()?;
        instantiate(exec, graph)
    }

    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        initialized()?;
        let have = GRAPHS.get(graph)?.nodes.len();
        // Nodes are only counted: nobody may look into one.
        nodes.offer(0);
        count.put(have)
    }

    fn cuUserObjectCreate(
        object: Out<Handle>,
        data: usize,
        destroy: Option<HostFunction>,
        count: u32,
        flags: u32,
    ) {
        // Nobody is told when it is destroyed, and it has one reference.
        let destroy = destroy.filter(|_| count == 1 && flags == 1).ok_or(Code::INVALID_VALUE)?;
        let handle = new_handle();
        OBJECTS.insert(handle, Arc::new(UserObject { destroy, data }));
        object.put(handle)
    }

    fn cuUserObjectRelease(object: Handle, count: u32) {
        if count != 1 {
            return Err(Code::INVALID_VALUE);
        }
        OBJECTS.remove(object).map(drop)
    }

    // For graphs that are being captured, which take the caller's reference.
    fn cuGraphRetainUserObject(graph: Handle, object: Handle, count: u32, flags: u32) {
        if count != 1 || flags != 1 {
            return Err(Code::INVALID_VALUE);
        }
        stream::retain(graph, OBJECTS.remove(object)?)
    }

    fn cuGraphUpload(exec: Handle, stream: Handle) {
        EXECS.get(exec)?;
        stream::get(stream).map(drop)
    }

    fn cuGraphLaunch(exec: Handle, stream: Handle) {
        let exec = EXECS.get(exec)?;
        let stream = stream::get(stream)?;
        // A graph within a capture would be a node of its own, which is not stood in for.
        stream::forbid(&stream).map_err(|_| Code::NOT_SUPPORTED)?;
        exec.launch(&stream)
    }

    fn cuGraphExecDestroy(exec: Handle) {
        EXECS.remove(exec).map(drop)
    }

    fn cuGraphDestroy(graph: Handle) {
        GRAPHS.remove(graph).map(drop)
    }
}
