//! The status page in a real browser: what it asks of a browser is allowed by its own policy, what customers chose does
//! nothing, and it can be read on a telephone and in the dark.
#![cfg(feature = "real")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use llm_access_agent::page;
use llm_access_tests::eventful::Eventful;
use llm_access_tests::real::told;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// A browser that was started for this test, and goes with it.
struct Browser {
    client: reqwest::Client,
    session: String,
    _driver: Child,
    _profile: TempDir,
}

impl Browser {
    async fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let mut driver = Command::new(told("CHROMEDRIVER"))
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = loop {
            let line = lines.next_line().await.unwrap().expect("the driver ended");
            if let Some((_, port)) = line.split_once("started successfully on port ") {
                break port.trim_end_matches('.').to_owned();
            }
        };
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let client = reqwest::Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ];
        let mut arguments: Vec<String> = arguments.map(str::to_owned).into();
        arguments.push(format!("--user-data-dir={}", profile.path().display()));
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": told("CHROMIUM"), "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let made = client.post(format!("http://127.0.0.1:{port}/session")).json(&wanted).send().await.unwrap();
        let made: Value = made.json().await.unwrap();
        let id = made["value"]["sessionId"].as_str().unwrap_or_else(|| panic!("{made}"));
        Self { session: format!("http://127.0.0.1:{port}/session/{id}"), client, _driver: driver, _profile: profile }
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let answer: Value = self.client.post(format!("{}{path}", self.session)).json(&body).send().await.unwrap().json().await.unwrap();
        assert!(answer["value"]["error"].is_null(), "{path}: {answer}");
        answer["value"].clone()
    }

    async fn devtools(&self, command: &str, parameters: Value) {
        self.post("/goog/cdp/execute", json!({"cmd": command, "params": parameters})).await;
    }

    async fn show(&self, width: u32, scheme: &str) {
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": width < 600}),
        )
        .await;
        self.devtools("Emulation.setEmulatedMedia", json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]})).await;
    }

    /// What a script says; scripts of the driver are not bound by the page's policy.
    async fn say(&self, script: &str) -> Value {
        self.post("/execute/sync", json!({"script": script, "args": []})).await
    }

    /// What the browser complained of since it was last asked.
    async fn complaints(&self) -> Vec<Value> {
        self.post("/se/log", json!({"type": "browser"})).await.as_array().unwrap().clone()
    }

    async fn picture(&self, name: &str) {
        let Ok(folder) = std::env::var("LLM_ACCESS_REAL_PICTURES") else { return };
        let taken =
            self.post("/goog/cdp/execute", json!({"cmd": "Page.captureScreenshot", "params": {"captureBeyondViewport": true}})).await;
        let picture = STANDARD.decode(taken["data"].as_str().unwrap()).unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(format!("{folder}/{name}.png"), picture).unwrap();
    }

    async fn end(self) {
        self.client.delete(&self.session).send().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_shows_the_page_and_has_nothing_to_complain_of() {
    let eventful = Eventful::start("page: {listen: '127.0.0.1:0'}\n").await;
    let at = page::serve(eventful.agent.config.page.as_ref().unwrap().listen, eventful.agent.clone()).await.unwrap();
    let browser = Browser::start().await;
    for (width, scheme) in [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark"), (320, "light")] {
        let case = format!("{width}-{scheme}");
        browser.show(width, scheme).await;
        browser.post("/url", json!({"url": format!("http://{at}/")})).await;
        let seen = browser
            .say(
                "const box = e => e.getBoundingClientRect();
                 const out = [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && !e.closest('thead'))
                     .filter(e => box(e).right > innerWidth + 1 || box(e).left < -1).map(e => e.outerHTML.slice(0, 120));
                 return {
                     title: document.title,
                     tables: [...document.querySelectorAll('table')].map(e => [e.getAttribute('aria-labelledby'), e.tBodies[0].rows.length]),
                     unnamed: [...document.querySelectorAll('table')].filter(e => !document.getElementById(e.getAttribute('aria-labelledby'))).length,
                     scripts: document.scripts.length, images: document.images.length,
                     wide: document.documentElement.scrollWidth - document.documentElement.clientWidth, out,
                     paper: getComputedStyle(document.body).backgroundColor,
                     small: Math.min(...[...document.querySelectorAll('td, th, p, dd, dt, nav')].map(e => parseFloat(getComputedStyle(e).fontSize))),
                     level: [...document.querySelectorAll('h1, h2, h3')].map(e => e.tagName).join(' '),
                 };",
            )
            .await;
        browser.picture(&case).await;
        assert_eq!(seen["title"], "LLM access: icarus", "{case}: {seen}");
        let rows: Vec<(&str, u64)> =
            seen["tables"].as_array().unwrap().iter().map(|table| (table[0].as_str().unwrap(), table[1].as_u64().unwrap())).collect();
        assert_eq!(rows[1..], [("orders", 2), ("resources", 9), ("components", 2), ("loops", 4)], "{case}");
        assert!(rows[0].0 == "conditions" && rows[0].1 > 0, "{case}: {rows:?}");
        assert_eq!((&seen["scripts"], &seen["images"], &seen["unnamed"]), (&json!(0), &json!(0), &json!(0)), "{case}");
        assert_eq!((&seen["wide"], &seen["out"]), (&json!(0), &json!([])), "{case}: something is wider than the screen");
        let dark = seen["paper"].as_str().unwrap().trim_start_matches("rgb(").split(',').next().unwrap().parse::<u32>().unwrap() < 100;
        assert_eq!(dark, scheme == "dark", "{case}: {seen}");
        assert!(seen["small"].as_f64().unwrap() >= 11.0, "{case}: {seen}");
        assert_eq!(seen["level"], "H1 H2 H2 H2 H2 H2", "{case}");
        assert_eq!(browser.complaints().await, Vec::<Value>::new(), "{case}");
    }
    browser.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_is_what_keeps_foreign_markup_from_acting() {
    let eventful = Eventful::start("page: {listen: '127.0.0.1:0'}\n").await;
    let at = page::serve(eventful.agent.config.page.as_ref().unwrap().listen, eventful.agent.clone()).await.unwrap();
    let browser = Browser::start().await;
    browser.post("/url", json!({"url": format!("http://{at}/")})).await;
    // As if something had slipped through: neither a script, nor a style, nor a picture of it comes to anything.
    browser
        .say(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.owned = 1\"><style>body { display: none }</style>');
             const script = document.createElement('script'); script.text = 'window.owned = 2'; document.body.append(script);",
        )
        .await;
    let seen = browser.say("return [window.owned ?? null, getComputedStyle(document.body).display];").await;
    assert_eq!(seen, json!([null, "block"]));
    let complaints = browser.complaints().await;
    assert!(
        complaints.len() >= 3 && complaints.iter().all(|one| one["message"].as_str().unwrap().contains("Content Security Policy")),
        "{complaints:?}"
    );
    browser.end().await;
}
