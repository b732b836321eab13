//! Traces, in a build with the feature `otel`: a span for each pass of a loop and for each turn of an order, a repair, a removal
//! or a restart, with the ids that stand in the log, sent by OTLP over HTTP.
//!
//! Only spans go, never what is logged within them: that holds the words of peers and the names that customers chose.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::filter_fn;
use url::Url;

use crate::agent::USER_AGENT;
use crate::telemetry::Layer;

/// The longest wait for the collector, for a batch and at the end of the process.
const PATIENCE: Duration = Duration::from_secs(5);

/// What sends the spans; to be ended before the process does.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Sends what is left, for a while. Spans that cannot be sent are lost.
    pub async fn end(self) {
        let ended = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(PATIENCE));
        if !matches!(ended.await, Ok(Ok(()))) {
            tracing::debug!("the last spans were not sent");
        }
    }
}

/// Starts to send spans to `endpoint`; the layer collects them. Within a Tokio runtime.
///
/// # Errors
/// A client that cannot be made.
pub fn start(endpoint: &Url, owner: &str) -> Result<(Traces, Layer), String> {
    let http = reqwest::Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(PATIENCE)
        .timeout(PATIENCE)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|error| format!("traces.endpoint: {error}"))?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client { http, runtime: tokio::runtime::Handle::current() })
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint.as_str())
        .with_timeout(PATIENCE)
        .build()
        .map_err(|error| format!("traces.endpoint: {error}"))?;
    let resource = Resource::builder_empty()
        .with_service_name("llm-access-agent")
        .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(opentelemetry::KeyValue::new("service.namespace", owner.to_owned()))
        .build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("llm-access-agent"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_filter(filter_fn(|metadata| metadata.is_span() && metadata.target().starts_with("llm_access_agent")));
    Ok((Traces(provider), Box::new(layer)))
}

/// The one HTTP client and TLS provider of this program. Spans are sent from a thread of their own, which has no runtime.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    runtime: tokio::runtime::Handle,
}

impl HttpClient for Client {
    fn send_bytes<'life0, 'async_trait>(
        &'life0 self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'async_trait>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        let http = self.http.clone();
        let sent = self.runtime.spawn(async move {
            let (head, body) = request.into_parts();
            let answer = http.request(head.method, head.uri.to_string()).headers(head.headers).body(body).send().await?;
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = answer.status();
            *response.body_mut() = answer.bytes().await?;
            Ok::<_, reqwest::Error>(response)
        });
        Box::pin(async move { Ok(sent.await??) })
    }
}
