//! The methods of wrapped links (`fault_injection`, `link_trace`) that go to the inner link
//! unchanged.

macro_rules! delegate_rx {
    () => {
        fn glimpse(&mut self) -> Option<(u64, u64)> {
            self.inner.glimpse()
        }
        fn taken(&self) -> Option<u64> {
            self.inner.taken()
        }
        fn peek(&self, len: usize) -> crate::memory::Src<'_> {
            self.inner.peek(len)
        }
        fn transport(&self) -> &'static str {
            self.inner.transport()
        }
        fn life(&self) -> Option<&std::os::unix::net::UnixStream> {
            self.inner.life()
        }
        fn is_dear(&self) -> bool {
            self.inner.is_dear()
        }
    };
}

macro_rules! delegate_tx {
    () => {
        fn reserve(&mut self, len: usize) -> crate::memory::Dst<'_> {
            self.inner.reserve(len)
        }
        fn sent(&self) -> u64 {
            self.inner.sent()
        }
        fn forsake(&mut self) {
            self.inner.forsake();
        }
        fn outgoing(&self) -> Option<std::os::fd::RawFd> {
            self.inner.outgoing()
        }
        fn transport(&self) -> &'static str {
            self.inner.transport()
        }
        fn life(&self) -> Option<&std::os::unix::net::UnixStream> {
            self.inner.life()
        }
        fn is_dear(&self) -> bool {
            self.inner.is_dear()
        }
    };
}

pub(super) use {delegate_rx, delegate_tx};
