//! Functions that cannot work here: they return `ncclInvalidUsage` and say why.

use super::export;
use crate::failure::Failure;

/// Exports functions that refuse, whatever they are given: C leaves it to the caller to put the
/// arguments away, so none need be declared.
macro_rules! refuse {
    ($($why:literal: $($name:ident)*;)*) => {
        export! {$($(
            /// Refuses.
            fn $name() {
                Err(Failure::usage($why))
            }
        )*)*}
    };
}

refuse! {
    "kernels of the caller's can't communicate by themselves: ringreduce has no device-side \
     communicators":
        ncclDevCommCreate ncclDevCommDestroy ncclCommQueryProperties
        ncclGinBarrierCreateRequirement ncclGinInboxA2ACreateRequirement
        ncclGinOutboxCreateRequirement ncclLLA2ACalcSlots ncclLLA2ACreateRequirement
        ncclLsaBarrierCreateRequirement;
    "windows have no addresses at other ranks: use collectives or ncclSend and ncclRecv":
        ncclGetLsaDevicePointer ncclGetLsaMultimemDevicePointer ncclGetMultimemDevicePointer
        ncclGetPeerDevicePointer ncclGetCftDeviceLeInfo ncclGetMultimemDeviceLeInfo
        ncclGetPeerDeviceLeInfo;
    "one-sided messages are not offered: use ncclSend and ncclRecv":
        ncclPutSignal ncclSignal ncclWaitSignal;
}
