//! Reading and writing Secrets.

use std::collections::BTreeMap;
use std::fmt;

use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use serde_json::{Value, json};

use crate::Result;
use crate::client::{Cluster, Settings, exchange};
use crate::error::{Call, Class, Error};
use crate::object::{Draft, Page, Stored, Wire, is_dns_label, is_object_name};

/// Secrets in any namespace, through one client. Cheap to clone.
#[derive(Clone)]
pub struct Secrets {
    pub(crate) cluster: Cluster,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets")
            .field("field_manager", &self.cluster.field_manager)
            .field("timeout", &self.cluster.timeout)
            .finish_non_exhaustive()
    }
}

/// What a create-only write met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The Secret is new and holds the draft.
    Made,
    /// There was one under this name, whoever made it; nothing was written.
    Exists,
}

/// Objects per page of a list.
const PAGE: u32 = 500;
/// Most pages of one list, a million Secrets: a server that goes on for ever is not a list.
const MAX_PAGES: u32 = 2000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Force {
    /// Only where no other manager is involved.
    Ours,
    /// Take over fields from others.
    Always,
}

impl Secrets {
    /// Makes the client. Nothing is called yet.
    ///
    /// # Errors
    /// [`Error::Settings`] when no client can be made from the settings.
    pub async fn connect(settings: Settings) -> Result<Self> {
        Ok(Self { cluster: Cluster::connect(settings).await? })
    }

    /// All Secrets of a namespace that carry these labels. Complete or an error, never a part.
    ///
    /// A namespace that does not exist has no Secrets: the server answers an empty list, not 404. See [`Self::probe`].
    ///
    /// # Errors
    /// Any class but `Conflict`.
    pub async fn list(&self, namespace: &str, selector: &BTreeMap<String, String>) -> Result<Vec<Stored>> {
        self.list_as(namespace, selector, |stored| stored).await
    }

    /// Like [`Self::list`], keeping of each Secret only what `keep` makes of it: a Secret is several kilobytes, and there may be
    /// ten thousands of them.
    ///
    /// # Errors
    /// Any class but `Conflict`.
    pub async fn list_as<T>(
        &self,
        namespace: &str,
        selector: &BTreeMap<String, String>,
        keep: impl Fn(Stored) -> T + Send + Sync,
    ) -> Result<Vec<T>> {
        let call = self.on("list", namespace, "")?;
        let labels = selector.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
        let mut restarts = 0;
        loop {
            match self.list_once(&call, namespace, &labels, &keep).await {
                // 410: a continue token outlived the server's history. The pages so far belong to an older state.
                Err(Error::Transient { status: Some(410), .. }) if restarts == 0 => restarts += 1,
                other => return other,
            }
        }
    }

    async fn list_once<T>(&self, call: &Call<'_>, namespace: &str, labels: &str, keep: &impl Fn(Stored) -> T) -> Result<Vec<T>> {
        let mut all = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let mut params = ListParams::default().labels(labels).limit(PAGE);
            if let Some(token) = &next {
                params = params.continue_token(token);
            }
            let text = exchange!(self.cluster, call, collection(namespace).list(&params)).await?;
            let page: Page<'_> = serde_json::from_str(&text).map_err(|error| Error::not_understood(call, shape(&error)))?;
            if page.kind != "SecretList" {
                return Err(Error::not_understood(call, "it is not a list of Secrets"));
            }
            for item in page.items.unwrap_or_default() {
                let wire: Wire = serde_json::from_str(item.get()).map_err(|error| Error::not_understood(call, shape(&error)))?;
                all.push(keep(wire.into_stored(&self.cluster.field_manager)));
            }
            let token = page.metadata.next.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(all);
            }
            if token == next {
                return Err(Error::not_understood(call, "the next page is the same page"));
            }
            next = token;
        }
        Err(Error::not_understood(call, format!("the list goes on after {MAX_PAGES} pages")))
    }

    /// Makes a Secret under a name that is free.
    ///
    /// # Errors
    /// `Invalid` for a draft with an illegal name, no variables or an empty one; `NotFound` without the namespace.
    pub async fn create(&self, namespace: &str, draft: &Draft) -> Result<Created> {
        self.post(namespace, draft, false).await
    }

    async fn post(&self, namespace: &str, draft: &Draft, dry_run: bool) -> Result<Created> {
        let call = self.on("create", namespace, &draft.name)?;
        if let Some(fault) = draft.fault() {
            return Err(Error::invalid(&call, fault));
        }
        let params = PostParams { dry_run, field_manager: Some(self.cluster.field_manager.clone()) };
        let body = draft.to_json(None).to_string().into_bytes();
        let answer = exchange!(self.cluster, &call, collection(namespace).create(&params, body)).await;
        match answer {
            Ok(_) => Ok(Created::Made),
            Err(Error::Conflict { .. }) => Ok(Created::Exists),
            Err(error) => Err(error),
        }
    }

    /// Makes the Secret hold the draft, if it is still at the version of `base`. No call when it does already.
    ///
    /// Only our own fields change. A field that another manager owns with another value is a conflict that names it.
    ///
    /// # Errors
    /// `Conflict` when somebody wrote since, the Secret is gone, or another manager owns a field.
    pub async fn apply(&self, base: &Stored, draft: &Draft) -> Result<()> {
        self.write(base, draft, Force::Ours).await
    }

    /// Like [`Self::apply`], and takes over our variables from whoever owns them now: for the repair of a Secret of ours
    /// whose key somebody destroyed.
    ///
    /// # Errors
    /// `Conflict` when somebody wrote since or the Secret is gone.
    pub async fn overwrite(&self, base: &Stored, draft: &Draft) -> Result<()> {
        self.write(base, draft, Force::Always).await
    }

    async fn write(&self, base: &Stored, draft: &Draft, force: Force) -> Result<()> {
        let manager = self.cluster.field_manager.as_str();
        let draft = Draft { name: base.name.clone(), ..draft.clone() };
        let call = self.on("patch", &base.namespace, &base.name)?;
        if let Some(fault) = draft.fault() {
            return Err(Error::invalid(&call, fault));
        }
        if base.matches(&draft, manager) {
            return Ok(());
        }
        // The first write was a POST, which the server files under another operation than apply, so that our own
        // apply conflicts with it. Force is safe against ourselves: the version guards against everybody else.
        let alone = base.is_ours_alone(manager);
        let mut object = draft.to_json(Some(&base.resource_version));
        object["metadata"]["uid"] = json!(base.uid);
        let forced = force == Force::Always || alone;
        let mut answer = self.patch(&call, base, &Patch::Apply(&object), forced).await;
        if !forced
            && let Err(Error::Conflict { managers, .. }) = &answer
            && !managers.is_empty()
            && managers.iter().all(|name| name == manager)
        {
            answer = self.patch(&call, base, &Patch::Apply(&object), true).await;
        }
        let after = answer?;
        let leftover = after.leftover(&draft, manager, &base.managers);
        if leftover.is_empty() {
            return Ok(());
        }
        let removal = leftover.removal(&after.uid, &after.resource_version);
        self.patch(&call, &after, &Patch::Merge(&removal), false).await.map(drop)
    }

    async fn patch(&self, call: &Call<'_>, base: &Stored, patch: &Patch<&Value>, force: bool) -> Result<Stored> {
        let params = PatchParams { field_manager: Some(self.cluster.field_manager.clone()), force, ..PatchParams::default() };
        let text =
            exchange!(self.cluster, call, collection(&base.namespace).patch(&base.name, &params, patch)).await.map_err(
                |error| match error {
                    Error::NotFound { what, .. } => Error::Conflict { what, why: "it is gone".to_owned(), managers: Vec::new() },
                    other => other,
                },
            )?;
        let wire: Wire = serde_json::from_str(&text).map_err(|error| Error::not_understood(call, shape(&error)))?;
        Ok(wire.into_stored(&self.cluster.field_manager))
    }

    /// Deletes exactly this Secret at this version. One that is gone is a success.
    ///
    /// # Errors
    /// `Conflict` when somebody wrote since, or another Secret has taken the name.
    pub async fn delete(&self, stored: &Stored) -> Result<()> {
        let call = self.on("delete", &stored.namespace, &stored.name)?;
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(stored.uid.clone()), resource_version: Some(stored.resource_version.clone()) }),
            ..DeleteParams::default()
        };
        let answer = exchange!(self.cluster, &call, collection(&stored.namespace).delete(&stored.name, &params)).await;
        match answer {
            Err(error) if error.class() == Class::NotFound => Ok(()),
            other => other.map(drop),
        }
    }

    /// Proves, without changing anything, that the namespace exists and that we may list, create, patch and delete there.
    ///
    /// # Errors
    /// `Denied` naming the missing verb, `NotFound` naming the namespace.
    pub async fn probe(&self, namespace: &str) -> Result<()> {
        let call = self.on("list", namespace, "")?;
        let params = ListParams::default().limit(1);
        exchange!(self.cluster, &call, collection(namespace).list(&params)).await?;
        let draft = Draft {
            name: "llm-access-agent-probe".to_owned(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            data: BTreeMap::from([("PROBE".to_owned(), "nothing".into())]),
        };
        self.post(namespace, &draft, true).await?;
        for verb in ["patch", "delete"] {
            self.cluster.may(&self.on(verb, namespace, "")?, "").await?;
        }
        Ok(())
    }

    /// The call, once its path is known to be safe.
    fn on<'a>(&self, verb: &'static str, namespace: &'a str, name: &'a str) -> Result<Call<'a>> {
        let call = Call { verb, resource: "secrets", namespace, name };
        if !is_dns_label(namespace) {
            return Err(Error::invalid(&call, format!("{namespace:?} is not a legal namespace")));
        }
        if !name.is_empty() && !is_object_name(name) {
            return Err(Error::invalid(&call, format!("{name:?} is not a legal name")));
        }
        Ok(call)
    }
}

fn collection(namespace: &str) -> Request {
    Request::new(format!("/api/v1/namespaces/{namespace}/secrets"))
}

/// Where a body stopped making sense. Never the body: serde's own message can quote a value.
fn shape(error: &serde_json::Error) -> String {
    format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column())
}
