//! Peers that are hostile, broken or somebody else: on the wire, in TLS, in size and in time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use llm_access_agent::agent::Agent;
use llm_access_agent::{gate, tls};
use llm_access_fixtures::waldur::Profile;
use llm_access_k8s::Draft;
use llm_access_tests::hostile::{Hostile, Relay, Trick};
use llm_access_tests::{Store, World};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::SecretString;
use tokio::process::Command;
use url::Url;
use uuid::Uuid;

/// What every client of a test gives a call.
const TIMEOUT: Duration = Duration::from_millis(500);
/// What a call may take on a busy machine. A time-out of each read would take for ever.
const PATIENCE: Duration = Duration::from_secs(20);

const TOKEN: &str = "MARKERcafe0123456789cafe0123456789cafe01";
const KEY: &str = "sk-MARKER-0123456789abcdef";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Waldur,
    Gateway,
    Kube,
}

const PEERS: [Peer; 3] = [Peer::Waldur, Peer::Gateway, Peer::Kube];

/// A call that failed.
#[derive(Debug)]
struct Refusal {
    text: String,
    /// Time may heal it, and no order is to blame.
    transient: bool,
    may_have_happened: bool,
}

impl From<waldur_client::Error> for Refusal {
    fn from(error: waldur_client::Error) -> Self {
        Self {
            text: format!("{error} {error:?}"),
            transient: error.class() == waldur_client::Class::Transient,
            may_have_happened: error.may_have_happened(),
        }
    }
}

impl From<litellm_client::Error> for Refusal {
    fn from(error: litellm_client::Error) -> Self {
        Self {
            text: format!("{error} {error:?}"),
            transient: error.class() == litellm_client::Class::Transient,
            may_have_happened: error.may_have_happened(),
        }
    }
}

impl From<llm_access_k8s::Error> for Refusal {
    fn from(error: llm_access_k8s::Error) -> Self {
        Self {
            text: format!("{error} {error:?}"),
            transient: error.class() == llm_access_k8s::Class::Transient,
            may_have_happened: error.may_have_happened(),
        }
    }
}

fn waldur(url: &Url, ca: Option<&str>, timeout: Duration) -> waldur_client::Client {
    waldur_client::Client::new(waldur_client::Settings {
        api_url: url.clone(),
        auth: waldur_client::Auth::Token(Arc::new(|| Ok(SecretString::from(TOKEN)))),
        timeout,
        connect_timeout: timeout,
        ca_bundle: ca.map(|file| std::fs::read(file).unwrap()),
        allow_insecure_http: false,
        user_agent: "llm-access-agent/test".into(),
        page_size: 100,
    })
    .unwrap()
}

fn gateway(url: &Url, ca: Option<&str>, timeout: Duration) -> litellm_client::Client {
    litellm_client::Client::new(litellm_client::Settings {
        url: url.clone(),
        key: Arc::new(|| Ok(SecretString::from(KEY))),
        timeout,
        connect_timeout: timeout,
        ca_bundle: ca.map(|file| std::fs::read(file).unwrap()),
        allow_insecure_http: false,
        user_agent: "llm-access-agent/test".into(),
    })
    .unwrap()
}

/// Writes a kubeconfig with a token.
fn kubeconfig(folder: &Path, url: &Url, ca: Option<&str>) -> PathBuf {
    let trust = ca.map_or(String::new(), |file| format!(", certificate-authority: {file}"));
    let file = folder.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: \"{url}\"{trust}}}}}]\nusers: [{{name: u, user: {{token: {TOKEN}}}}}]\n"
    );
    std::fs::write(&file, text).unwrap();
    file
}

async fn kube(url: &Url, ca: Option<&str>, timeout: Duration) -> llm_access_k8s::Secrets {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = Some(kubeconfig(folder.path(), url, ca));
    llm_access_k8s::Secrets::connect(llm_access_k8s::Settings { kubeconfig, timeout, ..Default::default() }).await.unwrap()
}

fn draft() -> Draft {
    Draft {
        name: "llm-key-x".into(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        data: BTreeMap::from([("OPENAI_API_KEY".to_owned(), SecretString::from(KEY))]),
    }
}

/// Reads from a peer: where there is such a call a single object, and a list.
async fn read(peer: Peer, url: &Url, ca: Option<&str>, timeout: Duration) -> Vec<Result<(), Refusal>> {
    match peer {
        Peer::Waldur => {
            let client = waldur(url, ca, timeout);
            vec![
                client.order(Uuid::max()).await.map(drop).map_err(Into::into),
                client.orders(Uuid::max(), &[]).await.map(drop).map_err(Into::into),
            ]
        }
        Peer::Gateway => {
            let client = gateway(url, ca, timeout);
            vec![client.team("x").await.map(drop).map_err(Into::into), client.teams().await.map(drop).map_err(Into::into)]
        }
        Peer::Kube => vec![kube(url, ca, timeout).await.list("open-webui", &BTreeMap::new()).await.map(drop).map_err(Into::into)],
    }
}

/// Writes to a peer.
async fn write(peer: Peer, url: &Url) -> Result<(), Refusal> {
    match peer {
        Peer::Waldur => waldur(url, None, TIMEOUT).set_backend_id(Uuid::max(), "x").await.map_err(Into::into),
        Peer::Gateway => gateway(url, None, TIMEOUT).delete_team("x").await.map_err(Into::into),
        Peer::Kube => kube(url, None, TIMEOUT).await.create("open-webui", &draft()).await.map(drop).map_err(Into::into),
    }
}

fn provider() {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
}

/// What is wrong with an answer that cannot be used, by name.
fn useless() -> Vec<(&'static str, Trick)> {
    let json = "Content-Type: application/json\r\n";
    let nested = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let nested_object = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    let head = |text: &str| Trick::Hang(text.as_bytes().to_vec());
    vec![
        ("nothing at all", Trick::Say(Vec::new())),
        ("silence", Trick::Hang(Vec::new())),
        ("a head that drips", Trick::Drip { first: b"HTTP/1.1 200 OK\r\nX-Slow: ".to_vec(), then: b'x' }),
        (
            "a body that drips",
            Trick::Drip {
                first: b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n[".to_vec(),
                then: b' ',
            },
        ),
        ("a body that drips until the end of the connection", Trick::Drip { first: b"HTTP/1.0 200 OK\r\n\r\n{".to_vec(), then: b' ' }),
        (
            "a head without end",
            Trick::Flood { first: b"HTTP/1.1 200 OK\r\n".to_vec(), chunk: b"X-More: of-this\r\n".repeat(1000), bytes: 64 << 20 },
        ),
        ("a huge header", Trick::answer("200 OK", &format!("X-Huge: {}\r\n", "h".repeat(4 << 20)), "[]")),
        ("a body cut in the middle", Trick::Say(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"items\":".to_vec())),
        ("chunks cut in the middle", Trick::Say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n".to_vec())),
        ("a chunk with a nonsensical length", Trick::Say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n".to_vec())),
        ("a length that promises more", head("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{}")),
        ("a length beyond any machine", head("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n{")),
        ("two lengths", head("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 7\r\n\r\n{}")),
        ("no HTTP", Trick::Say(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec())),
        ("deep nesting", Trick::json(&nested)),
        ("deep objects", Trick::json(&nested_object)),
        ("deep rows", Trick::json(format!(r#"{{"kind":"SecretList","metadata":{{}},"items":{nested},"teams":{nested}}}"#))),
        ("invalid UTF-8", Trick::json(b"[\"\xff\xfe\"]")),
        ("text in a tongue of its own", Trick::answer("200 OK", "Content-Type: application/json; charset=utf-16\r\n", b"\xff\xfe[\0]\0")),
        ("an empty body", Trick::json("")),
        ("a 204", Trick::Say(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n".to_vec())),
        ("a log-in page", Trick::answer("200 OK", "Content-Type: text/html\r\n", "<html><title>Log in</title></html>")),
        ("a number", Trick::json("7")),
        ("null", Trick::json("null")),
        (
            "an error inside a success",
            Trick::json(r#"{"error":{"message":"not today","type":"x"},"detail":"not today","kind":"Status","status":"Failure"}"#),
        ),
        (
            "a bomb that nobody asked for",
            Trick::answer("200 OK", &format!("{json}Content-Encoding: gzip\r\n"), b"\x1f\x8b\x08\0\0\0\0\0\0\x03"),
        ),
        ("a redirect", Trick::answer("302 Found", "Location: http://127.0.0.1:9/elsewhere?key=secret\r\n", "")),
        ("a page of an ingress", Trick::answer("502 Bad Gateway", "Content-Type: text/html\r\n", "<html><center>nginx</center></html>")),
    ]
}

/// For every peer and every trick: an error in time, transient, without a credential in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_used_is_an_error_in_time() {
    provider();
    each_trick(useless(), async |name, trick| {
        for peer in PEERS {
            let hostile = Hostile::start(trick.clone()).await;
            let url = hostile.url();
            let began = Instant::now();
            let all = async { (read(peer, &url, None, TIMEOUT).await, write(peer, &url).await) };
            let (reads, written) = tokio::time::timeout(PATIENCE, all).await.unwrap_or_else(|_| panic!("{peer:?}, {name}: no end"));
            assert!(began.elapsed() < PATIENCE, "{peer:?}, {name}: {:?}", began.elapsed());
            for refused in reads {
                let refused = refused.expect_err(name);
                assert!(refused.transient, "{peer:?}, {name}: {}", refused.text);
                assert!(!refused.may_have_happened, "{peer:?}, {name}: a read has no effect: {}", refused.text);
                silent(peer, name, &refused.text);
            }
            if let Err(refused) = written {
                assert!(refused.transient, "{peer:?}, {name}: {}", refused.text);
                let certainly_not = matches!(name, "a redirect");
                assert!(refused.may_have_happened || certainly_not, "{peer:?}, {name}: {}", refused.text);
                silent(peer, name, &refused.text);
            }
        }
    })
    .await;
}

/// Tells a story once with each trick, several at a time: what they cost is mostly waiting.
async fn each_trick(tricks: Vec<(&'static str, Trick)>, story: impl AsyncFn(&'static str, Trick)) {
    futures::stream::iter(tricks).for_each_concurrent(12, |(name, trick)| story(name, trick)).await;
}

fn silent(peer: Peer, name: &str, text: &str) {
    assert!(!text.contains("MARKER"), "{peer:?}, {name}: {text}");
    assert!(text.len() < 4000, "{peer:?}, {name}: {} bytes: {text}", text.len());
}

/// A body above the limit of its kind names the limit, whether its length is told or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_body_is_read_up_to_a_limit_that_the_error_names() {
    provider();
    const OBJECT: usize = 8 << 20;
    const LIST: usize = 32 << 20;
    const SECRETS: usize = 16 << 20;
    for peer in PEERS {
        let limits = match peer {
            Peer::Waldur => vec![OBJECT, LIST],
            Peer::Gateway => vec![LIST, LIST],
            Peer::Kube => vec![SECRETS],
        };
        let told = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", 1 << 30).into_bytes();
        for trick in [Trick::flood(1 << 30), Trick::Flood { first: told, chunk: vec![b' '; 1 << 16], bytes: 1 << 30 }] {
            let hostile = Hostile::start(trick).await;
            // As much as the limit has to go over the wire before it is too much.
            let refused = read(peer, &hostile.url(), None, Duration::from_secs(60)).await.into_iter().map(Result::unwrap_err);
            for (refused, limit) in refused.zip(&limits) {
                assert!(refused.text.contains(&format!("larger than {limit} bytes")), "{peer:?}: {}", refused.text);
                assert!(refused.transient, "{peer:?}: {}", refused.text);
            }
        }
    }
}

/// The program with a peer that answers everything without an end: it lives, and needs no more memory than its limits say.
#[tokio::test]
async fn an_endless_peer_does_not_fill_the_memory() {
    // A quarter of one flood, and half of one where the gateway's totals of a month are read. The loops read several answers
    // at a time, and a buffer that grows is up to twice what is in it.
    let bounds = [(Peer::Waldur, 256), (Peer::Gateway, 512), (Peer::Kube, 256)];
    for (peer, bound) in bounds {
        let world = World::in_real_time(Profile::Late2026, Store::Kube).await;
        world.waldur.add_resource(world.offering, &world.project, "one", &["kestrel-8b"], &[("max_budget", "50")]);
        let flood = Hostile::start(Trick::flood(1 << 30)).await;
        let honest = match peer {
            Peer::Waldur => world.waldur.api_url(),
            Peer::Gateway => world.gateway.url().clone(),
            Peer::Kube => world.kube.url(),
        };
        let text = world.config_text("intervals: {orders: 100ms, resources: 100ms, usage: 1s}\n").replace("timeout: 400ms", "timeout: 30s");
        let config = world.write("flooded.yml", &text.replace(honest.as_str(), flood.url().as_str()));
        let mut program = Command::new(env!("CARGO_BIN_EXE_agent-under-test"));
        program.arg("--config").arg(config).arg("run").env_clear().stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null());
        let mut child = program.kill_on_drop(true).spawn().unwrap();
        let status = format!("/proc/{}/status", child.id().unwrap());
        let mut peak = 0;
        let began = Instant::now();
        let mut asked = None;
        while asked.is_none_or(|since: Instant| since.elapsed() < Duration::from_secs(3)) && began.elapsed() < Duration::from_secs(60) {
            asked = asked.or_else(|| (flood.seen().len() > 2).then(Instant::now));
            pause(Duration::from_millis(100)).await;
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            let line =
                text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_else(|| panic!("{peer:?}: it has ended: {text}"));
            peak = line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10;
        }
        assert!(child.try_wait().unwrap().is_none(), "{peer:?}: it lives");
        child.kill().await.unwrap();
        assert!(asked.is_some(), "{peer:?}: it was asked");
        assert!(peak < bound, "{peer:?}: {peak} MiB after {} answers", flood.seen().len());
    }
}

/// Real time, whatever the world's clock says.
#[allow(clippy::disallowed_methods)]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Credentials go to the address that was configured and to no other.
#[tokio::test]
async fn nobody_is_followed_elsewhere() {
    provider();
    let elsewhere = Hostile::start(Trick::json("{}")).await;
    for status in ["301 Moved", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let location = format!("Location: {}api/x?token=MARKER\r\n", elsewhere.url());
        for peer in PEERS {
            let hostile = Hostile::start(Trick::answer(status, &location, "")).await;
            let mut refused: Vec<_> = read(peer, &hostile.url(), None, TIMEOUT).await;
            refused.push(write(peer, &hostile.url()).await);
            for refused in refused.into_iter().map(Result::unwrap_err) {
                assert!(refused.transient && !refused.may_have_happened, "{peer:?} {status}: {}", refused.text);
                assert!(refused.text.contains(&status[..3]), "{peer:?} {status}: {}", refused.text);
                assert!(refused.text.contains("127.0.0.1"), "{peer:?} {status}: it names where to: {}", refused.text);
                silent(peer, status, &refused.text);
            }
        }
    }
    assert!(elsewhere.seen().is_empty(), "{:?}", elsewhere.seen());
}

/// Old HTTP and a wrong content type are no reason to refuse an honest answer; and none of it is asked for in a form that
/// could be far larger than what is sent.
#[tokio::test]
async fn a_sloppy_answer_that_is_whole_is_taken() {
    provider();
    for peer in PEERS {
        let body = match peer {
            Peer::Waldur => "[]",
            Peer::Gateway => r#"{"teams":[],"total":0,"page":1,"page_size":100,"total_pages":0}"#,
            Peer::Kube => r#"{"kind":"SecretList","apiVersion":"v1","metadata":{},"items":[]}"#,
        };
        for head in [
            "HTTP/1.0 200 OK\r\nX-Result-Count: 0\r\n",
            "HTTP/1.1 200 OK\r\nX-Result-Count: 0\r\nContent-Type: text/html\r\nConnection: close\r\n",
            "HTTP/1.1 200\r\nX-Result-Count: 0\r\nContent-Type: application/octet-stream\r\nConnection: close\r\n",
        ] {
            let hostile = Hostile::start(Trick::Say(format!("{head}\r\n{body}").into_bytes())).await;
            read(peer, &hostile.url(), None, Duration::from_secs(10))
                .await
                .pop()
                .unwrap()
                .unwrap_or_else(|refused| panic!("{peer:?} {head}: {}", refused.text));
            let seen = hostile.seen().join("\n").to_ascii_lowercase();
            assert!(seen.contains("authorization") && !seen.contains("accept-encoding"), "{seen}");
        }
    }
}

fn certificate(name: &str) -> String {
    format!("{}/tls/{name}.pem", env!("CARGO_MANIFEST_DIR"))
}

/// A server with this certificate that answers every request with nothing of use.
async fn over_tls(name: &str) -> (Url, Hostile) {
    let chain = vec![CertificateDer::from_pem_file(certificate(name)).unwrap()];
    let key = PrivateKeyDer::from_pem_file(certificate(name).replace(".pem", ".key")).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    let hostile = Hostile::start_tls(Trick::json("{}"), config).await;
    (format!("https://{}/", hostile.addr).parse().unwrap(), hostile)
}

#[tokio::test]
async fn a_certificate_that_is_not_good_is_refused_with_cause_and_cure() {
    provider();
    let ours = certificate("authority");
    let cases = [
        ("expired", Some(&ours), "expired", "renew the certificate"),
        ("early", Some(&ours), "not valid yet", "clock of this machine"),
        ("other-host", Some(&ours), "other.example.org", "with a name that the certificate has"),
        ("self-signed", Some(&ours), "UnknownIssuer", "put it into"),
        ("good", None, "UnknownIssuer", "put it into"),
    ];
    for (name, ca, cause, cure) in cases {
        for (peer, named) in PEERS.into_iter().zip(gate::Peer::ALL) {
            let (url, server) = over_tls(name).await;
            let ca = ca.map(String::as_str);
            for refused in read(peer, &url, ca, Duration::from_secs(10)).await.into_iter().map(Result::unwrap_err) {
                assert!(refused.transient, "{peer:?} {name}: {}", refused.text);
                assert!(
                    refused.text.contains("invalid peer certificate") && refused.text.contains(cause),
                    "{peer:?} {name}: {}",
                    refused.text
                );
                let told = tls::cure(named, &refused.text).unwrap_or_default();
                assert!(told.contains(cure), "{peer:?} {name}: {told:?} for {}", refused.text);
                silent(peer, name, &refused.text);
            }
            assert!(server.seen().is_empty(), "{peer:?} {name}: nothing is said to a stranger");
        }
    }
    for peer in PEERS {
        let (url, server) = over_tls("good").await;
        read(peer, &url, Some(&ours), Duration::from_secs(10)).await;
        assert!(!server.seen().is_empty(), "{peer:?}: a good certificate is trusted");
    }
    // Plain HTTP on the other side of https://.
    for (peer, named) in PEERS.into_iter().zip(gate::Peer::ALL) {
        let plain = Hostile::start_raw(Trick::answer("400 Bad Request", "", "")).await;
        let url: Url = format!("https://{}/", plain.addr).parse().unwrap();
        for refused in read(peer, &url, None, Duration::from_secs(10)).await.into_iter().map(Result::unwrap_err) {
            let told = tls::cure(named, &refused.text).unwrap_or_default();
            assert!(told.contains("correct the port or the scheme"), "{peer:?}: {told:?} for {}", refused.text);
        }
    }
}

/// The program, with a proxy for everything in its environment.
async fn behind(proxy: &Hostile, config: &Path, args: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_agent-under-test"));
    program.arg("--config").arg(config).args(args).env_clear().stdin(Stdio::null()).kill_on_drop(true);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        program.env(name, proxy.url().as_str()).env(name.to_ascii_lowercase(), proxy.url().as_str());
    }
    tokio::time::timeout(Duration::from_secs(60), program.output()).await.expect("the command ends").unwrap()
}

fn everything(output: &Output) -> String {
    format!("{}\n{}\n{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn a_proxy_from_the_environment_sees_no_credential() {
    let world = World::in_real_time(Profile::Late2026, Store::Kube).await;
    let proxy = Hostile::start(Trick::answer("502 Bad Gateway", "", "")).await;
    // Peers on this machine, and a cluster by its kubeconfig: directly.
    let text = world.config_text("").replace("timeout: 400ms", "timeout: 30s");
    let file = kubeconfig(&world.path(""), &world.kube.url(), None);
    let clustered = text.replace(&format!("api_url: {},", world.kube.url()), &format!("kubeconfig: {},", file.display()));
    assert_ne!(clustered, text);
    let output = behind(&proxy, &world.write("near.yml", &clustered), &["check"]).await;
    let told = everything(&output);
    for line in ["ok    waldur:", "ok    gateway:", "ok    secrets:"] {
        assert!(told.contains(line), "{line} is missing in {told}");
    }
    assert_eq!(proxy.seen(), [""; 0]);

    // Plain http to another machine: a proxy would read the credential.
    let plain = text
        .replace(world.waldur.api_url().as_str(), "http://waldur.invalid/api/, allow_insecure_http: true")
        .replace(world.gateway.url().as_str(), "http://gateway.invalid/, allow_insecure_http: true");
    let output = behind(&proxy, &world.write("plain.yml", &plain), &["check"]).await;
    assert!(!output.status.success(), "{}", everything(&output));
    assert_eq!(proxy.seen(), [""; 0], "{}", everything(&output));

    // Encrypted to another machine: the proxy carries it, and sees the host alone.
    let far = text
        .replace(world.waldur.api_url().as_str(), "https://waldur.invalid/api/")
        .replace(world.gateway.url().as_str(), "https://gateway.invalid/");
    let output = behind(&proxy, &world.write("far.yml", &far), &["check"]).await;
    let seen = proxy.seen().join("\n");
    for host in ["CONNECT waldur.invalid:443", "CONNECT gateway.invalid:443"] {
        assert!(seen.contains(host), "{seen}\n{}", everything(&output));
    }
    for secret in [world.waldur.agent_token(), world.gateway.master_key()] {
        assert!(!seen.contains(&secret) && !everything(&output).contains(&secret), "{seen}\n{}", everything(&output));
    }
    assert!(!seen.to_ascii_lowercase().contains("authorization"), "{seen}");

    // A proxy that the kubeconfig itself asks for is not passed over in silence.
    let asking = std::fs::read_to_string(&file).unwrap().replace("server:", "proxy-url: \"http://proxy.invalid:3128\", server:");
    std::fs::write(&file, asking).unwrap();
    let output = behind(&proxy, &world.path("near.yml"), &["check"]).await;
    assert!(!output.status.success() && everything(&output).contains("proxy-url"), "{}", everything(&output));
}

/// One environment behind relays, and an agent in it that has sold one resource and reported its use.
struct Besieged {
    world: World,
    relays: [Relay; 3],
    agent: Agent,
    sold: Uuid,
}

impl Besieged {
    /// Patient, unless the trick can only be ended by a time-out.
    async fn by(trick: &Trick) -> Self {
        let timeout = if matches!(trick, Trick::Drip { .. }) { "3s" } else { "30s" };
        let world = World::new(Profile::Late2026).await;
        for model in ["kestrel-8b", "heron-70b", "qwen2_5-0_5b", "qwen3-embedding-0-6b"] {
            world.waldur.add_usage_component(world.offering, &format!("{model}:input"));
            world.waldur.add_usage_component(world.offering, &format!("{model}:output"));
        }
        let relays =
            [Relay::start(&world.waldur.api_url()).await, Relay::start(world.gateway.url()).await, Relay::start(&world.kube.url()).await];
        let [waldur, gateway, kube] = &relays;
        let text = world
            .config_text("")
            .replace(world.waldur.api_url().as_str(), waldur.url.join("api/").unwrap().as_str())
            .replace(world.gateway.url().as_str(), gateway.url.as_str())
            .replace(world.kube.url().as_str(), kube.url.as_str())
            .replace("timeout: 400ms", &format!("timeout: {timeout}"));
        let agent = Agent::new(world.parse(&text), world.clock.clone()).await.unwrap();
        let sold = world.sold(&agent, "before", &["kestrel-8b"]).await;
        world.gateway.chat(&world.key(sold, "project"), "kestrel-8b", "P=5000 C=100").unwrap();
        world.advance(Duration::from_secs(60));
        let besieged = Self { world, relays, agent, sold };
        besieged.beats().await;
        assert!(besieged.billed().iter().any(|(_, amount)| amount != "0"), "{:?}", besieged.billed());
        assert_eq!(besieged.wrong(), [""; 0]);
        besieged
    }

    /// One beat of every loop.
    async fn beats(&self) {
        self.agent.progress.expect("orders", Duration::from_secs(30));
        self.world.beat(&self.agent).await;
        self.agent.progress.beat("orders");
        self.world.slow_beat(&self.agent).await;
        self.agent.offering_beat().await;
        // Its outcome is in the conditions and on the bill.
        drop(self.agent.usage_beat().await);
    }

    fn billed(&self) -> Vec<(String, String)> {
        self.world.waldur.usages(self.sold, "2026-11").into_iter().map(|(kind, amount)| (kind, amount.to_string())).collect()
    }

    /// What a customer holds: the state at Waldur, the team, the keys and the Secrets.
    fn held(&self) -> String {
        let id = self.sold.simple().to_string();
        let keys: Vec<_> = self.world.gateway.live_keys(&id).into_iter().map(|key| key.hash).collect();
        let resource = self.world.waldur.resource(self.sold);
        format!(
            "{} {:?} {:?} {keys:?} {:?}",
            resource.state,
            resource.limits,
            self.world.gateway.team(&id).map(|team| team.models),
            self.world.secrets(self.sold)
        )
    }

    fn wrong(&self) -> Vec<String> {
        self.agent
            .conditions
            .all()
            .into_iter()
            .map(|(name, subject, condition)| format!("{name} {subject}: {}", condition.message))
            .collect()
    }

    fn relay(&self, peer: Peer) -> &Relay {
        &self.relays[PEERS.iter().position(|p| *p == peer).unwrap()]
    }
}

/// The tricks that an agent meets in these stories: each is another way in which an answer cannot be used.
fn tricks() -> Vec<(&'static str, Trick)> {
    let wanted = [
        "nothing at all",
        "a body that drips",
        "a huge header",
        "a body cut in the middle",
        "deep nesting",
        "invalid UTF-8",
        "an empty body",
        "a 204",
        "a log-in page",
        "null",
        "an error inside a success",
        "a redirect",
    ];
    let tricks: Vec<_> = useless().into_iter().filter(|(name, _)| wanted.contains(name)).collect();
    assert_eq!(tricks.len(), wanted.len());
    tricks
}

async fn a_peer_turns_hostile(peer: Peer) {
    each_trick(tricks(), async |name, trick| {
        let besieged = Besieged::by(&trick).await;
        let (held, billed) = (besieged.held(), besieged.billed());
        let (order, _) = besieged.world.order("during", &["heron-70b"]);
        besieged.world.faults.reset_calls();
        // Each call that drips takes its whole time-out.
        let rounds = if matches!(trick, Trick::Drip { .. }) { 3 } else { 6 };
        besieged.relay(peer).turn("", trick);
        for _ in 0..rounds {
            besieged.beats().await;
            besieged.world.advance(Duration::from_secs(600));
        }
        let (wrong, of) = (besieged.wrong(), gate::Peer::ALL[PEERS.iter().position(|p| *p == peer).unwrap()]);
        assert!(
            wrong.iter().any(|line| line.starts_with(of.unreachable()) || line.starts_with(of.failing())),
            "{peer:?}, {name}: a condition names the peer: {wrong:#?}"
        );
        assert_eq!(besieged.agent.progress.stuck(), [], "{peer:?}, {name}: no loop hangs");
        assert_eq!(besieged.held(), held, "{peer:?}, {name}: nothing was taken away");
        assert_eq!(besieged.billed(), billed, "{peer:?}, {name}: nothing was billed anew");
        assert_ne!(besieged.world.waldur.order_state(order), "erred", "{peer:?}, {name}: no order is to blame");
        let destroyed: Vec<String> = besieged
            .world
            .writes(None)
            .into_iter()
            .filter(|call| call.starts_with("DELETE") || ["delete", "remove", "terminate"].iter().any(|word| call.contains(word)))
            .collect();
        assert_eq!(destroyed, [""; 0], "{peer:?}, {name}");

        assert!(besieged.relay(peer).heal() > 0, "{peer:?}, {name}: the trick was met");
        for _ in 0..20 {
            besieged.world.advance(Duration::from_secs(1200));
            besieged.beats().await;
            if besieged.world.open_orders().is_empty() && besieged.wrong().is_empty() {
                break;
            }
        }
        assert_eq!(besieged.world.waldur.order_state(order), "done", "{peer:?}, {name}: {:#?}", besieged.wrong());
        assert_eq!(besieged.wrong(), [""; 0], "{peer:?}, {name}: conditions end by themselves");
        besieged.world.check();
    })
    .await;
}

#[tokio::test]
async fn a_hostile_waldur_takes_nothing_away_and_bills_nothing() {
    a_peer_turns_hostile(Peer::Waldur).await;
}

#[tokio::test]
async fn a_hostile_gateway_takes_nothing_away_and_bills_nothing() {
    a_peer_turns_hostile(Peer::Gateway).await;
}

#[tokio::test]
async fn a_hostile_cluster_takes_nothing_away_and_bills_nothing() {
    a_peer_turns_hostile(Peer::Kube).await;
}

async fn one_order_is_not_answered(peer: Peer) {
    each_trick(tricks(), async |name, trick| {
        let besieged = Besieged::by(&trick).await;
        let (poisoned, resource) = besieged.world.order("poisoned", &["heron-70b"]);
        let (healthy, _) = besieged.world.order("healthy", &["heron-70b"]);
        // Whatever is about this resource, at Waldur about this order too.
        let on = if peer == Peer::Waldur { format!("/{}/", poisoned.simple()) } else { resource.simple().to_string() };
        besieged.relay(peer).turn(&on, trick);
        for _ in 0..3 {
            besieged.world.beat(&besieged.agent).await;
            besieged.world.advance(Duration::from_secs(600));
        }
        assert_eq!(
            besieged.world.waldur.order_state(healthy),
            "done",
            "{peer:?}, {name}: the other order goes on: {:#?}",
            besieged.wrong()
        );
        let state = besieged.world.waldur.order_state(poisoned);
        assert!(!matches!(state.as_str(), "done" | "erred"), "{peer:?}, {name}: {state}");
        let waiting = besieged.agent.schedule.waiting();
        assert!(
            waiting.iter().any(|(id, _, why)| *id == poisoned && !why.is_empty()),
            "{peer:?}, {name}: it waits and says why: {waiting:?}"
        );
        assert!(besieged.relay(peer).heal() > 0, "{peer:?}, {name}: the trick was met");
        besieged.world.run_to_rest(&besieged.agent, 20).await;
        assert_eq!(besieged.world.waldur.order_state(poisoned), "done", "{peer:?}, {name}");
        besieged.world.check();
    })
    .await;
}

#[tokio::test]
async fn an_order_that_waldur_does_not_answer_about_waits_alone() {
    one_order_is_not_answered(Peer::Waldur).await;
}

#[tokio::test]
async fn an_order_that_the_gateway_does_not_answer_about_waits_alone() {
    one_order_is_not_answered(Peer::Gateway).await;
}

#[tokio::test]
async fn an_order_that_the_cluster_does_not_answer_about_waits_alone() {
    one_order_is_not_answered(Peer::Kube).await;
}
