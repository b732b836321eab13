//! The status page: what the loops last saw, as text whatever it looks like, for those it is meant for, at no peer's cost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;

use llm_access_agent::page;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::World;
use llm_access_tests::eventful::{Eventful, HOSTILE};
use rust_decimal::Decimal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const ON: &str = "page: {listen: '127.0.0.1:0', hosts: [status.example.org]}\n";

/// One request as it is written here, and the whole answer.
async fn ask(to: SocketAddr, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

async fn get(to: SocketAddr, path: &str) -> String {
    let (status, _, body) = ask(to, &format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n")).await;
    assert_eq!(status, 200, "{path}: {body}");
    body
}

async fn served(agent: &llm_access_agent::agent::Agent) -> SocketAddr {
    page::serve(agent.config.page.as_ref().unwrap().listen, agent.clone()).await.unwrap()
}

/// The section under a heading, up to the next one.
fn section<'a>(page: &'a str, id: &str) -> &'a str {
    let rest = page.split_once(&format!("<h2 id=\"{id}\">")).unwrap_or_else(|| panic!("no section {id}")).1;
    rest.split("<h2 ").next().unwrap()
}

/// The row of a table in which `part` stands.
#[track_caller]
fn row<'a>(section: &'a str, part: &str) -> &'a str {
    let rows: Vec<&str> = section.split("<tr ").filter(|row| row.contains(part)).collect();
    assert_eq!(rows.len(), 1, "rows with {part:?} in {section}");
    rows[0]
}

#[tokio::test]
async fn everything_that_matters_is_there_and_costs_the_peers_nothing() {
    let eventful = Eventful::start(ON).await;
    let (world, agent) = (&eventful.world, &eventful.agent);
    let at = served(agent).await;
    world.faults.reset_calls();
    let page = get(at, "/").await;
    assert_eq!(world.faults.calls(), []);

    let orders = section(&page, "orders");
    let failing = row(orders, &eventful.failing.simple().to_string());
    for part in ["executing", "44 s ago", "answered 500", "in ", "Customer sees: ", "(attempt 1 of 4)", "Seabird Acoustics"] {
        assert!(failing.contains(part), "{part}: {failing}");
    }
    let by_person = row(orders, &eventful.by_person.simple().to_string());
    for part in ["Terminate", "pending-provider", "13 min ago", "a person decides"] {
        assert!(by_person.contains(part), "{part}: {by_person}");
    }

    let resources = section(&page, "resources");
    let places: Vec<usize> = eventful.resources.iter().map(|(_, id)| resources.find(&id.simple().to_string()).unwrap()).collect();
    for ((share, id), place) in eventful.resources.iter().zip(&places) {
        let row = row(resources, &id.simple().to_string());
        let spent = Decimal::new(i64::from(*share) * 50, 2);
        assert!(row.contains(&format!("{share} %")) && row.contains(&format!("{spent} of 50.00 EUR")), "{row}");
        assert!(row.contains(">1 Dec</time>"), "{row}");
        for ((other, _), below) in eventful.resources.iter().zip(&places) {
            assert!(other >= share || place < below, "{share} is above {other}");
        }
    }
    assert!(row(resources, "Ωκεανός").contains("blocked"));

    let components = section(&page, "components");
    for kind in ["heron-70b:input", "heron-70b:output"] {
        let row = row(components, kind);
        assert!(row.contains("retired") && row.contains("already used"), "{row}");
    }
    assert!(!components.contains("kestrel-8b"));

    let loops = section(&page, "loops");
    assert!(row(loops, ">orders<").contains("2 open, "), "{loops}");
    assert!(row(loops, ">resources<").contains("9 compared"), "{loops}");

    let condition = row(section(&page, "conditions"), "gateway-model-not-listed");
    assert!(condition.contains("heron-70b") && condition.contains("2026-1"), "{condition}");
    // The figures at the top agree with what stands below.
    for (name, figure) in [("Open orders", 2), ("Resources", 9), ("Budget 90 % spent", 2), ("Stale components", 2)] {
        let tile = page.split_once(&format!(">{name}</a></dt>")).unwrap().1.split("</div>").next().unwrap();
        assert!(tile.contains(&format!(">{figure}<")), "{name}: {tile}");
    }
}

#[tokio::test]
async fn what_customers_chose_stays_text() {
    let eventful = Eventful::start(ON).await;
    let page = get(served(&eventful.agent).await, "/").await;
    let body = page.split_once("</style>").unwrap().1;
    assert!(body.contains("&lt;script&gt;alert(&#39;owned&#39;)&lt;/script&gt;") && body.contains("&quot;&gt;&lt;img src=x"));
    assert!(body.contains("invoice\\u{202e}fdp.exe\\u{200b}") && body.contains("Ωκεανός 海 🐦 &amp;&lt;&gt;&#39;&quot;"));
    // Every tag is one of ours, with attributes of ours.
    const TAGS: [&str; 27] = [
        "header", "h1", "span", "p", "time", "main", "dl", "div", "dt", "dd", "a", "small", "h2", "table", "thead", "tbody", "tr", "th",
        "td", "code", "bdi", "meter", "nav", "footer", "body", "html", "head",
    ];
    for tag in body.split('<').skip(1) {
        let name: String = tag.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
        assert!(TAGS.contains(&name.as_str()), "<{tag}");
        let attributes = tag.split('>').next().unwrap();
        assert!(!attributes.contains(" on") && !attributes.contains(" style") && !attributes.contains("javascript:"), "<{tag}");
    }
    assert!(!body.chars().any(|c| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200b}' | '\r')));
    let long = body.split("<bdi>").find(|text| text.starts_with("Long ")).unwrap().split("</bdi>").next().unwrap();
    assert!(long.chars().count() == 60 && long.ends_with('…'), "{long}");
    // Each name stands by itself as far as the direction of writing goes.
    for name in [HOSTILE[3], "Seabird Acoustics"] {
        let shown = name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;").replace('"', "&quot;");
        assert!(body.contains(&format!("<bdi>{shown}</bdi>")), "{name}");
    }
}

#[tokio::test]
async fn every_answer_is_guarded() {
    let world = World::new(Profile::Late2026).await;
    let at = served(&world.agent_with(ON).await).await;
    let cases = [
        (200, format!("GET / HTTP/1.1\r\nHost: {at}\r\n")),
        (200, "GET / HTTP/1.1\r\nHost: localhost:9999\r\n".to_owned()),
        (200, "GET /?page=%00%ff HTTP/1.1\r\nHost: [::1]:80\r\n".to_owned()),
        (200, "HEAD / HTTP/1.1\r\nHost: Status.Example.org\r\n".to_owned()),
        (204, format!("GET /favicon.ico HTTP/1.1\r\nHost: {at}\r\n")),
        (404, format!("GET /status HTTP/1.1\r\nHost: {at}\r\n")),
        (404, format!("GET /../../etc/passwd HTTP/1.1\r\nHost: {at}\r\n")),
        (405, format!("POST / HTTP/1.1\r\nHost: {at}\r\nContent-Length: 0\r\n")),
        (405, format!("DELETE /nowhere HTTP/1.1\r\nHost: {at}\r\n")),
        (405, format!("OPTIONS / HTTP/1.1\r\nHost: {at}\r\nOrigin: https://example.net\r\nAccess-Control-Request-Method: GET\r\n")),
        // Pages of others whose name points here.
        (421, "GET / HTTP/1.1\r\nHost: rebound.example.net\r\n".to_owned()),
        (421, format!("GET / HTTP/1.1\r\nHost: rebound.example.net:{}\r\n", at.port())),
        (421, format!("GET http://rebound.example.net/ HTTP/1.1\r\nHost: {at}\r\n")),
        (421, "GET / HTTP/1.1\r\nHost: localhost.example.net\r\n".to_owned()),
        (421, format!("GET / HTTP/1.1\r\nHost: {at}\r\nHost: rebound.example.net\r\n")),
        (421, "GET / HTTP/1.1\r\nHost: user@localhost\r\n".to_owned()),
        (421, "GET / HTTP/1.0\r\n".to_owned()),
    ];
    for (expected, request) in cases {
        let (status, head, body) = ask(at, &format!("{request}Connection: close\r\n\r\n")).await;
        assert_eq!(status, expected, "{request}\n{head}\n{body}");
        for header in [
            "content-security-policy: default-src 'none'; style-src 'sha256-",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "x-frame-options: deny",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(head.contains(header), "{header}: {request}\n{head}");
        }
        assert!(!head.contains("access-control") && !head.contains("set-cookie") && !head.contains("unsafe"), "{head}");
        assert_eq!(head.contains("allow: get, head"), status == 405, "{head}");
        assert_eq!(body.contains("<html"), status == 200 && !request.starts_with("HEAD"), "{request}");
    }
}

#[tokio::test]
async fn many_resources_are_shown_in_parts() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.patient_with(&world.config_text(ON)).await;
    for n in 0..230 {
        world.waldur.add_resource(world.offering, &world.project, &format!("llm-{n:03}"), &["kestrel-8b"], &[("max_budget", "50")]);
    }
    world.slow_beat(&agent).await;
    world.slow_beat(&agent).await;
    for resource in world.waldur.resources() {
        let n: i64 = resource.name.trim_start_matches("llm-").parse().unwrap();
        world.gateway.set_spend(&resource.uuid.simple().to_string(), Decimal::new(n * 10, 2));
    }
    world.slow_beat(&agent).await;
    let at = served(&agent).await;
    let mut names = Vec::new();
    for (part, links) in [("/", 1), ("/?page=2", 2), ("/?page=3", 1), ("/?page=4", 1)] {
        let page = get(at, part).await;
        let resources = section(&page, "resources");
        let here: Vec<String> = resources.split("<bdi>llm-").skip(1).map(|rest| rest.split('<').next().unwrap().to_owned()).collect();
        assert_eq!(resources.matches("?page=").count(), links, "{part}");
        if part != "/?page=4" {
            assert!(here.len() <= 100);
            names.extend(here);
        } else {
            assert!(names.ends_with(&here), "what is past the end is the end");
        }
    }
    let expected: Vec<String> = (0..230).rev().map(|n| format!("{n:03}")).collect();
    let shares = |names: &[String]| names.iter().map(|name| name.parse::<u32>().unwrap() * 10 / 50).collect::<Vec<_>>();
    assert_eq!(shares(&names), shares(&expected), "by the share of the budget");
    names.sort();
    names.reverse();
    assert_eq!(names, expected, "each once");
}

#[tokio::test]
async fn without_a_page_nothing_is_kept_and_nothing_listens() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.agent().await;
    world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    world.slow_beat(&agent).await;
    assert!(agent.config.page.is_none());
    assert!(!format!("{:?}", agent.seen).contains("aurora"));
}
