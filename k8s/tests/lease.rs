//! The Lease against the simulator.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::time::Duration;

use llm_access_fixtures::clock::SimClock;
use llm_access_fixtures::faults::{Fault, Faults, Rule};
use llm_access_fixtures::kube::Kube;
use llm_access_k8s::{Class, Lease, LeaseSettings, Secrets, Settings};

async fn start() -> (Kube, Faults, Secrets) {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let faults = Faults::new();
    let kube = Kube::start(SimClock::real(), faults.clone(), None).await.unwrap();
    let secrets =
        Secrets::connect(Settings { api_url: Some(kube.url()), timeout: Duration::from_secs(5), ..Settings::default() }).await.unwrap();
    (kube, faults, secrets)
}

fn quick(identity: &str) -> LeaseSettings {
    LeaseSettings {
        duration: Duration::from_secs(1),
        retry: Duration::from_millis(50),
        ..LeaseSettings::new("default", "llm-access-agent", identity)
    }
}

async fn says(lease: &Lease, leading: bool) {
    lease.watch().wait_for(|state| *state == leading).await.unwrap();
}

fn holder(kube: &Kube) -> Option<String> {
    let lease = kube.lease("default", "llm-access-agent")?;
    lease.pointer("/spec/holderIdentity")?.as_str().map(str::to_owned)
}

#[tokio::test]
async fn one_leads_and_hands_over_when_it_goes() {
    let (kube, _faults, secrets) = start().await;
    let first = Lease::start(&secrets, quick("one")).unwrap();
    says(&first, true).await;
    let second = Lease::start(&secrets, quick("two")).unwrap();
    let version = || kube.lease("default", "llm-access-agent").unwrap()["metadata"]["resourceVersion"].clone();
    let before = version();
    while version() == before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(first.is_leader() && !second.is_leader());
    assert_eq!(holder(&kube).as_deref(), Some("one"));
    first.release().await;
    says(&second, true).await;
    assert_eq!(holder(&kube).as_deref(), Some("two"));
    let seen = second.watch();
    drop(second);
    while holder(&kube).is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!*seen.borrow());
}

#[tokio::test]
async fn a_leader_without_answers_steps_down_before_another_steps_up() {
    let (kube, faults, secrets) = start().await;
    let first = Lease::start(&secrets, quick("one")).unwrap();
    says(&first, true).await;
    // Only the first one hangs: the other comes under another name.
    let other =
        Secrets::connect(Settings { api_url: Some(kube.url()), user_agent: "other/1".to_owned(), ..Settings::default() }).await.unwrap();
    faults.add(Rule::new(Fault::Hang { after_effect: false }));
    let second = Lease::start(&other, quick("two")).unwrap();
    let mut up = second.watch();
    let mut down = first.watch();
    tokio::select! {
        biased;
        state = down.wait_for(|leading| !*leading) => { state.unwrap(); }
        _ = up.wait_for(|leading| *leading) => panic!("two leaders"),
    }
    up.wait_for(|leading| *leading).await.unwrap();
    assert!(!first.is_leader());
    assert_eq!(holder(&kube).as_deref(), Some("two"));
    faults.clear();
    assert!(!first.is_leader());
}

#[tokio::test]
async fn a_lease_taken_by_hand_ends_leadership() {
    let (kube, _faults, secrets) = start().await;
    let first = Lease::start(&secrets, quick("one")).unwrap();
    says(&first, true).await;
    let url = kube.url().join("apis/coordination.k8s.io/v1/namespaces/default/leases/llm-access-agent").unwrap();
    let body = r#"{"spec":{"holderIdentity":"admin","leaseDurationSeconds":3600}}"#;
    let mut stream = tokio::net::TcpStream::connect((url.host_str().unwrap(), url.port().unwrap())).await.unwrap();
    let request = format!(
        "PATCH {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/merge-patch+json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        url.path(),
        body.len()
    );
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    says(&first, false).await;
    assert_eq!(holder(&kube).as_deref(), Some("admin"));
}

#[tokio::test]
async fn times_that_cannot_work_are_refused() {
    let (_kube, faults, secrets) = start().await;
    let bad = [
        LeaseSettings { duration: Duration::from_millis(500), ..quick("a") },
        LeaseSettings { retry: Duration::from_millis(900), ..quick("a") },
        LeaseSettings { identity: String::new(), ..quick("a") },
        LeaseSettings { namespace: "../x".to_owned(), ..quick("a") },
    ];
    for settings in bad {
        assert_eq!(Lease::start(&secrets, settings).unwrap_err().class(), Class::Invalid);
    }
    assert_eq!(faults.count(), 0);
}
