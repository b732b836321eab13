//! Peers that misbehave below the level of an API: on the wire, in TLS, in size and in time.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use url::Url;

/// What a peer does with a request, once it has read it.
#[derive(Clone, Debug)]
pub enum Trick {
    /// Sends these bytes and closes.
    Say(Vec<u8>),
    /// Sends these bytes, and then never anything, nor an end.
    Hang(Vec<u8>),
    /// Sends these bytes and then one byte every 20 ms, for ever.
    Drip {
        /// What is sent at once.
        first: Vec<u8>,
        /// The byte that drips.
        then: u8,
    },
    /// Sends these bytes, then the second ones over and over until this many bytes were sent, and closes.
    Flood {
        /// What is sent at once.
        first: Vec<u8>,
        /// What is repeated.
        chunk: Vec<u8>,
        /// How much is sent in all.
        bytes: usize,
    },
}

impl Trick {
    /// An answer with this status line, these header lines and this body, whose length is told.
    #[must_use]
    pub fn answer(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut bytes = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(body);
        Self::Say(bytes)
    }

    /// A 200 with JSON.
    #[must_use]
    pub fn json(body: impl AsRef<[u8]>) -> Self {
        Self::answer("200 OK", "Content-Type: application/json\r\n", body)
    }

    /// A 200 in chunks without an end, of this many bytes of JSON white space.
    #[must_use]
    pub fn flood(bytes: usize) -> Self {
        let first = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let mut chunk = b"10000\r\n".to_vec();
        chunk.resize(chunk.len() + 0x10000, b' ');
        chunk.extend_from_slice(b"\r\n");
        Self::Flood { first, chunk, bytes }
    }

    async fn play<S: AsyncWrite + Unpin>(&self, stream: &mut S) -> io::Result<()> {
        match self {
            Self::Say(bytes) => stream.write_all(bytes).await?,
            Self::Hang(bytes) => {
                stream.write_all(bytes).await?;
                stream.flush().await?;
                std::future::pending::<()>().await;
            }
            Self::Drip { first, then } => {
                stream.write_all(first).await?;
                loop {
                    stream.write_all(&[*then]).await?;
                    stream.flush().await?;
                    pause(Duration::from_millis(20)).await;
                }
            }
            Self::Flood { first, chunk, bytes } => {
                stream.write_all(first).await?;
                let mut sent = 0;
                while sent < *bytes {
                    stream.write_all(chunk).await?;
                    sent += chunk.len();
                }
            }
        }
        stream.shutdown().await
    }
}

/// Real time, whatever the world's clock says.
#[allow(clippy::disallowed_methods)]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// A peer that plays one trick on everybody, and remembers what it was sent.
pub struct Hostile {
    /// Where it listens.
    pub addr: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Hostile {
    /// Starts one on loopback.
    pub async fn start(trick: Trick) -> Self {
        Self::begin(trick, Wire::Plain).await
    }

    /// Starts one that speaks TLS.
    pub async fn start_tls(trick: Trick, config: rustls::ServerConfig) -> Self {
        Self::begin(trick, Wire::Tls(TlsAcceptor::from(Arc::new(config)))).await
    }

    /// Starts one that plays its trick on the first bytes that come, be they a request or not.
    pub async fn start_raw(trick: Trick) -> Self {
        Self::begin(trick, Wire::Raw).await
    }

    async fn begin(trick: Trick, wire: Wire) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            loop {
                let Ok((mut stream, _)) = listener.accept().await else { continue };
                let (trick, wire, log) = (trick.clone(), wire.clone(), Arc::clone(&log));
                tokio::spawn(async move {
                    // The client gives up in the middle: that is what it is tested for.
                    drop(match wire {
                        Wire::Plain => answer(&mut stream, &trick, &log).await,
                        Wire::Tls(acceptor) => match acceptor.accept(stream).await {
                            Ok(mut stream) => answer(&mut stream, &trick, &log).await,
                            Err(error) => Err(error),
                        },
                        Wire::Raw => match stream.read(&mut [0; 4096]).await {
                            Ok(_) => trick.play(&mut stream).await,
                            Err(error) => Err(error),
                        },
                    });
                });
            }
        });
        Self { addr, seen, task }
    }

    /// Its address as a URL.
    #[must_use]
    pub fn url(&self) -> Url {
        format!("http://{}/", self.addr).parse().unwrap()
    }

    /// The requests it read, as they came.
    #[must_use]
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

#[derive(Clone)]
enum Wire {
    Plain,
    Tls(TlsAcceptor),
    Raw,
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, trick: &Trick, log: &Mutex<Vec<String>>) -> io::Result<()> {
    let Some(request) = read_request(stream).await? else { return Ok(()) };
    log.lock().unwrap().push(String::from_utf8_lossy(&request).into_owned());
    trick.play(stream).await
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What stands between an agent and an honest peer, and plays tricks on the requests that it is told to.
pub struct Relay {
    /// Where it listens.
    pub url: Url,
    turned: Arc<Mutex<Option<Turned>>>,
    stop: CancellationToken,
}

/// The trick that is on, and whom it is played on.
struct Turned {
    /// Requests that hold this text in head or body; all where it is empty.
    on: String,
    trick: Trick,
    met: usize,
}

impl Relay {
    /// Starts one in front of a peer; it is honest until it is turned.
    pub async fn start(peer: &Url) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let peer: SocketAddr = peer.socket_addrs(|| None).unwrap()[0];
        let turned = Arc::new(Mutex::new(None));
        let stop = CancellationToken::new();
        let (state, stopped) = (Arc::clone(&turned), stop.clone());
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                tokio::spawn(stopped.clone().run_until_cancelled_owned(serve(stream, peer, Arc::clone(&state))));
            }
        }));
        Self { url, turned, stop }
    }

    /// From now on requests that hold `on` meet this trick; all of them where `on` is empty.
    pub fn turn(&self, on: &str, trick: Trick) {
        *self.turned.lock().unwrap() = Some(Turned { on: on.to_owned(), trick, met: 0 });
    }

    /// Honest again. Returns how many requests met the trick.
    pub fn heal(&self) -> usize {
        self.turned.lock().unwrap().take().map_or(0, |turned| turned.met)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve(mut stream: TcpStream, peer: SocketAddr, turned: Arc<Mutex<Option<Turned>>>) {
    let Ok(Some(request)) = read_request(&mut stream).await else { return };
    let trick = turned.lock().unwrap().as_mut().and_then(|turned| {
        let met = String::from_utf8_lossy(&request).contains(&turned.on);
        turned.met += usize::from(met);
        met.then(|| turned.trick.clone())
    });
    let ended = match trick {
        Some(trick) => trick.play(&mut stream).await,
        None => forward(&mut stream, peer, request).await,
    };
    // Whoever went away has seen enough.
    drop(ended);
}

/// Hands one request on and the answer back, on a connection of its own.
async fn forward(stream: &mut TcpStream, peer: SocketAddr, mut request: Vec<u8>) -> io::Result<()> {
    let line = request.windows(2).position(|pair| pair == b"\r\n").unwrap_or(0);
    request.splice(line..line, b"\r\nConnection: close".iter().copied());
    let mut upstream = TcpStream::connect(peer).await?;
    upstream.write_all(&request).await?;
    tokio::io::copy(&mut upstream, stream).await?;
    stream.shutdown().await
}

/// One request with its body, whose length it tells; none where the connection ended before.
pub(crate) async fn read_request<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Option<Vec<u8>>> {
    let mut request = Vec::new();
    let mut part = vec![0; 16 << 10];
    loop {
        if let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).map_or(0, |text| text.trim().parse().unwrap());
            if request.len() >= end + 4 + length {
                return Ok(Some(request));
            }
        }
        match stream.read(&mut part).await? {
            0 => return Ok(None),
            n => request.extend_from_slice(&part[..n]),
        }
    }
}
