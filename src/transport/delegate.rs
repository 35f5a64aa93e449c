//! The methods of wrapped links (`fault_injection`, `link_trace`) that go to the inner link
//! unchanged.

macro_rules! delegate_rx {
    () => {
        fn peek_header(&mut self) -> Option<(u64, u64)> {
            self.inner.peek_header()
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
        fn peer_stream(&self) -> Option<&std::os::unix::net::UnixStream> {
            self.inner.peer_stream()
        }
        fn is_syscall_backed(&self) -> bool {
            self.inner.is_syscall_backed()
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
        fn discard_unsent(&mut self) {
            self.inner.discard_unsent();
        }
        fn outgoing(&self) -> Option<std::os::fd::RawFd> {
            self.inner.outgoing()
        }
        fn transport(&self) -> &'static str {
            self.inner.transport()
        }
        fn peer_stream(&self) -> Option<&std::os::unix::net::UnixStream> {
            self.inner.peer_stream()
        }
        fn is_syscall_backed(&self) -> bool {
            self.inner.is_syscall_backed()
        }
    };
}

pub(super) use {delegate_rx, delegate_tx};
