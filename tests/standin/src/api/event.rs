//! Entry points: events.

use std::sync::{Arc, Mutex};

use crate::c::{Out, driver};
use crate::code::{Code, Done};
use crate::context::{current, initialized};
use crate::registry::{Handle, lock, new_handle};
use crate::stream::{self, EVENTS, Event, Mark, Recorded, Work};

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

fn record(event: Handle, handle: Handle) -> Done {
    initialized()?;
    let event = EVENTS.get(event)?;
    let stream = stream::get(handle)?;
    if event.device != stream.context.device || event.context != stream.context.handle {
        return Err(Code::INVALID_HANDLE);
    }
    let place = match stream.captured_place()? {
        Some(captured) => captured,
        None => Recorded::At(stream.enqueue(Work::Nothing, Vec::new())?),
    };
    *lock(&event.recorded) = place;
    Ok(())
}

/// Where the event was recorded, for calls that a captured one may not have.
fn place(event: Handle) -> Done<Option<Arc<Mark>>> {
    initialized()?;
    let event = EVENTS.get(event)?;
    let place = lock(&event.recorded).clone();
    match place {
        Recorded::Never => Ok(None),
        Recorded::At(mark) => Ok(Some(mark)),
        Recorded::Captured(..) => Err(Code::CAPTURED_EVENT),
    }
}

fn elapsed(milliseconds: Out<f32>, start: Handle, end: Handle) -> Done {
    for event in [start, end] {
        if !EVENTS.get(event)?.timing {
            return Err(Code::INVALID_HANDLE);
        }
    }
    let (Some(start), Some(end)) = (place(start)?, place(end)?) else {
        return Err(Code::INVALID_HANDLE);
    };
    let (Some(start), Some(end)) = (start.time(), end.time()) else { return Err(Code::NOT_READY) };
    let seconds = match end.checked_duration_since(start) {
        Some(time) => time.as_secs_f64(),
        None => -start.duration_since(end).as_secs_f64(),
    };
    milliseconds.put((seconds * 1e3) as f32)
}

driver! {
    fn cuEventCreate(event: Out<Handle>, flags: u32) {
        let context = current()?;
        // Events of other processes are not stood in for.
        if flags & INTERPROCESS != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let handle = new_handle();
        let timing = flags & DISABLE_TIMING == 0;
        let recorded = Mutex::new(Recorded::Never);
        let (context, device) = (context.handle, context.device);
        EVENTS.insert(handle, Arc::new(Event { context, device, timing, recorded }));
        event.put(handle)
    }

    fn cuEventDestroy_v2(event: Handle) {
        initialized()?;
        EVENTS.remove(event).map(drop)
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: u32) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        record(event, stream)
    }

    fn cuEventQuery(event: Handle) {
        let mark = place(event)?;
        stream::unsafe_call()?;
        current()?;
        match mark {
            Some(mark) if mark.time().is_none() => Err(Code::NOT_READY),
            _ => Ok(()),
        }
    }

    fn cuEventSynchronize(event: Handle) {
        let mark = place(event)?;
        stream::unsafe_call()?;
        if let Some(mark) = mark {
            mark.wait();
        }
        current().map(drop)
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(milliseconds, start, end)
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let stream = stream::get(stream)?;
        let event = EVENTS.get(event)?;
        let place = lock(&event.recorded).clone();
        stream.come_after(&place)
    }
}
