//! The status page: what the loops last saw, for people with a browser, on a listener of its own.
//!
//! It can only be read. It asks the peers nothing and holds no secret. What customers chose stands on it as text, whatever it
//! looks like. Who can reach the listener can read the page, so that it listens on loopback unless more is allowed, and a
//! page of somebody else's that has its own name point here is turned away by the Host header.

mod html;
mod seen;
mod view;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::uri::Authority;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::agent::Agent;
use crate::http::listen_on;
pub use seen::Seen;

/// What every answer carries.
#[derive(Debug)]
struct Guard {
    hosts: Vec<String>,
    policy: HeaderValue,
}

impl Guard {
    fn new(hosts: &[String]) -> Self {
        let style = STANDARD.encode(Sha256::digest(view::STYLE.as_bytes()));
        let policy = format!("default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
        // A digest in base64 is a legal header value.
        let policy = HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"));
        Self { hosts: hosts.iter().map(|host| host.to_ascii_lowercase()).collect(), policy }
    }

    /// Whether a request was meant for this page. A name that points here could be anybody's; an address cannot be pointed
    /// elsewhere.
    fn is_meant(&self, request: &Request) -> bool {
        let mut named = request.headers().get_all(header::HOST).iter();
        let (Some(host), None) = (named.next(), named.next()) else { return false };
        let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
        host.is_some_and(|host| self.is_ours(&host)) && request.uri().authority().is_none_or(|host| self.is_ours(host))
    }

    fn is_ours(&self, authority: &Authority) -> bool {
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host().to_ascii_lowercase();
        let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&host);
        host == "localhost" || address.parse::<IpAddr>().is_ok() || self.hosts.contains(&host)
    }
}

const HEADERS: [(HeaderName, &str); 7] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "interest-cohort=()"),
];

async fn guarded(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = if !guard.is_meant(&request) {
        (StatusCode::MISDIRECTED_REQUEST, "this page answers to an address, to localhost, and to the names in page.hosts\n").into_response()
    } else if !matches!(*request.method(), Method::GET | Method::HEAD) {
        (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, HEAD")], "this page can only be read\n").into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(header::CONTENT_SECURITY_POLICY, guard.policy.clone());
    response
}

/// The page at `/`.
pub fn router(agent: Agent) -> Router {
    let hosts = agent.config.page.as_ref().map(|page| page.hosts.as_slice()).unwrap_or_default();
    let guard = Arc::new(Guard::new(hosts));
    Router::new()
        .route(
            "/",
            get(|State(agent): State<Agent>, RawQuery(query): RawQuery| async move { Html(view::page(&agent, part(query.as_deref()))) }),
        )
        // Browsers ask for it by themselves.
        .route("/favicon.ico", get(|| async { StatusCode::NO_CONTENT }))
        .fallback(|| async { (StatusCode::NOT_FOUND, "the page is at /\n") })
        .layer(from_fn_with_state(guard, guarded))
        .with_state(agent)
}

/// Which part of the table of resources is asked for; the first, whatever else stands in the query.
fn part(query: Option<&str>) -> usize {
    let pairs = query.unwrap_or_default().split('&');
    pairs.filter_map(|pair| pair.strip_prefix("page=")).find_map(|number| number.parse().ok()).unwrap_or(1)
}

/// Serves the page on `listen` until the process ends. Says where it listens.
///
/// # Errors
/// An address that cannot be listened on.
pub async fn serve(listen: SocketAddr, agent: Agent) -> std::io::Result<SocketAddr> {
    let address = listen_on(listen, router(agent), "of the status page").await?;
    tracing::info!("the status page is at http://{address}/");
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_answers_to_addresses_and_to_its_own_names_alone() {
        let guard = Guard::new(&["Status.Example.org".to_owned()]);
        let meant = |host: &str| host.parse::<Authority>().is_ok_and(|host| guard.is_ours(&host));
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:9091", "[::1]:9091", "192.0.2.7", "status.example.org:443"] {
            assert!(meant(host), "{host}");
        }
        for host in ["rebound.example.net", "localhost.example.net:80", "localhost@example.net", "127.0.0.1.example.net", "", "example.org"]
        {
            assert!(!meant(host), "{host}");
        }
    }

    #[test]
    fn any_query_leads_to_some_part() {
        assert_eq!(part(None), 1);
        assert_eq!(part(Some("x=1&page=3")), 3);
        assert_eq!(part(Some("page=%00&page=-1&page=99999999999999999999999")), 1);
    }
}
