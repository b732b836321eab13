//! How calls are authenticated: a Waldur token, or a bearer token from an OpenID Connect provider.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderValue;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::Url;

use crate::client::{cause_chain, read_capped};
use crate::error::ErrorKind;
use crate::lenient;
use crate::scrub::Scrub;

/// Where a secret comes from. Called before every request, so that a file changed underneath is noticed; an error
/// is a text that names the file and the remedy, never the content.
pub type SecretSource = Arc<dyn Fn() -> Result<SecretString, String> + Send + Sync>;

/// How the agent proves who it is.
#[derive(Clone)]
pub enum Auth {
    /// `Authorization: Token <40 hex digits>`, the token of a Waldur user.
    Token(SecretSource),
    /// `Authorization: Bearer <JWT>` from the client-credentials grant.
    Oidc {
        /// Token endpoint of the provider.
        token_url: Url,
        /// Name of the client there.
        client_id: String,
        /// Its secret, read at every login.
        client_secret: SecretSource,
    },
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token(***)"),
            Self::Oidc { token_url, client_id, .. } => {
                f.debug_struct("Oidc").field("token_host", &token_url.host_str()).field("client_id", client_id).finish_non_exhaustive()
            }
        }
    }
}

/// A bearer token is renewed this long before it expires.
const RENEW_BEFORE: Duration = Duration::from_secs(30);
/// Assumed life of a token whose provider does not say; a 401 renews it earlier.
const DEFAULT_LIFE: Duration = Duration::from_secs(300);
/// Longest life believed, so that a nonsensical figure cannot overflow the clock.
const MAX_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Largest answer of a token endpoint that is read.
const MAX_LOGIN_BODY: usize = 1 << 20;

/// What one request is sent with.
pub(crate) struct Credential {
    pub(crate) header: HeaderValue,
    /// The secret inside the header, to keep it out of errors.
    pub(crate) secret: SecretString,
    /// Which login it came from; none where a second try would use the same secret.
    login: Option<u64>,
}

pub(crate) struct Authenticator {
    auth: Auth,
    bearer: Mutex<Bearer>,
}

#[derive(Default)]
struct Bearer {
    token: Option<(SecretString, Instant)>,
    /// Counts logins, so that a late 401 does not drop a newer token.
    login: u64,
}

impl Authenticator {
    pub(crate) fn new(auth: Auth) -> Self {
        Self { auth, bearer: Mutex::default() }
    }

    pub(crate) fn settings(&self) -> &Auth {
        &self.auth
    }

    /// The credential for the next request. Concurrent callers share one login.
    pub(crate) async fn credential(&self, http: &reqwest::Client) -> Result<Credential, ErrorKind> {
        match &self.auth {
            Auth::Token(source) => Credential::new("Token", read(source)?, None),
            Auth::Oidc { token_url, client_id, client_secret } => {
                let mut bearer = self.bearer.lock().await;
                if let Some((token, renew_at)) = &bearer.token
                    && Instant::now() < *renew_at
                {
                    return Credential::new("Bearer", token.clone(), Some(bearer.login));
                }
                bearer.token = None;
                let secret = read(client_secret)?;
                let (token, life) = login(http, token_url, client_id, &secret).await?;
                let renew_at = Instant::now() + life.saturating_sub(RENEW_BEFORE.min(life / 2));
                bearer.login += 1;
                bearer.token = Some((token.clone(), renew_at));
                Credential::new("Bearer", token, Some(bearer.login))
            }
        }
    }

    /// Drops the token a 401 was answered to. True where a new login may help.
    pub(crate) async fn drop_refused(&self, refused: &Credential) -> bool {
        let Some(login) = refused.login else {
            return false;
        };
        let mut bearer = self.bearer.lock().await;
        if bearer.login == login {
            bearer.token = None;
        }
        true
    }
}

impl Credential {
    fn new(scheme: &str, secret: SecretString, login: Option<u64>) -> Result<Self, ErrorKind> {
        let text = secret.expose_secret();
        if text.is_empty() || text.contains(|c: char| !c.is_ascii_graphic()) {
            return Err(ErrorKind::Credential {
                message: "the token is empty or holds blanks or characters that a token cannot have".to_owned(),
            });
        }
        let mut header = HeaderValue::from_str(&format!("{scheme} {text}"))
            .map_err(|_| ErrorKind::Credential { message: "the token cannot be sent in a header".to_owned() })?;
        header.set_sensitive(true);
        Ok(Self { header, secret, login })
    }
}

fn read(source: &SecretSource) -> Result<SecretString, ErrorKind> {
    source().map_err(|message| ErrorKind::Credential { message })
}

#[derive(Deserialize)]
struct Login {
    access_token: SecretString,
    #[serde(default, deserialize_with = "lenient::opt_decimal")]
    expires_in: Option<rust_decimal::Decimal>,
}

#[derive(Deserialize, Default)]
struct LoginRefusal {
    #[serde(default, deserialize_with = "lenient::text")]
    error: String,
    #[serde(default, deserialize_with = "lenient::text")]
    error_description: String,
}

/// One client-credentials grant. A refusal is about our secret; anything else leaves Waldur unreached.
async fn login(
    http: &reqwest::Client,
    token_url: &Url,
    client_id: &str,
    secret: &SecretString,
) -> Result<(SecretString, Duration), ErrorKind> {
    let host = token_url.host_str().unwrap_or_default();
    let unreachable = |cause: String| ErrorKind::Unreachable { cause: format!("token endpoint {host}: {cause}") };
    let form = [("grant_type", "client_credentials"), ("client_id", client_id), ("client_secret", secret.expose_secret())];
    let response = http.post(token_url.clone()).form(&form).send().await.map_err(|error| unreachable(cause_chain(error)))?;
    let status = response.status().as_u16();
    if (300..400).contains(&status) {
        return Err(ErrorKind::Credential {
            message: format!("token endpoint {host} answered {status}, a redirect: set the final address"),
        });
    }
    let body = read_capped(response, MAX_LOGIN_BODY).await.map_err(|fault| unreachable(fault.to_string()))?;
    match status {
        200 | 201 => {}
        400..=499 if status != 408 && status != 429 => {
            let refusal: LoginRefusal = serde_json::from_slice(&body).unwrap_or_default();
            let known = [secret];
            let why = format!("{} {}", refusal.error, refusal.error_description);
            let why = Scrub::new(&known).clean(&why);
            return Err(ErrorKind::Credential {
                message: format!("token endpoint {host} refused client {client_id} with {status}: {why}"),
            });
        }
        _ => return Err(unreachable(format!("answered {status}"))),
    }
    // The parser's message may quote the token, so only the fact is passed on.
    let login: Login = serde_json::from_slice(&body).map_err(|_| unreachable("answered without a readable access_token".to_owned()))?;
    let life = login
        .expires_in
        .and_then(|seconds| u64::try_from(seconds.trunc()).ok())
        .map_or(DEFAULT_LIFE, |seconds| Duration::from_secs(seconds).min(MAX_LIFE));
    Ok((login.access_token, life))
}
