//! End-to-end suites: the real agent against simulators and real peers.
