//! Reading a whole list, page by page, and proving that it is whole.
//!
//! A short list is dangerous: what is missing from it looks as if it did not exist. So pages are counted by our own
//! numbers on our own base URL (never by the addresses in `Link`, which name the server's idea of its host), rows are
//! told apart by uuid, and the sum must equal `X-Result-Count`.

use std::collections::HashSet;

use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::client::{Client, MAX_PAGE};
use crate::error::{Error, ErrorKind, Result};

/// Most pages read of one list; a server that goes on for ever is not a list.
const MAX_PAGES: u32 = 10_000;

/// A row of a list.
pub(crate) trait Row: DeserializeOwned {
    /// What tells rows apart; a row without it counts by itself.
    fn id(&self) -> Option<Uuid>;
}

/// One reading of a list from first to last page.
struct Reading<T> {
    rows: Vec<T>,
    /// The count the first page gave: the rows there were when the reading began.
    least: Option<usize>,
    /// The count the last page gave.
    count: Option<usize>,
    /// The last page named a next one, and that held nothing.
    cut_off: bool,
    /// The count went down between pages: a row was taken out, and one behind it moved to a page already read. The sum
    /// can be right all the same.
    shrank: bool,
}

impl<T> Reading<T> {
    fn adds_up(&self) -> bool {
        match (self.least, self.count) {
            // A row that is added pushes others back, so those are seen twice and none of them is missed.
            (Some(least), Some(count)) => (least..=count).contains(&self.rows.len()) && !self.shrank,
            _ => !self.cut_off,
        }
    }
}

impl Client {
    /// All rows of a list.
    ///
    /// Rows move between pages when the list changes underneath, so a list that does not add up is read once more from
    /// the start.
    pub(crate) async fn list<T: Row>(&self, path: &str, query: &[(&str, String)]) -> Result<Vec<T>> {
        self.list_as(path, query, |row: T| row).await
    }

    /// Like [`Client::list`], keeping of each row only what `keep` makes of it.
    pub(crate) async fn list_as<T: Row, U>(&self, path: &str, query: &[(&str, String)], keep: impl Fn(T) -> U) -> Result<Vec<U>> {
        let first = self.read_pages(path, query, &keep).await?;
        if first.adds_up() {
            return Ok(first.rows);
        }
        let second = self.read_pages(path, query, &keep).await?;
        if second.adds_up() {
            return Ok(second.rows);
        }
        let held = second.rows.len();
        let message = match second.count {
            Some(count) if count == held => {
                format!("the list became shorter while it was read, down to {count} rows")
            }
            Some(count) => format!("the server counts {count} rows and its pages hold {held}"),
            None => format!("the server named a page after {held} rows that holds nothing"),
        };
        Err(incomplete(path, message))
    }

    /// The rows of a list from which rows are taken out all the time, such as the open orders. What moved to a page already
    /// read may be missing, so absence says nothing; a list that does not add up for another reason is an error all the same.
    pub(crate) async fn moving_list<T: Row>(&self, path: &str, query: &[(&str, String)]) -> Result<Vec<T>> {
        let reading = self.read_pages(path, query, &|row: T| row).await?;
        if reading.shrank || reading.adds_up() { Ok(reading.rows) } else { self.list(path, query).await }
    }

    async fn read_pages<T: Row, U>(&self, path: &str, query: &[(&str, String)], keep: &impl Fn(T) -> U) -> Result<Reading<U>> {
        let mut reading = Reading { rows: Vec::new(), least: None, count: None, cut_off: false, shrank: false };
        let mut promised = false;
        let mut seen = HashSet::new();
        for page in 1..=MAX_PAGES {
            let mut query = query.to_vec();
            query.push(("page", page.to_string()));
            query.push(("page_size", self.page_size().to_string()));
            let answer = match self.get_answer(path, &query, MAX_PAGE).await {
                Ok(answer) => answer,
                // "Invalid page.": the list ended before this page. The count decides whether that is right.
                Err(error) if page > 1 && is_page_past_end(&error) => {
                    reading.cut_off = promised;
                    return Ok(reading);
                }
                Err(error) => return Err(error),
            };
            let rows: Vec<T> = answer.decode()?;
            let before = reading.rows.len();
            reading.rows.extend(rows.into_iter().filter(|row| row.id().is_none_or(|id| seen.insert(id))).map(keep));
            let count = answer.result_count();
            reading.shrank |= count < reading.count && count.is_some();
            reading.least = reading.least.or(count);
            reading.count = count;

            let nothing_new = reading.rows.len() == before;
            let at_end = match (reading.count, answer.has_next()) {
                (Some(count), _) => reading.rows.len() >= count,
                (None, Some(has_next)) => !has_next,
                // Neither header: the page size in force is unknown, so only an empty page is an end.
                (None, None) => false,
            };
            if nothing_new || at_end {
                reading.cut_off = nothing_new && promised;
                return Ok(reading);
            }
            promised = answer.has_next() == Some(true);
        }
        Err(incomplete(path, format!("the server still gives new rows after {MAX_PAGES} pages")))
    }
}

fn is_page_past_end(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Status { status: 404, html: false, .. })
}

fn incomplete(path: &str, message: String) -> Error {
    Error { method: "GET", path: format!("/api/{path}"), kind: ErrorKind::Incomplete { message } }
}
