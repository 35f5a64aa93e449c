//! Entry points: events.

use std::sync::{Arc, Mutex};

use crate::c::{Out, driver};
use crate::code::{Code, Done};
use crate::context::{current, initialized};
use crate::registry::{Handle, lock, new_handle};
use crate::stream::{self, Completion, EVENTS, Event, Recorded, Work};

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

/// The work after which the event was recorded, for calls that refuse a captured event.
fn completion(event: Handle) -> Done<Option<Arc<Completion>>> {
    initialized()?;
    let event = EVENTS.get(event)?;
    let recorded = lock(&event.recorded).clone();
    match recorded {
        Recorded::Never => Ok(None),
        Recorded::After(completion) => Ok(Some(completion)),
        Recorded::Captured(..) => Err(Code::CAPTURED_EVENT),
    }
}

driver! {
    fn cuEventCreate(event: Out<Handle>, flags: u32) = {
        let context = current()?;
        // Events of other processes are left out.
        if flags & INTERPROCESS != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let handle = new_handle();
        let timing = flags & DISABLE_TIMING == 0;
        let recorded = Mutex::new(Recorded::Never);
        let (context, device) = (context.handle, context.device);
        EVENTS.insert(handle, Arc::new(Event { context, device, timing, recorded }));
        event.put(handle)
    };
    fn cuEventDestroy_v2(event: Handle) = {
        initialized()?;
        EVENTS.remove(event).map(drop)
    };
    fn cuEventRecord(event: Handle, handle: Handle) = {
        initialized()?;
        let event = EVENTS.get(event)?;
        let stream = stream::get(handle)?;
        if event.device != stream.context.device || event.context != stream.context.handle {
            return Err(Code::INVALID_HANDLE);
        }
        let recorded = match stream.captured_position()? {
            Some(captured) => captured,
            None => Recorded::After(stream.enqueue(Work::Nothing, Vec::new())?),
        };
        *lock(&event.recorded) = recorded;
        Ok(())
    };
    fn cuEventQuery(event: Handle) = {
        let completion = completion(event)?;
        stream::refuse_while_capturing()?;
        current()?;
        match completion {
            Some(completion) if completion.time().is_none() => Err(Code::NOT_READY),
            _ => Ok(()),
        }
    };
    fn cuEventSynchronize(event: Handle) = {
        let completion = completion(event)?;
        stream::refuse_while_capturing()?;
        if let Some(completion) = completion {
            completion.wait();
        }
        current().map(drop)
    };
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) = {
        if !EVENTS.get(start)?.timing || !EVENTS.get(end)?.timing {
            return Err(Code::INVALID_HANDLE);
        }
        let (Some(start), Some(end)) = (completion(start)?, completion(end)?) else {
            return Err(Code::INVALID_HANDLE);
        };
        let start = start.time().ok_or(Code::NOT_READY)?;
        let end = end.time().ok_or(Code::NOT_READY)?;
        milliseconds.put((end.duration_since(start).as_secs_f64() * 1e3) as f32)
    };
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) = {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let stream = stream::get(stream)?;
        let event = EVENTS.get(event)?;
        let recorded = lock(&event.recorded).clone();
        stream.wait_for(&recorded)
    };
}
