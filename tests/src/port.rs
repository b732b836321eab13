//! Ports that no other program is given while a test counts on them.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// An address of this machine at which nobody listens: it refuses connections. The port is bound for as long as this lives, so
/// that the system gives it to nobody who asks for any; whoever is told it, such as a peer that comes up late, can still
/// listen there, since a bound socket that does not listen stands in nobody's way who reuses addresses.
#[derive(Debug)]
pub struct ReservedPort {
    /// Where nobody listens.
    pub address: SocketAddr,
    _bound: TcpSocket,
}

impl ReservedPort {
    /// Takes one that is free.
    #[must_use]
    pub fn take() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        Self { address: socket.local_addr().unwrap(), _bound: socket }
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn nobody_answers_at_a_reserved_port_until_somebody_is_told_to() {
        let port = ReservedPort::take();
        assert_eq!(TcpStream::connect(port.address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let listener = TcpListener::bind(port.address).unwrap();
        let _connected = TcpStream::connect(port.address).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(accepted.local_addr().unwrap(), port.address);
    }
}
