//! Lists that are longer than a page, and lists that lie.

use std::ops::Range;

use serde_json::{Value, json};
use waldur_client::{ApiKeyFilter, ApiKeyState, Class, Client, ErrorKind};

use crate::recordings::{OFFERING, RESOURCE};
use crate::server::{Reply, Seen, Server, row_uuid, secret, settings, uuid};

fn rows(range: impl Iterator<Item = usize>) -> Value {
    range.map(|n| json!({"uuid": row_uuid(n).simple().to_string(), "state": "OK"})).collect()
}

fn past_end() -> Reply {
    Reply::json(404, json!({"detail": "Invalid page."}))
}

/// Page of a list of `total` rows by a server that gives at most `cap` rows.
fn page(seen: &Seen, total: usize, cap: usize) -> Reply {
    let asked: usize = seen.query("page_size").unwrap().parse().unwrap();
    let size = asked.min(cap);
    let start = (seen.page() - 1) * size;
    if start >= total && seen.page() > 1 {
        return past_end();
    }
    Reply::json(200, rows(start..total.min(start + size))).header("x-result-count", total)
}

async fn read(server: &Server) -> Result<Vec<usize>, waldur_client::Error> {
    let resources = server.client().resources(uuid(OFFERING), &[]).await?;
    Ok(resources.iter().map(|resource| usize::try_from(resource.uuid.as_u128()).unwrap() - 1).collect())
}

#[tokio::test]
async fn a_list_is_read_to_its_end_in_no_more_calls_than_pages() {
    for (total, calls) in [(0, 1), (1, 1), (99, 1), (100, 1), (101, 2), (200, 2), (250, 3)] {
        let server = Server::start(move |seen, _| page(seen, total, 300)).await;
        assert_eq!(read(&server).await.unwrap(), (0..total).collect::<Vec<_>>());
        assert_eq!(server.seen().len(), calls, "{total}");
    }
}

#[tokio::test]
async fn a_server_may_give_smaller_pages_than_asked_for() {
    let server = Server::start(|seen, _| page(seen, 95, 10)).await;
    assert_eq!(read(&server).await.unwrap().len(), 95);
    assert_eq!(server.seen().len(), 10);
}

#[tokio::test]
async fn without_a_count_the_link_says_where_the_end_is() {
    let server = Server::start(|seen, _| {
        let number = seen.page();
        let next = "<http://backend:8000/api/x/?page=9>; rel=\"next\"";
        let last = "<http://backend:8000/api/x/?page=1>; rel=\"prev\"";
        Reply::json(200, rows((number - 1) * 10..number * 10)).header("link", if number < 3 { next } else { last })
    })
    .await;
    assert_eq!(read(&server).await.unwrap().len(), 30);
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test]
async fn without_count_and_link_an_empty_or_missing_page_is_the_end() {
    for end in [past_end(), Reply::json(200, "[]")] {
        let server = Server::start(move |seen, _| match seen.page() {
            number @ 1..=3 => Reply::json(200, rows((number - 1) * 10..number * 10)),
            _ => end.clone(),
        })
        .await;
        assert_eq!(read(&server).await.unwrap().len(), 30);
    }
}

#[tokio::test]
async fn a_page_that_was_promised_and_holds_nothing_is_no_end() {
    for end in [past_end(), Reply::json(200, "[]")] {
        let server = Server::start(move |seen, _| match seen.page() {
            1 => Reply::json(200, rows(0..10)).header("link", "<http://x/>; rel=\"next\""),
            _ => end.clone(),
        })
        .await;
        assert!(matches!(read(&server).await.unwrap_err().kind, ErrorKind::Incomplete { .. }));
    }
}

#[tokio::test]
async fn the_next_page_is_asked_from_our_own_server_with_the_token() {
    let other = Server::always(Reply::json(200, "[]")).await;
    let link = format!("<http://{}/api/x/?page=2>; rel=\"next\"", other.address);
    let server = Server::start(move |seen, _| page(seen, 150, 100).header("link", &link)).await;
    assert_eq!(read(&server).await.unwrap().len(), 150);
    assert_eq!(other.seen().len(), 0);
    let seen = server.seen();
    assert_eq!(seen[1].query("page"), Some("2"));
    assert_eq!(seen[1].query("offering_uuid"), Some(OFFERING));
    assert!(seen.iter().all(|seen| seen.header("authorization").starts_with("Token ")));
}

#[tokio::test]
async fn a_count_that_never_fits_is_an_error_after_a_second_reading() {
    // More rows promised than there are; fewer; a full first page and nothing after it.
    for (count, real) in [(40, 30), (20, 30), (500, 100), (1, 0)] {
        let server = Server::start(move |seen, _| {
            let size = 100;
            let start = (seen.page() - 1) * size;
            Reply::json(200, rows(start.min(real)..real.min(start + size))).header("x-result-count", count)
        })
        .await;
        let error = read(&server).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Incomplete { .. }), "{count} {real}: {error}");
        assert_eq!(error.class(), Class::Transient);
        assert!(!error.may_have_happened());
        assert!(server.seen().len() <= 4);
    }
}

/// A page of a list whose rows change between the first call and the others.
fn moving(seen: &Seen, number: usize, before: Range<usize>, after: Range<usize>) -> Reply {
    let all: Vec<usize> = if number == 1 { before } else { after }.collect();
    let start = (seen.page() - 1) * 100;
    if start >= all.len() {
        return past_end();
    }
    let end = all.len().min(start + 100);
    Reply::json(200, rows(all[start..end].iter().copied())).header("x-result-count", all.len())
}

#[tokio::test]
async fn a_row_put_in_during_the_reading_hides_none_that_was_there() {
    // The row at the end of page 1 comes again on page 2; only the new first row is missed, as by a reading a moment earlier.
    let server = Server::start(|seen, number| moving(seen, number, 1..151, 0..151)).await;
    assert_eq!(read(&server).await.unwrap(), (1..151).collect::<Vec<_>>());
    // The third call finds the end; nothing is read again.
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test]
async fn open_orders_are_read_at_once_though_others_end_meanwhile() {
    let server = Server::start(|seen, number| moving(seen, number, 0..150, 1..150)).await;
    let orders = server.client().orders(uuid(OFFERING), &[waldur_client::OrderState::Executing]).await.unwrap();
    assert_eq!(orders.len(), 149);
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn a_row_taken_out_during_the_reading_makes_it_read_again() {
    // Row 100 moves to page 1 after that was read. The sum fits by luck, since row 0 is still counted.
    let server = Server::start(|seen, number| moving(seen, number, 0..150, 1..150)).await;
    assert_eq!(read(&server).await.unwrap(), (1..150).collect::<Vec<_>>());
    assert_eq!(server.seen().len(), 4, "two readings of two pages");
}

#[tokio::test]
async fn a_row_added_at_the_end_needs_no_second_reading() {
    let server = Server::start(|seen, number| moving(seen, number, 0..150, 0..151)).await;
    assert_eq!(read(&server).await.unwrap(), (0..151).collect::<Vec<_>>());
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn rows_that_come_twice_count_once() {
    let server = Server::start(|seen, _| {
        let range = if seen.page() == 1 { 0..100 } else { 90..120 };
        Reply::json(200, rows(range)).header("x-result-count", 120)
    })
    .await;
    assert_eq!(read(&server).await.unwrap(), (0..120).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_server_that_ignores_the_page_number_is_noticed() {
    let server = Server::start(|_, _| Reply::json(200, rows(0..100)).header("x-result-count", 300)).await;
    assert!(matches!(read(&server).await.unwrap_err().kind, ErrorKind::Incomplete { .. }));
    assert_eq!(server.seen().len(), 4);
}

#[tokio::test]
async fn a_failure_on_any_page_is_the_failure_of_the_list() {
    let server = Server::start(|seen, _| match seen.page() {
        2 => Reply::json(503, "{}").header("retry-after", 3),
        _ => page(seen, 300, 100),
    })
    .await;
    let error = read(&server).await.unwrap_err();
    assert_eq!(error.status(), Some(503));
    assert_eq!(error.retry_after().unwrap().as_secs(), 3);
}

#[tokio::test]
async fn a_missing_first_page_is_no_empty_list() {
    let server = Server::always(Reply::json(404, json!({"detail": "Not found."}))).await;
    assert_eq!(read(&server).await.unwrap_err().class(), Class::NotFound);
}

#[tokio::test]
async fn rows_of_others_are_left_out_when_a_filter_is_ignored() {
    let mine = json!({"uuid": row_uuid(1), "offering_uuid": OFFERING});
    let other = json!({"uuid": row_uuid(2), "offering_uuid": row_uuid(99)});
    let server = Server::always(Reply::json(200, json!([mine, other])).header("x-result-count", 2)).await;
    assert_eq!(read(&server).await.unwrap(), [1]);
}

#[tokio::test]
async fn api_keys_in_all_states() {
    let key = |n: usize, state: &str| {
        json!({"uuid": row_uuid(n), "resource_uuid": RESOURCE, "client_id": format!("r-{n}"),
               "state": state, "error_message": "", "modified": "2026-12-01T00:00:00Z"})
    };
    let body = json!([key(1, "OK"), key(2, "Deleted"), key(3, "Hibernating")]);
    let server = Server::always(Reply::json(200, body).header("x-result-count", 3)).await;
    let filter = ApiKeyFilter { resource: Some(uuid(RESOURCE)), ..ApiKeyFilter::default() };
    let keys = server.client().api_keys(filter).await.unwrap();
    let states: Vec<_> = keys.iter().map(|key| key.state.clone()).collect();
    assert_eq!(states, [ApiKeyState::Ok, ApiKeyState::Deleted, ApiKeyState::Other("Hibernating".into())]);
    assert_eq!(keys[0].client_id, "r-1");
    assert_eq!(keys[0].resource, Some(uuid(RESOURCE)));
    let seen = server.seen();
    assert_eq!(seen[0].query("resource_uuid"), Some(RESOURCE));
    assert_eq!(seen[0].query("state"), None);
}

#[tokio::test]
async fn servers_without_api_keys_say_so() {
    let page = "<!doctype html><html><head><title>Not Found</title></head></html>";
    let reply = Reply::new(404, page).header("content-type", "text/html; charset=utf-8");
    let server = Server::always(reply).await;
    let error = server.client().api_keys(ApiKeyFilter::default()).await.unwrap_err();
    assert_eq!(error.class(), Class::NoSuchRoute);
}

#[tokio::test]
async fn the_page_size_asked_for_is_the_setting() {
    let server = Server::start(|seen, _| page(seen, 7, 300)).await;
    let mut settings = settings(server.url());
    settings.page_size = 3;
    settings.auth = waldur_client::Auth::Token(secret("t"));
    let client = Client::new(settings).unwrap();
    assert_eq!(client.resources(uuid(OFFERING), &[]).await.unwrap().len(), 7);
    assert_eq!(server.seen().len(), 3);
}
