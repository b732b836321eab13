//! One `kube` client, without retries and with a deadline on every call.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::BodyExt as _;
use kube::api::PostParams;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::{Client, Config};
use serde_json::{Value, json};
use url::Url;

use crate::Result;
use crate::error::{Call, Error, chain};

/// Largest body of a success, in bytes: 32 KiB for each of the 500 Secrets of a page; ours have some 3 KiB.
const MAX_BODY: usize = 16 << 20;
/// How much of a refusal is read, in bytes.
const MAX_REFUSAL: usize = 256 << 10;

/// How to reach the API server, and as whom.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A kubeconfig file. Without one: the pod's service account, else the usual places (`KUBECONFIG`, `~/.kube/config`).
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; without one, its current context.
    pub context: Option<String>,
    /// A plain URL without credentials, for tests and demonstrations on loopback. Wins over the other two.
    pub api_url: Option<Url>,
    /// The longest time one call may take.
    pub timeout: Duration,
    /// The `User-Agent` of every call.
    pub user_agent: String,
    /// The field manager under which writes are recorded. Keep it the same for ever: it is how our own fields are known.
    pub field_manager: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            api_url: None,
            timeout: Duration::from_secs(10),
            user_agent: concat!("llm-access-agent/", env!("CARGO_PKG_VERSION")).to_owned(),
            field_manager: "llm-access-agent".to_owned(),
        }
    }
}

/// The client that Secrets and the Lease share.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) timeout: Duration,
    pub(crate) field_manager: String,
}

impl Cluster {
    pub(crate) async fn connect(settings: Settings) -> Result<Self> {
        let mut config = config(&settings).await?;
        // kube would repeat a call up to 15 times and hold it for minutes; deadlines and repeats are ours.
        config.default_retry = false;
        config.connect_timeout = Some(settings.timeout);
        let name = "user-agent".parse().map_err(|error| settings_error(&error))?;
        let value = settings.user_agent.parse().map_err(|error| settings_error(&error))?;
        config.headers.push((name, value));
        let client = Client::try_from(config).map_err(|error| settings_error(&error))?;
        Ok(Self { client, timeout: settings.timeout, field_manager: settings.field_manager })
    }

    /// Waits for one answer, but no longer than the deadline, and gives the body of a success.
    pub(crate) async fn answer(&self, call: &Call<'_>, answer: impl Future<Output = kube::Result<Answer>>) -> Result<String> {
        let answer = match tokio::time::timeout(self.timeout, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(Error::from_kube(call, error)),
            Err(_) => return Err(Error::timed_out(call, self.timeout)),
        };
        if is_success(answer.status) {
            if !answer.whole {
                return Err(Error::not_understood(call, format!("it is larger than {MAX_BODY} bytes, the most that is read")));
            }
            return String::from_utf8(answer.body).map_err(|_| Error::not_understood(call, "it is not UTF-8"));
        }
        Err(Error::from_answer(call, &answer))
    }
}

/// An answer as it came.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// `Retry-After` in seconds; a date is no answer that the API server gives.
    pub(crate) retry_after: Option<u64>,
    /// The host that a redirect points to.
    pub(crate) location: Option<String>,
    pub(crate) body: Vec<u8>,
    /// Whether that is all of the body.
    pub(crate) whole: bool,
}

/// The host of an address, which alone is fit for a message; "another path" where it has none.
pub(crate) fn host(location: &str) -> String {
    Url::parse(location).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_else(|| "another path".to_owned())
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// Reads a body as far as it may be read, and whether that is all of it. A refusal whose text is lost is still a refusal.
pub(crate) async fn read(status: u16, mut body: Body) -> kube::Result<(Vec<u8>, bool)> {
    let limit = if is_success(status) { MAX_BODY } else { MAX_REFUSAL };
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(_) if !is_success(status) => return Ok((read, false)),
            Err(error) => return Err(error),
        };
        let Some(data) = frame.data_ref() else { continue };
        if data.len() > limit - read.len() {
            return Ok((read, false));
        }
        read.extend_from_slice(data);
    }
    Ok((read, true))
}

/// One request under the deadline. `kube` has calls that decode the answer too, but they log a body which they cannot
/// decode and the text of every error, and either can quote a Secret. (A macro, since `http`'s types have no name here.)
macro_rules! exchange {
    ($cluster:expr, $call:expr, $request:expr) => {
        async {
            let request = $request.map_err(|error| $crate::error::Error::invalid($call, $crate::error::chain(&error)))?;
            let answer = async {
                let response = $cluster.client.send(request.map(kube::client::Body::from)).await?;
                let status = response.status().as_u16();
                let retry_after =
                    response.headers().get("retry-after").and_then(|value| value.to_str().ok()).and_then(|value| value.parse().ok());
                let location = response.headers().get("location").and_then(|value| value.to_str().ok()).map($crate::client::host);
                let (body, whole) = $crate::client::read(status, response.into_body()).await?;
                Ok($crate::client::Answer { status, retry_after, location, body, whole })
            };
            $cluster.answer($call, answer).await
        }
    };
}
pub(crate) use exchange;

impl Cluster {
    /// Asks the server whether we may make a call to a resource of an API group; every account may ask.
    pub(crate) async fn may(&self, call: &Call<'_>, group: &str) -> Result<()> {
        let mut attributes = json!({"namespace": call.namespace, "verb": call.verb, "resource": call.resource, "group": group});
        if !call.name.is_empty() {
            attributes["name"] = json!(call.name);
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        });
        let reviews = Request::new("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
        let text = exchange!(self, call, reviews.create(&PostParams::default(), review.to_string().into_bytes())).await?;
        let answer: Value = serde_json::from_str(&text).map_err(|error| Error::not_understood(call, error))?;
        match answer.pointer("/status/allowed").and_then(Value::as_bool) {
            Some(true) => Ok(()),
            Some(false) => Err(Error::Denied { what: call.to_string(), why: "the server says so".to_owned(), remedy: call.right() }),
            None => Err(Error::not_understood(call, "it is not an access review")),
        }
    }
}

async fn config(settings: &Settings) -> Result<Config> {
    if let Some(url) = &settings.api_url {
        let uri = url.as_str().parse().map_err(|error| settings_error(&error))?;
        return Ok(Config::new(uri));
    }
    let options = KubeConfigOptions { context: settings.context.clone(), ..KubeConfigOptions::default() };
    if settings.kubeconfig.is_none()
        && settings.context.is_none()
        && let Ok(config) = Config::incluster()
    {
        return Ok(config);
    }
    let kubeconfig = match &settings.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let kubeconfig = kubeconfig.map_err(|error| settings_error(&error))?;
    if names_proxy(&kubeconfig, settings.context.as_deref()) {
        return Err(Error::Settings { why: "the kubeconfig wants a proxy (proxy-url), which is not supported".to_owned() });
    }
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| settings_error(&error))?;
    // What is left came from HTTPS_PROXY, which stands there for Waldur: the cluster is reached directly.
    config.proxy_url = None;
    Ok(config)
}

fn names_proxy(kubeconfig: &Kubeconfig, context: Option<&str>) -> bool {
    let name = context.or(kubeconfig.current_context.as_deref());
    let context = kubeconfig.contexts.iter().find(|entry| Some(entry.name.as_str()) == name).and_then(|entry| entry.context.as_ref());
    let cluster = kubeconfig.clusters.iter().find(|entry| context.is_some_and(|context| context.cluster == entry.name));
    cluster.and_then(|entry| entry.cluster.as_ref()?.proxy_url.as_deref()).is_some_and(|url| !url.is_empty())
}

fn settings_error(error: &(dyn std::error::Error + 'static)) -> Error {
    Error::Settings { why: chain(error) }
}
